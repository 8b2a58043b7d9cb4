"""What a supervisor tells a rank when it starts it: where snapshots go, what can be restored, what will go wrong.

Data only, sent to another process.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from weft.specs.faults import Fault
from weft.specs.job import PlanSpec
from weft.training.recovery.piece import Piece
from weft.training.recovery.snapshot_keeper import Snapshot

PEERS = "peers"
"""The tier of a state that survivors of the step still have: nothing is done again."""
START = "start"
"""The tier of last resort: the weights that the seed gives, at step 0."""
START_OVER = (
    "put a good copy back, or begin at step 0 again with --start-over (in a loop: weft.start(..., start_over=True),"
    ' or resume="start-over" of weft.survive)'
)
"""What can be done where nothing is left to be restored."""


@dataclass(frozen=True, slots=True)
class Stored:
    """A piece of a snapshot as it can be taken back."""

    piece: Piece
    """Which part of which tensor."""
    digest: int
    """What the ranks agreed on."""
    nodes: tuple[int, ...]
    """Failure domains that hold it."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A state that may be restored."""

    tier: str
    """memory, disk, checkpoint or start."""
    step: int
    """Steps done in it."""
    snapshot: Snapshot = (0, 0)
    """Which snapshot, in memory or on disk."""
    pieces: Mapping[str, Stored] = field(default_factory=dict)
    """Its pieces, in memory or on disk."""

    @property
    def name(self) -> tuple[str, Snapshot, int]:
        """Return what tells it from other candidates."""
        return (self.tier, self.snapshot, self.step)

    def __str__(self) -> str:
        return "the start" if self.tier == START else f"the {self.tier} of step {self.step}"


@dataclass(frozen=True, slots=True)
class Orders:
    """What one rank gets from the supervisor."""

    nodes: tuple[int, ...]
    """Failure domain of each rank."""
    keepers: Mapping[int, str]
    """Address of each domain's keeper that is alive."""
    every: int
    """Steps between snapshots; 0 for none."""
    candidates: tuple[Candidate, ...]
    """What can be restored, the best first."""
    folder: str | None = None
    """The run folder to go on with; a new one where absent."""
    plan: PlanSpec | None = None
    """The plan for the ranks that are there; the job's own where absent."""
    redo_until: int = 0
    """Steps that an earlier generation had done already."""
    in_step: bool = False
    """Whether this rank outlives others."""
    faults: tuple[Fault, ...] = ()
    """What will go wrong in this rank."""
