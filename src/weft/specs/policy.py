"""What can be written in a `policy` file: the rules of a cluster's queue, power and health, and their numbers.

Replays, the local engine and the Kubernetes controller read the same file (`cluster.from_policy`). A file says what it
wants otherwise; the rest is as in the built-in `weft`, which says nothing. Data only.
"""

from typing import Annotated, Any, ClassVar

from pydantic import Field

from weft.core.spec import Check, Duration, Power, Spec
from weft.core.units import PICOSECONDS_PER_SECOND, Picoseconds

Share = Annotated[float, Field(ge=0, le=1)]
Count = Annotated[int, Field(ge=0, le=10**6)]


def _s(seconds: float) -> Picoseconds:
    return Picoseconds(round(seconds * PICOSECONDS_PER_SECOND))


def _whole_ms(*names: str) -> tuple[Check, ...]:
    """Return checks that durations are whole milliseconds: what decisions count in."""

    def check(name: str) -> Check:
        def rule(table: Any) -> str | None:
            value = getattr(table, name)
            whole = value is None or (value > 0 and value % (PICOSECONDS_PER_SECOND // 1000) == 0)
            return None if whole else "decisions count in milliseconds; write a whole number of them, such as '250 ms'"

        return Check((name,), rule)

    return tuple(check(name) for name in names)


class OrderSpec(Spec):
    """In which order jobs are considered."""

    rules: str = "weft"
    """The order of the queue and the placement of gangs: "weft", or the name of a plugin."""
    priorities: bool = True
    """Whether priorities count; if not, the order is that of submission."""
    fair: bool = True
    """Whether, among equal priorities, the team that used the least of its quota goes first."""
    half_life: Duration = _s(86_400)
    """Time after which use counts half."""
    aged: Duration = _s(86_400)
    """Waiting time after which a job goes before all that are not aged: nobody starves."""
    borrow: bool = True
    """Whether a team may have more than its quota while others do not need it."""

    checks: ClassVar[tuple[Check, ...]] = _whole_ms("half_life", "aged")


class LaneSpec(Spec):
    """GPUs that only small experiments may take."""

    share: Share = 0.01
    """Share of all GPUs, to the nearest GPU; 0 for no lane."""
    nodes: Count = 0
    """Whole nodes besides."""
    largest: Annotated[int, Field(ge=1, le=10**6)] = 1
    """Largest job of the lane, in nodes."""
    limit: Duration = _s(3600)
    """Longest declared limit of a job of the lane."""

    checks: ClassVar[tuple[Check, ...]] = _whole_ms("limit")


class BackfillSpec(Spec):
    """Whether later jobs may start before a blocked one where that does not delay it."""

    enabled: bool = True
    give_way: bool = True
    """Whether who was let past a blocked job leaves once that one could start without it."""
    assumed: Duration = _s(86_400)
    """Which nodes are drained first where nobody knows when a blocked job can start: those back within this time."""

    checks: ClassVar[tuple[Check, ...]] = _whole_ms("assumed")


class PreemptionSpec(Spec):
    """Who leaves for whom."""

    enabled: bool = True
    gap: Annotated[int, Field(ge=1, le=1000)] = 100
    """By how much a job's priority must be higher before others leave for it."""
    patience: Duration = _s(60)
    """Waiting time before others are asked to leave for a job."""
    grace: Duration = _s(600)
    """Longest grace that anybody gets to write a checkpoint and leave."""
    reclaim: Duration = _s(600)
    """Longest from asking borrowers to a team's having its quota back."""

    checks: ClassVar[tuple[Check, ...]] = _whole_ms("patience", "grace", "reclaim")


class SparesSpec(Spec):
    """Nodes that are kept free to replace failed ones."""

    nodes: Count = 0


class IdleTestsSpec(Spec):
    """Tests of nodes that have no work."""

    at_once: Count = 0
    """Idle nodes that are tested at the same time; 0 for none."""
    every: Duration = _s(86_400)
    """A node that was tested more recently is not tested again while idle."""

    checks: ClassVar[tuple[Check, ...]] = _whole_ms("every")


class PowerBudgetSpec(Spec):
    """Budgets and ramps; a site's own hold in a replay where nothing is written here."""

    enabled: bool = True
    """Whether budgets and ramps are kept."""
    site: Power | None = None
    """Most that the site may draw, at the meter."""
    feeder: Power | None = None
    """Most that one feeder carries."""
    rack: Power | None = None
    """Most that one rack may draw."""
    ramp_per_second: Power | None = None
    """Most by which the draw may change in a second."""
    node_idle: Power | None = None
    """What a node without work draws."""
    gpu_rise: Power | None = None
    """By how much a GPU's draw rises when it works."""


class BrakeSpec(Spec):
    """How many nodes health may take out of service within a window before the monitor is doubted instead."""

    share: Share = 0.02
    """Share of the pool."""
    least: Count = 3
    """Nodes, however small the pool is."""
    most: Count = 200
    """Nodes, however large the pool is."""
    window: Duration = _s(600)
    rest: Duration = _s(60)
    """How long the brake holds on after too many looked sick."""

    checks: ClassVar[tuple[Check, ...]] = _whole_ms("window", "rest")


class HealthRulesSpec(Spec):
    """What is thought of nodes and when they go."""

    brake: BrakeSpec = BrakeSpec()
    forget: Duration = _s(900)
    """Age after which a warning that did not come again is forgotten."""
    pause: Duration = _s(120)
    """A gap between passes after which older reports are forgotten."""
    drain: Duration = _s(7 * 86_400)
    """Longest that a draining node is waited for; then its jobs must leave."""
    lemon_outs: Annotated[int, Field(ge=1, le=1000)] = 3
    """Times out of service within the window that make a node a lemon."""
    lemon_window: Duration = _s(28 * 86_400)
    repairs: Annotated[int, Field(ge=1, le=1000)] = 3
    """Repairs in a row after which a node is retired."""

    checks: ClassVar[tuple[Check, ...]] = _whole_ms("forget", "pause", "drain", "lemon_window")


def _limits_fit(table: Any) -> str | None:
    if table.default is None or table.most is None or table.default <= table.most:
        return None
    return "jobs without a limit would get one that is longer than the longest that is allowed"


class LimitsSpec(Spec):
    """Time limits that the cluster gives or cuts."""

    default: Duration | None = None
    """The limit of a job that declares none; none where absent."""
    most: Duration | None = None
    """The longest limit that a job gets, whatever it declares; none where absent."""

    checks: ClassVar[tuple[Check, ...]] = (*_whole_ms("default", "most"), Check(("default", "most"), _limits_fit))


class PolicySpec(Spec):
    """A policy file."""

    description: str = ""
    """What it is, in a few words."""
    order: OrderSpec = OrderSpec()
    lane: LaneSpec = LaneSpec()
    backfill: BackfillSpec = BackfillSpec()
    preemption: PreemptionSpec = PreemptionSpec()
    spares: SparesSpec = SparesSpec()
    idle_tests: IdleTestsSpec = IdleTestsSpec()
    power: PowerBudgetSpec = PowerBudgetSpec()
    health: HealthRulesSpec = HealthRulesSpec()
    limits: LimitsSpec = LimitsSpec()
