"""Runs one transport on one of the two simulators, from a set-up scenario to its report."""

import logging
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from weft.core.errors import UsageError
from weft.core.provenance import digest
from weft.core.seeds import Seed
from weft.fabric.graph.topology import build
from weft.netsim.host import compiling
from weft.netsim.kernel.allocation import planned_packets
from weft.netsim.kernel.checkpoint import Keep
from weft.netsim.kernel.compiled_simulator import CompiledSimulator
from weft.netsim.model.faults import changes_of
from weft.netsim.model.flow_board import FlowBoard
from weft.netsim.model.independent_flows import flow_board
from weft.netsim.model.memory import check_memory, free_memory, planned_bytes
from weft.netsim.model.network import Network
from weft.netsim.model.records import Timeline
from weft.netsim.model.switching import PLAIN
from weft.netsim.report import RunTimes, SimulationReport, provenance_of, report_of
from weft.netsim.series_file import SeriesFile
from weft.netsim.setup import Setup, check_engine, check_reference
from weft.netsim.transports.base import Endpoints, Transport
from weft.netsim.transports.column_endpoints import ColumnEndpoints
from weft.netsim.transports.sprayed import SprayedEndpoints
from weft.netsim.workload.posting import post

if TYPE_CHECKING:
    from weft.netsim.reference.reference_simulator import ReferenceSimulator

COMPILE_FROM = 20_000
"""Data packets from which compiling the protocol's rules pays."""
_log = logging.getLogger("weft.netsim")
_MOST_THREADS = 256

Watch = Callable[[str, int, int], None]
"""Called with a run's progress: the transport, bytes received so far and bytes in all."""
Say = Callable[[str], None]
"""Called with one sentence for the user."""


@dataclass(frozen=True)
class Observers:
    """Who follows a run, and where it is stored while it lasts."""

    keep: Keep | None = None
    """Checkpoints of a long run."""
    series: SeriesFile | None = None
    """File that grows by a line for each bin."""
    watch: Watch | None = None
    """Called now and then with how much has been received."""
    say: Say | None = None
    """Called before the run: what is compiled, how much memory is planned."""


NOBODY = Observers()


def run(
    setup: Setup,
    transport: Transport,
    *,
    engine: str | None = None,
    threads: int | None = None,
    fast: bool | None = None,
    observers: Observers = NOBODY,
) -> SimulationReport:
    """Run one transport on `engine` ("reference" or "engine"; the compiled one where it is installed and pays).

    `fast` compiles the protocol's rules for the reference, or is decided by the size of the traffic where absent.
    """
    packets = sum(-(-flow.size // setup.fabric.packet) for flow in setup.flows)
    pays = compiling.can_compile() and (packets > COMPILE_FROM or compiling.is_compiled())
    keep = observers.keep
    if packets == 0:
        # Nothing crosses the network: only times wait for each other, and there is nothing to compile for.
        engine = "reference"
    engine = engine or ("engine" if fast is None and (pays or keep is not None) else "reference")
    _check_options(engine, threads, keep, setup)
    if engine == "engine":
        network, compiled = prepare_engine(setup, transport, threads=threads, say=observers.say)
        if keep is not None:
            compiled.asked = f"{provenance_of(setup, transport)} {digest([repr(flow) for flow in setup.flows])}"
            keep.take_up(compiled)
        times = _run(compiled, setup, transport, observers, keep)
        return report_of(setup, network, transport, compiled, times)
    if fast is None:
        # The reference compiles rules of its own, whatever the compiled simulator has stored.
        fast = compiling.can_compile() and (packets > COMPILE_FROM or compiling.is_compiled(compiling.REFERENCE))
    network, plain = prepare(setup, transport, fast=fast, say=observers.say)
    times = _run(plain, setup, transport, observers, None)
    return report_of(setup, network, transport, plain, times)


def _run(
    simulator: "ReferenceSimulator | CompiledSimulator",
    setup: Setup,
    transport: Transport,
    observers: Observers,
    keep: Keep | None,
) -> RunTimes:
    """Run a simulator to its end, or to an interrupt; `keep` stores checkpoints of a compiled one."""
    total = sum(flow.size for flow in setup.flows if flow.counted)
    series, watch = observers.series, observers.watch

    def observe(running: "ReferenceSimulator | CompiledSimulator") -> None:
        if keep is not None and isinstance(running, CompiledSimulator):
            keep.now_and_then(running)
        if series is not None:
            series.note(transport.name, running.records)
        if watch is not None:
            watch(transport.name, int(running.endpoints.received().sum()), total)

    _log.info("running %s", transport.name)
    interrupted = False
    wall, processor = time.perf_counter(), time.process_time()
    try:
        with nullcontext() if keep is None else keep.through_interrupts():
            simulator.run(observe)
    except KeyboardInterrupt:
        interrupted = True
    times = RunTimes(time.perf_counter() - wall, time.process_time() - processor, interrupted)
    simulator.finish()
    if series is not None:
        series.note(transport.name, simulator.records)
    return times


def _check_options(engine: str, threads: int | None, keep: Keep | None, setup: Setup) -> None:
    """Raise where a run was asked for that there is not."""
    if threads is not None and not 1 <= threads <= _MOST_THREADS:
        raise UsageError(f"--threads {threads}: from 1 to {_MOST_THREADS} threads can be used")
    if keep is not None:
        if setup.scenario.measure.links:
            raise UsageError(
                "what links carry is not stored with a run; leave out --keep, or --links and measure.links"
            )
        if engine != "engine":
            raise UsageError("only the engine keeps its runs; leave out --keep, or name --engine engine")
        keep.check()


def prepare(
    setup: Setup, transport: Transport, *, fast: bool = False, say: Say | None = None
) -> "tuple[Network, ReferenceSimulator]":
    """Return the network and the reference simulator of one run, at time 0."""
    from weft.netsim.reference.reference_simulator import ReferenceSimulator

    check_reference(setup)
    if fast:
        compiling.prepare(None, say, compiling.REFERENCE)
    parts = _parts(setup, transport, fast=fast)
    if fast and isinstance(parts.endpoints, ColumnEndpoints):
        parts.endpoints.warm_up()
    return parts.network, ReferenceSimulator(parts.network, parts.endpoints, parts.board, parts.seed, parts.timeline)


def prepare_engine(
    setup: Setup, transport: Transport, *, threads: int | None = None, say: Say | None = None
) -> tuple[Network, CompiledSimulator]:
    """Return the network and the compiled simulator of one run, at time 0."""
    _log.info("building the network for %s", transport.name)
    check_engine(setup)
    compiling.prepare(None, say)
    parts = _parts(setup, transport, fast=True)
    endpoints = parts.endpoints
    assert isinstance(endpoints, ColumnEndpoints), "every transport keeps its queue pairs as columns"
    if isinstance(endpoints, SprayedEndpoints):
        _plan_memory(parts.network, endpoints, say)
    simulator = CompiledSimulator(
        parts.network, endpoints, parts.board, parts.seed, parts.timeline, threads=threads or 1
    )
    return parts.network, simulator


def _plan_memory(network: Network, endpoints: SprayedEndpoints, say: Say | None) -> None:
    """Say how much memory a run will use, or raise where it does not fit."""
    packets = planned_packets(network, len(endpoints.pairs), int(endpoints.params["window_max"][0]))
    pair_bytes, packet_bytes = planned_bytes(endpoints.params, len(endpoints.pairs), packets)
    free = free_memory()
    plan = check_memory(pair_bytes, packet_bytes, None if free is None else free + pair_bytes)
    if say is not None:
        say(plan)


@dataclass(frozen=True)
class _RunParts:
    """What every simulator is made from."""

    network: Network
    endpoints: Endpoints
    board: FlowBoard
    seed: Seed
    timeline: Timeline


def _parts(setup: Setup, transport: Transport, *, fast: bool) -> _RunParts:
    scenario, fabric = setup.scenario, setup.fabric
    topology = build(fabric)
    network = Network(
        topology, fabric, scenario.network, transport.frames(fabric.packet), transport.trimming, transport.ecn_last_hop,
        setup.timing,
    )  # fmt: skip
    if (switching := transport.switching(network)) != PLAIN:
        network = replace(network, switching=switching)
    board = flow_board(post(setup.flows, transport.queue_pairs, scenario.transport.posting), fabric.packet)
    endpoints = transport.open(network, board.pairs, setup.seed.branch("transport"), fast=fast)
    measure = scenario.measure
    changes = changes_of(scenario.faults, topology)
    timeline = Timeline(measure.bin, measure.until, changes, len(scenario.faults), links=measure.links)
    return _RunParts(network, endpoints, board, setup.seed.branch("network"), timeline)
