"""Packets in simulated time: one definition of what happens (docs/simulation.md), a readable and a compiled simulator.

- `setup`, `run`, `report`: from a scenario to a report; `comparison`, `sweeps` and `step_table` run many.
- `workload`: who sends what to whom; `model`: the network, flows, faults and records that both simulators share.
- `transports`: MRC and what it is compared with; `host`: what NICs do, as rules.
- `reference`: the slots, written to be read; `kernel`: the same, compiled.
"""
