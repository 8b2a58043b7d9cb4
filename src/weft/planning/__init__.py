"""How a model is spread and what a step and a run cost: memory, time, the plan search, goodput, power, placement.

Pure arithmetic over specs and columns. `report.plan_job` puts the parts together; `rehearsal` lays its figures beside
simulated and measured ones. Nothing here starts a process, reads a clock or loads torch.
"""
