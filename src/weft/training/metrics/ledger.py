"""Where the time of a run goes: every picosecond of every rank in exactly one class.

A `Ledger` is a stopwatch with a stack: entering a class stops the one around it, leaving resumes it, and the bottom of
the stack is `idle`. One reading of the clock ends one class and begins the next, so the classes sum to the wall time by
construction, in integers. Each rank keeps one, in the thread that trains; `merged` joins those of many ranks.

What is measured directly: the time in which the training thread was inside a part of the program. On a GPU the host
runs ahead, so a class holds device time only where its end waits for the device. What is derived:

- Exposed communication is the time in which a rank *waits* for a collective (`wait`, or a blocking call); transfers
  behind arithmetic cost nothing and are not seen.
- A pipeline's bubble cannot be measured apart from communication: both are a wait in a receive. The wait is
  entered as exposed communication; of it, `bubble_ps` (the share that the schedule itself leaves empty with stages of
  the measured compute time) is moved to `bubble` with `Ledger.move`, never more than was waited. What stays is what
  transfers and unequal stages cost beyond the schedule.

No torch, no threads; the clock is given.
"""

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from weft.core.clock import Clock
from weft.core.units import PICOSECONDS_PER_SECOND, FlopsPerSecond, Picoseconds


class TimeClass(StrEnum):
    """What a rank's time is spent on."""

    COMPUTE = "compute"
    """Forward, backward, optimizer."""
    EXPOSED_COMMUNICATION = "exposed_communication"
    """Waiting for other ranks' data with nothing else to do."""
    BUBBLE = "bubble"
    """Waiting because the pipeline's schedule leaves this stage empty."""
    INPUT = "input"
    """Waiting for the next batch."""
    CHECKPOINT = "checkpoint"
    """Copying state for a checkpoint, or waiting for one to be written."""
    EVALUATION = "evaluation"
    """Judging the model on held-out data."""
    START_UP = "start_up"
    """From the start of the processes to the first step."""
    DETECT = "detect"
    """From a failure to its being known."""
    REFORM = "reform"
    """Building the group of ranks again."""
    RESTORE = "restore"
    """Loading state."""
    REDO = "redo"
    """Doing steps again that were lost."""
    VERIFY = "verify"
    """Computing something twice in order to compare."""
    IDLE = "idle"
    """Everything else, such as the end."""


@dataclass(frozen=True, slots=True)
class Times:
    """Time by class over some span."""

    by_class: Mapping[TimeClass, Picoseconds]
    """Classes in which any time was spent."""

    @property
    def wall_ps(self) -> Picoseconds:
        """Return the length of the span: the sum of all classes."""
        return Picoseconds(sum(self.by_class.values()))

    def seconds(self) -> dict[str, float]:
        """Return seconds by class name, in the classes' own order."""
        return {kind.value: self.by_class[kind] / PICOSECONDS_PER_SECOND for kind in TimeClass if kind in self.by_class}

    def share(self, kind: TimeClass) -> float:
        """Return which part of the span went to `kind`."""
        return self.by_class.get(kind, 0) / self.wall_ps if self.wall_ps else 0.0

    def __add__(self, other: "Times") -> "Times":
        """Return the times of two spans together."""
        return Times(_added([self, other]))

    def __sub__(self, other: "Times") -> "Times":
        """Return what this span has beyond an earlier part of it."""
        left = {kind: span - other.by_class.get(kind, 0) for kind, span in self.by_class.items()}
        return Times({kind: Picoseconds(span) for kind, span in left.items() if span})


class Ledger:
    """One rank's stopwatch."""

    def __init__(self, clock: Clock, spent: Mapping[TimeClass, int] | None = None) -> None:
        """Begin now, idle; `spent` is what another process has booked before."""
        self._clock = clock
        self._since = clock.now()
        self._stack: list[TimeClass] = [TimeClass.IDLE]
        self._spent: dict[TimeClass, int] = dict(spent or {})
        self._marked = Times({})

    def enter(self, kind: TimeClass) -> None:
        """Stop the class around and begin `kind`."""
        self._turn()
        self._stack.append(kind)

    def leave(self) -> None:
        """Stop the innermost class and go on with the one around it."""
        assert len(self._stack) > 1, "left more classes than were entered"
        self._turn()
        self._stack.pop()

    @contextlib.contextmanager
    def spending(self, kind: TimeClass) -> Iterator[None]:
        """Spend the time inside a `with` block on `kind`, less what inner blocks spend on theirs."""
        self.enter(kind)
        try:
            yield
        finally:
            self.leave()

    def move(self, source: TimeClass, target: TimeClass, span: Picoseconds) -> Picoseconds:
        """Take up to `span` of the time since the last `mark` from `source` to `target`; returns what was moved."""
        self._turn()
        there = self._spent.get(source, 0) - self._marked.by_class.get(source, 0)
        moved = max(0, min(span, there))
        self._spent[source] = self._spent.get(source, 0) - moved
        self._spent[target] = self._spent.get(target, 0) + moved
        return Picoseconds(moved)

    def mark(self) -> Times:
        """Return the times since the mark before (or the start), such as those of one step."""
        total = self.total()
        since = total - self._marked
        self._marked = total
        return since

    def total(self) -> Times:
        """Return the times since the start, until now."""
        self._turn()
        return Times({kind: Picoseconds(span) for kind, span in self._spent.items() if span})

    def _turn(self) -> None:
        """Book the time since the last turn on the innermost class."""
        now = self._clock.now()
        kind = self._stack[-1]
        self._spent[kind] = self._spent.get(kind, 0) + now - self._since
        self._since = now


@dataclass(frozen=True, slots=True)
class Merged:
    """The times of many ranks over the same span."""

    ranks: int
    """How many."""
    total: Times
    """Rank-time: the sum over ranks."""
    longest: Times
    """By class, the most that any rank spent; does not sum to a wall time."""

    def mean_seconds(self) -> dict[str, float]:
        """Return seconds by class of the average rank; they sum to the average wall time."""
        return {name: seconds / self.ranks for name, seconds in self.total.seconds().items()}


def merged(times: Sequence[Times]) -> Merged:
    """Return the times of all ranks as one."""
    assert times, "there is at least one rank"
    kinds = {kind for one in times for kind in one.by_class}
    longest = {kind: max(one.by_class.get(kind, Picoseconds(0)) for one in times) for kind in kinds}
    return Merged(len(times), Times(_added(times)), Times(longest))


def bubble_ps(compute_ps: Picoseconds, stages: int, micro_batches: int, chunks: int = 1) -> Picoseconds:
    """Return the time that one stage must wait in a step by the schedule alone.

    A 1F1B or GPipe step of p stages and m micro-batches is (m + p - 1) slots long, m of them busy; with v model chunks
    on each rank (interleaved) the empty slots are v times shorter. Narayanan et al., arXiv 2104.04473, section 2.2.
    """
    return Picoseconds(compute_ps * (stages - 1) // (micro_batches * chunks))


def mfu(flops_per_token: float, tokens_per_s: float, peak: FlopsPerSecond, ranks: int = 1) -> float:
    """Return the model FLOPs utilisation: arithmetic that the model needs over what `ranks` devices could do."""
    return flops_per_token * tokens_per_s / (peak * ranks)


def _added(times: Sequence[Times]) -> dict[TimeClass, Picoseconds]:
    spent: dict[TimeClass, Picoseconds] = {}
    for one in times:
        for kind, span in one.by_class.items():
            spent[kind] = Picoseconds(spent.get(kind, 0) + span)
    return spent
