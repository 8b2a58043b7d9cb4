"""What can be written in a `campaign` file: what breaks, who repairs it, what work there is, and which rules hold.

A campaign is a fleet over months of simulated time (`weft campaign SITE --scenario FILE`). The site says what there is
and how often its parts fail; this file says everything else. What it leaves out has the defaults below. Data only.
"""

from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from weft.core.spec import Check, Duration, FailureRate, Power, Price, Size, Spec
from weft.core.units import PICOSECONDS_PER_SECOND, Bytes, Cents, Fit, Picoseconds

Share = Annotated[float, Field(ge=0, le=1)]
Count = Annotated[int, Field(ge=0, le=10**7)]
Some = Annotated[int, Field(ge=1, le=10**7)]
Positive = Annotated[float, Field(gt=0, le=1e9)]
GangName = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9._-]{0,62}$")]
_SHORTEST = Picoseconds(PICOSECONDS_PER_SECOND)


def _s(seconds: float) -> Picoseconds:
    return Picoseconds(round(seconds * PICOSECONDS_PER_SECOND))


def _at_least_a_second(*names: str) -> tuple[Check, ...]:
    def check(name: str) -> Check:
        def rule(table: Any) -> str | None:
            value = getattr(table, name)
            return None if value is None or value >= _SHORTEST else "that is less than a second; write '1 s' or more"

        return Check((name,), rule)

    return tuple(check(name) for name in names)


class ComponentSpec(Spec):
    """How one kind of part fails."""

    rate: FailureRate | None = None
    """Failures of one part; default: the site's, or the class's own (docs/campaign.md)."""
    soft: Share = 0.0
    """Share of its failures that a reset or a reboot cures."""
    shape: Annotated[float, Field(ge=0.2, le=10)] = 1.0
    """Weibull shape: below 1 for infant mortality, above 1 for wear-out, 1 for a constant rate."""
    age: Duration = Picoseconds(0)
    """Age of the parts when the campaign begins; counts where the shape is not 1."""
    detection: Duration | None = None
    """From such a failure to its being known; default: the site's."""
    repair: Duration | None = None
    """From a ticket to the repaired part, without waiting; default: the site's."""


class ComponentsSpec(Spec):
    """The kinds of part. Shares of soft failures are classes: a reset or reboot cures most (docs/campaign.md)."""

    gpu: ComponentSpec = ComponentSpec(soft=0.5)
    """A GPU without its memory; the site's rate less the memory's share."""
    hbm: ComponentSpec = ComponentSpec(soft=0.5)
    """Its memory: 72 of Llama 3's 268 GPU failures (arXiv 2407.21783, table 5)."""
    host: ComponentSpec = ComponentSpec(soft=0.5)
    """A node without GPUs and NICs."""
    nic: ComponentSpec = ComponentSpec()
    """A NIC: one for each GPU."""
    optic: ComponentSpec = ComponentSpec.model_construct(repair=_s(3600))
    """A transceiver of a NIC's link: two for each GPU."""
    cable: ComponentSpec = ComponentSpec.model_construct(repair=_s(3600))
    """The cable of a NIC's link."""
    switch: ComponentSpec = ComponentSpec.model_construct(repair=_s(14_400))
    """A switch of the first tier; those above are only paths."""
    rack: ComponentSpec = ComponentSpec.model_construct(rate=Fit(500))
    """What a rack's nodes share and lose together: back plane, manifold. Class only."""
    shelf: ComponentSpec = ComponentSpec.model_construct(rate=Fit(1130), repair=_s(14_400))
    """A power shelf that fails without its spare. Rate: 3 power supplies in 2.65e6 node-hours, same table."""
    cooling: ComponentSpec = ComponentSpec.model_construct(rate=Fit(5000), repair=_s(14_400))
    """A cooling unit of a row of racks: its GPUs are throttled until it is repaired. Class only."""


class SilentSpec(Spec):
    """Wrong answers without a sign."""

    rate: FailureRate | None = None
    """GPUs that begin to compute wrongly; default: the site's."""
    elusive: Share = 0.3
    """Share that no test of the node finds: the vendor's test finds 70 % (ByteRobust, SOSP 2025)."""
    production: Duration | None = None
    """Mean time to detection by checks inside the training, elusive or not; none: it has no such checks. Default: the
    site's `silent_detection`, or none where that is 0."""
    go_back: Duration = _s(86_400)
    """How far a training goes back when it is found; steps before that are kept, and counted as poisoned."""


class ScreeningSpec(Spec):
    """Tests that look for silent corruption."""

    mode: Literal["none", "idle", "scheduled", "replay"] = "none"
    """Where tests run: nowhere, on idle nodes, on all nodes while the training stands, or by replaying steps, which
    finds elusive ones too."""
    every: Duration = _s(7 * 86_400)
    """How often a node is tested."""
    takes: Duration = _s(900)
    """How long the training stands for it (scheduled, replay); 15 min is a level 3 diagnosis of DCGM."""

    checks: ClassVar[tuple[Check, ...]] = _at_least_a_second("every", "takes")


class SoftwareStopsSpec(Spec):
    """Stops of a job by its own software."""

    rate: FailureRate | None = None
    """Stops of one gang; default: the site's."""


class AlarmsSpec(Spec):
    """Nodes that are accused and are well."""

    rate: FailureRate = Fit(2_500)
    """False alarms of one node: 6 to 7 evictions too many in a job of 1,200 nodes and three months (ByteRobust)."""


class LemonsSpec(Spec):
    """Nodes that fail again and again until their tray is swapped."""

    share: Share = 0.02
    """Share of nodes (arXiv 2410.21680: 40 of two to three thousand)."""
    factor: Annotated[float, Field(ge=1, le=1000)] = 20.0
    """How much more often they fail; the mean over all nodes stays the site's."""


class BurstSpec(Spec):
    """Failures with one cause: a shelf, an optic of a switch, a bad firmware."""

    name: GangName
    """What it is called in reports."""
    per_year: Positive
    """How often."""
    scope: Literal["rack", "switch", "feeder", "all"] = "rack"
    """Who can be hit: the nodes of one rack, of one first-tier switch, of one feeder, or any."""
    hits: Share = 1.0
    """Share of them that is hit."""
    spread: Duration = Picoseconds(0)
    """Over which time they fail."""
    soft: Share = 0.0
    """Share that a reset cures."""


class DetectionSpec(Spec):
    """From a failure to its being known."""

    spread: Annotated[float, Field(ge=0, le=3)] = 0.0
    """Spread of the logarithm of that time; 0 for always the mean."""


class RepairSpec(Spec):
    """Technicians, parts and how long it takes."""

    crews: Some | None = None
    """Technicians who work at the same time; none: always enough."""
    shift: Annotated[float, Field(gt=0, le=24)] = 24.0
    """Hours of each day in which they work."""
    spread: Annotated[float, Field(ge=0, le=3)] = 1.0
    """Spread of the logarithm of repair times (log-normal); the mean stays."""
    stock: Count | None = None
    """Trays on the shelf; none: always enough. A used one is ordered again."""
    lead: Duration = _s(7 * 86_400)
    """From an order to the part."""
    failed: Share = 0.05
    """Share of repairs that do not help. Class only."""
    reset: Duration = _s(900)
    """Reset and diagnosis of a node (5-20 min)."""
    retest: Duration = _s(900)
    """Test before it returns; 15 min is a level 3 diagnosis of DCGM."""
    relapse: Duration = _s(86_400)
    """Mean time until a fault that the test did not find strikes again."""
    elusive: Share = 0.1
    """Share of hard faults that a test does not find (EROICA: 7.4 % are never reproduced)."""
    answer: Duration = _s(1800)
    """From an alarm (too many nodes look sick at once) to a person's taking out what is really sick."""
    replace: Duration = _s(30 * 86_400)
    """From giving a node up to its replacement."""

    checks: ClassVar[tuple[Check, ...]] = _at_least_a_second("reset", "retest", "relapse", "answer", "replace")


class MaintenanceSpec(Spec):
    """Planned stops."""

    every: Duration | None = None
    """How often each gang stops for it; none: never."""
    pause: Duration = _s(1800)
    """How long it stands."""
    nodes: Count = 0
    """Nodes that are taken out at each stop, one batch after the other: a rolling upgrade."""
    takes: Duration = _s(3600)
    """How long each of those is out."""

    checks: ClassVar[tuple[Check, ...]] = _at_least_a_second("every", "pause", "takes")


class FeltNetworkSpec(Spec):
    """What the training feels of the network."""

    recovery: Duration = _s(0.0001)
    """From a failed path to other paths: below 1 ms with MRC, 1 to 10 s where BGP converges (arXiv 2605.04333)."""
    exposed: Share = 0.1
    """Share of a step that waits for the network while all of it works."""
    flap: Duration = _s(60)
    """How long a flapping link of a NIC is down (arXiv 2605.04333, figure 7: about a minute)."""
    nic_flap: FailureRate | None = None
    """Flaps of one link between NIC and switch; default: the site's `link_flap`."""
    core_flap: FailureRate | None = None
    """Flaps of one link between switches; default: the site's `link_flap`."""
    planes: Annotated[int, Field(ge=1, le=64)] | None = None
    """Planes; default: the fabric's."""


class LadderSpec(Spec):
    """How small a part goes out alone, and when it is repaired."""

    unit: Literal["gpu", "tray", "rack"] = "tray"
    """A single GPU of a node, a node (tray), or the scale-up domain as a whole."""
    needed: Count = 0
    """With "rack": trays of a domain that a gang uses; the others stand by in the same domain. 0 for all."""
    defer: Duration = Picoseconds(0)
    """How long the repair of what nobody misses is put off, to be done together; 0 for at once."""


class GangCheckpointSpec(Spec):
    """Checkpoints of a gang."""

    interval: Duration | None = None
    """Time of training between two; default: Daly's optimum for the gang's failure rate."""
    write: Duration | None = None
    """Time that one stops the training; default: `state` over the site's storage bandwidth."""
    state: Size = Bytes(7 * 10**12)
    """Bytes of a checkpoint: weights, optimizer; 16 bytes of 0.4 trillion parameters."""


class GangSpec(Spec):
    """A training that is to run all the time."""

    name: GangName
    """Its name."""
    gpus: Some | None = None
    """GPUs; default: all that others leave."""
    team: GangName = "training"
    """Whose availability it counts to."""
    priority: Annotated[int, Field(ge=0, le=1000)] = 800
    """Higher goes first."""
    replica: Some | None = None
    """GPUs of a data-parallel replica: what a narrower gang is narrower by; default: one node."""
    fewest: Share = 1.0
    """Share of its replicas with which it goes on where nodes are missing."""
    recovery: Literal["restart", "in-step"] = "restart"
    """Whether all ranks start again from a checkpoint, or survivors keep their state and a lost rank is replaced."""
    restart: Duration | None = None
    """From knowing of a failure to the first step; default: the site's restart and cold start by size, and reading."""
    in_step: Duration = _s(60)
    """How long it stands when a rank is replaced inside the step."""
    step: Duration = _s(10)
    """One step."""
    checkpoint: GangCheckpointSpec = GangCheckpointSpec()
    draw: Share = 1.0
    """Draw of its GPUs while it trains, of the range from idle to full."""

    checks: ClassVar[tuple[Check, ...]] = _at_least_a_second("step")


class ExperimentsSpec(Spec):
    """A stream of small jobs."""

    per_day: Annotated[float, Field(ge=0, le=100_000)] = 0.0
    """How many come."""
    mean: Duration = _s(6 * 3600)
    """Mean run time (log-normal)."""
    spread: Annotated[float, Field(ge=0, le=3)] = 1.5
    """Spread of its logarithm."""
    largest: Some = 16
    """Largest in nodes; sizes are powers of two, each equally frequent."""
    room: Count = 0
    """Nodes that no gang without a size takes, so that experiments find room."""
    team: GangName = "research"
    priority: Annotated[int, Field(ge=0, le=1000)] = 300

    checks: ClassVar[tuple[Check, ...]] = _at_least_a_second("mean")


class ServingSpec(Spec):
    """Replicas of models that are served."""

    replicas: Count = 0
    nodes: Some = 1
    """Nodes of a replica."""
    team: GangName = "serving"
    priority: Annotated[int, Field(ge=0, le=1000)] = 900


class DemandResponseSpec(Spec):
    """Hours in which the grid wants less to be drawn."""

    per_year: Annotated[float, Field(ge=0, le=10_000)] = 0.0
    """How often."""
    depth: Share = 0.2
    """Share of the draw that is to go."""
    lasts: Duration = _s(7200)
    cap: Share = 0.3
    """Most of a GPU's draw that a power cap takes: the first rung. Then experiments stop, then the smallest gang."""


class CampaignPowerSpec(Spec):
    """Caps, ramps and what the grid asks for."""

    cap: Annotated[float, Field(gt=0.3, le=1)] = 1.0
    """Share of their full draw that GPUs may use all the time."""
    ramp_per_second: Power | None = None
    """Ramp that stops and starts of gangs keep by burning or holding power; none: they step. The site's is what
    violations are counted against."""
    demand_response: DemandResponseSpec = DemandResponseSpec()


class MoneySpec(Spec):
    """What things cost."""

    gpu_hour: Price = Cents(200)
    """A GPU-hour; class only: what a GPU-hour rents for."""
    technician_hour: Price = Cents(10_000)
    """A technician's hour; class only."""
    part: Price = Cents(3_000_000)
    """A part that a repair uses up; class only."""


def _same_name(table: Any) -> str | None:
    names = [gang.name for gang in table.gangs]
    double = sorted({name for name in names if names.count(name) > 1})
    return f"{double[0]!r} stands there twice; give each gang a name of its own" if double else None


def _bursts_are_new(table: Any) -> str | None:
    names = [burst.name for burst in table.bursts]
    taken = {*ComponentsSpec.model_fields, "silent", "software", "alarm"}.intersection(names)
    double = taken or {name for name in names if names.count(name) > 1}
    why = "is a class of faults" if taken else "stands there twice"
    return f"{min(double)!r} {why}; give each burst a name of its own" if double else None


def _one_rest(table: Any) -> str | None:
    rest = [gang.name for gang in table.gangs if gang.gpus is None]
    return f"{' and '.join(rest)} both take what is left; give all but one gpus" if len(rest) > 1 else None


def _trace_or_demand(table: Any) -> str | None:
    both = table.trace is not None and (table.experiments.per_day or table.serving.replicas)
    return "a trace takes the place of experiments and serving; write one or the other" if both else None


class CampaignSpec(Spec):
    """A campaign file."""

    description: str = ""
    """One sentence for people."""
    source: str = ""
    """Where its figures come from, if they describe a fleet that somebody has published."""
    duration: Duration = _s(365 * 86_400)
    """How long it is."""
    nodes: Some | None = None
    """Nodes of the site that take part; default: all."""
    policy: str = "weft"
    """Policy of the scheduler: a built-in name or a file."""
    spares: Count | None = None
    """Nodes kept free to replace failed ones, whatever the policy says; default: 2 % of them, none of a single one."""
    trace: str | None = None
    """A job trace (CSV of `weft cluster generate`) that is submitted besides the gangs."""
    gangs: Annotated[tuple[GangSpec, ...], Field(strict=False)] = (GangSpec(name="pretraining"),)
    """StandingGang demand for training."""
    experiments: ExperimentsSpec = ExperimentsSpec()
    serving: ServingSpec = ServingSpec()
    components: ComponentsSpec = ComponentsSpec()
    silent: SilentSpec = SilentSpec()
    software: SoftwareStopsSpec = SoftwareStopsSpec()
    alarms: AlarmsSpec = AlarmsSpec()
    lemons: LemonsSpec = LemonsSpec()
    bursts: Annotated[tuple[BurstSpec, ...], Field(strict=False)] = ()
    second: Share = 0.04
    """Share of hardware failures that bring a second one with them (arXiv 2410.21680: 3 to 5 %)."""
    detection: DetectionSpec = DetectionSpec()
    repair: RepairSpec = RepairSpec()
    maintenance: MaintenanceSpec = MaintenanceSpec()
    screening: ScreeningSpec = ScreeningSpec()
    network: FeltNetworkSpec = FeltNetworkSpec()
    ladder: LadderSpec = LadderSpec()
    power: CampaignPowerSpec = CampaignPowerSpec()
    money: MoneySpec = MoneySpec()

    checks: ClassVar[tuple[Check, ...]] = (
        *_at_least_a_second("duration"),
        Check(("gangs",), _same_name),
        Check(("gangs",), _one_rest),
        Check(("bursts",), _bursts_are_new),
        Check(("trace", "experiments", "serving"), _trace_or_demand),
    )
