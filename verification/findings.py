"""What an experiment finds: numbers beside what was expected, each with whether they agree, and a picture."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from matplotlib.figure import Figure

from weft.core.units import BitsPerSecond, Picoseconds
from weft.netsim.model.network import Network, network
from weft.netsim.report import SimulationReport
from weft.netsim.run import run
from weft.netsim.setup import set_up, transports_of
from weft.netsim.transports.mrc import Mrc
from weft.specs import load_site
from weft.specs.scenario import NetworkSpec, ScenarioSpec
from weft.specs.site import SiteSpec
from weft.specs.transport import LossSpec, MrcSpec

US = 10**6
GBPS = 10**9
DEAF = {"retire": False, "even": False}
"""MRC that learns nothing from silence: no EV is retired, and none is left for what is still in flight on it."""
COLOURS = ("#0072b2", "#e69f00", "#009e73", "#d55e00")


@dataclass(frozen=True)
class Finding:
    """One number."""

    what: str
    """What was measured."""
    expected: str
    """What it should be, and by whom."""
    found: str
    """What it is."""
    holds: bool
    """Whether they agree."""
    why: str = ""
    """Why they do not, where that is known."""


@dataclass(frozen=True)
class Experiment:
    """The outcome of one experiment."""

    name: str
    """Short name: "S2"."""
    title: str
    """What it is about."""
    setting: str
    """How it was done, and where that differs from the published one."""
    findings: tuple[Finding, ...]
    """What was found."""
    draw: Callable[[Figure], None] | None = field(default=None, compare=False)
    """Draws it, where a picture says more."""
    remark: str = ""
    """What else there is to know."""

    @property
    def holds(self) -> bool:
        """Return whether everything agrees, or is known not to and why."""
        return all(finding.holds or finding.why for finding in self.findings)


def within(what: str, value: float, low: float, high: float, unit: str = "", source: str = "") -> Finding:
    """Return the finding that a value lies in a range."""
    said = f"{low:.4g} to {high:.4g}{unit and ' ' + unit}{source and ', ' + source}"
    return Finding(what, said, f"{value:.4g}{unit and ' ' + unit}", low <= value <= high)


def above(what: str, value: float, low: float, unit: str = "", source: str = "") -> Finding:
    """Return the finding that a value is larger than a bound."""
    said = f"above {low:.4g}{unit and ' ' + unit}{source and ', ' + source}"
    return Finding(what, said, f"{value:.4g}{unit and ' ' + unit}", value > low)


def below(what: str, value: float, high: float, unit: str = "", source: str = "") -> Finding:
    """Return the finding that a value is smaller than a bound."""
    said = f"below {high:.4g}{unit and ' ' + unit}{source and ', ' + source}"
    return Finding(what, said, f"{value:.4g}{unit and ' ' + unit}", value < high)


def site_of(planes: int = 8, *, gpus: int = 260, radix: int | None = None, rate_gbps: int | None = None) -> SiteSpec:
    """Return the 8 x 100G site of the paper with fewer GPUs, or cut otherwise; every pair keeps its paths."""
    site = load_site("gb200-8x100g-131k")
    rate = BitsPerSecond((rate_gbps or 800 // planes) * GBPS)
    fabric = site.fabric.model_copy(
        update={
            "gpus": gpus,
            "planes": planes,
            "port_rate": rate,
            "nic_rate": BitsPerSecond(rate * planes),
            "radix": radix or int(site.fabric.parts.switch.capacity // rate),
        }
    )
    return site.model_copy(update={"fabric": fabric})


def network_of(site: SiteSpec) -> Network:
    """Return the network of a site for MRC's packets."""
    frames = Mrc(MrcSpec()).frames(site.fabric.packet)
    return network(site.fabric, NetworkSpec(), frames, trimming=True, ecn_last_hop=False)


def detection_us(site: SiteSpec) -> tuple[float, float]:
    """Return the round trip and the spread after which a passed packet counts as lost, both of this fabric."""
    round_trip = network_of(site).round_trip_ps
    return round_trip / US, LossSpec().spread * round_trip / MrcSpec().congestion.base_rtt / US


def scenario(
    traffic: dict[str, Any], *, until_us: float | None = None, bin_us: float = 10, **more: Any
) -> ScenarioSpec:
    """Return a scenario from plain values, as a file would hold them."""
    measure = {"bin": f"{round(bin_us * 1000)} ns"}
    if until_us is not None:
        measure["until"] = f"{round(until_us * 1000)} ns"
    table = {"name": "verification", "site": "laptop", "traffic": traffic, "measure": measure, **more}
    return ScenarioSpec.model_validate(table)


def use(engine: str) -> None:
    """Let everything from now on run on `engine`: "engine", the compiled one, or "reference"; both find the same."""
    _ENGINE[:] = [engine]


_ENGINE = ["engine"]


def simulate(spec: ScenarioSpec, site: SiteSpec, transport: str = "mrc", seed: int = 1) -> SimulationReport:
    """Run one transport with compiled rules."""
    setup = set_up(spec, site, seed)
    (chosen,) = transports_of(setup, (transport,))
    return run(setup, chosen, engine=_ENGINE[0], fast=True)


def rates_gbps(report: SimulationReport, pairs: list[int] | None = None) -> Any:
    """Return the rate of new payload in each bin."""
    return report.series.rates_bps(pairs) / GBPS


def ends_us(report: SimulationReport) -> Any:
    """Return the ends of the bins."""
    return [Picoseconds(end) / US for end in report.series.ends_ps]
