"""What agents and their coordinator say to each other, and the few times that keep them from acting at odds.

An agent that has not heard its coordinator for `LEASE_S` ends its ranks; the coordinator gives a silent agent up only
after `SILENCE_S`, which is longer: so what it starts elsewhere never runs beside what was there.
"""

from dataclasses import dataclass
from typing import get_args

from weft.cluster.recovery.events import Cause, HangEvidence, RankSlot
from weft.cluster.recovery.limits import LearnedLimit, LimitRule
from weft.engines.supervisor.incidents import Incident
from weft.engines.supervisor.rank_host import Heard, RankStart
from weft.engines.supervisor.snapshots import Commit
from weft.specs.faults import Fault
from weft.specs.job import PlanSpec
from weft.training.launch.wire_values import WireValues
from weft.training.recovery.orders import Candidate, Orders, Stored
from weft.training.recovery.piece import Piece

BEAT_S = 1.0
LEASE_S = 5.0
SILENCE_S = 8.0


@dataclass(frozen=True, slots=True)
class Hello:
    """An agent presents itself."""

    place: int
    """Which of the hosts it is."""
    incarnation: str
    """Tells this process from every other: memory of another one is gone."""
    machine: str
    """Tells machines apart."""


@dataclass(frozen=True, slots=True)
class Welcome:
    """A coordinator takes an agent."""

    epoch: int
    """Whose orders these are: an agent obeys the highest alone."""
    nodes: tuple[int, ...]
    """Failure domains of the agent's host."""


@dataclass(frozen=True, slots=True)
class HostCall:
    """A coordinator wants something done."""

    name: str
    """What; a method of the host, or "memory." and one of its memory."""
    arguments: tuple[object, ...]
    answered: bool
    """Whether it waits for an answer."""


@dataclass(frozen=True, slots=True)
class HostAnswer:
    """What came of a call."""

    value: object


@dataclass(frozen=True, slots=True)
class Ending:
    """How a run ended."""

    kind: str
    """finished, stopped, alone, or the name of an error."""
    text: str = ""
    """The error's sentence."""


WIRE = WireValues(
    (
        *get_args(Heard), Candidate, Cause, Commit, Ending, Fault, HangEvidence, Hello, HostAnswer, HostCall, Incident,
        LearnedLimit, LimitRule, Orders, Piece, PlanSpec, RankSlot, RankStart, Stored, Welcome,
    )
)  # fmt: skip
BEAT, ASKED = "beat", "asked"
