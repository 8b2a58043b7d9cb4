"""Kubernetes: `weft.cluster`'s decisions, carried out on a real cluster of any size.

`api` reaches the server and holds our CRDs; `controller` runs one pure `reconcile` over cached objects and writes what
it answers, the status before the pods; `pod` is what runs inside a pod; `commands` is the client side of what people
type. Nothing here decides who runs where.
"""
