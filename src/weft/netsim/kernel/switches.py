"""What one switch does in one slot: takes in what arrives, each port's in the order of keys, and lets its ports send.

The next port of a packet follows from its destination and the uplinks that it names (`local_port`); that is the place
for another way of choosing.
"""

from typing import Any

from weft.core.compile.intrinsics import prefetch
from weft.core.compile.rules import rule
from weft.mrc.columns import SACK
from weft.mrc.rules.numbers import lowest_bit, mix64
from weft.netsim.host.prefetch import prefetch_reply
from weft.netsim.kernel.adaptive_routing import with_uplink
from weft.netsim.kernel.layout import (
    AT,
    AT_NICS,
    BUNDLE,
    BUSY,
    CAME,
    CHUNK,
    CHUNK_SHIFT,
    DATA_FIRST,
    DOWN,
    FIRST_NIC,
    FIRST_PORT,
    FIRST_WORD,
    GOAL,
    HOPS,
    INDEX,
    KIND_MASK,
    KIND_SHIFT,
    LOW32,
    NAME,
    NEXT,
    NICS,
    NO_CHUNK,
    NUMBER,
    NUMBER_SHIFT,
    ORDER_WORD,
    PAIR_SHIFT,
    PLACE,
    PLACE_BITS,
    PLACE_MASK,
    POD_T0,
    PORT_MASK,
    PORTS,
    SECOND_SHIFT,
    SLOT_PS,
    STATE,
    SWITCH_SLOTS,
    TIER,
    TIERS,
    TRACE,
    UID,
    UPLINK_MASK,
    UPLINK_SHIFT,
    chooses,
    keeps_order,
    pauses,
)
from weft.netsim.kernel.queues import admit, cross, decide_pause, forward, note_peak, transmit
from weft.netsim.kernel.wires import clear_list

WORD_BITS = 32
"""Ports in one word of `busy`."""
_WORD_SHIFT, _WORD_MASK = 5, 31
_SLOT_SHIFT = 44
_FLIP = -(2**63)
_SHORT = 24
_PREFETCHED = 6
_TWO_TIERS = 2


@rule
def local_port(f: Any, node: Any, goal: int) -> int:
    """Return which port of a node a packet goes to next, or at NICs, which NIC it is for."""
    to = goal & PORT_MASK
    tier = node[TIER]
    if tier <= 0:
        below = to - node[FIRST_NIC]
        if tier == AT_NICS or 0 <= below < node[NICS]:
            return below
        return f.figures[DOWN] + ((goal >> UPLINK_SHIFT) & UPLINK_MASK)
    t0 = f.t0_of[to]
    bundle = f.figures[BUNDLE]
    first = (goal >> UPLINK_SHIFT) & UPLINK_MASK
    if f.figures[TIERS] == _TWO_TIERS:
        return t0 if bundle == 1 else t0 * bundle + first % bundle
    second = (goal >> SECOND_SHIFT) & UPLINK_MASK
    pod_t0 = f.figures[POD_T0]
    pod = t0 // pod_t0
    if tier > 1:
        return pod * bundle + second % bundle
    return t0 - pod * pod_t0 if pod == node[INDEX] else pod_t0 + second


@rule
def take_arrivals(f: Any, w: Any, h: Any, busy: Any, d: Any, part: int, number: int, slot: int) -> int:
    """Sort what arrives at a node in a slot by port, or by NIC, into `came`; return how many entries that takes."""
    node = f.nodes[number]
    at_nics = node[TIER] == AT_NICS
    first_word = node[FIRST_WORD]
    ring = slot & (w.heads.shape[1] - 1)
    slot_ps = f.figures[SLOT_PS]
    order_word = f.figures[ORDER_WORD]
    base = slot << _SLOT_SHIFT
    trace = 0
    in_one_list = chooses(f) and not at_nics
    count = 0
    prefetch_arrivals(w, number, slot + 1)
    for source in range(w.heads.shape[0]):
        left = w.heads[source, ring, number] & LOW32
        chunk = w.heads[source, ring, number] >> CHUNK_SHIFT
        while chunk >= 0:
            if w.after[chunk] >= 0:
                _prefetch_chunk(w, w.after[chunk])
            held = ((left - 1) & (CHUNK - 1)) + 1
            left -= held
            for row in range(chunk * CHUNK, chunk * CHUNK + held):
                packet = w.rows[row]
                prefetch(w.rows, row + _PREFETCHED, GOAL)
                place = packet[PLACE]
                if place & PLACE_MASK >= slot_ps:
                    forward(f, w, d, part, number, packet, slot)
                    continue
                key = mix64(order_word, packet[UID] + base)
                trace += key * (2 * ((place >> PLACE_BITS) & PORT_MASK) + 1)
                # A switch that chooses uplinks takes all its arrivals in one order, and so one list.
                to = 0 if in_one_list else local_port(f, node, packet[GOAL])
                d.came[count] = key
                d.came[count + AT] = row
                d.came[count + NEXT] = d.first[to]
                d.first[to] = count
                if at_nics:
                    state = packet[STATE]
                    if (state >> KIND_SHIFT) & KIND_MASK == SACK:
                        prefetch_reply(h, packet[NAME] >> PAIR_SHIFT, state + (state >> NUMBER_SHIFT))
                elif not in_one_list:
                    busy[first_word + (to >> _WORD_SHIFT)] |= 1 << (to & _WORD_MASK)
                count += CAME
            chunk = w.after[chunk]
    d.count[HOPS] += count // CAME
    d.count[TRACE] += trace
    return count


@rule
def prefetch_arrivals(w: Any, number: int, slot: int) -> None:
    """Say that what arrives at a node in a slot is about to be looked at."""
    for source in range(w.heads.shape[0]):
        chunk = w.heads[source, slot & (w.heads.shape[1] - 1), number] >> CHUNK_SHIFT
        if chunk >= 0:
            _prefetch_chunk(w, chunk)


@rule
def _prefetch_chunk(w: Any, chunk: int) -> None:
    """Say that the packets of a chunk are about to be looked at; those behind the first ones come by themselves."""
    for row in range(chunk * CHUNK, chunk * CHUNK + _PREFETCHED):
        prefetch(w.rows, row, GOAL)


@rule
def release_arrivals(w: Any, part: int, number: int, slot: int) -> None:
    """Give back the room of what has been taken in."""
    ring = slot & (w.heads.shape[1] - 1)
    for source in range(w.heads.shape[0]):
        if w.heads[source, ring, number] != NO_CHUNK:
            clear_list(w, part, source, ring, number)


@rule
def in_order(w: Any, d: Any, to: int, by_time: bool) -> int:
    """Put the arrivals for one port, or one NIC, of which there are some, into `order`: by key, or by time and key.

    Returns how many there are.
    """
    each = d.first[to]
    d.first[to] = -1
    other = d.came[each + NEXT]
    if other < 0:
        d.order[0] = each
        return 1
    if d.came[other + NEXT] < 0:
        # Which of two comes first cannot be predicted, so that a guess costs more than to work out both.
        first = _comes_before(w, d, each, other, by_time)
        d.order[0] = each if first else other
        d.order[1] = other if first else each
        return 2
    count = 0
    while each >= 0:
        d.order[count] = each
        count += 1
        each = d.came[each + NEXT]
    if count > _SHORT:
        _sort_many(w, d, count, by_time)
        return count
    for k in range(1, count):
        each = d.order[k]
        at = k
        while at > 0 and _comes_before(w, d, each, d.order[at - 1], by_time):
            d.order[at] = d.order[at - 1]
            at -= 1
        d.order[at] = each
    return count


@rule
def _comes_before(w: Any, d: Any, one: int, other: int, by_time: bool) -> bool:
    """Return whether arrival `one` is taken in before `other`; keys are compared as numbers without a sign."""
    if by_time:
        first_ps = w.rows[d.came[one + AT], PLACE] & PLACE_MASK
        second_ps = w.rows[d.came[other + AT], PLACE] & PLACE_MASK
        if first_ps != second_ps:
            return first_ps < second_ps
    return d.came[one] ^ _FLIP < d.came[other] ^ _FLIP


@rule
def _sort_many(w: Any, d: Any, count: int, by_time: bool) -> None:
    """Sort `order` as a heap, for the rare port that many packets reach at once."""
    for k in range(count // 2 - 1, -1, -1):
        _sink(w, d, k, count, by_time)
    for k in range(count - 1, 0, -1):
        d.order[0], d.order[k] = d.order[k], d.order[0]
        _sink(w, d, 0, k, by_time)


@rule
def _sink(w: Any, d: Any, root: int, count: int, by_time: bool) -> None:
    """Let the arrival at `root` sink to its place in the heap."""
    while True:
        child = 2 * root + 1
        if child >= count:
            return
        if child + 1 < count and _comes_before(w, d, d.order[child], d.order[child + 1], by_time):
            child += 1
        if not _comes_before(w, d, d.order[root], d.order[child], by_time):
            return
        d.order[root], d.order[child] = d.order[child], d.order[root]
        root = child


@rule
def _prefetch_ports(f: Any, q: Any, busy: Any, node: Any) -> None:
    """Say that the ports which have anything to do are about to be used, and then the first packets of their queues."""
    for look in range(2):
        for word in range((node[PORTS] + WORD_BITS - 1) >> _WORD_SHIFT):
            left = busy[node[FIRST_WORD] + word]
            while left:
                at = node[FIRST_PORT] + (word << _WORD_SHIFT) + lowest_bit(left)
                left &= left - 1
                if look == 0:
                    prefetch(f.ports, at, 0)
                elif f.ports[at, DATA_FIRST] >= 0:
                    prefetch(q.rows, f.ports[at, DATA_FIRST], UID)


@rule
def switch_step(f: Any, w: Any, q: Any, h: Any, busy: Any, d: Any, part: int, number: int, slot: int) -> None:
    """Do what one switch does in one slot."""
    node = f.nodes[number]
    take_arrivals(f, w, h, busy, d, part, number, slot)
    if slot % f.figures[SWITCH_SLOTS] == 0:
        _prefetch_ports(f, q, busy, node)
    if chooses(f):
        _admit_by_choice(f, w, q, h, busy, d, part, node)
    by_time = keeps_order(f)
    first_port = node[FIRST_PORT]
    first_word = node[FIRST_WORD]
    waiting = 0
    for word in range((node[PORTS] + WORD_BITS - 1) >> _WORD_SHIFT):
        left = busy[first_word + word]
        bits = 0
        while left:
            local = (word << _WORD_SHIFT) + lowest_bit(left)
            if _port_step(f, w, q, h, d, part, f.ports[first_port + local], local, by_time, slot):
                waiting += 1
                bits |= left & -left
            left &= left - 1
        busy[first_word + word] = bits
    d.count[BUSY] += waiting
    if pauses(f):
        for local in range(node[PORTS]):
            own = f.ports[node[FIRST_PORT] + local, NUMBER]
            if own >= 0:
                decide_pause(f, d, own ^ 1, slot)
    release_arrivals(w, part, number, slot)


@rule
def _port_step(
    f: Any, w: Any, q: Any, h: Any, d: Any, part: int, port: Any, local: int, by_time: bool, slot: int
) -> bool:
    """Let a port take in what arrived for it and send; return whether anything still waits."""
    first = d.first[local]
    if first >= 0:
        if d.came[first + NEXT] < 0 and cross(f, w, h, d, part, port, w.rows[d.came[first + AT]], slot):
            d.first[local] = -1
            return False
        whole = False
        for k in range(in_order(w, d, local, by_time)):
            each = d.order[k]
            if admit(f, q, h, d, part, port, w.rows[d.came[each + AT]], d.came[each]):
                whole = True
        if whole:
            note_peak(f, d, port)
    return transmit(f, w, q, d, part, port, slot)


@rule
def _admit_by_choice(f: Any, w: Any, q: Any, h: Any, busy: Any, d: Any, part: int, node: Any) -> None:
    """Queue all arrivals in the order of their keys, each on the uplink that is shortest then."""
    if d.first[0] < 0:
        return
    for k in range(in_order(w, d, 0, False)):
        each = d.order[k]
        packet = w.rows[d.came[each + AT]]
        packet[GOAL] = with_uplink(f, node, packet[GOAL], d.came[each])
        local = local_port(f, node, packet[GOAL])
        port = f.ports[node[FIRST_PORT] + local]
        if admit(f, q, h, d, part, port, packet, d.came[each]):
            note_peak(f, d, port)
        busy[node[FIRST_WORD] + (local >> _WORD_SHIFT)] |= 1 << (local & _WORD_MASK)
