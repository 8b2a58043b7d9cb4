"""What the NICs below one T0 do in one slot: take in, let time pass, send, transmit; each NIC for itself.

The rules of `weft.netsim.host.mrc_host` decide; here packets are unpacked for them and packed again.
"""

from typing import Any

from weft.core.compile.intrinsics import stack_row
from weft.core.compile.rules import rule
from weft.mrc.columns import DATA, EV_PROBE, NACK, NEVER, PORT_STATUS, PROBE, SACK
from weft.mrc.rules.numbers import seq_near
from weft.netsim.host.host_state import AT_NIC, SEEN_AS
from weft.netsim.host.mrc_host import emit, give_head, send_control, send_data, take_head, take_one
from weft.netsim.host.prefetch import prefetch_acked, prefetch_data, prefetch_nic, prefetch_path, prefetch_windows
from weft.netsim.kernel.layout import (
    AGAIN,
    ASKS,
    AT,
    BUSY,
    CAME,
    CONTROL,
    DATA_BYTES,
    DELIVERED,
    EXTRA,
    FAULTY,
    FIRST_NIC,
    FIRST_PORT,
    FIRST_WORD,
    FULL,
    GOAL,
    HALF_SHIFT,
    HOP_SHIFT,
    INJECTED,
    KIND_MASK,
    KIND_SHIFT,
    LOW32,
    MARKED,
    MARKS,
    NAME,
    NICS,
    NUMBER_MASK,
    NUMBER_SHIFT,
    OFFSET_SHIFT,
    PAIR_SHIFT,
    PLACE,
    PLACE_MASK,
    PLANES,
    PROBED,
    PSN_MASK,
    ROUND_SLOTS,
    SECOND_SHIFT,
    SECONDS,
    SEEN,
    SIGN16,
    SIGN32,
    SLOT_PS,
    STATE,
    TRIM_MASK,
    TRIM_SHIFT,
    UID,
    UID_BITS,
    UPLINK_SHIFT,
    VERDICT_MASK,
    VERDICT_SHIFT,
    WATCHING,
    Outbox,
)
from weft.netsim.kernel.queues import append, on_the_way, send_at_once, take_queue_row, transmit
from weft.netsim.kernel.switches import in_order, release_arrivals, take_arrivals
from weft.netsim.kernel.wires import OUT_OF_LOG
from weft.netsim.transports.routing import STRIDE, plane_of, way_of

_AHEAD, _NEXT = 4, 2
"""How many NICs before its turn a NIC's rows are named to memory at the beginning of a round, and its windows."""


@rule
def unpack(h: Any, t: Any, packet: Any, head: Any) -> None:
    """Write what a packet says into a header, as far as those who take it in look at it."""
    state = packet[STATE]
    half = packet[NAME] >> HALF_SHIFT
    kind = (state >> KIND_SHIFT) & KIND_MASK
    number = (state >> NUMBER_SHIFT) & NUMBER_MASK
    head["pair"] = half >> 1
    head["half"] = half & 1
    head["kind"] = kind
    head["value"] = ((packet[NAME] & LOW32) ^ SIGN32) - SIGN32
    head["verdict"] = (state >> VERDICT_SHIFT) & VERDICT_MASK
    if kind == DATA:
        head["psn"] = state & PSN_MASK
        head["length"] = number
        head["immediate"] = -1
        head["retransmission"] = 1 if state & AGAIN else 0
        head["ack_request"] = 1 if state & ASKS else 0
    elif kind == SACK:
        head["cack_psn"] = state & PSN_MASK
        head["ack_psn_offset"] = (number ^ SIGN16) - SIGN16
        head["probe_response"] = 1 if state & PROBED else 0
        head["mpr"] = h.r.params[0]["mpr"]
        head["sack_offset"] = packet[GOAL] >> OFFSET_SHIFT
        head["bitmap_low"] = packet[EXTRA] & LOW32
        head["bitmap_high"] = (packet[EXTRA] >> HALF_SHIFT) & LOW32
        head["penalty"] = 0
    elif kind == NACK:
        head["psn"] = state & PSN_MASK
        head["reason"] = packet[EXTRA]
    else:
        head["id"] = number
        head["port_status"] = packet[EXTRA]
        head["plane"] = plane_of(t, head["value"]) if kind in (EV_PROBE, PORT_STATUS, PROBE) else 0


@rule
def pack(head: Any, kind: int, hops: int, packet: Any) -> None:
    """Write a header into the words of a packet; its number, place and goal are another's business."""
    packet[NAME] = (head["value"] & LOW32) | ((2 * head["pair"] + head["half"]) << HALF_SHIFT)
    packet[EXTRA] = 0
    state = (kind << KIND_SHIFT) | (hops << HOP_SHIFT)
    if kind == DATA:
        state |= head["psn"] | (head["length"] << NUMBER_SHIFT)
        state |= (AGAIN if head["retransmission"] else 0) | (ASKS if head["ack_request"] else 0)
    elif kind == SACK:
        state |= CONTROL | head["cack_psn"] | ((head["ack_psn_offset"] & NUMBER_MASK) << NUMBER_SHIFT)
        state |= (head["verdict"] << VERDICT_SHIFT) | (PROBED if head["probe_response"] else 0)
        packet[EXTRA] = head["bitmap_low"] | (head["bitmap_high"] << HALF_SHIFT)
    elif kind == NACK:
        state |= CONTROL | head["psn"]
        packet[EXTRA] = head["reason"]
    else:
        state |= CONTROL | (head["id"] << NUMBER_SHIFT) | ((head["verdict"] & VERDICT_MASK) << VERDICT_SHIFT)
        packet[EXTRA] = head["port_status"]
    packet[STATE] = state


@rule
def _goal(f: Any, each: Any, t: Any, half: int, plane: int, route: int) -> int:
    """Return the destination and the uplinks of a packet that a half sends with EV bits `route`."""
    way = way_of(t, half, each[half, SEEN_AS], route - plane * t.figures[STRIDE])
    seconds = f.figures[SECONDS]
    if seconds == 1:
        return each[half ^ 1, AT_NIC] | (way << UPLINK_SHIFT)
    first = way // seconds
    return each[half ^ 1, AT_NIC] | (first << UPLINK_SHIFT) | ((way - first * seconds) << SECOND_SHIFT)


@rule
def launch(box: Any, head: Any, i: int, half: int, route: int, size: int, time_ps: int) -> None:
    """Send a packet of a NIC, or put it into the queue of its port: `emit` of the engine."""
    f, d, nic = box.f, box.d, box.nic
    kind = head["kind"]
    head["pair"] = i
    head["half"] = half
    plane = plane_of(box.t, route)
    port = f.ports[box.first_port + plane]
    now_ps = time_ps - box.slot * f.figures[SLOT_PS]
    if send_at_once(f, d, port, size, box.slot):
        packet = box.w.rows[on_the_way(f, box.w, d, box.part, port, now_ps, size, box.slot)]
        hops = 1
    else:
        row = take_queue_row(box.q, d, box.part)
        append(box.q, port, row, kind != DATA, size)
        box.busy[box.word] |= 1 << plane
        packet = box.q.rows[row]
        packet[PLACE] = now_ps
        hops = 0
    pack(head, kind, hops, packet)
    packet[UID] = (nic << UID_BITS) + f.sent[nic]
    goal = _goal(f, box.each, box.t, 2 * i + half, plane, route)
    packet[GOAL] = goal | (head["sack_offset"] << OFFSET_SHIFT) if kind == SACK else goal
    f.sent[nic] += 1
    d.count[INJECTED] += 1


@rule
def forget(_box: Any, _head: Any) -> None:
    """Take the place of `give_head`: nobody keeps headers here."""


AT_ONCE = {take_head: stack_row, give_head: forget, emit: launch}
"""In the engine a packet is on its way as soon as a rule sends it, and headers are not kept."""


@rule
def take_in_nic(box: Any, h: Any, local: int) -> int:
    """Take in what arrived at one NIC; return how far into the slot the last of it came."""
    f, w, d = box.f, box.w, box.d
    start_ps = box.slot * f.figures[SLOT_PS]
    place_ps = 0
    count = in_order(w, d, local, True)
    head = stack_row(box)
    for k in range(count):
        packet = w.rows[d.came[d.order[k] + AT]]
        state = packet[STATE]
        unpack(h, box.t, packet, head)
        place_ps = packet[PLACE] & PLACE_MASK
        marked = 1 if state & MARKED else 0
        d.count[MARKS] += marked
        fresh = take_one(h, box, head, marked, (state >> TRIM_SHIFT) & TRIM_MASK, start_ps + place_ps)
        if fresh and f.figures[WATCHING]:
            _note_seen(f, h, d, head["pair"], head["psn"], start_ps + place_ps)
    d.count[DELIVERED] += count
    return place_ps


@rule
def _note_seen(f: Any, h: Any, d: Any, pair: int, psn: int, time_ps: int) -> None:
    """Note the arrival of data that may have been lost to a fault before."""
    seq = seq_near(psn, h.r.qp[pair]["expected"])
    if f.watched[pair, 0] <= seq <= f.watched[pair, 1]:
        at = d.count[SEEN]
        if at >= len(d.seen):
            d.count[FAULTY] = OUT_OF_LOG
            return
        d.seen[at, 0] = pair
        d.seen[at, 1] = seq
        d.seen[at, 2] = time_ps
        d.count[SEEN] = at + 1


@rule
def _send(box: Any, h: Any, phase_ps: int) -> int:
    """Let a NIC send data while its ports have room; return how many packets."""
    f, d = box.f, box.d
    free = 0
    for plane in range(f.figures[PLANES]):
        room = f.figures[FULL] - f.ports[box.first_port + plane, DATA_BYTES]
        d.room[plane] = room
        free |= (1 if room > 0 else 0) << plane
    return send_data(h, box, box.nic, box.slot * f.figures[SLOT_PS] + phase_ps, d.room, free)


@rule
def _prefetch_paths(w: Any, h: Any, d: Any, entries: int) -> None:
    """Name the EVs and packets that the SACKs among the arrivals in so many `entries` tell of."""
    for each in range(0, entries, CAME):
        packet = w.rows[d.came[each + AT]]
        state = packet[STATE]
        if (state >> KIND_SHIFT) & KIND_MASK == SACK:
            pair = packet[NAME] >> PAIR_SHIFT
            prefetch_path(h, pair, state + (state >> NUMBER_SHIFT))
            prefetch_acked(h, pair, (state & PSN_MASK) + (packet[GOAL] >> OFFSET_SHIFT), packet[EXTRA])


@rule
def _prefetch_nics(h: Any, nic: int, left: int) -> None:
    """Name what will be looked at of NICs that follow soon, where `left` of the node, with this one, are left."""
    if left > _AHEAD:
        prefetch_nic(h, nic + _AHEAD)
    if left > _NEXT:
        prefetch_windows(h, nic + _NEXT)


@rule
def _transmit_all(f: Any, w: Any, q: Any, busy: Any, d: Any, part: int, first_port: int, word: int, slot: int) -> None:
    """Let the ports of a NIC send what they may in a slot."""
    for plane in range(f.figures[PLANES]):
        port = f.ports[first_port + plane]
        if busy[word] >> plane & 1 and not transmit(f, w, q, d, part, port, slot):
            busy[word] &= ~(1 << plane)
    d.count[BUSY] += 1 if busy[word] else 0


@rule
def nic_step(f: Any, w: Any, q: Any, h: Any, t: Any, busy: Any, d: Any, part: int, number: int, slot: int) -> None:
    """Do what the NICs of one node do in one slot."""
    node = f.nodes[number]
    start_ps = slot * f.figures[SLOT_PS]
    _prefetch_paths(w, h, d, take_arrivals(f, w, h, busy, d, part, number, slot))
    due_ps = NEVER
    awake = 0
    begins = slot % f.figures[ROUND_SLOTS] == 0
    for local in range(node[NICS]):
        nic = node[FIRST_NIC] + local
        if begins:
            _prefetch_nics(h, nic, node[NICS] - local)
        word = node[FIRST_WORD] + local
        first_port = node[FIRST_PORT] + local * f.figures[PLANES]
        box = Outbox(f, w, q, t, d, busy, h.each, part, nic, slot, first_port, word, d.pool, d.events, d.told)
        phase_ps = 0
        if d.first[local] >= 0:
            phase_ps = take_in_nic(box, h, local)
        if h.due[nic] <= start_ps:
            send_control(h, box, nic, start_ps)
        if h.awake[nic]:
            if f.last_sent[nic] == slot - 1:
                phase_ps = 0
            if _send(box, h, phase_ps):
                f.last_sent[nic] = slot
                prefetch_data(h, nic)
        if busy[word]:
            _transmit_all(f, w, q, busy, d, part, first_port, word, slot)
        due_ps = min(due_ps, h.due[nic])
        awake |= h.awake[nic]
    f.due[number] = due_ps
    f.awake[number] = awake
    release_arrivals(w, part, number, slot)
