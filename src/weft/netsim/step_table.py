"""What a step's exchanges reach on a site's fabric, packet by packet: the table that the planner can be given.

A ring over all ranks is a permutation in every one of its steps: everybody sends to the next one, all at once, and the
step is over when the slowest has arrived. So one permutation between T0s for each size is the whole collective. A part
of the fabric is built, with every switch's radix and every pair's paths as on the whole.
"""

from collections.abc import Callable
from dataclasses import dataclass

from weft.fabric.graph.shape import shape_of
from weft.mrc.wire.overhead import payload_share
from weft.netsim.host import compiling
from weft.netsim.report import SimulationReport
from weft.netsim.run import run
from weft.netsim.setup import set_up, transports_of
from weft.planning.cost_model.machine import FabricTable
from weft.specs.scenario import ScenarioSpec
from weft.specs.site import SiteSpec

SIZES = (2**18, 2**20, 2**22)
"""Bytes that each rank sends in a step of the collective."""
_PARTS, _USUAL_HOSTS = 4, 1024
"""T0s that are built, whole: as many as hold this many NICs, two at least."""
_BITS, _PICOSECONDS = 8, 10**12
MOST_FORWARDINGS = 60_000_000
"""Packets times switches that are simulated without being asked for: below 20 s of processor time at some four million
a second, which one core of 2019 does."""


@dataclass(frozen=True)
class StepTables:
    """What exchanges reach on a fabric."""

    healthy: FabricTable
    """Where nothing is broken."""
    spine_lost: FabricTable | None
    """Where one T1 has just died and nobody knows it; none on a fabric without one."""
    hosts: int
    """NICs that were simulated."""


def why_not_simulated(site: SiteSpec) -> str | None:
    """Return why the exchanges are not simulated unless that is asked for; none where they are."""
    if not compiling.can_compile():
        return "not simulated: the compiled simulator is not installed (pip install 'weft[sim]')"
    if not compiling.is_compiled():
        return "not simulated: the simulator is not compiled here yet; --simulate does that, which takes a minute once"
    count = forwardings(site)
    if count > MOST_FORWARDINGS:
        return f"not simulated: {count:,} packets through switches would take more than 20 s"
    return None


def forwardings(site: SiteSpec) -> int:
    """Return how often a packet goes through a switch in all runs behind the tables of a site."""
    shape = shape_of(site.fabric)
    count = _hosts(site)
    packets = sum(-(-size // site.fabric.packet) for size in SIZES)
    lost = 2 if count > shape.down and len(shape.switch_grids) > 1 else 1
    return count * packets * (2 * site.fabric.tiers - 1) * lost


def _hosts(site: SiteSpec) -> int:
    """Return how many NICs are simulated: some whole T0s of them."""
    shape = shape_of(site.fabric)
    return min(site.fabric.gpus, max(2, min(_PARTS, _USUAL_HOSTS // shape.down)) * shape.down)


def step_tables(
    site: SiteSpec, *, seed: int = 0, hosts: int | None = None, say: Callable[[str], None] | None = None
) -> StepTables:
    """Simulate permutations of several sizes on a part of a site's fabric, healthy and with a T1 lost."""
    shape = shape_of(site.fabric)
    count = min(site.fabric.gpus, hosts or _hosts(site))
    across = count > shape.down
    grids = shape.switch_grids
    spine = grids[1].name(grids[1].first) if across and len(grids) > 1 else None
    healthy = _table(site, count, seed, None, across=across, say=say)
    lost = None if spine is None else _table(site, count, seed, spine, across=across, say=say)
    return StepTables(healthy, lost, count)


def _table(
    site: SiteSpec, hosts: int, seed: int, lost: str | None, *, across: bool, say: Callable[[str], None] | None
) -> FabricTable:
    shares: list[float] = []
    for size in SIZES:
        if say is not None:
            say(f"{hosts} NICs exchange {size // 2**10:,} KiB each{'' if lost is None else f' without {lost}'}")
        scenario = ScenarioSpec.model_validate({
            "name": "step", "site": site.name, "gpus": hosts, "seed": seed,
            "traffic": {"pattern": "permutation", "size": f"{size} B", "across": across},
            "faults": [] if lost is None else [{"kind": "switch-down", "target": lost}],
        })  # fmt: skip
        setup = set_up(scenario, site)
        (report,) = (run(setup, transport) for transport in transports_of(setup, ("mrc",)))
        shares.append(share_of(report, size, site))
    state = "healthy" if lost is None else f"{lost} lost"
    source = f"netsim: mrc, {hosts} NICs, {state}, seed {seed}"
    return FabricTable(tuple(float(size) for size in SIZES), tuple(shares), source)


def share_of(report: SimulationReport, size: int, site: SiteSpec) -> float:
    """Return the share of the NIC's payload rate that the slowest flow had, the way's own latency left out."""
    rate = site.fabric.nic_rate * payload_share(site.fabric.packet)
    sending_ps = size * _BITS * _PICOSECONDS / rate
    slowest_ps = max(flow.arrived_ps - flow.began_ps for flow in report.flows)
    latency_ps = max(0.0, report.ideal_ps - sending_ps)
    return min(1.0, sending_ps / max(sending_ps, slowest_ps - latency_ps))
