"""Packets in simulated time: one definition of what happens (docs/simulation.md), a readable reference, transports.

- `network`: the fabric as ports with rates, delays and queue limits; `traffic` and `faults`: what a scenario asks for.
- `transports`: MRC and what it is compared with, behind one small base; `hosts`: what NICs do, as rules.
- `reference`: the slots, written to be read.
- `results`, `simulate`: from a scenario to a report.
"""
