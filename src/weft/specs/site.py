"""What can be written in a `site` file: the machine room, from one GPU to the power contract."""

from typing import Annotated, Any, ClassVar

from pydantic import Field

from weft.core.spec import Check, Duration, FailureRate, Power, Price, Rate, Size, Spec, Speed
from weft.core.units import Cents, Fit, Milliwatts, Picoseconds
from weft.specs.efficiency import EfficiencySpec
from weft.specs.fabric import FabricSpec

Name = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9._-]{0,62}$")]
Share = Annotated[float, Field(ge=0, le=1)]


class GpuSpec(Spec):
    """One accelerator, as its data sheet describes it."""

    kind: str
    """Name of the type; "CPU" for a machine without accelerators."""
    memory: Size
    """Memory that a job can use."""
    memory_rate: Rate
    """Memory bandwidth."""
    bf16: Speed
    """Dense bf16 matrix speed."""
    fp8: Speed | None = None
    """Dense fp8 matrix speed, where there is one."""
    fp4: Speed | None = None
    """Dense fp4 matrix speed, where there is one."""
    fp32: Speed | None = None
    """Dense fp32 matrix speed; half of bf16 where it is not given, as TF32 has."""
    power: Power
    """Power under full load (TDP)."""
    idle_power: Power
    """Power when nothing runs."""
    source: str
    """Where these figures come from."""
    like: str | None = None
    """A type of the catalogue whose efficiency it shares, where its own kind is not in it."""


class NodeSpec(Spec):
    """One server: what is lost and repaired together."""

    gpus: Annotated[int, Field(ge=1, le=1024)]
    """GPUs in a node."""
    power: Power = Milliwatts(0)
    """Everything in a node but its GPUs and NICs."""


class ScaleUpSpec(Spec):
    """The domain inside which GPUs reach each other without the fabric (NVLink)."""

    gpus: Annotated[int, Field(ge=1, le=4096)]
    """GPUs in one domain."""
    rate: Rate
    """Bandwidth of one GPU into the domain, one direction."""
    latency: Duration
    """Time of one small transfer."""


class PowerSpec(Spec):
    """The power contract and what energy costs."""

    limit: Power | None = None
    """Most that the site may draw; none where nobody limits it."""
    ramp_per_second: Power | None = None
    """Most by which the draw may change in a second."""
    swing: Power | None = None
    """Most by which the draw may swing within a second before the ramp limit applies."""
    pue: Annotated[float, Field(ge=1, le=5)] = 1.15
    """Power of the whole site over power of its computers."""
    price_per_kwh: Price = Cents(8)
    """Price of energy."""
    carbon_g_per_kwh: Annotated[int, Field(ge=0, le=2000)] = 350
    """Carbon intensity of the grid."""


class PricesSpec(Spec):
    """What money means in this file, and what a GPU costs; the price of energy stands with the power contract."""

    currency: Annotated[str, Field(pattern=r"^[A-Z]{3}$")] = "USD"
    """Currency of every price in the file (ISO 4217), by which figures are printed; amounts are written in its
    hundredths (`"8 cent"`) or as `"2.50 USD"`, whatever the currency is."""
    gpu_hour: Price = Cents(250)
    """Price of a GPU-hour: what is paid for renting one, or what an own one costs. Default: a class."""


class FailuresSpec(Spec):
    """How often things break; hard failures of network parts stand with the parts."""

    gpu: FailureRate = Fit(12_000)
    """One GPU with its memory, fail-stop. Default: Llama 3, arXiv 2407.21783, table 5."""
    host: FailureRate = Fit(17_300)
    """One node, all but GPUs and NICs, unplanned maintenance included. Default: Llama 3, arXiv 2407.21783, table 5."""
    link_flap: FailureRate = Fit(700_000)
    """One link going down and coming back. Default: 2 to 5 flaps a minute over 300,000 links, arXiv 2605.04333."""
    software: FailureRate = Fit(40_000_000)
    """One job stopped by its own software. Default: 54 in 54 days, arXiv 2407.21783, table 5."""
    silent: FailureRate = Fit(283)
    """One GPU computing wrongly without a sign. Default: 6 in 54 days on 16,384 GPUs, arXiv 2407.21783, table 5."""
    detection: Duration = Picoseconds(30 * 10**12)
    """From a failure to its being known. Default: good systems need 15-30 s."""
    restart: Duration = Picoseconds(180 * 10**12)
    """From knowing to the first new step. Default: arXiv 2602.00277."""
    cold_start: Duration = Picoseconds(0)
    """More of a restart for every thousand GPUs: processes, connections and first steps of a job take longer in larger
    ones. Cold starts of MLPerf v3.1 on H100: 168 s on 512, 290 s on 8,192, 390 s on 10,752 (22 s a thousand)."""
    silent_detection: Duration = Picoseconds(0)
    """From silent corruption to its being found: all work since is lost."""
    optic_stops: Share = 0.0
    """Share of failed NIC optics that take their NIC with them, however many planes there are."""
    repair: Duration = Picoseconds(24 * 3600 * 10**12)
    """From a node's failure to its return."""


def _nodes_are_whole(site: Any) -> str | None:
    rest = site.fabric.gpus % site.node.gpus
    if not rest:
        return None
    return (
        f"fabric.gpus = {site.fabric.gpus:,} is not a whole number of nodes of {site.node.gpus}; "
        f"write {site.fabric.gpus - rest:,} or {site.fabric.gpus + site.node.gpus - rest:,}"
    )


def _domains_are_whole(site: Any) -> str | None:
    small, large = sorted((site.node.gpus, site.scale_up.gpus))
    return (
        None
        if large % small == 0
        else f"a scale-up domain of {site.scale_up.gpus} GPUs and nodes of {site.node.gpus} do not nest"
    )


class SiteSpec(Spec):
    """A machine room: GPUs, nodes, network, power and how often things break."""

    name: Name
    """Short name, used in reports."""
    description: str = ""
    """One sentence for people."""
    gpu: GpuSpec
    """The accelerator."""
    node: NodeSpec
    """The server."""
    scale_up: ScaleUpSpec
    """The domain of fast links between GPUs."""
    fabric: FabricSpec
    """The network between nodes."""
    storage: Rate | None = None
    """Bandwidth of the checkpoint store, all clients together: a checkpoint stops the training for as long as it takes
    to write, a restart reads one. The fabric's own rate into the memory of peers where absent."""
    efficiency: EfficiencySpec | None = None
    """What is reached of the data sheet here, as `weft site measure` finds it; the catalogue's where absent."""
    power: PowerSpec = PowerSpec()
    """The power contract."""
    prices: PricesSpec = PricesSpec()
    """Currency, and the price of a GPU-hour."""
    failures: FailuresSpec = FailuresSpec()
    """How often things break."""

    checks: ClassVar[tuple[Check, ...]] = (
        Check(("node", "fabric"), _nodes_are_whole),
        Check(("scale_up", "node"), _domains_are_whole),
    )
