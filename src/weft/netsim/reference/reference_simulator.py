"""The loop over slots: faults, arrivals, NICs, ports. Written to be read; docs/simulation.md says what each step means.

Within a slot every switch queue, every NIC and every port acts for itself on what the step before left, so that the
order in which they are visited changes nothing.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from weft.core.errors import LimitReachedError
from weft.core.seeds import Seed, mix
from weft.core.units import transfer_ps
from weft.mrc.columns import DATA, NEVER
from weft.netsim.model.faults import Reconvergence
from weft.netsim.model.flow_board import FlowBoard
from weft.netsim.model.link_use import (
    METER_BYTES,
    METER_DROPPED,
    METER_MARKED,
    METER_PEAK,
    METER_TRIMMED,
    METERS,
    LinkMeter,
)
from weft.netsim.model.network import Network, order_keys
from weft.netsim.model.queue_pairs import FlowEvent
from weft.netsim.model.records import Counts, Miss, RunRecords, Timeline
from weft.netsim.reference.packets import SimPacket
from weft.netsim.reference.port_pauses import Pauses
from weft.netsim.reference.ports import DROPPED, QUEUED, Port, PortHop
from weft.netsim.reference.uplinks import Uplinks
from weft.netsim.transports.base import EndpointOutcome, Endpoints, Sent

_MASK = 2**64 - 1
_UID_BITS = 36
_LOSS_BITS = 32
_MOST_SLOTS = 2**40


class ReferenceSimulator:
    """One run of one transport."""

    def __init__(
        self,
        network: Network,
        endpoints: Endpoints,
        board: FlowBoard,
        seed: Seed,
        timeline: Timeline,
    ) -> None:
        self.network, self.endpoints, self.board = network, endpoints, board
        self.slot, self.slot_ps = 0, int(network.slot_ps)
        self.bin_ps, self.until_ps = timeline.bin_ps, timeline.until_ps
        self.records = RunRecords(2 * network.shape.tiers)
        self.ports = _make_ports(network)
        self.busy: set[int] = set()
        """Ports with something in their queues."""
        self.calendar: dict[int, list[SimPacket]] = {}
        """Slot to the packets that arrive in it."""
        self.in_flight = 0
        self._order_word, self._loss_word = seed.branch("order").word(), seed.branch("loss").word()
        self._changes = list(timeline.changes)
        self._changed = 0
        self.records.faults = timeline.fault_records()
        hosts = network.shape.hosts
        self._sent_by = [0] * hosts
        self._last_sent = np.full(hosts, -2, np.int64)
        """Slot in which each NIC last sent data."""
        self._phase = np.zeros(hosts, np.int64)
        """How far into this slot each NIC last learned something."""
        self._learned: list[int] = []
        self._round = board.round_slots(network, endpoints.most_posts)
        self._events: list[FlowEvent] = []
        self._misses: list[Miss] = []
        self._backlog = np.zeros((hosts, network.shape.planes), np.int64)
        """Data bytes that wait in each NIC's ports."""
        self._grant = int(network.frames.full)
        self._nic_port = {
            2 * link: (int(network.topology.links.lower[link]), int(network.topology.links.plane[link]))
            for link in range(network.shape.links[0])
        }
        self._bin_end_ps = self.bin_ps
        self._trimming = network.trimming
        switching = network.switching
        self.pauses = None if switching.pause is None else Pauses(network, switching.pause)
        self.uplinks = Uplinks(network) if switching.adaptive else None
        self._ordered = switching.ordered
        self._news = Reconvergence(switching.reconvergence_ps, timeline.changes)
        self._peaks = self.records.peaks
        self.links = LinkMeter(network) if timeline.links else None
        self._meters = np.zeros((network.ports, METERS), np.int64)

    def run(self, watch: Callable[["ReferenceSimulator"], None] | None = None) -> None:
        """Run until every counted flow is over or time is up; `watch` is called now and then."""
        steps = 0
        while self.board.open and not self._time_is_up() and not self._deadlocked():
            self.step()
            steps += 1
            if watch is not None and steps % 64 == 0:
                watch(self)
            self._skip_idle()
            if self.slot > _MOST_SLOTS:
                raise LimitReachedError(f"the run passed {_MOST_SLOTS:,} slots without an end")
        self._end_round()
        self._close_bins(self.slot * self.slot_ps + self.bin_ps if self.until_ps is None else self.until_ps)
        if self.pauses is not None:
            self.pauses.finish(self.slot)

    def _deadlocked(self) -> bool:
        """End every flow where ports wait for each other in a circle, and say whether they do."""
        if self.pauses is None or not self.pauses.record.deadlock:
            return False
        self.board.fail_all("PFC_DEADLOCK")
        return True

    def finish(self) -> None:
        """Close the run; there is nothing to be closed here."""

    def _time_is_up(self) -> bool:
        return self.until_ps is not None and self.slot * self.slot_ps >= self.until_ps

    def step(self) -> None:
        """Carry out one slot."""
        start_ps = self.slot * self.slot_ps
        self._close_bins(start_ps)
        self._change(start_ps)
        self.board.start(start_ps, self.endpoints)
        self.board.repost(self.endpoints)
        self._arrive(self.calendar.pop(self.slot, []))
        self._send(start_ps)
        self._transmit()
        if self.pauses is not None:
            self.pauses.decide(self.slot)
        self.slot += 1
        if self.slot % self._round == 0:
            self._end_round()

    def _end_round(self) -> None:
        """Tell flows what was completed in a round, and faults which packets they took for good."""
        for miss in self._misses:
            if not self.endpoints.has(miss.pair, miss.sequence):
                self.records.faults[miss.fault].open[miss.pair, miss.sequence] = miss.time_ps
        self._misses.clear()
        self.board.on_events(sorted(self._events), self.endpoints)
        self._events.clear()

    # Step 1: what breaks and what is repaired.

    def _change(self, now_ps: int) -> None:
        if self.pauses is not None:
            self.pauses.begin(self.slot, self.ports)
        while self._changed < len(self._changes) and self._changes[self._changed].at_ps <= now_ps:
            change = self._changes[self._changed]
            self._changed += 1
            for link in change.links:
                was_down = self.ports[2 * link].is_down()
                for port in (self.ports[2 * link], self.ports[2 * link + 1]):
                    port.change(change, self.slot, self.slot_ps)
                is_down = self.ports[2 * link].is_down()
                if is_down != was_down and 2 * link in self._nic_port:
                    nic, plane = self._nic_port[2 * link]
                    self.endpoints.change_port(nic, plane, up=not is_down, now_ps=now_ps)
        dead = self._news.dead(now_ps)
        if dead is not None:
            self.endpoints.reconverge(dead)
            if self.uplinks is not None:
                self.uplinks.dead = dead

    # Step 2: what arrives in this slot, at switches and at NICs.

    def _arrive(self, packets: list[SimPacket]) -> None:
        if not packets:
            return
        self.records.hops += len(packets)
        uids = np.array([packet.uid for packet in packets], np.uint64)
        keys = order_keys(self._order_word, self.slot, uids)
        crossed = np.array([packet.port for packet in packets], np.uint64)
        with np.errstate(over="ignore"):
            self.records.trace += int((keys * (crossed * np.uint64(2) + np.uint64(1))).sum())
        self.records.trace &= _MASK
        at_nics: list[SimPacket] = []
        values = keys.tolist()
        for place in self._order(packets, keys):
            packet = packets[place]
            packet.key = values[place]
            if packet.hop == len(packet.path):
                at_nics.append(packet)
            else:
                self._enqueue(packet)
        if at_nics:
            self._deliver(at_nics)

    def _order(self, packets: list[SimPacket], keys: Any) -> list[int]:
        """Return in which order the arrivals of a slot are taken: by their keys, or by their times first."""
        if not self._ordered:
            return list(np.argsort(keys).tolist())
        return list(np.lexsort((keys, np.array([packet.time_ps for packet in packets], np.int64))).tolist())

    def _enqueue(self, packet: SimPacket) -> None:
        """Put a packet into the queue of the next port of its path."""
        if self.uplinks is not None:
            packet.path = self.uplinks.path(packet, self.ports)
        number = packet.path[packet.hop]
        port = self.ports[number]
        was_trimmed = packet.trimmed
        if self.pauses is not None and not packet.control:
            if self.pauses.overruns(packet.port):
                self._meters[number, METER_DROPPED] += 1
                self.records.dropped += 1
                self._forget(packet)
                return
            self.pauses.enter(packet.port, packet.size)
        fate = port.accept(packet, self._trimming)
        if packet.trimmed != was_trimmed:
            self._meters[number, METER_TRIMMED] += 1
            self.records.trimmed += 1
        if fate == DROPPED:
            self._meters[number, METER_DROPPED] += 1
            self.records.dropped += 1
            self._forget(packet)
            return
        self.busy.add(number)
        if fate == QUEUED:
            self._peaks[port.stage] = max(self._peaks[port.stage], port.data_bytes)
            self._meters[number, METER_PEAK] = max(int(self._meters[number, METER_PEAK]), port.data_bytes)

    def _deliver(self, packets: list[SimPacket]) -> None:
        """Give what arrived to the NICs, each one's in order of time."""
        packets.sort(key=lambda packet: (packet.time_ps, packet.key))
        start_ps = self.slot * self.slot_ps
        open_faults = [record for record in self.records.faults if record.open]
        numbers = [self._number(packet) if open_faults and not packet.control else -1 for packet in packets]
        for packet in packets:
            self.records.marked += packet.marked
            nic = self._nic_port[2 * (packet.port // 2)][0]
            self._phase[nic] = packet.time_ps - start_ps
            self._learned.append(nic)
        self.records.delivered += len(packets)
        self.in_flight -= len(packets)
        arrivals = [(packet.row, packet.marked, packet.trimmed, packet.time_ps) for packet in packets]
        outcome = self.endpoints.take_in(arrivals)
        for packet, number, fresh in zip(packets, numbers, outcome.fresh, strict=True):
            if fresh and number >= 0:
                for record in open_faults:
                    record.arrive(packet.pair, number, packet.time_ps)
        self._inject(outcome)

    def _number(self, packet: SimPacket) -> int:
        return self.endpoints.sequence(packet.row)

    # Step 3: what NICs send.

    def _send(self, start_ps: int) -> None:
        room = np.maximum(self._grant - self._backlog, 0)
        # A NIC that is sending goes on at the slot's beginning; an idle one starts when it learned that it may.
        phase = np.where(self._last_sent == self.slot - 1, 0, self._phase)
        outcome = self.endpoints.send_out(start_ps, phase, room)
        self._inject(outcome)
        for nic in self._learned:
            self._phase[nic] = 0
        self._learned.clear()

    def _inject(self, outcome: EndpointOutcome) -> None:
        """Put what NICs send into the queues of their ports."""
        for sent in outcome.sent:
            self._launch(sent)
        self._events += outcome.events

    def _launch(self, sent: Sent) -> None:
        row, pair, half, route, size, kind, nic, time_ps = sent
        uid = (nic << _UID_BITS) + self._sent_by[nic]
        self._sent_by[nic] += 1
        path = self.endpoints.route(pair, half, route)
        control = 0 if kind == DATA else 1
        packet = SimPacket(uid, row, pair, path, size, time_ps, control)
        self.records.injected += 1
        self.in_flight += 1
        self.ports[path[0]].accept(packet, False)
        self.busy.add(path[0])
        if not control:
            self._last_sent[nic] = self.slot
            self._backlog[self._nic_port[path[0]]] += size

    # Step 4: what ports put on their links.

    def _transmit(self) -> None:
        slot, slot_ps, calendar = self.slot, self.slot_ps, self.calendar
        next_ps = (slot + 1) * slot_ps
        idle: list[int] = []
        for number in self.busy:
            port = self.ports[number]
            port.begin(slot, slot_ps)
            marks = port.marks
            while port.credit > 0 and (packet := port.take()) is not None:
                self._meters[number, METER_BYTES] += packet.size
                if not packet.control and number in self._nic_port:
                    self._backlog[self._nic_port[number]] -= packet.size
                elif self.pauses is not None and not packet.control:
                    self.pauses.leave(packet.port, packet.size)
                if (port.loses_all or port.loss) and self._is_lost(port, packet):
                    continue
                # A packet waits in whole slots; its place within the slot stays what its delays made it.
                start_ps = slot * slot_ps + packet.time_ps % slot_ps
                arrives_ps = start_ps + transfer_ps(packet.size, port.rate_bps) + port.delay_ps
                if self._ordered:
                    # Nothing overtakes on a link, though a short packet behind a long one would in this arithmetic.
                    arrives_ps = port.arrives_ps = max(arrives_ps, next_ps, port.arrives_ps + 1)
                packet.time_ps = max(arrives_ps, next_ps)
                packet.hop += 1
                packet.port = number
                calendar.setdefault(packet.time_ps // slot_ps, []).append(packet)
            self._meters[number, METER_MARKED] += port.marks - marks
            if not port.data and not port.control:
                idle.append(number)
        self.busy.difference_update(idle)

    def _is_lost(self, port: Port, packet: SimPacket) -> bool:
        """Decide whether a port that is not well loses a packet, and note which fault took it."""
        draw = mix(self._loss_word, (packet.uid << 4) + packet.hop) >> _LOSS_BITS
        if not port.loses_all and draw >= port.loss:
            return False
        now_ps = self.slot * self.slot_ps
        self.records.lost += 1
        number = self._number(packet) if self._is_data(packet) else -1
        for fault in port.faults:
            self.records.faults[fault].lost += 1
            if number >= 0:
                self.records.faults[fault].lose(packet.pair, now_ps)
                self._misses.append(Miss(fault, packet.pair, number, now_ps))
        self._forget(packet)
        return True

    @staticmethod
    def _is_data(packet: SimPacket) -> bool:
        return not packet.control or packet.trimmed != 0

    def _forget(self, packet: SimPacket) -> None:
        self.in_flight -= 1
        self.endpoints.drop(packet.row)

    def _skip_idle(self) -> None:
        """Go on to the next slot in which anything can happen."""
        if self.busy or not self.board.open:
            return
        slots = [min(self.calendar)] if self.calendar else []
        if self._events or self._misses:
            slots.append(-(-self.slot // self._round) * self._round)
        if self.pauses is not None and (due := self.pauses.pending_slot()) is not None:
            slots.append(due)
        times = (self.board.next_start_ps(), self._next_change_ps(), self._news.next_ps(), self.endpoints.deadline_ps(),
                 self.until_ps)  # fmt: skip
        slots += [-(-at_ps // self.slot_ps) for at_ps in times if at_ps is not None and at_ps < NEVER]
        if not slots:
            raise LimitReachedError(f"{self.board.open} flows are open, but nothing is left to happen")
        self.slot = max(self.slot, min(slots))
        if self.slot % self._round == 0:
            self._end_round()

    def _next_change_ps(self) -> int | None:
        return self._changes[self._changed].at_ps if self._changed < len(self._changes) else None

    def _close_bins(self, now_ps: int) -> None:
        if self.pauses is not None and self._bin_end_ps <= now_ps:
            self.pauses.look(self.ports, self._bin_end_ps)
        while self._bin_end_ps <= now_ps:
            found = self.records
            counts = Counts(found.hops, found.trimmed, found.marked, found.dropped, found.lost)
            found.close_bin(self._bin_end_ps, self.endpoints.received(), counts)
            if self.links is not None:
                self.links.close(self._bin_end_ps, self._meters)
            self._bin_end_ps += self.bin_ps
            if self.records.is_sampled:
                self.endpoints.check_one()
            self._peaks = self.records.peaks


def _make_ports(network: Network) -> list[Port]:
    rates = network.rate_bps.tolist()
    delays, stages = network.delay_ps.tolist(), network.stage.tolist()
    ends = list(zip(network.first_hop.tolist(), network.last_hop.tolist(), strict=True))
    kinds = [(*each, rates[port // 2]) for port, each in enumerate(ends)]
    known = {each: network.limits(port) for port, each in reversed(list(enumerate(kinds)))}
    return [
        Port(
            number, rates[number // 2], delays[number], known[kinds[number]],
            PortHop(stages[number], ends[number][1], network.frames.header, network.frames.full),
        )
        for number in range(network.ports)
    ]  # fmt: skip
