"""What a run of one transport found: completion times, counters, what faults did, everything over time.

Equal provenance gives equal reports, but for the two figures of time that the run itself took.
"""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from weft.core.provenance import Provenance, provenance
from weft.netsim.model.ideal import ideal_ps
from weft.netsim.model.link_use import LinkUse
from weft.netsim.model.records import Counts
from weft.netsim.workload.posting import first_parts

if TYPE_CHECKING:
    from weft.netsim.kernel.compiled_simulator import CompiledSimulator
    from weft.netsim.model.flow import Flow
    from weft.netsim.model.flow_board import FlowProgress
    from weft.netsim.model.network import Network
    from weft.netsim.model.pause_trees import PauseRecord
    from weft.netsim.reference.reference_simulator import ReferenceSimulator
    from weft.netsim.setup import Setup
    from weft.netsim.transports.base import Transport

_PS_PER_US = 10**6
_BITS_PER_BYTE = 8
_PS_PER_SECOND = 10**12
_DIGITS = 4
_WORST_LINKS = 10


@dataclass(frozen=True, slots=True)
class FlowResult:
    """How one flow went."""

    name: str
    """What it is called."""
    source: int
    """NIC that sent."""
    destination: int
    """NIC that received."""
    size: int
    """Bytes."""
    began_ps: int
    """When it began; -1 where it did not."""
    arrived_ps: int
    """When its last byte had arrived; -1 where it did not."""
    acknowledged_ps: int
    """When its sender knew; -1 where it did not."""
    failure: str
    """Name of the error that ended it, or nothing."""
    counted: bool
    """Whether it is part of what was measured."""

    @property
    def completion_ps(self) -> int | None:
        """Return the time from its beginning to its sender knowing that everything has arrived."""
        return None if self.acknowledged_ps < 0 else self.acknowledged_ps - self.began_ps


@dataclass(frozen=True)
class FaultResult:
    """What one fault did."""

    kind: str
    """What happened."""
    target: str
    """To what."""
    at_ps: int
    """When."""
    lost: int
    """Packets of any kind lost to it."""
    data_lost: int
    """Data packets among them."""
    pairs: int
    """Queue pairs that lost data."""
    recovery_ps: tuple[int, ...]
    """For each of those that got everything back: from its first loss to the arrival of the last packet lost."""
    unrecovered: int
    """Data packets lost that had not arrived when the run ended."""


@dataclass(frozen=True)
class PauseResult:
    """What pausing ports instead of dropping packets did."""

    pauses: int
    """Pause frames sent."""
    paused_ps: tuple[int, ...]
    """Time for which ports were paused, added up for every stage of the way."""
    paused_ports: int
    """Ports that were paused at all."""
    longest_ps: int
    """Time for which the port that was paused longest was."""
    longest: str
    """Which that was."""
    trees: int
    """Trees of paused ports seen at the ends of bins, added up."""
    tree_root: str
    """The port that the largest tree waited for."""
    tree_ports: tuple[str, ...]
    """The ports of the largest tree, nearest to the root first."""
    tree_depth: int
    """Pauses between its root and its farthest port."""
    tree_innocent: int
    """Queue pairs that waited in it though their packets do not cross its root."""
    tree_at_ps: int
    """When it was seen; -1 where there was none."""
    deadlock: tuple[str, ...]
    """Ports that waited for each other in a circle; the run ended there."""
    deadlock_at_ps: int
    """When that was seen; -1 where it was not."""


@dataclass(frozen=True, eq=False)
class TimeSeries:
    """What was recorded over time."""

    ends_ps: tuple[int, ...]
    """Ends of the bins."""
    received: Any
    """Bytes that each queue pair had received by the end of each bin (bins x pairs)."""
    queue_peaks: Any
    """Deepest data queue of every stage in each bin, bytes (bins x stages)."""
    lost: Any
    """Data packets that faults had taken by the end of each bin."""
    counts: Any
    """Packet-hops, trimmed, marked, dropped and lost packets by the end of each bin (bins x 5)."""

    def rates_bps(self, pairs: slice | list[int] | None = None) -> Any:
        """Return the rate of new payload in each bin, over all queue pairs or those numbered in `pairs`."""
        if not self.ends_ps:
            return np.zeros(0)
        total = (self.received if pairs is None else self.received[:, pairs]).sum(axis=1)
        ends = np.array(self.ends_ps, np.float64)
        return np.diff(total, prepend=0).astype(np.float64) * _BITS_PER_BYTE * _PS_PER_SECOND / np.diff(ends, prepend=0)


@dataclass(frozen=True, eq=False)
class SimulationReport:
    """One run of one transport."""

    scenario: str
    """Name of the scenario."""
    transport: str
    """Name of the transport."""
    hosts: int
    """NICs of the fabric."""
    planes: int
    """Planes of the fabric."""
    slot_ps: int
    """Length of a slot."""
    ideal_ps: int
    """Least time in which the counted flows could complete."""
    flows: tuple[FlowResult, ...]
    """Every flow."""
    pairs: tuple[tuple[int, int], ...]
    """Source and destination of every queue pair."""
    counters: Mapping[str, Any]
    """Counters of the endpoints, columns over queue pairs."""
    trimmed: int
    """Packets trimmed by switches."""
    marked: int
    """Data packets that arrived with a mark."""
    dropped: int
    """Packets that found a queue full."""
    lost: int
    """Packets lost to faults."""
    injected: int
    """Packets put on the wire."""
    delivered: int
    """Packets that reached a NIC."""
    in_flight: int
    """Packets in flight when the run ended."""
    packet_hops: int
    """Ports crossed by packets."""
    faults: tuple[FaultResult, ...]
    """What each fault did."""
    series: TimeSeries
    """Everything over time."""
    trace: int
    """Sum over all arrivals of what, where and when."""
    end_ps: int
    """When the run ended."""
    provenance: Provenance
    """Where it comes from."""
    pausing: PauseResult | None = None
    """What pausing did, where switches pause."""
    chained: bool = False
    """Whether flows waited for others; the ideal is then that of all of them together."""
    waits: tuple[FlowResult, ...] = ()
    """Flows of no bytes: time that others waited for, such as compute."""
    links: LinkUse | None = None
    """What links carried over time, where `measure.links` asks for it."""
    interrupted: bool = False
    """Whether it was stopped before its end."""
    wall_s: float = field(default=0.0, compare=False)
    """Seconds that the run took."""
    cpu_s: float = field(default=0.0, compare=False)
    """Seconds of processor time that it took."""

    def completions_us(self) -> Any:
        """Return the completion times of the counted flows that completed."""
        times = [f.completion_ps for f in self.flows if f.counted and f.completion_ps is not None]
        return np.array(sorted(times), np.float64) / _PS_PER_US

    def makespan_ps(self) -> int | None:
        """Return the time from the first beginning to the last acknowledgement, where every counted flow completed."""
        counted = [f for f in (*self.flows, *self.waits) if f.counted]
        if not counted or any(f.acknowledged_ps < 0 for f in counted):
            return None
        return max(f.acknowledged_ps for f in counted) - min(f.began_ps for f in counted)

    def over_ideal(self) -> float | None:
        """Return by how much the slowest flow, or all of a chain together, took longer than the least time."""
        times = self.completions_us()
        took_ps = self.makespan_ps() if self.chained else times[-1] * _PS_PER_US if len(times) else None
        return None if took_ps is None or self.ideal_ps == 0 else float(took_ps / self.ideal_ps)

    def total(self, counter: str) -> int:
        """Return a counter summed over all queue pairs."""
        return int(self.counters[counter].sum())

    def goodput_bps_per_nic(self) -> float:
        """Return the payload that the receiving NICs got, per NIC, from the first beginning to the last arrival."""
        counted = [f for f in self.flows if f.counted and f.began_ps >= 0]
        if not counted or not self.series.ends_ps:
            return 0.0
        ends = [f.arrived_ps for f in counted]
        end_ps = max(ends) if min(ends) >= 0 else self.end_ps
        began_ps = min(f.began_ps for f in counted)
        done = sum(f.size for f in counted) if min(ends) >= 0 else int(self.series.received[-1].sum())
        nics = len({f.destination for f in counted})
        return done * _BITS_PER_BYTE * _PS_PER_SECOND / max(1, end_ps - began_ps) / nics

    def slowest(self) -> FlowResult | None:
        """Return the counted flow that took longest, or that failed."""
        counted = [f for f in self.flows if f.counted]
        if not counted:
            return None
        return max(counted, key=lambda f: float("inf") if f.completion_ps is None else float(f.completion_ps))

    def hash(self) -> str:
        """Return a digest of everything that happened, the same for the same scenario, seed and version."""
        digest = hashlib.blake2b(digest_size=16)
        digest.update(f"{self.transport} {self.trace} {self.packet_hops} {self.trimmed} {self.marked} ".encode())
        digest.update(f"{self.dropped} {self.lost} {self.injected} {self.delivered} {self.in_flight} ".encode())
        for flow in self.flows:
            digest.update(f"{flow.began_ps} {flow.arrived_ps} {flow.acknowledged_ps} {flow.failure};".encode())
        for name in sorted(self.counters):
            digest.update(name.encode() + np.ascontiguousarray(self.counters[name], np.int64).tobytes())
        if self.pausing is not None:
            digest.update(repr(self.pausing).encode())
        return digest.hexdigest()

    def as_json(self) -> dict[str, Any]:
        """Return the report as plain values (docs/json.md)."""
        slowest = self.slowest()
        return {
            "scenario": self.scenario,
            "transport": self.transport,
            "hosts": self.hosts,
            "planes": self.planes,
            "flows": sum(f.counted for f in self.flows),
            "completed": sum(f.counted and f.completion_ps is not None for f in self.flows),
            "failed": sum(f.counted and f.failure != "" for f in self.flows),
            "fct_us": statistics(self.completions_us()),
            "makespan_us": _us(self.makespan_ps()),
            "ideal_us": round(self.ideal_ps / _PS_PER_US, _DIGITS),
            "goodput_bps_per_nic": round(self.goodput_bps_per_nic()),
            "slowest_flow": None if slowest is None else slowest.name,
            "retransmitted": self.total("resent"),
            "trimmed": self.trimmed,
            "marked": self.marked,
            "dropped": self.dropped,
            "lost": self.lost,
            "ev": {name: self.total(name) for name in ("retired", "readmitted", "refused", "marks", "trims")},
            "qps": len(self.pairs),
            "qps_touched": max((fault.pairs for fault in self.faults), default=0),
            "recovery_us": [_us(max(fault.recovery_ps, default=None)) for fault in self.faults],
            "faults": [_fault_json(fault) for fault in self.faults],
            "pausing": None if self.pausing is None else _pausing_json(self.pausing),
            "queue_peak_bytes": [int(peak) for peak in self.series.queue_peaks.max(axis=0)],
            "worst_links": None if self.links is None else self.links.as_json(_WORST_LINKS),
            "packet_hops": self.packet_hops,
            "interrupted": self.interrupted,
            "wall_s": round(self.wall_s, 3),
            "cpu_s": round(self.cpu_s, 3),
            "hash": self.hash(),
            "provenance": self.provenance.as_json(),
        }


class RunTimes(NamedTuple):
    """What a run itself took."""

    wall_s: float
    """Seconds."""
    cpu_s: float
    """Seconds of processor time."""
    interrupted: bool
    """Whether it was stopped before its end."""


def _us(time_ps: int | None) -> float | None:
    return None if time_ps is None else round(time_ps / _PS_PER_US, _DIGITS)


def _fault_json(fault: FaultResult) -> dict[str, Any]:
    return {
        "kind": fault.kind,
        "target": fault.target,
        "at_us": _us(fault.at_ps),
        "lost": fault.lost,
        "data_lost": fault.data_lost,
        "unrecovered": fault.unrecovered,
        "qps": fault.pairs,
        "recovery_us": statistics(np.array(sorted(fault.recovery_ps), np.float64) / _PS_PER_US),
    }


def _pausing_json(pausing: PauseResult) -> dict[str, Any]:
    tree = {
        "root": pausing.tree_root,
        "ports": list(pausing.tree_ports),
        "depth": pausing.tree_depth,
        "innocent_qps": pausing.tree_innocent,
        "at_us": _us(pausing.tree_at_ps),
    }
    deadlock = {"ports": list(pausing.deadlock), "at_us": _us(pausing.deadlock_at_ps)}
    return {
        "pauses": pausing.pauses,
        "paused_us_by_stage": [_us(time_ps) for time_ps in pausing.paused_ps],
        "paused_ports": pausing.paused_ports,
        "longest_paused": {"port": pausing.longest, "us": _us(pausing.longest_ps)} if pausing.longest else None,
        "trees": pausing.trees,
        "largest_tree": None if pausing.tree_at_ps < 0 else tree,
        "deadlock": None if pausing.deadlock_at_ps < 0 else deadlock,
    }


def statistics(values: Any) -> dict[str, float | None]:
    """Return the usual figures of sorted values; a percentile is the smallest value that so many do not exceed."""
    if len(values) == 0:
        return dict.fromkeys(("min", "mean", "p50", "p99", "max"))

    def percentile(share: int) -> float:
        return float(values[max(0, -(-len(values) * share // 100) - 1)])

    found = {
        "min": float(values[0]),
        "mean": float(values.mean()),
        "p50": percentile(50),
        "p99": percentile(99),
        "max": float(values[-1]),
    }
    return {name: round(value, _DIGITS) for name, value in found.items()}


def provenance_of(setup: "Setup", transport: "Transport") -> Provenance:
    """Return the name of a run."""
    asked = {"scenario": setup.scenario.as_written(), "fabric": setup.fabric.as_written(), "transport": transport.name}
    return provenance(asked, setup.seed.root)


def report_of(
    setup: "Setup",
    network: "Network",
    transport: "Transport",
    simulator: "ReferenceSimulator | CompiledSimulator",
    times: RunTimes,
) -> SimulationReport:
    """Return the report of a run that is over."""
    board, records = simulator.board, simulator.records
    progress = board.progress
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
        slot_ps=simulator.slot_ps,
        ideal_ps=ideal_ps(network, setup.flows),
        flows=tuple(result for result in ways if result.size > 0),
        pairs=tuple((pair.source, pair.destination) for pair in board.pairs),
        counters=simulator.endpoints.counters(),
        trimmed=records.trimmed,
        marked=records.marked,
        dropped=records.dropped,
        lost=records.lost,
        injected=records.injected,
        delivered=records.delivered,
        in_flight=simulator.in_flight,
        packet_hops=records.hops,
        faults=faults,
        series=TimeSeries(
            tuple(records.bin_ends_ps),
            np.array(records.received).reshape(len(records.received), len(board.pairs)),
            np.array(records.queue_peaks).reshape(-1, records.stages),
            np.array(records.lost_by, np.int64),
            np.array(records.counts, np.int64).reshape(-1, len(Counts._fields)),
        ),
        trace=records.trace,
        end_ps=simulator.slot * simulator.slot_ps,
        provenance=provenance_of(setup, transport),
        pausing=None if simulator.pauses is None else _pausing(network, simulator.pauses.record),
        chained=any(flow.after for flow in setup.flows if flow.counted),
        waits=tuple(result for result in ways if result.size == 0),
        links=None if simulator.links is None else simulator.links.use(),
        interrupted=times.interrupted,
        wall_s=times.wall_s,
        cpu_s=times.cpu_s,
    )


def _pausing(network: "Network", record: "PauseRecord") -> PauseResult:
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


def _flow_result(flow: "Flow", parts: "Sequence[FlowProgress]") -> FlowResult:
    """Return how a flow went, which is over when the last of its parts is."""
    ends = [[part.arrived_ps for part in parts], [part.acknowledged_ps for part in parts]]
    arrived, acknowledged = (max(times) if min(times) >= 0 else -1 for times in ends)
    failure = next((part.failure for part in parts if part.failure), "")
    began = min(part.began_ps for part in parts)
    return FlowResult(
        flow.name, flow.source, flow.destination, flow.size, began, arrived, acknowledged, failure, flow.counted
    )
