"""The words of a pool: nodes, where they stand, what was seen of them, and their states.

Data only. Which state follows from which is `node_life`'s business, what is thought of a node `health`'s. Times are
integers in milliseconds since an epoch that the engine chooses: picoseconds in 64 bits would end after 106 days.
"""

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Literal

Override = Literal["", "keep", "out"]
"""An operator's word: none, never take it out by yourself, or never return it by yourself."""
Severity = Literal["note", "warning", "fatal"]
"""What a report weighs: a count towards the lemon score, a suspicion, or proof."""


class NodeState(StrEnum):
    """Where a node stands in its life."""

    JOINING = "joining"
    """Known, not yet tested."""
    PREFLIGHT = "preflight"
    """Its first test runs."""
    READY = "ready"
    """It takes work."""
    SUSPECT = "suspect"
    """Something was seen; it keeps its work and gets no more."""
    QUARANTINED = "quarantined"
    """It is out, and holds no work."""
    DRAINING = "draining"
    """It gets no more work and is waited for until its jobs are gone."""
    TESTING = "testing"
    """It is being found out what is wrong."""
    REPAIRING = "repairing"
    """Somebody works on it."""
    VALIDATING = "validating"
    """It is tested before it returns."""
    RETIRED = "retired"
    """It does not come back."""


@dataclass(frozen=True, slots=True)
class Location:
    """Where a node stands; numbers are dense ids within the site."""

    domain: int = 0
    """Scale-up domain."""
    rack: int = 0
    """Rack: what shares a power shelf."""
    t0: int = 0
    """First-tier switch (of every plane) that its NICs hang on."""
    pod: int = 0
    """T0s that share their T1s."""
    feeder: int = 0
    """Power feeder of its rack."""


@dataclass(frozen=True, slots=True)
class NodeEvidence:
    """One thing that was seen of a node."""

    check: str
    """Which check saw it: "silent", "xid", "ecc", "matmul", "trainer", ..."""
    at_ms: int
    severity: Severity = "warning"
    text: str = ""
    """What was seen, in words."""
    job: str = ""
    """The job that was hit, where there was one."""
    gpu: int | None = None
    """The GPU of the node that it is about, where it is about one."""
    repair: str = ""
    """The repair that it calls for (`health.tickets.REPAIRS`), where that is not the one of its check's name."""


@dataclass(frozen=True, slots=True)
class Node:
    """One server: what is lost and repaired together."""

    number: int
    """Dense id; also its position in a snapshot."""
    name: str
    """What people call it."""
    gpus: int
    """GPUs in it, the broken ones included."""
    place: Location = Location()
    """Where it stands."""
    state: NodeState = NodeState.READY
    """Where it is in its life."""
    since_ms: int = 0
    """When it came into that state."""
    bad_gpus: tuple[int, ...] = ()
    """GPUs that are not to be used: it is degraded, not out."""
    planes_down: int = 0
    """Planes of the fabric that it has lost: it is slower, not out."""
    tested_ms: int | None = None
    """When it last passed an active test; none where it never did."""
    evidence: tuple[NodeEvidence, ...] = ()
    """What was seen and is not yet settled, oldest first."""
    out_ms: int | None = None
    """When health last took it out of service; the brake counts these."""
    outs: tuple[int, ...] = ()
    """When it was taken out before: what a lemon is known by."""
    override: Override = ""
    """The operator's word, remembered until it is taken back."""
    override_by: str = ""
    """Whose word that is, and why."""
    idle_test_ms: int | None = field(default=None, metadata={"key": "balloon_ms"})
    """When a test of the idle node was last begun that has not reported yet."""
    attempts: int = 0
    """Repairs since it was last ready."""

    @property
    def usable_gpus(self) -> int:
        """Return how many GPUs a job could have on it."""
        return self.gpus - len(self.bad_gpus)

    @property
    def degraded(self) -> bool:
        """Return whether a part of it is missing."""
        return bool(self.bad_gpus) or self.planes_down > 0
