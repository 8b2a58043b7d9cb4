"""What one switch does in one slot: takes in what arrives, each port's in the order of keys, and lets its ports send.

The next port of a packet follows from its destination and the uplinks that it names (`local_port`); that is the place
for another way of choosing.
"""

from weft.core.compile.intrinsics import prefetch
from weft.core.compile.rules import rule
from weft.mrc.columns import SACK
from weft.mrc.rules.numbers import lowest_bit, mix64
from weft.netsim.host.host_state import Column
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
    DATA_BYTES,
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
    Fabric,
    KernelColumns,
    Shard,
    Wires,
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
def local_port(fabric: Fabric, node: Column, goal: int) -> int:
    """Return which port of a node a packet goes to next, or at NICs, which NIC it is for."""
    to = goal & PORT_MASK
    tier = node[TIER]
    if tier <= 0:
        below = to - node[FIRST_NIC]
        if tier == AT_NICS or 0 <= below < node[NICS]:
            return below
        return fabric.figures[DOWN] + ((goal >> UPLINK_SHIFT) & UPLINK_MASK)
    t0 = fabric.t0_of[to]
    bundle = fabric.figures[BUNDLE]
    first = (goal >> UPLINK_SHIFT) & UPLINK_MASK
    if fabric.figures[TIERS] == _TWO_TIERS:
        return t0 if bundle == 1 else t0 * bundle + first % bundle
    second = (goal >> SECOND_SHIFT) & UPLINK_MASK
    pod_t0 = fabric.figures[POD_T0]
    pod = t0 // pod_t0
    if tier > 1:
        return pod * bundle + second % bundle
    return t0 - pod * pod_t0 if pod == node[INDEX] else pod_t0 + second


@rule
def take_arrivals(columns: KernelColumns, shard: Shard, number: int, slot: int) -> int:
    """Sort what arrives at a node in a slot by port, or by NIC, into `came`; return how many entries that takes."""
    fabric, wires = columns.fabric, columns.wires
    node = fabric.nodes[number]
    at_nics = node[TIER] == AT_NICS
    first_word = node[FIRST_WORD]
    ring = slot & (wires.heads.shape[1] - 1)
    slot_ps = fabric.figures[SLOT_PS]
    order_word = fabric.figures[ORDER_WORD]
    # For one slot the mixing is one to one, so that no two packets share a key: see `order_keys`.
    base = slot << _SLOT_SHIFT
    # The trace is a sum, so that it does not depend on the order of nodes or threads.
    trace = 0
    in_one_list = chooses(fabric) and not at_nics
    count = 0
    prefetch_arrivals(wires, number, slot + 1)
    for source in range(wires.heads.shape[0]):
        left = wires.heads[source, ring, number] & LOW32
        chunk = wires.heads[source, ring, number] >> CHUNK_SHIFT
        while chunk >= 0:
            if wires.after[chunk] >= 0:
                _prefetch_chunk(wires, wires.after[chunk])
            # The first chunk of a list is the one that was filled last; all behind it are full.
            held = ((left - 1) & (CHUNK - 1)) + 1
            left -= held
            for row in range(chunk * CHUNK, chunk * CHUNK + held):
                packet = wires.rows[row]
                prefetch(wires.rows, row + _PREFETCHED, GOAL)
                place = packet[PLACE]
                # A way longer than the ring was put as far ahead as it goes; it takes the rest from here.
                if place & PLACE_MASK >= slot_ps:
                    forward(columns, shard, number, packet, slot)
                    continue
                key = mix64(order_word, packet[UID] + base)
                trace += key * (2 * ((place >> PLACE_BITS) & PORT_MASK) + 1)
                # A switch that chooses uplinks takes all its arrivals in one order, and so one list.
                to = 0 if in_one_list else local_port(fabric, node, packet[GOAL])
                shard.came[count] = key
                shard.came[count + AT] = row
                shard.came[count + NEXT] = shard.first[to]
                shard.first[to] = count
                if at_nics:
                    state = packet[STATE]
                    if (state >> KIND_SHIFT) & KIND_MASK == SACK:
                        prefetch_reply(columns.hosts, packet[NAME] >> PAIR_SHIFT, state + (state >> NUMBER_SHIFT))
                elif not in_one_list:
                    columns.busy[first_word + (to >> _WORD_SHIFT)] |= 1 << (to & _WORD_MASK)
                count += CAME
            chunk = wires.after[chunk]
    shard.count[HOPS] += count // CAME
    shard.count[TRACE] += trace
    return count


@rule
def prefetch_arrivals(wires: Wires, number: int, slot: int) -> None:
    """Say that what arrives at a node in a slot is about to be looked at."""
    for source in range(wires.heads.shape[0]):
        chunk = wires.heads[source, slot & (wires.heads.shape[1] - 1), number] >> CHUNK_SHIFT
        if chunk >= 0:
            _prefetch_chunk(wires, chunk)


@rule
def _prefetch_chunk(wires: Wires, chunk: int) -> None:
    """Say that the packets of a chunk are about to be looked at; those behind the first ones come by themselves."""
    for row in range(chunk * CHUNK, chunk * CHUNK + _PREFETCHED):
        prefetch(wires.rows, row, GOAL)


@rule
def release_arrivals(wires: Wires, part: int, number: int, slot: int) -> None:
    """Give back the room of what has been taken in."""
    ring = slot & (wires.heads.shape[1] - 1)
    for source in range(wires.heads.shape[0]):
        if wires.heads[source, ring, number] != NO_CHUNK:
            clear_list(wires, part, source, ring, number)


@rule
def in_order(wires: Wires, shard: Shard, to: int, by_time: bool) -> int:
    """Put the arrivals for one port, or one NIC, of which there are some, into `order`: by key, or by time and key.

    Returns how many there are.
    """
    each = shard.first[to]
    shard.first[to] = -1
    other = shard.came[each + NEXT]
    if other < 0:
        shard.order[0] = each
        return 1
    if shard.came[other + NEXT] < 0:
        # Which of two comes first cannot be predicted, so that a guess costs more than to work out both.
        first = _comes_before(wires, shard, each, other, by_time)
        shard.order[0] = each if first else other
        shard.order[1] = other if first else each
        return 2
    count = 0
    while each >= 0:
        shard.order[count] = each
        count += 1
        each = shard.came[each + NEXT]
    # Insertion is quickest for the few that usually come; an incast brings hundreds.
    if count > _SHORT:
        _sort_many(wires, shard, count, by_time)
        return count
    for k in range(1, count):
        each = shard.order[k]
        at = k
        while at > 0 and _comes_before(wires, shard, each, shard.order[at - 1], by_time):
            shard.order[at] = shard.order[at - 1]
            at -= 1
        shard.order[at] = each
    return count


@rule
def _comes_before(wires: Wires, shard: Shard, one: int, other: int, by_time: bool) -> bool:
    """Return whether arrival `one` is taken in before `other`; keys are compared as numbers without a sign."""
    if by_time:
        first_ps = wires.rows[shard.came[one + AT], PLACE] & PLACE_MASK
        second_ps = wires.rows[shard.came[other + AT], PLACE] & PLACE_MASK
        if first_ps != second_ps:
            return first_ps < second_ps
    return shard.came[one] ^ _FLIP < shard.came[other] ^ _FLIP


@rule
def _sort_many(wires: Wires, shard: Shard, count: int, by_time: bool) -> None:
    """Sort `order` as a heap, for the rare port that many packets reach at once."""
    for k in range(count // 2 - 1, -1, -1):
        _sink(wires, shard, k, count, by_time)
    for k in range(count - 1, 0, -1):
        shard.order[0], shard.order[k] = shard.order[k], shard.order[0]
        _sink(wires, shard, 0, k, by_time)


@rule
def _sink(wires: Wires, shard: Shard, root: int, count: int, by_time: bool) -> None:
    """Let the arrival at `root` sink to its place in the heap."""
    while True:
        child = 2 * root + 1
        if child >= count:
            return
        if child + 1 < count and _comes_before(wires, shard, shard.order[child], shard.order[child + 1], by_time):
            child += 1
        if not _comes_before(wires, shard, shard.order[root], shard.order[child], by_time):
            return
        shard.order[root], shard.order[child] = shard.order[child], shard.order[root]
        root = child


@rule
def _prefetch_ports(columns: KernelColumns, node: Column) -> None:
    """Say that the ports which have anything to do are about to be used, and then the first packets of their queues."""
    fabric = columns.fabric
    # Twice: a queue's first packet is known only once its port has come from memory.
    for look in range(2):
        for word in range((node[PORTS] + WORD_BITS - 1) >> _WORD_SHIFT):
            left = columns.busy[node[FIRST_WORD] + word]
            while left:
                at = node[FIRST_PORT] + (word << _WORD_SHIFT) + lowest_bit(left)
                left &= left - 1
                if look == 0:
                    prefetch(fabric.ports, at, 0)
                elif fabric.ports[at, DATA_FIRST] >= 0:
                    prefetch(columns.queues.rows, fabric.ports[at, DATA_FIRST], UID)


@rule
def switch_step(columns: KernelColumns, shard: Shard, number: int, slot: int) -> None:
    """Do what one switch does in one slot."""
    fabric, busy = columns.fabric, columns.busy
    node = fabric.nodes[number]
    take_arrivals(columns, shard, number, slot)
    if slot % fabric.figures[SWITCH_SLOTS] == 0:
        _prefetch_ports(columns, node)
    if chooses(fabric):
        _admit_by_choice(columns, shard, node)
    by_time = keeps_order(fabric)
    first_port = node[FIRST_PORT]
    first_word = node[FIRST_WORD]
    waiting = 0
    for word in range((node[PORTS] + WORD_BITS - 1) >> _WORD_SHIFT):
        left = busy[first_word + word]
        bits = 0
        while left:
            local = (word << _WORD_SHIFT) + lowest_bit(left)
            if _port_step(columns, shard, fabric.ports[first_port + local], local, by_time, slot):
                waiting += 1
                # x & -x is the lowest bit that is set: this port stays busy.
                bits |= left & -left
            left &= left - 1
        busy[first_word + word] = bits
    shard.count[BUSY] += waiting
    # All ports, not only busy ones: a pause is taken back when nothing is left.
    if pauses(fabric):
        for local in range(node[PORTS]):
            own = fabric.ports[node[FIRST_PORT] + local, NUMBER]
            if own >= 0:
                decide_pause(fabric, shard, own ^ 1, slot)
    release_arrivals(columns.wires, shard.part, number, slot)


@rule
def _port_step(columns: KernelColumns, shard: Shard, port: Column, local: int, by_time: bool, slot: int) -> bool:
    """Let a port take in what arrived for it and send; return whether anything still waits."""
    wires = columns.wires
    # A packet that comes alone to an empty port needs no queue, and is spared two copies.
    first = shard.first[local]
    if first >= 0:
        if shard.came[first + NEXT] < 0 and cross(columns, shard, port, wires.rows[shard.came[first + AT]], slot):
            shard.first[local] = -1
            return False
        whole = False
        for k in range(in_order(wires, shard, local, by_time)):
            each = shard.order[k]
            if admit(columns, shard, port, wires.rows[shard.came[each + AT]], shard.came[each]):
                whole = True
        if whole:
            note_peak(columns.fabric, shard, port, port[DATA_BYTES])
    return transmit(columns, shard, port, slot)


@rule
def _admit_by_choice(columns: KernelColumns, shard: Shard, node: Column) -> None:
    """Queue all arrivals in the order of their keys, each on the uplink that is shortest then."""
    fabric, wires = columns.fabric, columns.wires
    if shard.first[0] < 0:
        return
    for k in range(in_order(wires, shard, 0, False)):
        each = shard.order[k]
        packet = wires.rows[shard.came[each + AT]]
        packet[GOAL] = with_uplink(fabric, node, packet[GOAL], shard.came[each])
        local = local_port(fabric, node, packet[GOAL])
        port = fabric.ports[node[FIRST_PORT] + local]
        if admit(columns, shard, port, packet, shard.came[each]):
            note_peak(fabric, shard, port, port[DATA_BYTES])
        columns.busy[node[FIRST_WORD] + (local >> _WORD_SHIFT)] |= 1 << (local & _WORD_MASK)
