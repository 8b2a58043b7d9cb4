"""Small sites and scenarios for the tests of the simulator, and what must hold after every run."""

from weft.core.units import BitsPerSecond, Picoseconds
from weft.mrc.invariants import check_receiver, check_sender
from weft.netsim.run import prepare, run
from weft.netsim.setup import Setup, set_up, transports_of
from weft.netsim.transports.sprayed import SprayedEndpoints
from weft.specs import load_site
from weft.specs.scenario import FaultSpec, FlowSpec, MeasureSpec, ScenarioSpec, TrafficSpec

GBPS = 10**9
US = 10**6


def small_site(*, gpus: int = 8, planes: int = 2, radix: int = 8, rate: int = 100 * GBPS, tiers: int = 2):
    """Return a site with few NICs: two T0s of four down ports and four uplinks, unless asked otherwise."""
    site = load_site("gb200-8x100g-131k")
    links = site.fabric.links
    if tiers == 3:
        links = links.model_copy(update={"t1_t2": links.t0_t1})
    fabric = site.fabric.model_copy(
        update={
            "gpus": gpus,
            "planes": planes,
            "radix": radix,
            "port_rate": BitsPerSecond(rate),
            "nic_rate": BitsPerSecond(planes * rate),
            "tiers": tiers,
            "links": links,
        }
    )
    return site.model_copy(update={"fabric": fabric})


def scenario(traffic: TrafficSpec, *, faults: tuple[FaultSpec, ...] = (), until_us: int | None = None, **more):
    """Return a scenario on a small site."""
    until = None if until_us is None else Picoseconds(until_us * US)
    return ScenarioSpec.model_construct(
        name="test", site="test", traffic=traffic, faults=faults, measure=MeasureSpec.model_construct(
            bin=Picoseconds(10 * US), until=until), **more,
    )  # fmt: skip


def pair(size: int = 65536, source: int = 0, destination: int = 5) -> TrafficSpec:
    """Return one flow between two NICs under different T0s."""
    flow = FlowSpec.model_construct(source=source, destination=destination, size=size)
    return TrafficSpec.model_construct(pattern="flows", flows=(flow,))


def flows(*ends: tuple[int, int, int]) -> TrafficSpec:
    """Return flows given as source, destination, size."""
    made = tuple(FlowSpec.model_construct(source=a, destination=b, size=n) for a, b, n in ends)
    return TrafficSpec.model_construct(pattern="flows", flows=made)


def fault(kind: str, target: str, at_us: float = 0, lasts_us: float | None = None, **more) -> FaultSpec:
    """Return a fault."""
    lasts = None if lasts_us is None else Picoseconds(round(lasts_us * US))
    return FaultSpec.model_construct(kind=kind, target=target, at=Picoseconds(round(at_us * US)), lasts=lasts, **more)


def simulate(spec, site=None, transport: str = "mrc", seed: int = 0):
    """Run plain rules and check what must hold whatever happens."""
    setup = set_up(spec, site or small_site(), seed)
    return checked(setup, transport)


def checked(setup: Setup, transport: str = "mrc"):
    """Run one transport and check what must hold whatever happens."""
    (chosen,) = transports_of(setup, (transport,))
    report = run(setup, chosen, fast=False)
    check_report(report)
    return report


def check_report(report, parts: int = 1) -> None:
    """Check that no packet and no byte was made or vanished; every flow was cut over `parts` queue pairs."""
    assert report.injected == report.delivered + report.dropped + report.lost + report.in_flight
    for flow in report.flows:
        assert (flow.acknowledged_ps >= 0) != (flow.failure != "") or report.end_ps > 0
        if flow.acknowledged_ps >= 0:
            assert flow.acknowledged_ps > flow.arrived_ps > flow.began_ps >= 0
    done = [flow for flow in report.flows if flow.acknowledged_ps >= 0]
    if len(done) == len(report.flows):
        assert int(report.series.received[-1].sum()) == sum(flow.size for flow in report.flows)
        sizes = [(flow.size + part) // parts for flow in report.flows for part in range(parts)]
        packets = sum(-(-size // 4096) for size in sizes)
        assert report.total("accepted") == packets, "every packet is placed exactly once"


def run_world(spec, site=None, transport: str = "mrc", seed: int = 0):
    """Run plain rules, check the protocol's own invariants at the end, and return the world."""
    setup = set_up(spec, site or small_site(), seed)
    (chosen,) = transports_of(setup, (transport,))
    _, world = prepare(setup, chosen, fast=False)
    world.run()
    assert isinstance(world.endpoints, SprayedEndpoints)
    for i in range(len(world.board.pairs)):
        check_sender(world.endpoints.host_state.s, i)
        check_receiver(world.endpoints.host_state.r, i)
    return world


def run_adaptive(**more):
    """Return a world of the transport `adaptive` on a small site of one plane, before its first slot."""
    setup = set_up(scenario(pair()), small_site(**{"planes": 1, **more}))
    (chosen,) = transports_of(setup, ("adaptive",))
    return prepare(setup, chosen, fast=False)[1]
