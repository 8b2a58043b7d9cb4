"""Kubernetes: `weft.cluster`'s decisions, carried out on a real cluster of any size.

`client` and `watching` talk to the server; `objects` are our kinds; `engine` keeps the caches, asks `weft.cluster` what
is to be done and writes it down before `gangs` is asked for the difference; `acting` plays kubelets for rehearsals.
Nothing here decides who runs where.
"""
