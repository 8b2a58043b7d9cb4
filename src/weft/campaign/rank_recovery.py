"""Whether survivors of a loss keep their state: asked of the trainer's own recovery machine, once for each case.

The machine decides rank by rank. Here three ranks stand for all of a gang, one for each unit that is lost together, and
the machine is led to its running state and shown the loss; what it orders first is the answer. Today's trainer replaces
one lost rank inside the step; a campaign takes the ranks of a unit as one.
"""

from functools import cache
from typing import Literal

from weft.cluster.recovery.events import (
    Joined,
    LetGo,
    Lost,
    Obstacle,
    Raised,
    RankSlot,
    RecoveryPolicy,
    StateRestored,
    Stepped,
    Verified,
)
from weft.cluster.recovery.machine import RecoveryMachine
from weft.core.units import Picoseconds

Loss = Literal["hardware", "software"]
_RANKS = 3


@cache
def keeps_survivors(*, in_step: bool, loss: Loss, lost: int, replaced: bool) -> bool:
    """Return whether ranks that are not lost keep their processes and their state."""
    wanted = RecoveryPolicy("spare", _RANKS, widths=(1, 2))
    policy = RecoveryPolicy("spare", _RANKS, widths=(1, 2), restart_all=None if in_step else wanted.restart_all)
    slots = tuple(RankSlot(number, number) for number in range(_RANKS + (lost if replaced else 0)))
    machine = RecoveryMachine(policy, slots)
    now = Picoseconds(0)
    machine.start(now)
    for rank in range(_RANKS):
        machine.handle(Joined(0, rank), now)
        machine.handle(StateRestored(0, rank, 0), now)
    machine.handle(Verified(0), now)
    for rank in range(_RANKS):
        machine.handle(Stepped(0, rank, 1), now)
    machine.handle(Obstacle(None), now)
    seen = Raised(0, 0, "it failed") if loss == "software" else Lost(frozenset(range(min(lost, 2))), "it is lost")
    return any(isinstance(each, LetGo) for each in machine.handle(seen, now))
