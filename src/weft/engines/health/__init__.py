"""Health programs: what can be seen of a machine without touching it, and what shows only under test.

Each program says what it can catch, by which threshold, how long it takes and how often it was wrong on healthy
machines. They report; what follows is decided in `cluster.quarantine`. Passive ones read (`kernel`, `counters`, `nvml`,
`witnesses`), active ones work the machine (`active`). `programs` lists them and `__main__` runs them.
"""
