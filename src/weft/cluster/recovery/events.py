"""The words of a run's survival: slots and policy, the events that are seen, the actions that follow.

Data only; what follows from what is `survival`'s business.
"""

from dataclasses import dataclass, field
from typing import Literal

from weft.cluster.recovery.limits import LimitRule
from weft.core.units import PICOSECONDS_PER_SECOND, Picoseconds

_ZERO = Picoseconds(0)
_HOUR = Picoseconds(3600 * PICOSECONDS_PER_SECOND)


@dataclass(frozen=True, slots=True)
class RankSlot:
    """A place where one rank can run."""

    number: int
    """Its number in the pool."""
    node: int
    """Its failure domain: what is lost together."""


@dataclass(frozen=True, slots=True)
class RecoveryPolicy:
    """What may be done when hardware is lost, and how often."""

    kind: Literal["spare", "shrink", "wait"]
    """A spare takes over (or else it shrinks), the job goes on with fewer replicas, or it waits."""
    wanted: int
    """Data-parallel replicas when all is well."""
    replica: int = 1
    """Ranks of one replica."""
    widths: tuple[int, ...] = ()
    """Numbers of replicas that the job's plan allows below `wanted`."""
    restarts: int = 100
    """Most restarts of one run."""
    futile: int = 3
    """Most restarts in a row that get no further."""
    patience_ps: Picoseconds = _HOUR
    """Longest wait for hardware."""
    rule: LimitRule = field(default_factory=LimitRule)
    """How limits are learned."""
    restart_all: str | None = "keeping the survivors of a lost rank was not asked for"
    """Why every rank is started again when one is lost; none where the others keep their processes and their state."""

    def width_for(self, slots: int) -> int | None:
        """Return how many replicas to run on `slots` slots, or nothing where the job must wait."""
        fits = slots // self.replica
        if fits >= self.wanted:
            return self.wanted
        narrower = [width for width in self.widths if width <= fits]
        return None if self.kind == "wait" else max(narrower, default=None)


@dataclass(frozen=True, slots=True)
class Cause:
    """Why a generation ends."""

    kind: str
    """killed, exited, stopped, hung, error, diverged, refused, lost, coordinator (died) or grow."""
    rank: int | None
    """The rank that is blamed, where one is."""
    text: str
    """What was seen, in words."""
    victim: bool = False
    """Whether the blamed rank only speaks of another's death."""
    fatal: bool = False
    """Whether trying again is pointless."""
    slot: RankSlot | None = None
    """Where the blamed rank ran."""
    detected_ps: Picoseconds = _ZERO
    phase_since_ps: Picoseconds = _ZERO
    """When the job last got further."""
    step: int = 0
    """Steps done by then."""


@dataclass(frozen=True, slots=True)
class HangEvidence:
    """What was found about one rank of a run that stands still."""

    rank: int
    frozen: bool
    """Whether the operating system says that it is stopped."""
    silent_ps: Picoseconds
    """Since when its heart has not been heard."""
    place: tuple[int, int]
    """Its last step, and how far it got in it."""


class RecoveryEvent:
    """Something that was seen."""


class RecoveryAction:
    """Something to be done."""


@dataclass(frozen=True, slots=True)
class _OfRank(RecoveryEvent):
    generation: int
    """The generation that it belongs to."""
    rank: int


@dataclass(frozen=True, slots=True)
class Joined(_OfRank):
    """A rank is in the group."""


@dataclass(frozen=True, slots=True)
class StateRestored(_OfRank):
    """A rank has its state."""

    step: int
    """Steps done in it."""


@dataclass(frozen=True, slots=True)
class Stepped(_OfRank):
    """A rank has finished a step."""

    step: int
    """Steps done."""


@dataclass(frozen=True, slots=True)
class Phase(_OfRank):
    """A rank begins something that has its own duration."""

    name: str


@dataclass(frozen=True, slots=True)
class Done(_OfRank):
    """A rank has finished all of its work."""


@dataclass(frozen=True, slots=True)
class Died(_OfRank):
    """A rank's process has gone, or will never go on."""

    kind: str
    """killed (by a signal), exited, or stopped (by a signal, and not continued)."""
    text: str
    """How, in words."""


@dataclass(frozen=True, slots=True)
class Raised(_OfRank):
    """A rank has failed with an exception."""

    text: str
    fatal: bool = False
    """Whether the request itself is wrong, so that another try ends alike."""
    victim: bool = False
    """Whether it speaks of another rank's end: a closed connection."""
    stands_by: bool = False
    """Whether its process waits for an order."""


@dataclass(frozen=True, slots=True)
class Verified(RecoveryEvent):
    """The restored state is the one that was agreed."""

    generation: int


@dataclass(frozen=True, slots=True)
class Refused(RecoveryEvent):
    """The restored state is not the one that was agreed."""

    generation: int
    rank: int | None
    """Who is wrong, where that is known."""
    text: str
    """In what way."""


@dataclass(frozen=True, slots=True)
class Committed(RecoveryEvent):
    """A snapshot is complete and agreed upon."""

    generation: int
    step: int
    """Of which step."""


@dataclass(frozen=True, slots=True)
class Disagreed(RecoveryEvent):
    """Ranks that should be equal are not."""

    generation: int
    rank: int | None
    """The minority, where there is one."""
    text: str
    """Which tensor, at which step."""


@dataclass(frozen=True, slots=True)
class Examined(RecoveryEvent):
    """What was found about the ranks of a run that stands still."""

    generation: int
    evidence: tuple[HangEvidence, ...]
    """Rank by rank."""


@dataclass(frozen=True, slots=True)
class Fenced(RecoveryEvent):
    """No process of a generation is left."""

    generation: int


@dataclass(frozen=True, slots=True)
class Released(RecoveryEvent):
    """All survivors of a generation have let go of it and stand by."""

    generation: int


@dataclass(frozen=True, slots=True)
class Obstacle(RecoveryEvent):
    """Why survivors of a lost rank cannot be kept from now on, or that they can."""

    text: str | None
    """Why, where they cannot."""


@dataclass(frozen=True, slots=True)
class Lost(RecoveryEvent):
    """Hardware is gone."""

    slots: frozenset[int]
    text: str


@dataclass(frozen=True, slots=True)
class Returned(RecoveryEvent):
    """Hardware is back."""

    slots: frozenset[int]


@dataclass(frozen=True, slots=True)
class Asked(RecoveryEvent):
    """Somebody wants the run to stop."""


@dataclass(frozen=True, slots=True)
class Tick(RecoveryEvent):
    """Time has passed."""


@dataclass(frozen=True, slots=True)
class StartGeneration(RecoveryAction):
    """Start the ranks of a generation."""

    generation: int
    width: int
    """Data-parallel replicas."""
    slots: tuple[RankSlot, ...]
    """Where each rank runs."""
    kept: frozenset[int] = frozenset()
    """Ranks that keep their processes and their state."""
    because: str | None = None
    """Why none does, after a failure."""


@dataclass(frozen=True, slots=True)
class Verify(RecoveryAction):
    """Hold the restored state against what was agreed, and answer with `Verified` or `Refused`."""

    generation: int


@dataclass(frozen=True, slots=True)
class Examine(RecoveryAction):
    """Look at every rank and answer with `Examined`."""

    generation: int


@dataclass(frozen=True, slots=True)
class Kill(RecoveryAction):
    """End every process of a generation and answer with `Fenced`."""

    generation: int
    cause: Cause


@dataclass(frozen=True, slots=True)
class LetGo(RecoveryAction):
    """End the blamed rank, have all others let go of their process groups, and answer with `Released`."""

    generation: int
    cause: Cause


@dataclass(frozen=True, slots=True)
class Resumed(RecoveryAction):
    """Write down that the first step after a recovery is done."""

    generation: int
    step: int
    """Steps done."""


@dataclass(frozen=True, slots=True)
class Regained(RecoveryAction):
    """Write down that the run is again as far as it was before the failure."""

    generation: int
    step: int
    """Steps done."""


@dataclass(frozen=True, slots=True)
class Conclude(RecoveryAction):
    """End the run."""

    failure: str | None
    """Why it failed, where it did."""
