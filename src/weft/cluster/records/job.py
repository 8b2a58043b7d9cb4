"""The words of the queue: jobs, the gangs they ask for, teams.

Data only. A job's true duration is no part of it: decisions know declared limits and predicted ends. Times are
integers in milliseconds since the engine's epoch.
"""

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Literal

Kind = Literal["training", "experiment", "service"]
"""A training, any command that ends, or a server that runs on, yields last and is placed apart."""
Ending = Literal["", "requeue", "failed", "cancelled"]
"""What becomes of a job that is being stopped."""
Level = Literal["", "domain", "rack", "t0", "pod"]
"""What nodes can share: a scale-up domain, a rack, a first-tier switch, the T0s below common T1s; none."""
LEVELS: tuple[Level, ...] = ("domain", "rack", "t0", "pod")
KINDS: tuple[Kind, ...] = ("training", "experiment", "service")


class JobState(StrEnum):
    """Where a job stands."""

    WAITING = "waiting"
    """It has no nodes."""
    STARTING = "starting"
    """Its nodes are bound; its processes are on their way."""
    RUNNING = "running"
    """All of it runs."""
    ASKED = "asked"
    """It runs and was asked to write a checkpoint and leave."""
    STOPPING = "stopping"
    """It must end; its nodes are not yet free."""
    DONE = "done"
    """It has ended well."""
    FAILED = "failed"
    """It has ended otherwise."""
    CANCELLED = "cancelled"
    """Somebody called it off."""


HOLDING = frozenset({JobState.STARTING, JobState.RUNNING, JobState.ASKED, JobState.STOPPING})
"""States in which a job holds nodes."""
ENDED = frozenset({JobState.DONE, JobState.FAILED, JobState.CANCELLED})
"""States that are final."""


@dataclass(frozen=True, slots=True)
class Gang:
    """What must be had together."""

    nodes: int = 1
    """Nodes that it wants."""
    gpus_per_node: int = 1
    """GPUs on each of them."""
    min_nodes: int = 0
    """Fewest nodes that it can run on; 0 where it needs all (not elastic)."""
    step: int = 1
    """Between the fewest and the wanted, it takes the fewest plus multiples of this (nodes of one replica)."""
    within: Level = ""
    """What its nodes must share; empty where any nodes will do."""
    slice_nodes: int = 0
    """How many nodes, in rank order, must share it (16 trays of a domain's 18); 0 for all."""
    apart: Level = ""
    """What no two of its nodes may share; empty where they may share anything."""

    @property
    def fewest(self) -> int:
        """Return the fewest nodes that it can run on."""
        return self.min_nodes or self.nodes

    @property
    def elastic(self) -> bool:
        """Return whether it can run on fewer nodes than it wants."""
        return 0 < self.min_nodes < self.nodes


@dataclass(frozen=True, slots=True)
class Placement:
    """Where a job runs."""

    nodes: tuple[int, ...]
    """Node numbers in rank order: rank r runs on the node at r // gpus_per_node."""
    gpus_per_node: int
    """GPUs that it has on each."""
    devices: tuple[tuple[int, ...], ...] = ()
    """Numbers of its GPUs on each node; empty where it has whole nodes."""

    @property
    def gpus(self) -> int:
        """Return how many GPUs it has."""
        return len(self.nodes) * self.gpus_per_node


@dataclass(frozen=True, slots=True)
class Job:
    """One job: what was asked, and how it stands."""

    id: str
    """Its name in the queue; unique."""
    gang: Gang
    """What it must have together."""
    submit_ms: int
    """When it was handed in."""
    kind: Kind = "experiment"
    team: str = "default"
    """Team whose quota is charged."""
    priority: int = 100
    """Higher goes first; 0 to 1000."""
    limit_ms: int | None = None
    """Longest that it may run; none where nothing was declared, and then nothing waits for its end."""
    after: tuple[str, ...] = ()
    """Jobs that must be done before it starts."""
    array: str = ""
    """The array that it belongs to."""
    array_at_once: int = 0
    """Most members of its array that run together; 0 for all."""
    grace_ms: int = 60_000
    """What it needs to write a checkpoint and leave, when asked."""
    min_run_ms: int = 0
    """What it is promised once started in its turn, before it can be asked to leave."""
    watts_per_gpu: int | None = None
    """Its draw on each GPU, where it is known to differ from the site's."""
    takes_degraded: bool = True
    """Whether nodes with a plane down or some GPUs missing will do; a big training says no."""
    state: JobState = JobState.WAITING
    """Where it stands."""
    placement: Placement | None = None
    start_ms: int | None = None
    """When its nodes were bound, the last time."""
    checkpoint_ms: int | None = None
    """When its last checkpoint was complete; none before the first of this start."""
    checkpoint_every_ms: int | None = None
    """Time between its checkpoints, where it writes them by the clock and does not tell of each."""
    predicted_ms: int | None = None
    """When it will end by its own forecast (steps done, steps to go); used for forecasts, never for promises."""
    asked_ms: int | None = None
    """When it was asked to leave."""
    asked_for: str = ""
    """For whom it was asked to leave."""
    leave_by_ms: int | None = None
    """When it must be gone, once asked."""
    ending: Ending = ""
    """What becomes of it once it has stopped: it waits again, or it is remembered as failed or cancelled."""
    borrowed: bool = False
    """Whether it started above its team's quota, so that others may reclaim what it has."""
    let_past: bool = False
    """Whether it started before a blocked job that stood before it: it leaves once that one could start without it."""
    ran_ms: int = 0
    """What earlier starts have run."""
    lost_gpu_ms: int = 0
    """Work of earlier starts that no checkpoint kept, in GPU-milliseconds."""
    preemptions: int = 0
    """How often it had to leave."""
    queued_ms: int | None = None
    """When it came back into the queue; none where it never left it. Its place is the old one; it ages anew."""
    last_wait_code: str = field(default="", metadata={"key": "told"})
    """The reason that was last given for its waiting (`Wait.code`). """

    @property
    def holds(self) -> bool:
        """Return whether it holds nodes."""
        return self.state in HOLDING

    def kept_ms(self, now_ms: int) -> int:
        """Return the moment up to which its work is safe in a checkpoint; its start where there is none."""
        assert self.start_ms is not None, "only a job that was started has work to keep"
        known_ms = self.start_ms if self.checkpoint_ms is None else self.checkpoint_ms
        if self.checkpoint_every_ms is None:
            return known_ms
        return max(known_ms, now_ms - (now_ms - self.start_ms) % self.checkpoint_every_ms)

    @property
    def gpus(self) -> int:
        """Return how many GPUs it has, or asks for."""
        return self.placement.gpus if self.placement else self.gang.nodes * self.gang.gpus_per_node


@dataclass(frozen=True, slots=True)
class Team:
    """A team and its quota."""

    name: str
    quota_gpus: int
    """GPUs that are its own: it gets them back within a bounded time."""
    most_gpus: int | None = None
    """Most that it may have with what it borrows; none for the whole pool."""
    used_gpu_ms: float = 0.0
    """What it has used, older use counting less (fair share), up to `used_at_ms`."""
    used_at_ms: int = 0
    """When that was reckoned."""
