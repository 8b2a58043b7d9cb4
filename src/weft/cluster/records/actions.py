"""What `plan` says is to be done. Engines and simulated worlds carry it out; `effects` says what each changes.

Every action is a frozen record of plain values, so that a decision can be written down and compared.
"""

from dataclasses import dataclass, field
from typing import Literal

from weft.cluster.records.job import Ending, Placement
from weft.cluster.records.node import NodeEvidence, NodeState


@dataclass(frozen=True, slots=True)
class Wave:
    """Nodes of a gang whose draw rises together."""

    after_ms: int
    """When, counted from the binding."""
    nodes: int
    """How many: the next ones in rank order."""


@dataclass(frozen=True, slots=True)
class Bind:
    """Give a job its nodes, all of them at once."""

    job: str
    placement: Placement
    """Where, in rank order."""
    waves: tuple[Wave, ...] = ()
    """When its nodes may begin to draw power, so that the site keeps its ramp; empty for all of them now. What happens
    when it ends is `power_budget.Ramp.fall`'s business."""
    borrowed: bool = False
    """Whether its team is above its quota with it."""
    why: str = ""
    """The rule by which it starts now: "order", "backfill", "lane"."""

    @property
    def let_past(self) -> bool:
        """Return whether it starts before a blocked job that stands before it."""
        return self.why in ("backfill", "lane")


@dataclass(frozen=True, slots=True)
class Reserve:
    """Tell the first blocked job when it starts at the latest."""

    job: str
    at_ms: int
    nodes: int
    """How many nodes are kept for it."""


@dataclass(frozen=True, slots=True)
class Preempt:
    """Make a job leave: first it is asked, then it is made to. It waits again afterwards."""

    job: str
    stage: Literal["ask", "evict"]
    """Ask it to write a checkpoint and end itself, or end it now."""
    reason: str
    """Why: "priority", "reclaim", "backfill" (it was let past `for_job`), "node", "drain"."""
    by_ms: int
    """When it must be gone."""
    for_job: str = ""
    """For whom."""
    cost_gpu_ms: int = 0
    """What would be lost without another checkpoint, in GPU-milliseconds."""


@dataclass(frozen=True, slots=True)
class Stop:
    """End a job for good."""

    job: str
    ending: Ending
    """How it is to be remembered: failed or cancelled."""
    reason: str
    """Why: "limit", "dependency"."""


@dataclass(frozen=True, slots=True)
class Replace:
    """Swap nodes of a running gang without ending it."""

    job: str
    lost: tuple[int, ...]
    """Nodes that go."""
    spares: tuple[int, ...]
    """Nodes that take their places, one for one."""


@dataclass(frozen=True, slots=True)
class Resize:
    """Give an elastic gang more nodes, or take some away."""

    job: str
    placement: Placement
    """Where it runs from now on."""
    reason: str
    """Why: "grow", "shrink", "node"."""


@dataclass(frozen=True, slots=True)
class Wait:
    """A job does not start now, and why."""

    job: str
    code: str
    """The rule that blocks it: see `reasons`."""
    text: str
    """The same in words."""
    expected_ms: int | None = None
    """When it will start as things are; none where unknown."""
    before: tuple[str, ...] = ()
    """Who is before it: the nearest few."""
    blockers: tuple[str, ...] = ()
    """Jobs in its way: the one that GPUs are kept for, or those whose end it waits for."""
    remedy: str = ""
    """What would change it, in words."""


@dataclass(frozen=True, slots=True)
class Quarantine:
    """Take a node out of service at once; its jobs are moved by actions of their own."""

    node: int
    reason: str
    evidence: tuple[NodeEvidence, ...] = ()


@dataclass(frozen=True, slots=True)
class Drain:
    """Cordon a node and wait for it to become empty."""

    node: int
    reason: str


@dataclass(frozen=True, slots=True)
class Degrade:
    """Use a node without some of its GPUs: the rest of it stays in service."""

    node: int
    gpus: tuple[int, ...]
    """Its GPUs that are not to be used any more."""
    reason: str


@dataclass(frozen=True, slots=True)
class Move:
    """Any other step in a node's life."""

    node: int
    state: NodeState
    event: str
    """By which event of the table."""
    reason: str = ""


@dataclass(frozen=True, slots=True)
class RunTest:
    """Run an active test on a node; a report follows."""

    node: int
    program: str
    """Which test: "preflight", "diagnose", "validate", "idle"."""
    idle: bool = field(default=False, metadata={"key": "balloon"})
    """Whether the node is idle and the test gives way to work."""


@dataclass(frozen=True, slots=True)
class Ticket:
    """Ask a person to repair a node."""

    node: int
    finding: str
    """What is wrong: the verdict."""
    action: str
    parts: tuple[str, ...]
    technician_min: int
    """How long a technician needs, in minutes."""
    blast_gpu_ms: int
    """What the fault has cost or will, in GPU-milliseconds."""
    evidence: tuple[NodeEvidence, ...] = ()


@dataclass(frozen=True, slots=True)
class Alarm:
    """Call a person, or say that the cause has gone."""

    kind: str
    """Which alarm: "brake", "quota"."""
    on: bool
    """Whether it begins or ends."""
    text: str
    """What was seen, in words."""


Action = (
    Bind
    | Reserve
    | Preempt
    | Stop
    | Replace
    | Resize
    | Wait
    | Quarantine
    | Drain
    | Degrade
    | Move
    | RunTest
    | Ticket
    | Alarm
)
