"""What a step sends: collectives as schedules of sends with dependencies, their closed-form costs and lower bounds.

`algorithms` makes schedules, `schedule` is their form, `symbolic` proves that every contribution arrives exactly once
and finds the critical path, `costs` has the same times in closed form for columns of plans, and `registry` knows all of
them by name. Nothing here sends.
"""

from weft.collectives.schedule import Builder, Schedule

__all__ = ["Builder", "Schedule"]
