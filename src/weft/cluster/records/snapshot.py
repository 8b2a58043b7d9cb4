"""What `plan` sees: the whole state of a cluster at one moment, as frozen records.

Everything that a decision depends on is in here, and nothing else, so that a decision can be replayed. Engines own the
truth and hand it over; they do not rebuild it for each pass but tell a `ClusterState` what has changed. Durations of
jobs are not in it. Plain values (JSON) and back: `encoding`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from weft.cluster.records.job import Job, JobState, Team
from weft.cluster.records.node import Node

HOUR_MS = 3_600_000
MINUTE_MS = 60_000
FAR_MS = 2**62
"""Never: the end of a job that declares none."""


@dataclass(frozen=True, slots=True)
class Power:
    """What may be drawn; none where nobody limits it. Watts at the meter."""

    site_w: int | None = None
    """Most that the site may draw."""
    feeder_w: int | None = None
    """Most that one feeder carries."""
    rack_w: int | None = None
    """Most that one rack may draw."""
    ramp_w_per_s: int | None = None
    """Most by which the draw may change in a second."""
    node_idle_w: int = 0
    """A node without work."""
    gpu_rise_w: int = 0
    """By how much a GPU's draw rises when it works."""
    ramp_free_ms: int = 0
    """When the last staggered start of a gang is over: the next one begins then."""
    lane_free_ms: int = 0
    """The same for small starts, which have their own share of the ramp."""
    fall_free_ms: int = 0
    """When the last staggered end of a gang is over."""
    fall_lane_free_ms: int = 0
    """The same for small ends."""


@dataclass(frozen=True, slots=True)
class SchedulingPolicy:
    """Which rules hold, and their numbers."""

    rules: str = "weft"
    """The order of the queue and the placement of gangs, by name (`scheduling.rules`)."""
    backfill: bool = True
    """Whether later jobs may start before a blocked one where that does not delay it."""
    give_way: bool = True
    """Whether who was let past a blocked job leaves once that one could start without it."""
    preempt: bool = True
    """Whether jobs may be asked to leave for others."""
    preempt_gap: int = 100
    """By how much a job's priority must be higher before others leave for it."""
    priorities: bool = True
    """Whether priorities count; if not, the order is that of submission."""
    patience_ms: int = MINUTE_MS
    """Waiting time before others are asked to leave for a job: most blocked jobs find room by themselves."""
    fair: bool = True
    """Whether, among equal priorities, the team that used the least of its share goes first."""
    half_life_ms: int = 24 * HOUR_MS
    """Time after which use counts half."""
    aged_ms: int = 24 * HOUR_MS
    """Waiting time after which a job goes before all that are not aged: nobody starves."""
    borrow: bool = True
    """Whether a team may have more than its quota while others do not need it."""
    assumed_ms: int = 24 * HOUR_MS
    """Which nodes are drained first where nobody knows when a blocked job can start: those back within this time."""
    lane_nodes: int = 0
    """Nodes that only small experiments may take (a gang that needs all of the pool may too)."""
    lane_share: float = 0.0
    """Share of all GPUs that only small experiments may take besides, to the nearest GPU."""
    lane_most_nodes: int = 1
    """Largest job of the fast lane, in nodes."""
    lane_limit_ms: int = HOUR_MS
    """Longest declared limit of a job of the fast lane."""
    spare_nodes: int = 0
    """Nodes kept free to replace failed ones."""
    reclaim_ms: int = 10 * MINUTE_MS
    """Longest from asking borrowers to a team's having its quota back: bounds their grace and minimum run time."""
    grace_most_ms: int = 10 * MINUTE_MS
    """Longest grace that anybody gets."""
    power: bool = True
    """Whether budgets and ramps are kept."""
    brake_share: float = 0.02
    """Share of the pool that health may take out within the window."""
    brake_least: int = 3
    """Nodes that it may take out within the window however small the pool is."""
    brake_most: int = 200
    """Nodes that it may take out within the window however large the pool is."""
    brake_window_ms: int = 10 * MINUTE_MS
    brake_rest_ms: int = MINUTE_MS
    """How long the brake holds on after too many looked sick: those that are heard again last are not taken out."""
    forget_ms: int = 15 * MINUTE_MS
    """Age after which a warning that did not come again is forgotten."""
    pause_ms: int = 2 * MINUTE_MS
    """A gap between passes after which older reports are forgotten: only what is seen anew counts."""
    drain_ms: int = 7 * 24 * HOUR_MS
    """Longest that a draining node is waited for; then its jobs must leave."""
    lemon_outs: int = 3
    """Times out of service within `lemon_ms` that make a node a lemon."""
    lemon_ms: int = 28 * 24 * HOUR_MS
    """The window of the lemon score."""
    repairs_most: int = 3
    """Repairs in a row after which a node is retired."""
    test_at_once: int = 0
    """Idle nodes that are tested at the same time; 0 for none."""
    test_every_ms: int = 24 * HOUR_MS
    """A node that was tested more recently is not tested again while idle."""
    limit_default_ms: int | None = None
    """The limit of a job that declares none; none for no limit."""
    limit_most_ms: int | None = None
    """The longest limit that a job gets, whatever it declares."""

    def limited(self, limit_ms: int | None) -> int | None:
        """Return the limit that a job gets which declares `limit_ms`."""
        found = self.limit_default_ms if limit_ms is None else limit_ms
        limits = [each for each in (found, self.limit_most_ms) if each is not None]
        return min(limits, default=None)


@dataclass(frozen=True, slots=True)
class Reservation:
    """The promise to the first job that is blocked."""

    job: str
    at_ms: int
    """When it starts at the latest, if nothing breaks and nothing more important comes; `FAR_MS` where that is not
    known and nodes are drained for it."""
    promised_ms: int
    """The first such time that was promised."""
    since_ms: int = 0
    """Since when it is the first that is blocked."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A cluster at one moment."""

    nodes: tuple[Node, ...]
    """Every node; the one numbered n stands at position n."""
    jobs: tuple[Job, ...] = ()
    """Every job that has not ended."""
    teams: tuple[Team, ...] = ()
    """Every team; a job of a team that is not here never starts."""
    power: Power = Power()
    """Budgets, and what the ramp is busy with."""
    policy: SchedulingPolicy = SchedulingPolicy()
    ended: Mapping[str, JobState] = field(default_factory=dict)
    """How jobs ended that others wait for."""
    reservation: Reservation | None = None
    alarms: tuple[str, ...] = ()
    """Alarms that are on."""
    planned_ms: int | None = None
    """When `plan` was last called; none before the first time."""
    resumed_ms: int = 0
    """When it was first called after the last pause: older reports do not count."""
    braked_ms: int | None = None
    """When too many nodes last looked sick at once; none where the brake does not hold."""
