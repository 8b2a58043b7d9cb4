"""Health checks: what can be seen of a machine without touching it, and what shows only under test.

Each check says what it detects, by which threshold, how long it takes and how often it was wrong on healthy machines.
Checks report; what follows is decided in `cluster.health.quarantine`. Passive ones read (`kernel_log`, `counters`,
`nvml`, `external_reports`), active ones load the machine (`active_tests`). `registry` lists them, `__main__` runs them.
"""
