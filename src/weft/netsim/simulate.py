"""From a scenario to reports: builds the network, draws the traffic, resolves the faults, runs each transport."""

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from weft.core.errors import UsageError
from weft.core.provenance import Provenance, digest, provenance
from weft.core.seeds import Seed
from weft.core.units import PICOSECONDS_PER_SECOND
from weft.fabric.graph.shape import shape_of
from weft.fabric.graph.topology import build
from weft.netsim.host import compiling
from weft.netsim.kernel.allocation import planned_packets
from weft.netsim.kernel.checkpoint import Keep
from weft.netsim.kernel.compiled_simulator import CompiledSimulator
from weft.netsim.model.faults import changes_of, named_links
from weft.netsim.model.flow import Flow
from weft.netsim.model.flow_board import FlowBoard, FlowProgress
from weft.netsim.model.ideal import ideal_ps
from weft.netsim.model.independent_flows import flow_board
from weft.netsim.model.memory import check_memory, free_memory, planned_bytes
from weft.netsim.model.network import Network, Timing
from weft.netsim.model.pause_trees import PauseRecord
from weft.netsim.model.records import Counts
from weft.netsim.model.switching import PLAIN
from weft.netsim.reference.reference_simulator import ReferenceSimulator
from weft.netsim.report import FaultResult, FlowResult, PauseResult, SimulationReport, TimeSeries
from weft.netsim.series_file import SeriesFile
from weft.netsim.transports import transport_named
from weft.netsim.transports.base import Endpoints, Transport
from weft.netsim.transports.column_endpoints import ColumnEndpoints
from weft.netsim.transports.sprayed import SprayedEndpoints
from weft.netsim.workload.chakra import ChakraNode, flows_of_traces, read_trace
from weft.netsim.workload.htsim import read_matrix, read_topology
from weft.netsim.workload.patterns import flows_of, with_background
from weft.netsim.workload.posting import first_parts, post
from weft.netsim.workload.schedules import Near
from weft.netsim.workload.step_traffic import step_flows, step_of
from weft.planning.cost_model.machine import machine_of
from weft.specs.fabric import FabricSpec
from weft.specs.job import JobSpec
from weft.specs.scenario import ScenarioSpec
from weft.specs.site import SiteSpec

MOST_PACKETS = 50_000_000
"""Data packets that the reference takes on; more would run for days."""
MOST_ENGINE_PACKETS = 500_000_000
"""Data packets that the engine takes on: more than 131,072 NICs send in a permutation of 8 MiB."""
MOST_LINKS = 200_000
"""Links that the reference takes on."""
COMPILE_FROM = 20_000
"""Data packets from which compiling the protocol's rules pays."""
_FEWEST_RANKS = 2
_MOST_THREADS = 256

AnyWorld = ReferenceSimulator | CompiledSimulator
Files = tuple[Path, Path]
"""htsim's connection matrix and topology."""
Watch = Callable[[str, int, int], None]
"""Told of progress: the transport, bytes received so far and bytes in all."""


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


def set_up(scenario: ScenarioSpec, site: SiteSpec, seed: int | None = None, job: JobSpec | None = None) -> Setup:
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
        part = site.model_copy(update={"fabric": fabric})
        flows = with_background(
            step_flows(step_of(job, part, scenario.job_share)), scenario, shape, fabric.nic_rate, root
        )
    return Setup(scenario, fabric, root, flows)


def set_up_files(scenario: ScenarioSpec, site: SiteSpec, files: Files, seed: int | None = None) -> Setup:
    """Return htsim's files as a scenario whose other settings are `scenario`'s."""
    matrix, topology = files
    fabric, timing = read_topology(_text(topology), topology.name, site.fabric)
    nodes, flows = read_matrix(_text(matrix), matrix.name)
    if nodes > fabric.gpus:
        raise UsageError(f"{matrix} has {nodes:,} nodes, but {topology} has {fabric.gpus:,}; use files that fit")
    return Setup(scenario, fabric, _root(scenario, seed), flows, timing)


def set_up_traces(scenario: ScenarioSpec, site: SiteSpec, prefix: Path, seed: int | None = None) -> Setup:
    """Return the Chakra traces PREFIX.0.et, PREFIX.1.et, ... as a scenario whose other settings are `scenario`'s."""
    traces: list[tuple[ChakraNode, ...]] = []
    while (file := prefix.with_name(f"{prefix.name}.{len(traces)}.et")).exists():
        if len(traces) >= site.fabric.gpus:
            raise UsageError(f"{file} is the trace of one rank more than {site.name} has GPUs; name a larger site")
        try:
            traces.append(read_trace(file.read_bytes(), file.name))
        except OSError as error:
            raise UsageError(f"{file} can not be read: {error.strerror}; name Chakra traces") from None
    if len(traces) < _FEWEST_RANKS:
        raise UsageError(f"{file} is not there; --chakra PREFIX needs PREFIX.0.et, PREFIX.1.et, ..., one for each rank")
    machine = machine_of(site)
    near = Near(round(machine.domain_latency_s * PICOSECONDS_PER_SECOND), round(machine.domain_rate))
    flows = flows_of_traces(traces, machine.domain_gpus, near)
    fabric = site.fabric.model_copy(update={"gpus": max(len(traces), scenario.gpus or 0)})
    return Setup(scenario, fabric, _root(scenario, seed), flows)


def _text(file: Path) -> str:
    try:
        return file.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{file} can not be read: {error}; name a text file of htsim") from None


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


def run(
    setup: Setup,
    transport: Transport,
    *,
    engine: str | None = None,
    threads: int | None = None,
    fast: bool | None = None,
    cache: Path | None = None,
    keep: Keep | None = None,
    series: SeriesFile | None = None,
    watch: Watch | None = None,
    say: Callable[[str], None] | None = None,
) -> SimulationReport:
    """Run one transport on `engine` ("reference" or "engine"; the compiled one where it is installed and pays).

    `fast` compiles the protocol's rules for the reference, or is decided by the size of the traffic where absent.
    """
    packets = sum(-(-flow.size // setup.fabric.packet) for flow in setup.flows)
    pays = compiling.can_compile() and (packets > COMPILE_FROM or compiling.is_compiled(cache))
    engine = engine or ("engine" if fast is None and (pays or keep is not None) else "reference")
    _check_options(engine, threads, keep)
    world: AnyWorld
    if engine == "engine":
        network, world = prepare_engine(setup, transport, threads=threads, cache=cache, say=say)
    else:
        network, world = prepare(setup, transport, fast=pays if fast is None else fast, cache=cache, say=say)
    total = sum(flow.size for flow in setup.flows if flow.counted)

    kept = keep if isinstance(world, CompiledSimulator) else None
    if isinstance(world, CompiledSimulator) and kept is not None:
        world.asked = f"{_provenance(setup, transport)} {digest([repr(flow) for flow in setup.flows])}"
        kept.take_up(world)

    def seen(world: AnyWorld) -> None:
        if isinstance(world, CompiledSimulator) and kept is not None:
            kept.now_and_then(world)
        if series is not None:
            series.note(transport.name, world.records)
        if watch is not None:
            watch(transport.name, int(world.endpoints.received().sum()), total)

    interrupted = False
    wall, processor = time.perf_counter(), time.process_time()
    try:
        with nullcontext() if kept is None else kept.through_interrupts():
            world.run(seen)
    except KeyboardInterrupt:
        interrupted = True
    took = time.perf_counter() - wall, time.process_time() - processor
    world.finish()
    if series is not None:
        series.note(transport.name, world.records)
    return _report(setup, network, transport, world, interrupted=interrupted, took=took)


def _check_options(engine: str, threads: int | None, keep: Keep | None) -> None:
    """Raise where a run was asked for that there is not."""
    if threads is not None and not 1 <= threads <= _MOST_THREADS:
        raise UsageError(f"--threads {threads}: from 1 to {_MOST_THREADS} threads can be used")
    if keep is not None:
        if engine != "engine":
            raise UsageError("only the engine keeps its runs; leave out --keep, or name --engine engine")
        keep.check()


def prepare(
    setup: Setup,
    transport: Transport,
    *,
    fast: bool = False,
    cache: Path | None = None,
    say: Callable[[str], None] | None = None,
) -> tuple[Network, ReferenceSimulator]:
    """Return the network and the world of one run on the reference, at time 0."""
    check_reference(setup)
    if fast:
        compiling.prepare(cache, say)
    parts = _parts(setup, transport, fast=fast)
    if fast and isinstance(parts.endpoints, ColumnEndpoints):
        parts.endpoints.warm_up()
    return parts.network, ReferenceSimulator(parts.network, parts.endpoints, parts.board, parts.seed, **parts.rest)


def prepare_engine(
    setup: Setup,
    transport: Transport,
    *,
    threads: int | None = None,
    cache: Path | None = None,
    say: Callable[[str], None] | None = None,
) -> tuple[Network, CompiledSimulator]:
    """Return the network and the world of one run on the compiled engine, at time 0."""
    check_engine(setup)
    compiling.prepare(cache, say)
    parts = _parts(setup, transport, fast=True)
    endpoints = parts.endpoints
    assert isinstance(endpoints, ColumnEndpoints), "every transport keeps its queue pairs as columns"
    if isinstance(endpoints, SprayedEndpoints):
        _plan_memory(parts.network, endpoints, say)
    world = CompiledSimulator(parts.network, endpoints, parts.board, parts.seed, threads=threads or 1, **parts.rest)
    return parts.network, world


def _plan_memory(network: Network, endpoints: SprayedEndpoints, say: Callable[[str], None] | None) -> None:
    """Say how much memory a run will use, or raise where it does not fit."""
    packets = planned_packets(network, len(endpoints.pairs), int(endpoints.params["window_max"][0]))
    pair_bytes, packet_bytes = planned_bytes(endpoints.params, len(endpoints.pairs), packets)
    free = free_memory()
    plan = check_memory(pair_bytes, packet_bytes, None if free is None else free + pair_bytes)
    if say is not None:
        say(plan)


@dataclass(frozen=True)
class _RunParts:
    """What every engine is made from."""

    network: Network
    endpoints: Endpoints
    board: FlowBoard
    seed: Seed
    rest: Mapping[str, Any]


def _parts(setup: Setup, transport: Transport, *, fast: bool) -> _RunParts:
    scenario, fabric = setup.scenario, setup.fabric
    topology = build(fabric)
    network = Network(
        topology,
        fabric,
        scenario.network,
        transport.frames(fabric.packet),
        transport.trimming,
        transport.ecn_last_hop,
        setup.timing,
    )
    if (switching := transport.switching(network)) != PLAIN:
        network = replace(network, switching=switching)
    board = flow_board(post(setup.flows, transport.queue_pairs, scenario.transport.posting), fabric.packet)
    endpoints = transport.open(network, board.pairs, setup.seed.branch("transport"), fast=fast)
    rest: dict[str, Any] = {
        "changes": changes_of(scenario.faults, topology),
        "faults": len(scenario.faults),
        "bin_ps": scenario.measure.bin,
        "until_ps": scenario.measure.until,
    }
    return _RunParts(network, endpoints, board, setup.seed.branch("network"), rest)


def transports_of(setup: Setup, names: Sequence[str] = ()) -> tuple[Transport, ...]:
    """Return the transports of a scenario, or those called `names`."""
    topology = build(setup.fabric)
    denied = frozenset(
        link for name in setup.scenario.denied for link in named_links(topology, name, ("link", "switch", "optic"))
    )
    wanted = names or setup.scenario.transport.use
    return tuple(transport_named(name, setup.scenario.transport, denied) for name in wanted)


def _provenance(setup: Setup, transport: Transport) -> Provenance:
    """Return the name of a run."""
    asked = {"scenario": setup.scenario.as_written(), "fabric": setup.fabric.as_written(), "transport": transport.name}
    return provenance(asked, setup.seed.root)


def _report(
    setup: Setup,
    network: Network,
    transport: Transport,
    world: AnyWorld,
    *,
    interrupted: bool,
    took: tuple[float, float],
) -> SimulationReport:
    board, records = world.board, world.records
    progress = world.board.progress
    first = first_parts(setup.flows, transport.queue_pairs, setup.scenario.transport.posting)
    ways = [_flow_result(flow, progress[first[i] : first[i + 1]]) for i, flow in enumerate(setup.flows)]
    faults = tuple(
        FaultResult(
            spec.kind, spec.target, spec.at, found.lost, found.data_lost, len(found.first_ps),
            tuple(sorted(at - found.first_ps[pair] for pair, at in found.recovered_ps.items())), len(found.open),
        )
        for spec, found in zip(setup.scenario.faults, records.faults, strict=True)
    )  # fmt: skip
    return SimulationReport(
        scenario=setup.scenario.name,
        transport=transport.name,
        hosts=network.shape.hosts,
        planes=network.shape.planes,
        slot_ps=world.slot_ps,
        ideal_ps=ideal_ps(network, setup.flows),
        flows=tuple(result for result in ways if result.size > 0),
        pairs=tuple((pair.source, pair.destination) for pair in board.pairs),
        counters=world.endpoints.counters(),
        trimmed=records.trimmed,
        marked=records.marked,
        dropped=records.dropped,
        lost=records.lost,
        injected=records.injected,
        delivered=records.delivered,
        in_flight=world.in_flight,
        packet_hops=records.hops,
        faults=faults,
        series=TimeSeries(
            tuple(records.bin_ends_ps),
            np.array(records.received).reshape(-1, len(board.pairs)),
            np.array(records.queue_peaks).reshape(-1, records.stages),
            np.array(records.lost_by, np.int64),
            np.array(records.counts, np.int64).reshape(-1, len(Counts._fields)),
        ),
        trace=records.trace,
        end_ps=world.slot * world.slot_ps,
        provenance=_provenance(setup, transport),
        pausing=None if world.pauses is None else _pausing(network, world.pauses.record),
        chained=any(flow.after for flow in setup.flows if flow.counted),
        waits=tuple(result for result in ways if result.size == 0),
        interrupted=interrupted,
        wall_s=took[0],
        cpu_s=took[1],
    )


def _pausing(network: Network, record: PauseRecord) -> PauseResult:
    """Return what pausing did, with the names of ports."""
    by_stage = [0] * (2 * network.shape.tiers)
    for port, slots in enumerate(record.paused_slots):
        by_stage[int(network.stage[port])] += slots * int(network.slot_ps)
    most = max(range(len(record.paused_slots)), key=lambda port: record.paused_slots[port])
    slots, tree = record.paused_slots[most], record.largest
    return PauseResult(
        pauses=record.pauses,
        paused_ps=tuple(by_stage),
        paused_ports=sum(slots > 0 for slots in record.paused_slots),
        longest_ps=slots * int(network.slot_ps),
        longest=network.port_name(most) if slots else "",
        trees=record.trees,
        tree_root="" if tree is None else network.port_name(tree.root),
        tree_ports=() if tree is None else tuple(network.port_name(port) for port in tree.ports),
        tree_depth=0 if tree is None else tree.depth,
        tree_innocent=0 if tree is None else tree.innocent,
        tree_at_ps=-1 if tree is None else tree.at_ps,
        deadlock=tuple(network.port_name(port) for port in record.deadlock),
        deadlock_at_ps=record.deadlock_ps,
    )


def _flow_result(flow: Flow, parts: Sequence[FlowProgress]) -> FlowResult:
    """Return how a flow went, which is over when the last of its parts is."""
    ends = [[part.arrived_ps for part in parts], [part.acknowledged_ps for part in parts]]
    arrived, acknowledged = (max(times) if min(times) >= 0 else -1 for times in ends)
    failure = next((part.failure for part in parts if part.failure), "")
    began = min(part.began_ps for part in parts)
    return FlowResult(
        flow.name, flow.source, flow.destination, flow.size, began, arrived, acknowledged, failure, flow.counted
    )
