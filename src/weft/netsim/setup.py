"""From a scenario to what every run of it shares: the fabric, its traffic and its transports, all checked."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from weft.core.errors import UsageError
from weft.core.input_files import read_bytes, read_text
from weft.core.seeds import Seed
from weft.core.units import PICOSECONDS_PER_SECOND
from weft.fabric.graph.shape import shape_of
from weft.fabric.graph.topology import build
from weft.netsim.model.faults import named_links
from weft.netsim.model.flow import Flow
from weft.netsim.model.network import Timing
from weft.netsim.transports.base import Transport
from weft.netsim.transports.registry import transport_named
from weft.netsim.workload.htsim import read_failures, read_matrix, read_topology
from weft.netsim.workload.patterns import flows_of, with_background
from weft.netsim.workload.schedules import Near
from weft.specs.fabric import FabricSpec
from weft.specs.scenario import ScenarioSpec
from weft.specs.site import SiteSpec

if TYPE_CHECKING:
    from weft.specs.job import JobSpec

MOST_PACKETS = 50_000_000
"""Data packets that the reference takes on; more would run for days."""
MOST_ENGINE_PACKETS = 500_000_000
"""Data packets that the engine takes on: more than 131,072 NICs send in a permutation of 8 MiB."""
MOST_LINKS = 200_000
"""Links that the reference takes on."""
_FEWEST_RANKS = 2

Files = tuple[Path, Path]
"""htsim's connection matrix and topology."""


@dataclass(frozen=True)
class Setup:
    """A scenario with everything resolved that all its transports share."""

    scenario: ScenarioSpec
    """What was asked."""
    fabric: FabricSpec
    """The fabric, cut down where the scenario says so."""
    seed: Seed
    """Root of everything random."""
    flows: tuple[Flow, ...]
    """Who sends what to whom."""
    timing: Timing | None = None
    """Rates and delays by stage; the fabric's own where absent."""


def set_up(scenario: ScenarioSpec, site: SiteSpec, seed: int | None = None, job: "JobSpec | None" = None) -> Setup:
    """Return the scenario on its site, or raise with what is wrong about it; `job` is the one that it names."""
    fabric = site.fabric
    if scenario.gpus is not None:
        if scenario.gpus > fabric.gpus:
            raise UsageError(f"gpus is {scenario.gpus:,}, but {site.name} has {fabric.gpus:,}; write fewer")
        fabric = fabric.model_copy(update={"gpus": scenario.gpus})
    shape = shape_of(fabric)
    root = _root(scenario, seed)
    if job is None:
        flows = flows_of(scenario, shape, fabric.nic_rate, root)
    else:
        # The planner and its cost model, which other scenarios do without.
        from weft.netsim.workload.step_traffic import step_flows, step_of

        part = site.model_copy(update={"fabric": fabric})
        flows = with_background(
            step_flows(step_of(job, part, scenario.job_share)), scenario, shape, fabric.nic_rate, root
        )
    return Setup(scenario, fabric, root, flows)


def set_up_files(scenario: ScenarioSpec, site: SiteSpec, files: Files, seed: int | None = None) -> Setup:
    """Return htsim's files as a scenario whose other settings are `scenario`'s."""
    matrix, topology = files
    fabric, timing = read_topology(_text(topology), topology.name, site.fabric)
    lines = _text(matrix)
    nodes, flows = read_matrix(lines, matrix.name)
    if failures := read_failures(lines, matrix.name):
        scenario = scenario.model_copy(update={"faults": (*scenario.faults, *failures)})
    if nodes > fabric.gpus:
        raise UsageError(f"{matrix} has {nodes:,} nodes, but {topology} has {fabric.gpus:,}; use files that fit")
    return Setup(scenario, fabric, _root(scenario, seed), flows, timing)


def set_up_traces(scenario: ScenarioSpec, site: SiteSpec, prefix: Path, seed: int | None = None) -> Setup:
    """Return the Chakra traces PREFIX.0.et, PREFIX.1.et, ... as a scenario whose other settings are `scenario`'s."""
    # Their format comes with an extra, which other scenarios do without.
    from weft.netsim.workload.chakra import ChakraNode, flows_of_traces, read_trace
    from weft.planning.cost_model.machine import machine_of

    traces: list[tuple[ChakraNode, ...]] = []
    while (file := prefix.parent / f"{prefix.name}.{len(traces)}.et").exists():
        if len(traces) >= site.fabric.gpus:
            raise UsageError(f"{file} is the trace of one rank more than {site.name} has GPUs; name a larger site")
        try:
            traces.append(read_trace(read_bytes(file), file.name))
        except OSError as error:
            raise UsageError(f"{file} cannot be read: {error.strerror}; name Chakra traces") from None
    if len(traces) < _FEWEST_RANKS:
        raise UsageError(f"{file} is not there; --chakra PREFIX needs PREFIX.0.et, PREFIX.1.et, ..., one for each rank")
    machine = machine_of(site)
    near = Near(round(machine.domain_latency_s * PICOSECONDS_PER_SECOND), round(machine.domain_rate))
    flows = flows_of_traces(traces, machine.domain_gpus, near)
    fabric = site.fabric.model_copy(update={"gpus": max(len(traces), scenario.gpus or 0)})
    return Setup(scenario, fabric, _root(scenario, seed), flows)


def _text(file: Path) -> str:
    try:
        return read_text(file)
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else error.reason
        raise UsageError(f"{file} cannot be read: {reason}; name a text file of htsim") from None


def _root(scenario: ScenarioSpec, seed: int | None) -> Seed:
    if seed is not None and not 0 <= seed < 2**63:
        raise UsageError(f"a seed lies between 0 and 2^63 - 1, not {seed}")
    return Seed(scenario.seed if seed is None else seed)


def check_reference(setup: Setup) -> None:
    """Raise where a scenario is too large for the reference."""
    links = sum(shape_of(setup.fabric).links)
    if links > MOST_LINKS:
        raise UsageError(
            f"the fabric has {links:,} links, more than the reference holds ({MOST_LINKS:,}); use the engine (numba), "
            "or add gpus = 1024 to the scenario to build only a part of it"
        )
    packets = packets_of(setup)
    if packets > MOST_PACKETS:
        raise UsageError(
            f"the traffic is {packets:,} packets, more than the reference takes on ({MOST_PACKETS:,}); "
            "make it smaller, use the engine (numba), or end it with measure.until"
        )


def check_engine(setup: Setup) -> None:
    """Raise where a scenario would keep the engine busy for a day."""
    packets = packets_of(setup)
    if packets > MOST_ENGINE_PACKETS:
        raise UsageError(
            f"the traffic is {packets:,} packets, more than the engine takes on ({MOST_ENGINE_PACKETS:,}); "
            "make it smaller, or end it with measure.until"
        )


def packets_of(setup: Setup) -> int:
    """Return how many data packets a scenario sends, at most those that fit into its time."""
    fabric, until_ps = setup.fabric, setup.scenario.measure.until
    packets = sum(-(-flow.size // fabric.packet) for flow in setup.flows)
    if until_ps is None:
        return packets
    most = until_ps * fabric.nic_rate // (8 * 10**12 * fabric.packet) + 1
    return min(packets, most * len({flow.source for flow in setup.flows}))


def transports_of(setup: Setup, names: Sequence[str] = ()) -> tuple[Transport, ...]:
    """Return the transports of a scenario, or those called `names`."""
    topology = build(setup.fabric)
    denied = frozenset(
        link for name in setup.scenario.denied for link in named_links(topology, name, ("link", "switch", "optic"))
    )
    wanted = names or setup.scenario.transport.use
    return tuple(transport_named(name, setup.scenario.transport, denied) for name in wanted)
