"""Where each rank stands when one of them was lost, and what follows for all. Pure.

A step commits when its sums are exchanged: a rank that has got through `Step.reduce` knows that every other one has the
gradients too, for its last sums need something from everybody. So of the survivors some may have made an update that
the others have not, and then those have all that they need to make it by themselves. They are never two steps apart.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class FinishedStep:
    """What a rank knows of a step whose sums are exchanged, and needs to end it."""

    number: int
    """Counted from 0."""
    loss: float
    gradient_norm: float
    learning_rate: float
    stop: bool
    """Whether some rank was asked to stop."""
    replica_seconds: tuple[float, ...]

    @property
    def done(self) -> int:
        """Return the steps done after it."""
        return self.number + 1


@dataclass(frozen=True, slots=True)
class Owed:
    """What is still to be done at the end of a step, by all ranks together."""

    line: bool = True
    """Its line in the metrics."""
    evaluation: bool = False
    save: bool = False
    """Its checkpoint."""
    snapshot: bool = True
    """Its snapshot, where one is due."""


@dataclass(frozen=True, slots=True)
class OnRecord:
    """What rank 0 finds written down."""

    line: int
    """The newest step with a line."""
    evaluation: int
    """The newest step with an evaluation."""
    saved: tuple[int, ...]
    """Steps with whole checkpoints."""


@dataclass(frozen=True, slots=True)
class Standing:
    """Where one rank stands."""

    done: int
    """Updates that it has made; none for one that takes a lost rank's place."""
    new: bool = False
    """Whether it takes the lost rank's place."""
    finished: FinishedStep | None = None
    """Its newest step whose sums were exchanged."""
    open: bool = False
    """Whether the end of that step is still owed."""
    tensors: tuple[str, ...] = ()
    """What its state consists of."""
    carried: Mapping[str, Any] | None = None
    """Plain values that a rank needs besides its tensors to go on like this one."""
    written: OnRecord | None = None
    """What is written down, where it is rank 0."""


@dataclass(frozen=True, slots=True)
class Due:
    """What belongs to the end of a step."""

    evaluation: bool
    save: bool


@dataclass(frozen=True, slots=True)
class Continuation:
    """What follows for all."""

    step: int
    """Updates that count: all go on from there."""
    source: int
    """The rank that gives its state to the new one."""
    late: frozenset[int]
    """Ranks that have the gradients of the last of these updates and must still make it."""
    finished: FinishedStep | None
    """The last of these updates."""
    open: bool
    """Whether somebody has not ended that step."""


def continuation(standings: Sequence[Standing]) -> Continuation:
    """Return what the ranks' `standings` amount to; raises `ValueError` where they cannot have come about."""
    survivors = {rank: one for rank, one in enumerate(standings) if not one.new}
    if not survivors:
        raise ValueError("nobody is left that has the state")
    step = max(one.done for one in survivors.values())
    holders = [rank for rank, one in survivors.items() if one.done == step]
    late = frozenset(survivors) - frozenset(holders)
    if any(standings[rank].done != step - 1 for rank in late):
        raise ValueError(f"the survivors are more than one step apart: {[one.done for one in survivors.values()]}")
    first = standings[holders[0]]
    if any(standings[rank].tensors != first.tensors for rank in holders):
        raise ValueError("the survivors' states do not consist of the same tensors")
    return Continuation(
        step, holders[0], late, first.finished, bool(late) or any(standings[rank].open for rank in holders)
    )


def owed(course: Continuation, due: Due, written: OnRecord) -> Owed | None:
    """Return what is left to be done of the last step, or nothing.

    What rank 0 has put down decides: it may have died right before, or have got further than the others.
    """
    found = Owed(
        line=written.line < course.step,
        evaluation=due.evaluation and written.evaluation < course.step,
        save=due.save and course.step not in written.saved,
        snapshot=course.open,
    )
    nothing = not (found.line or found.evaluation or found.save or found.snapshot)
    return None if course.step == 0 or course.finished is None or nothing else found
