"""Who runs where and what to do when something breaks: decisions only, carried out by engines and simulations.

`plan(snapshot, now_ms)` returns actions; `ClusterState` and `decide` are the same for those who plan again and again.
"""
