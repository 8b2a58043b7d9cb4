"""One run on the compiled engine: what lies around the slots. Flows begin and end, faults come and go, bins close.

The compiled part runs until there is something to report: a flow is over, a packet was lost to a fault, the next
fault or flow begins, a bin ends. Those are dealt with here, between two slots, as in the reference.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from weft.core.compile.rules import Specialisation
from weft.core.errors import LimitReachedError, UsageError
from weft.core.provenance import digest
from weft.core.seeds import Seed
from weft.mrc.rules.numbers import seq_near
from weft.netsim.host.compiling import Fixed
from weft.netsim.host.host_state import AT_NIC
from weft.netsim.kernel import allocation, layout, scheduler
from weft.netsim.kernel.fabric_columns import NO_PORT, build_fabric, near_ps
from weft.netsim.kernel.link_faults import LinkFaults, LinkFaultState
from weft.netsim.kernel.nics import AT_ONCE
from weft.netsim.kernel.pfc import PauseColumns
from weft.netsim.kernel.threads import Crew
from weft.netsim.model.faults import LinkFaultChange, Reconvergence
from weft.netsim.model.flow_board import BoardState, FlowBoard
from weft.netsim.model.link_use import LinkMeter
from weft.netsim.model.network import Network
from weft.netsim.model.queue_pairs import Numbers
from weft.netsim.model.records import Counts, Miss, RunRecords, Timeline
from weft.netsim.transports.column_endpoints import ColumnEndpoints

_MASK = 2**64 - 1
_MOST_SLOTS = 2**31 - 2
_PORT_SLOTS_AT_ONCE = 4_000_000
_MOST_SLOTS_AT_ONCE = 256
_PARTS_PER_THREAD = 4
_COUNTED = (layout.HOPS, layout.TRIMMED, layout.MARKS, layout.DROPPED, layout.LOST)
"""Counters of a part in the order of `Counts`."""


class SmallState(NamedTuple):
    """What is kept of a run besides its columns."""

    of: str
    """Scenario, seed, transport and threads, by which a kept run is known again."""
    slot: int
    """Where it stopped."""
    changed: int
    """Faults that have begun or ended."""
    bin_end_ps: int
    """When the open bin ends."""
    misses: list[Miss]
    """Packets that faults have taken in this round."""
    board: BoardState
    """How far all flows are."""
    records: RunRecords
    """What was counted."""
    link_faults: LinkFaultState
    """What is wrong with links."""
    stores: tuple[int, int, list[int]]
    """How large the stores of packets have grown."""


def _swap(network: Network, swap: Specialisation | None, *, metered: bool) -> Specialisation:
    """Return which rules take the place of others: those of the transport, and where switches only queue, of those."""
    switching = network.switching
    name = "engine" if swap is None else f"{swap.name}_engine"
    instead: dict[Callable[..., Any], Callable[..., Any]] = {**({} if swap is None else swap.replacements), **AT_ONCE}
    if metered:
        name = f"{name}_metered"
    else:
        instead |= layout.UNMETERED
    if switching.pause is not None or switching.ordered or switching.adaptive:
        return Specialisation(name, instead)
    return Specialisation(f"{name}_plain", {**instead, **layout.PLAINLY})


class CompiledSimulator:
    """One run of one transport."""

    def __init__(
        self,
        network: Network,
        endpoints: ColumnEndpoints,
        board: FlowBoard,
        seed: Seed,
        timeline: Timeline,
        *,
        threads: int = 1,
    ) -> None:
        self.network, self.endpoints, self.board = network, endpoints, board
        self.slot, self.slot_ps = 0, int(network.slot_ps)
        self.asked = ""
        """What was asked for, by which a kept run is known again."""
        self.stop = 0
        """The slot before which nothing has to be done from outside, as far as that is known."""
        self.bin_ps, self.until_ps = timeline.bin_ps, timeline.until_ps
        self.records = RunRecords(2 * network.shape.tiers)
        self.records.faults = timeline.fault_records()
        self._bin_end_ps = self.bin_ps
        self.links = LinkMeter(network) if timeline.links else None
        self.swap = _swap(network, endpoints.swap, metered=timeline.links)
        self._crew = Crew(threads, self.swap)
        self._columns: layout.KernelColumns | None = None
        self._at_once = max(1, min(_MOST_SLOTS_AT_ONCE, _PORT_SLOTS_AT_ONCE // network.ports))
        self._round = board.round_slots(network, endpoints.most_posts)
        self._at_once = -(-self._at_once // self._round) * self._round
        self._misses: list[Miss] = []
        self._build(seed, 1 if threads == 1 else threads * _PARTS_PER_THREAD)
        self._changes = tuple(timeline.changes)
        self._changed = 0
        self._advance = Fixed(scheduler.advance, self.swap)
        self.pauses = None if network.switching.pause is None else PauseColumns(self)
        self._news = Reconvergence(network.switching.reconvergence_ps, timeline.changes)
        # What is compiled, or read from where that is kept, is no part of what a run takes.
        endpoints.post_many((), ())
        if len(self.shards) == 1:
            self._advance(self.columns, self.shards[0], 0, 0)
        else:
            self._crew.warm_up(self)

    def _build(self, seed: Seed, parts: int) -> None:
        network, hosts = self.network, self.endpoints.host_state
        self.fabric, (rates, words) = build_fabric(
            network, len(self.endpoints.pairs), seed, metered=self.links is not None
        )
        self.busy = np.zeros(int(words), np.int64)
        packets = allocation.planned_packets(
            network, len(self.endpoints.pairs), int(self.endpoints.params["window_max"][0])
        )
        nodes = self.fabric.nodes
        ring = allocation.ring_slots(network, self._round)
        figures = self.fabric.figures
        figures[layout.ROUND_SLOTS] = self._round
        figures[layout.SWITCH_SLOTS] = min(self._round, network.ahead_slots[1])
        figures[layout.FURTHEST] = ring - self._round
        figures[layout.NEAR] = near_ps(self.slot_ps, ring - self._round)
        payload, header = network.frames.payload, network.frames.header
        smallest = min((flow.size % payload or payload for flow in self.board.flows), default=payload) + header
        figures[layout.MOST_SENT] = network.frames.full // smallest + 1
        in_round = allocation.planned_in_round(network, self._round, int(figures[layout.MOST_SENT]))
        self.wires = allocation.make_wires(packets, in_round, parts, ring, len(nodes))
        self.queues = allocation.make_queues(packets, in_round, parts)
        self.shards = [
            allocation.make_shard(network, self.fabric, part, members, len(hosts.nics.each))
            for part, members in enumerate(allocation.parts_of(nodes, parts))
        ]
        numbers = self.fabric.ports[:, layout.NUMBER]
        blocks = nodes[nodes[:, layout.TIER] == layout.AT_NICS]
        self.block_of = np.repeat(np.arange(len(blocks)), blocks[:, layout.NICS])
        """The node of every NIC."""
        self.row_of = np.full(network.ports, -1, np.int64)
        used = np.flatnonzero(numbers != NO_PORT)
        self.row_of[numbers[used]] = used
        self.link_faults = LinkFaults(self.fabric, self.row_of, int(rates), self.slot_ps)

    # What the flows ask of the endpoints.

    def post(self, pair: int, length: int) -> bool:
        """Give a pair a message; return whether it had room for it."""
        self._rouse([self.endpoints.pairs[pair].source])
        return self.endpoints.post(pair, length)

    def post_many(self, pairs: Numbers, lengths: Numbers) -> Sequence[bool]:
        """Give each of `pairs` a message; return which had room for it."""
        self._rouse(self.endpoints.host_state.nics.each[2 * np.asarray(pairs, np.int64), AT_NIC])
        return self.endpoints.post_many(pairs, lengths)

    def set_goals(self, pairs: Numbers, arrived: Numbers, acknowledged: Numbers) -> None:
        """Say after how many packets of each pair an `ARRIVED` and an `ACKNOWLEDGED` are wanted; `NEVER` for none."""
        self.endpoints.set_goals(pairs, arrived, acknowledged)

    def reached(self, pairs: Numbers) -> tuple[Sequence[int], Sequence[int]]:
        """Return how many packets of each pair have arrived without a gap, and of how many the sender knows it."""
        return self.endpoints.reached(pairs)

    def failed(self, pairs: Numbers) -> Mapping[int, str]:
        """Return those of `pairs` that have ended in an error, with its name."""
        return self.endpoints.failed(pairs)

    def _rouse(self, nics: Numbers) -> None:
        """Let the nodes of NICs be looked at in the next slot."""
        self.fabric.awake[self.block_of[nics]] = 1

    # The run.

    def run(self, watch: Callable[["CompiledSimulator"], None] | None = None) -> None:
        """Run until every counted flow is over or time is up; `watch` is called now and then."""
        while self.board.open and not self._time_is_up() and not self._deadlocked():
            self._prepare()
            # The slot in which flows that only stand for time are the last to end is the last one.
            self._go(self._stop() if self.board.open else self.slot + 1)
            if watch is not None:
                watch(self)
            if self.slot > _MOST_SLOTS:
                raise LimitReachedError(f"the run passed {_MOST_SLOTS:,} slots without an end")
        self._end_round()
        self._close_bins(self.slot * self.slot_ps + self.bin_ps if self.until_ps is None else self.until_ps)

    def _deadlocked(self) -> bool:
        """End every flow where ports wait for each other in a circle, and say whether they do."""
        if self.pauses is None or not self.pauses.record.deadlock:
            return False
        self.board.fail_all("PFC_DEADLOCK")
        return True

    def _time_is_up(self) -> bool:
        return self.until_ps is not None and self.slot * self.slot_ps >= self.until_ps

    def _prepare(self) -> None:
        """Do what comes before the NICs and ports of a slot: bins, faults, flows."""
        start_ps = self.slot * self.slot_ps
        self._close_bins(start_ps)
        while self._changed < len(self._changes) and self._changes[self._changed].at_ps <= start_ps:
            change = self._changes[self._changed]
            self._changed += 1
            for nic, plane, up in self.link_faults.change(change, self.slot):
                self.endpoints.change_port(nic, plane, up=up, now_ps=start_ps)
                node = int(self.block_of[nic])
                self.fabric.due[node] = min(int(self.fabric.due[node]), int(self.endpoints.host_state.nics.due[nic]))
                self._rouse([nic])
            if self.network.switching.adaptive:
                self._note_down(change)
        dead = self._news.dead(start_ps)
        if dead is not None:
            self.endpoints.reconverge(dead)
            if self.network.switching.adaptive:
                self.fabric.dead[:] &= 1
                self.fabric.dead[sorted(dead)] |= 2
        self.board.start(start_ps, self)
        self.board.repost(self)

    def _note_down(self, change: LinkFaultChange) -> None:
        """Let switches see which of their own links are down."""
        for link in change.links:
            down = self.link_faults.is_down(2 * link)
            self.fabric.dead[link] = (self.fabric.dead[link] & 2) | int(down)

    def _stop(self) -> int:
        """Return the slot before which nothing has to be done from outside, as far as that is known."""
        times = [self._bin_end_ps]
        if self._changed < len(self._changes):
            times.append(self._changes[self._changed].at_ps)
        outside = (self.board.next_start_ps(), self.until_ps, self._news.next_ps())
        times += [at_ps for at_ps in outside if at_ps is not None]
        return max(self.slot + 1, -(-min(times) // self.slot_ps))

    def _go(self, stop: int) -> None:
        """Run slots up to `stop`, or until something is to be reported."""
        ends = self.board.is_full or (self.pauses is not None and len(self.pauses.record.deadlock) > 0)
        in_round = self.slot % self._round
        self.stop = self.slot + 1 if ends else min(stop, self.slot - in_round + self._at_once)
        if len(self.shards) == 1:
            self.slot = self._advance(self.columns, self.shards[0], self.slot, self.stop)
            while self.shards[0].count[layout.NEED]:
                self._grow()
                self.slot = self._advance(self.columns, self.shards[0], self.slot, self.stop)
        else:
            self._crew.go(self)
        self._note_seen()
        self._note_lost()
        if any(shard.count[layout.FAULTY] for shard in self.shards):
            raise LimitReachedError("the engine ran out of room for packets within one slot; report this scenario")
        if self.slot % self._round == 0:
            self._end_round()

    @property
    def columns(self) -> layout.KernelColumns:
        """Return everything that the shards share; stores that have grown are others."""
        ends = self.endpoints
        now = layout.KernelColumns(self.fabric, self.wires, self.queues, ends.host_state, ends.routing, self.busy)
        # The same record as before where no part is another: compiled rules then need not take it apart again.
        if self._columns is None or any(new is not old for new, old in zip(now, self._columns, strict=True)):
            self._columns = now
        return self._columns

    def _grow(self) -> None:
        """Give a part what it lacks."""
        lacking = 0
        for place, shard in enumerate(self.shards):
            need = int(shard.count[layout.NEED])
            lacking |= need
            if need & scheduler.NEED_SCRATCH:
                most = int((self.wires.heads & layout.LOW32).sum(axis=0).max())
                self.shards[place] = allocation.with_scratch(shard, 2 * most)
            shard.count[layout.NEED] = 0
        if lacking & scheduler.NEED_ROWS:
            self.queues = allocation.grown_queues(self.queues)
        if lacking & scheduler.NEED_CHUNKS:
            self.wires = allocation.grown_wires(self.wires)

    def _end_round(self) -> None:
        """Tell flows what was completed in a round, and faults which packets they took for good."""
        for fault, pair, sequence, time_ps in self._misses:
            if not self.endpoints.has(pair, sequence):
                self.records.faults[fault].open[pair, sequence] = time_ps
                self._watch(pair, sequence)
        self._misses.clear()
        events = np.concatenate([shard.events[: shard.events_used[1]] for shard in self.shards])
        if len(events):
            # Shards finish in any order: only the sorted whole is the same for every number of threads.
            self.board.on_events(events[np.lexsort(events.T[::-1])], self)
        for shard in self.shards:
            shard.events_used[1] = 0

    def _note_seen(self) -> None:
        for shard in self.shards:
            found = int(shard.count[layout.SEEN])
            if not found:
                continue
            for pair, sequence, time_ps in sorted(shard.seen[:found].tolist(), key=lambda row: row[2]):
                for record in self.records.faults:
                    record.arrive(pair, sequence, time_ps)
            shard.count[layout.SEEN] = 0
        if self.fabric.figures[layout.WATCHING] and not any(record.open for record in self.records.faults):
            self.fabric.figures[layout.WATCHING] = 0
            self.fabric.watched[:] = 0, -1

    def _note_lost(self) -> None:
        lost: list[list[int]] = []
        for shard in self.shards:
            lost += shard.lost[: int(shard.count[layout.LOSSES])].tolist()
            shard.count[layout.LOSSES] = 0
        for port, half, psn, slot in sorted(lost, key=lambda row: row[3]):
            pair, time_ps = half >> 1, slot * self.slot_ps
            for fault in self.link_faults.faults_of(port):
                record = self.records.faults[fault]
                record.lost += 1
                if psn >= 0:
                    sequence = int(seq_near(psn, int(self.endpoints.host_state.s.qp[pair]["una"])))
                    record.lose(pair, time_ps)
                    self._misses.append(Miss(fault, pair, sequence, time_ps))

    def _watch(self, pair: int, sequence: int) -> None:
        """Let the arrival of a packet that was lost be reported."""
        watched = self.fabric.watched[pair]
        self.fabric.figures[layout.WATCHING] = 1
        if watched[0] > watched[1]:
            watched[:] = sequence
        else:
            watched[:] = min(watched[0], sequence), max(watched[1], sequence)

    def _close_bins(self, now_ps: int) -> None:
        if self.pauses is not None and self._bin_end_ps <= now_ps:
            self.pauses.look(self._bin_end_ps)
        while self._bin_end_ps <= now_ps:
            self.records.peaks = np.max([shard.peaks for shard in self.shards], axis=0).tolist()
            for shard in self.shards:
                shard.peaks[:] = 0
            self.records.close_bin(self._bin_end_ps, self.endpoints.received(), self._counts())
            if self.links is not None:
                self.links.close(self._bin_end_ps, self.fabric.meters)
            self._bin_end_ps += self.bin_ps
            if self.records.is_sampled:
                self.endpoints.check_one()

    # What is kept of a run besides its columns.

    def used(self, name: str, rows: int) -> int:
        """Return how many rows of a column hold anything."""
        chunks, waiting = int(self.wires.free[:, 1].max()), int(self.queues.free[:, 1].max())
        most = {
            "wires-rows": chunks * layout.CHUNK,
            "wires-after": chunks,
            "queues-rows": waiting,
        }
        for place, shard in enumerate(self.shards):
            most[f"shard{place}-lost"] = int(shard.count[layout.LOSSES])
            most[f"shard{place}-seen"] = int(shard.count[layout.SEEN])
        return min(most.get(name, rows), rows)

    def small_state(self) -> SmallState:
        """Return everything that is no column."""
        sizes = [len(shard.order) for shard in self.shards]
        of = digest([self.network.fabric.as_written(), len(self.endpoints.pairs), len(self.shards)])
        return SmallState(
            f"{self.asked} {of}", self.slot, self._changed, self._bin_end_ps, self._misses, self.board.state(),
            self.records, self.link_faults.state(), (len(self.wires.after), len(self.queues.rows), sizes),
        )  # fmt: skip

    def make_like(self, small: SmallState) -> None:
        """Make the columns as large as those that were kept."""
        if small.of != self.small_state().of:
            raise UsageError(
                "the folder keeps another scenario, seed or transport, or one with other threads; name an empty one"
            )
        wires, queues, sizes = small.stores
        while len(self.wires.after) < wires:
            self.wires = allocation.grown_wires(self.wires)
        while len(self.queues.rows) < queues:
            self.queues = allocation.grown_queues(self.queues)
        self.shards = [allocation.with_scratch(shard, size) for shard, size in zip(self.shards, sizes, strict=True)]

    def set_small_state(self, small: SmallState) -> None:
        """Take up everything that is no column."""
        self.slot, self._changed, self._bin_end_ps = small.slot, small.changed, small.bin_end_ps
        self._misses = small.misses
        self.board.set_state(small.board)
        self.records = small.records
        self.link_faults.set_state(small.link_faults)

    @property
    def in_flight(self) -> int:
        """Return how many packets are in flight."""
        total = self._totals()
        gone = total[layout.DELIVERED] + total[layout.DROPPED] + total[layout.LOST]
        return int(total[layout.INJECTED] - gone)

    def _counts(self) -> Counts:
        total = self._totals()
        return Counts(*(int(total[place]) for place in _COUNTED))

    def _totals(self) -> Any:
        with np.errstate(over="ignore"):
            return np.sum([shard.count for shard in self.shards], axis=0)

    def finish(self) -> None:
        """Bring the totals into the records."""
        total = self._totals()
        records = self.records
        records.injected, records.delivered = int(total[layout.INJECTED]), int(total[layout.DELIVERED])
        records.dropped, records.lost = int(total[layout.DROPPED]), int(total[layout.LOST])
        records.trimmed, records.marked = int(total[layout.TRIMMED]), int(total[layout.MARKS])
        records.hops, records.trace = int(total[layout.HOPS]), int(total[layout.TRACE]) & _MASK
        if self.pauses is not None:
            self.pauses.finish(int(total[layout.ASKS_SENT]))
        self._crew.close()
