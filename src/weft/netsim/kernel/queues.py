"""What one port does with packets: lets them in, trims or refuses them, marks them as they leave, and transmits.

The same for the ports of switches and NICs; a NIC's own have no limits. What a port lets in and how it marks is decided
by its grade, a row of numbers.
"""

from weft.core.compile.intrinsics import copy_four, prefetch
from weft.core.compile.rules import rule
from weft.mrc.columns import DATA, NEVER
from weft.mrc.rules.numbers import mix64
from weft.netsim.host.host_state import Column
from weft.netsim.kernel.layout import (
    AFTER,
    ASKED,
    ASKS_SENT,
    BPS,
    BYTES,
    CHANGES,
    CONTROL,
    CONTROL_BYTES,
    CONTROL_FIRST,
    CONTROL_LAST,
    CONTROL_LIMIT,
    CREDIT,
    CREDITED,
    DATA_BYTES,
    DATA_FIRST,
    DATA_LAST,
    DATA_LIMIT,
    DELAY,
    DROPPED,
    ECN_HIGH,
    ECN_LOW,
    ECN_MOST,
    EXTRA,
    FAR,
    FAULTY,
    FURTHEST,
    GOAL,
    GRADE,
    GRANT_SLOTS,
    HALF_SHIFT,
    HEADER,
    HELD,
    HOP_MASK,
    HOP_SHIFT,
    KIND_MASK,
    KIND_SHIFT,
    LAG,
    LAST_HOP,
    LINK_DOWN,
    LINK_FAULT,
    LOSS_WORD,
    LOSSES,
    LOST,
    LOW32,
    MARK_FROM,
    MARKED,
    MOST_CHANGES,
    NAME,
    NEAR,
    NEXT_READ,
    NEXT_WRITTEN,
    NUMBER,
    NUMBER_MASK,
    NUMBER_SHIFT,
    OVERRUN,
    PACE,
    PAUSED,
    PAUSED_SINCE,
    PAUSED_SLOTS,
    PER_BYTE,
    PER_SLOT,
    PER_SLOT_BITS,
    PLACE,
    PLACE_BITS,
    PLACE_MASK,
    PORT_MASK,
    PSN_MASK,
    RATE,
    ROOM,
    SLOT_PS,
    STAGE,
    STATE,
    TRIM_MASK,
    TRIM_SHIFT,
    TRIMMED,
    TRIMMING,
    UID,
    WAY,
    WORDS,
    XOFF,
    XON,
    Fabric,
    KernelColumns,
    Queues,
    Shard,
    granted,
    is_metered,
    keeps_order,
    pauses,
)
from weft.netsim.kernel.wires import OUT_OF_LOG, OUT_OF_ROWS, place_on_wire
from weft.netsim.model.link_use import METER_BYTES, METER_DROPPED, METER_MARKED, METER_PEAK, METER_TRIMMED

_DIE_MASK = 0xFFFF
_BITS = 8 * 10**12


@rule
def size_of(sizes: Column, state: int) -> int:
    """Return the bytes of a packet on the wire; data is what is no control packet."""
    if state & CONTROL == 0:
        return sizes[DATA] + ((state >> NUMBER_SHIFT) & NUMBER_MASK)
    return sizes[(state >> KIND_SHIFT) & KIND_MASK]


@rule
def take_queue_row(queues: Queues, shard: Shard) -> int:
    """Take a free row of a part's queues."""
    height = queues.free[shard.part, 0]
    if height > 0:
        queues.free[shard.part, 0] = height - 1
        return queues.spare[shard.part, height - 1]
    found = queues.free[shard.part, 1]
    if found >= queues.free[shard.part, 2]:
        shard.count[FAULTY] = OUT_OF_ROWS
        return found - 1
    queues.free[shard.part, 1] = found + 1
    return found


@rule
def give_queue_row(queues: Queues, part: int, row: int) -> None:
    """Give a row of a part's queues back."""
    height = queues.free[part, 0]
    queues.spare[part, height] = row
    queues.free[part, 0] = height + 1


@rule
def append(queues: Queues, port: Column, row: int, control: bool, size: int) -> None:
    """Put the packet in `row` at the end of a port's control or data queue."""
    queues.rows[row, AFTER] = -1
    queues.rows[row, BYTES] = size
    if control:
        if port[CONTROL_FIRST] < 0:
            port[CONTROL_FIRST] = row
        else:
            queues.rows[port[CONTROL_LAST], AFTER] = row
        port[CONTROL_LAST] = row
        port[CONTROL_BYTES] += size
    else:
        if port[DATA_FIRST] < 0:
            port[DATA_FIRST] = row
        else:
            queues.rows[port[DATA_LAST], AFTER] = row
        port[DATA_LAST] = row
        port[DATA_BYTES] += size


@rule
def admit(columns: KernelColumns, shard: Shard, port: Column, packet: Column, key: int) -> bool:
    """Queue a packet that arrived at a switch, or trim it, or drop it; return whether it was queued whole."""
    fabric, queues = columns.fabric, columns.queues
    grade = fabric.grades[port[GRADE]]
    state = packet[STATE]
    size = size_of(columns.hosts.nics.sizes, state)
    trimmed = False
    if state & CONTROL == 0:
        if pauses(fabric):
            came_over = (packet[PLACE] >> PLACE_BITS) & PORT_MASK
            if fabric.holds[came_over, OVERRUN]:
                _note_dropped(fabric, shard, port)
                return False
            fabric.holds[came_over, HELD] += size
        if port[DATA_BYTES] + size > grade[DATA_LIMIT]:
            if fabric.figures[TRIMMING] == 0:
                _note_dropped(fabric, shard, port)
                return False
            trimmed = True
            shard.count[TRIMMED] += 1
            if is_metered(fabric):
                fabric.meters[port[NUMBER], METER_TRIMMED] += 1
            state |= CONTROL | ((2 if grade[LAST_HOP] else 1) << TRIM_SHIFT)
            size = fabric.figures[HEADER]
    control = state & CONTROL != 0
    if control and port[CONTROL_BYTES] + size > grade[CONTROL_LIMIT]:
        _note_dropped(fabric, shard, port)
        return False
    row = take_queue_row(queues, shard)
    target = queues.rows[row]
    target[UID] = packet[UID]
    # In a queue nobody asks which port it came over any more: the bits hold the draw for marks.
    target[PLACE] = (packet[PLACE] & PLACE_MASK) | ((key & _DIE_MASK) << PLACE_BITS)
    copy_four(target, packet, NAME)
    if trimmed:
        target[STATE] = state
    if pauses(fabric) and packet[STATE] & CONTROL == 0:
        target[EXTRA] = (packet[PLACE] >> PLACE_BITS) & PORT_MASK
    append(queues, port, row, control, size)
    return not trimmed


@rule
def _note_dropped(fabric: Fabric, shard: Shard, port: Column) -> None:
    """Count a packet that found a port's queue full."""
    shard.count[DROPPED] += 1
    if is_metered(fabric):
        fabric.meters[port[NUMBER], METER_DROPPED] += 1


@rule
def note_peak(fabric: Fabric, shard: Shard, port: Column, waiting: int) -> None:
    """Note how much data waits at a port that packets were queued at."""
    stage = fabric.grades[port[GRADE], STAGE]
    shard.peaks[stage] = max(shard.peaks[stage], waiting)
    if is_metered(fabric):
        meter = fabric.meters[port[NUMBER]]
        meter[METER_PEAK] = max(meter[METER_PEAK], waiting)


@rule
def credit_of(fabric: Fabric, shard: Shard, port: Column, slot: int) -> int:
    """Return what a port may still send in a slot, in bytes; when first asked in a slot it is granted that slot's.

    What it owed has shrunk since it was last asked, and it saved nothing.
    """
    if port[CREDITED] < slot:
        # A port that had nothing to send keeps its debt and saves nothing.
        credit = min(0, port[CREDIT])
        rate = port[RATE]
        if credit < 0 and port[CREDITED] < slot - 1:
            credit = min(0, credit + granted(fabric, rate, slot - 1) - granted(fabric, rate, port[CREDITED]))
        port[CREDIT] = credit + shard.grant[slot & (GRANT_SLOTS - 1), rate]
        port[CREDITED] = slot
    return port[CREDIT]


@rule
def cross(columns: KernelColumns, shard: Shard, port: Column, packet: Column, slot: int) -> bool:
    """Send a packet that comes alone to an empty port of a switch straight on; return whether it could go.

    The same as `admit` and `transmit` would do, without a stop in a queue.
    """
    fabric = columns.fabric
    # Asked again further on, and first of all here: most ports hold something.
    if port[DATA_FIRST] >= 0 or port[CONTROL_FIRST] >= 0:
        return False
    grade = fabric.grades[port[GRADE]]
    state = packet[STATE]
    size = size_of(columns.hosts.nics.sizes, state)
    control = state & CONTROL != 0
    if size > grade[CONTROL_LIMIT if control else DATA_LIMIT] or not send_at_once(fabric, shard, port, size, slot):
        return False
    # A packet waits in whole slots; its place within the slot stays what its delays made it.
    row = on_the_way(columns, shard, port, packet[PLACE] & PLACE_MASK, size, slot)
    _write(columns.wires.rows[row], packet, state)
    if not control:
        note_peak(fabric, shard, port, size)
    return True


@rule
def send_at_once(fabric: Fabric, shard: Shard, port: Column, size: int, slot: int) -> bool:
    """Take what a packet needs from a port where nothing waits and that may send; return whether it may go."""
    if port[DATA_FIRST] >= 0 or port[CONTROL_FIRST] >= 0 or port[LINK_FAULT] != 0 or pauses(fabric):
        return False
    credit = credit_of(fabric, shard, port, slot)
    if credit <= 0:
        return False
    # It may start with a single byte of credit left, and then owes the rest: rates hold on average, not by packet.
    port[CREDIT] = credit - size
    if is_metered(fabric):
        fabric.meters[port[NUMBER], METER_BYTES] += size
    return True


@rule
def transmit(columns: KernelColumns, shard: Shard, port: Column, slot: int) -> bool:
    """Let a port send what it may in a slot; return whether anything still waits."""
    fabric, queues = columns.fabric, columns.queues
    credit = credit_of(fabric, shard, port, slot)
    # Control packets go first, and are never paused.
    stopped = pauses(fabric) and is_stopped(fabric, port, slot)
    while credit > 0:
        mark = 0
        row = port[CONTROL_FIRST]
        if row >= 0:
            packet = queues.rows[row]
            size = packet[BYTES]
            port[CONTROL_FIRST] = packet[AFTER]
            port[CONTROL_BYTES] -= size
        else:
            row = port[DATA_FIRST]
            if row < 0 or stopped:
                break
            packet = queues.rows[row]
            size = packet[BYTES]
            port[DATA_FIRST] = packet[AFTER]
            port[DATA_BYTES] -= size
            # Bytes that came over a port are held against it only at switches: a packet with no hop is a NIC's own.
            if pauses(fabric) and (packet[STATE] >> HOP_SHIFT) & HOP_MASK:
                fabric.holds[packet[EXTRA], HELD] -= size
            if port[DATA_BYTES] > port[MARK_FROM] and _marks(fabric.grades[port[GRADE]], port, packet):
                mark = MARKED
        # A lost packet takes its time on the wire all the same.
        credit -= size
        if is_metered(fabric):
            fabric.meters[port[NUMBER], METER_BYTES] += size
            fabric.meters[port[NUMBER], METER_MARKED] += mark != 0
        if port[LINK_FAULT] == 0 or not _is_lost(fabric, shard, port, packet, slot):
            target = on_the_way(columns, shard, port, packet[PLACE] & PLACE_MASK, size, slot)
            _write(columns.wires.rows[target], packet, packet[STATE] | mark)
        give_queue_row(queues, shard.part, row)
    port[CREDIT] = credit
    following = port[CONTROL_FIRST] if port[CONTROL_FIRST] >= 0 else port[DATA_FIRST]
    if following >= 0:
        prefetch(queues.rows, following, UID)
    return following >= 0


@rule
def is_stopped(fabric: Fabric, port: Column, slot: int) -> bool:
    """Put pauses and resumes that act by now into force; return whether the port may start no data packet."""
    row = fabric.holds[port[NUMBER]]
    at = row[NEXT_READ]
    while row[CHANGES + at] <= slot:
        since = row[CHANGES + at]
        # One entry is written by the switch and taken back here; nothing else tells the two of each other.
        row[CHANGES + at] = NEVER
        at = at + 1 if at + 1 < MOST_CHANGES else 0
        row[PAUSED] ^= 1
        if row[PAUSED]:
            row[PAUSED_SINCE] = since
        else:
            row[PAUSED_SLOTS] += since - row[PAUSED_SINCE]
    row[NEXT_READ] = at
    return row[PAUSED] != 0 and (port[LINK_FAULT] == 0 or fabric.link_faults[port[LINK_FAULT]] != LINK_DOWN)


@rule
def decide_pause(fabric: Fabric, shard: Shard, number: int, slot: int) -> None:
    """Ask the port with this number for a pause, or take that back, by what this slot leaves of it."""
    row = fabric.holds[number]
    held = row[HELD]
    row[OVERRUN] = 1 if held > fabric.figures[ROOM] else 0
    # Between the two limits it stays as it is: without that gap every packet would bring a pause frame.
    wants = held > fabric.figures[XON] if row[ASKED] else held > fabric.figures[XOFF]
    if wants == (row[ASKED] != 0):
        return
    row[ASKED] ^= 1
    shard.count[ASKS_SENT] += row[ASKED]
    at = row[NEXT_WRITTEN]
    row[CHANGES + at] = slot + row[LAG]
    row[NEXT_WRITTEN] = at + 1 if at + 1 < MOST_CHANGES else 0


@rule
def held_behind(ports: Column, rows: Column, queues: Column, sums: Column, found: Column) -> int:
    """Add up what came over each port and waits in the data queues of the switch ports in `queues`.

    Fills `found` with the port that it came over, the one that it waits at and the bytes, and returns how many there
    are. `sums` has a place for each port, all 0, and is left so.
    """
    count = 0
    for k in range(len(queues)):
        begin = count
        at = ports[queues[k], DATA_FIRST]
        while at >= 0:
            state = rows[at, STATE]
            came_over = rows[at, EXTRA]
            if (state >> HOP_SHIFT) & HOP_MASK:
                if sums[came_over] == 0:
                    found[count, 0] = came_over
                    found[count, 1] = ports[queues[k], NUMBER]
                    count += 1
                sums[came_over] += rows[at, BYTES]
            at = rows[at, AFTER]
        for place in range(begin, count):
            found[place, 2] = sums[found[place, 0]]
            sums[found[place, 0]] = 0
    return count


@rule
def _marks(grade: Column, port: Column, packet: Column) -> bool:
    """Decide on a mark: the chance grows evenly between the two limits; the packet's key is the random draw."""
    low, high = grade[ECN_LOW], grade[ECN_HIGH]
    if port[DATA_BYTES] >= high:
        return True
    die = (packet[PLACE] >> PLACE_BITS) & _DIE_MASK
    return die * (high - low) < (port[DATA_BYTES] - low) * grade[ECN_MOST]


@rule
def _write(target: Column, packet: Column, state: int) -> None:
    """Copy a packet onto its row of the wire, in this state and a hop further; its place is written already."""
    target[UID] = packet[UID]
    copy_four(target, packet, NAME)
    target[STATE] = state + (1 << HOP_SHIFT)


@rule
def on_the_way(columns: KernelColumns, shard: Shard, port: Column, now_ps: int, size: int, slot: int) -> int:
    """Take a row of the wire for a packet that leaves `now_ps` into a slot; return it, its place written."""
    fabric, wires = columns.fabric, columns.wires
    slot_ps = fabric.figures[SLOT_PS]
    place_ps = now_ps + size * port[PACE] + port[WAY]
    # Below `NEAR` multiplying and shifting is the exact quotient; dividing would cost more than the rest of this.
    if slot_ps <= place_ps < fabric.figures[NEAR]:
        slots = (place_ps * fabric.figures[PER_SLOT]) >> PER_SLOT_BITS
    else:
        place_ps = _far_place(fabric, port, now_ps, size, slot)
        slots = min(place_ps // slot_ps, fabric.figures[FURTHEST])
    row = place_on_wire(wires, shard, port[FAR], slot + slots)
    wires.rows[row, PLACE] = (place_ps - slots * slot_ps) | (port[NUMBER] << PLACE_BITS)
    prefetch(wires.rows, row + 1, GOAL)
    return row


@rule
def _far_place(fabric: Fabric, port: Column, now_ps: int, size: int, slot: int) -> int:
    """Return the place on the wire of a packet for which the quick arithmetic does not hold."""
    slot_ps = fabric.figures[SLOT_PS]
    rate = fabric.rates[port[RATE]]
    took_ps = size * rate[PER_BYTE] if rate[PER_BYTE] else -(-size * _BITS // rate[BPS])
    place_ps = max(now_ps + took_ps + fabric.grades[port[GRADE], DELAY], slot_ps)
    if keeps_order(fabric):
        # Nothing overtakes on a link, though a short packet behind a long one would in this arithmetic.
        place_ps = max(place_ps, fabric.arrives[port[NUMBER]] + 1 - slot * slot_ps)
        fabric.arrives[port[NUMBER]] = slot * slot_ps + place_ps
    return place_ps


@rule
def forward(columns: KernelColumns, shard: Shard, node: int, packet: Column, slot: int) -> None:
    """Put a packet whose time has not come, because the ring was too short, on the wire again."""
    fabric, wires = columns.fabric, columns.wires
    slot_ps = fabric.figures[SLOT_PS]
    slots = min((packet[PLACE] & PLACE_MASK) // slot_ps, fabric.figures[FURTHEST])
    row = place_on_wire(wires, shard, node, slot + slots)
    for word in range(WORDS):
        wires.rows[row, word] = packet[word]
    wires.rows[row, PLACE] -= slots * slot_ps


@rule
def _is_lost(fabric: Fabric, shard: Shard, port: Column, packet: Column, slot: int) -> bool:
    """Decide whether a port that is not well loses a packet, and note it."""
    state = packet[STATE]
    hop = (state >> HOP_SHIFT) & HOP_MASK
    # The draw depends on the packet and its hop alone, so that threads and order change nothing.
    die = (mix64(fabric.figures[LOSS_WORD], (packet[UID] << 4) + hop) >> 32) & LOW32
    link_fault = fabric.link_faults[port[LINK_FAULT]]
    if link_fault != LINK_DOWN and die >= link_fault:
        return False
    shard.count[LOST] += 1
    at = shard.count[LOSSES]
    if at >= len(shard.lost):
        shard.count[FAULTY] = OUT_OF_LOG
        return True
    shard.lost[at, 0] = port[NUMBER]
    shard.lost[at, 1] = packet[NAME] >> HALF_SHIFT
    data = state & CONTROL == 0 or (state >> TRIM_SHIFT) & TRIM_MASK != 0
    shard.lost[at, 2] = state & PSN_MASK if data else -1
    shard.lost[at, 3] = slot
    shard.count[LOSSES] = at + 1
    return True
