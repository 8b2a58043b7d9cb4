"""A run's recovery, handed from a coordinator that has died to the one after it. Pure.

What the next one must know fits into plain values; everything else (who has joined, which step is going on) died with
the generation, which is fenced and started again like after any other failure, within the same limits.
"""

from collections.abc import Mapping
from typing import Any

from weft.cluster.recovery.events import Cause, RecoveryAction
from weft.cluster.recovery.machine import RecoveryMachine
from weft.core.units import Picoseconds

_KEPT = (
    "began_ps", "generation", "width", "assigned", "reached", "learned", "asked", "restarts", "futile", "_last",
    "_begins_at", "_said", "_phase_since_ps",
)  # fmt: skip
_LOST = "_lost"


def kept(machine: RecoveryMachine) -> dict[str, Any]:
    """Return what the next coordinator must know of a run's recovery."""
    return {**{name: getattr(machine, name) for name in _KEPT}, _LOST: sorted(getattr(machine, _LOST))}


def taken_over(
    machine: RecoveryMachine, state: Mapping[str, Any], text: str, now: Picoseconds
) -> tuple[RecoveryAction, ...]:
    """Go on with a run whose last coordinator has died, as `text` says; returns what is to be done."""
    for name in _KEPT:
        setattr(machine, name, state[name])
    setattr(machine, _LOST, set(state[_LOST]))
    return machine.give_up_generation(Cause("coordinator", None, text), now)
