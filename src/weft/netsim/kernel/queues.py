"""What one port does with packets: lets them in, trims or refuses them, marks them as they leave, and transmits.

The same for the ports of switches and NICs; a NIC's own have no limits. What a port lets in and how it marks is decided
by its grade, a row of numbers.
"""

from typing import Any

from weft.core.compile.intrinsics import copy_four, prefetch
from weft.core.compile.rules import rule
from weft.mrc.columns import DATA, NEVER
from weft.mrc.rules.numbers import mix64
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
    granted,
    keeps_order,
    pauses,
)
from weft.netsim.kernel.wires import OUT_OF_LOG, OUT_OF_ROWS, place_on_wire

_DIE_MASK = 0xFFFF
_BITS = 8 * 10**12


@rule
def size_of(sizes: Any, state: int) -> int:
    """Return the bytes of a packet on the wire; data is what is no control packet."""
    if state & CONTROL == 0:
        return sizes[DATA] + ((state >> NUMBER_SHIFT) & NUMBER_MASK)
    return sizes[(state >> KIND_SHIFT) & KIND_MASK]


@rule
def take_queue_row(q: Any, d: Any, part: int) -> int:
    """Take a free row of a part's queues."""
    height = q.free[part, 0]
    if height > 0:
        q.free[part, 0] = height - 1
        return q.spare[part, height - 1]
    found = q.free[part, 1]
    if found >= q.free[part, 2]:
        d.count[FAULTY] = OUT_OF_ROWS
        return found - 1
    q.free[part, 1] = found + 1
    return found


@rule
def give_queue_row(q: Any, part: int, row: int) -> None:
    """Give a row of a part's queues back."""
    height = q.free[part, 0]
    q.spare[part, height] = row
    q.free[part, 0] = height + 1


@rule
def append(q: Any, port: Any, row: int, control: bool, size: int) -> None:
    """Put the packet in `row` at the end of a port's control or data queue."""
    q.rows[row, AFTER] = -1
    q.rows[row, BYTES] = size
    if control:
        if port[CONTROL_FIRST] < 0:
            port[CONTROL_FIRST] = row
        else:
            q.rows[port[CONTROL_LAST], AFTER] = row
        port[CONTROL_LAST] = row
        port[CONTROL_BYTES] += size
    else:
        if port[DATA_FIRST] < 0:
            port[DATA_FIRST] = row
        else:
            q.rows[port[DATA_LAST], AFTER] = row
        port[DATA_LAST] = row
        port[DATA_BYTES] += size


@rule
def admit(f: Any, q: Any, h: Any, d: Any, part: int, port: Any, packet: Any, key: int) -> bool:
    """Queue a packet that arrived at a switch, or trim it, or drop it; return whether it was queued whole."""
    grade = f.grades[port[GRADE]]
    state = packet[STATE]
    size = size_of(h.sizes, state)
    trimmed = False
    if state & CONTROL == 0:
        if pauses(f):
            came_over = (packet[PLACE] >> PLACE_BITS) & PORT_MASK
            if f.holds[came_over, OVERRUN]:
                d.count[DROPPED] += 1
                return False
            f.holds[came_over, HELD] += size
        if port[DATA_BYTES] + size > grade[DATA_LIMIT]:
            if f.figures[TRIMMING] == 0:
                d.count[DROPPED] += 1
                return False
            trimmed = True
            d.count[TRIMMED] += 1
            state |= CONTROL | ((2 if grade[LAST_HOP] else 1) << TRIM_SHIFT)
            size = f.figures[HEADER]
    control = state & CONTROL != 0
    if control and port[CONTROL_BYTES] + size > grade[CONTROL_LIMIT]:
        d.count[DROPPED] += 1
        return False
    row = take_queue_row(q, d, part)
    target = q.rows[row]
    target[UID] = packet[UID]
    target[PLACE] = (packet[PLACE] & PLACE_MASK) | ((key & _DIE_MASK) << PLACE_BITS)
    copy_four(target, packet, NAME)
    if trimmed:
        target[STATE] = state
    if pauses(f) and packet[STATE] & CONTROL == 0:
        target[EXTRA] = (packet[PLACE] >> PLACE_BITS) & PORT_MASK
    append(q, port, row, control, size)
    return not trimmed


@rule
def note_peak(f: Any, d: Any, port: Any) -> None:
    """Note how much data waits at a port that packets were queued at."""
    stage = f.grades[port[GRADE], STAGE]
    d.peaks[stage] = max(d.peaks[stage], port[DATA_BYTES])


@rule
def credit_of(f: Any, d: Any, port: Any, slot: int) -> int:
    """Return what a port may still send in a slot, in bytes; when first asked in a slot it is granted that slot's.

    What it owed has shrunk since it was last asked, and it saved nothing.
    """
    if port[CREDITED] < slot:
        credit = min(0, port[CREDIT])
        rate = port[RATE]
        if credit < 0 and port[CREDITED] < slot - 1:
            credit = min(0, credit + granted(f, rate, slot - 1) - granted(f, rate, port[CREDITED]))
        port[CREDIT] = credit + d.grant[slot & (GRANT_SLOTS - 1), rate]
        port[CREDITED] = slot
    return port[CREDIT]


@rule
def cross(f: Any, w: Any, h: Any, d: Any, part: int, port: Any, packet: Any, slot: int) -> bool:
    """Send a packet that comes alone to an empty port of a switch straight on; return whether it could go.

    The same as `admit` and `transmit` would do, without a stop in a queue.
    """
    # Asked again further on, and first of all here: most ports hold something.
    if port[DATA_FIRST] >= 0 or port[CONTROL_FIRST] >= 0:
        return False
    grade = f.grades[port[GRADE]]
    state = packet[STATE]
    size = size_of(h.sizes, state)
    control = state & CONTROL != 0
    if size > grade[CONTROL_LIMIT if control else DATA_LIMIT] or not send_at_once(f, d, port, size, slot):
        return False
    _launch(f, w, d, part, port, packet, state, size, slot)
    if not control and size > d.peaks[grade[STAGE]]:
        d.peaks[grade[STAGE]] = size
    return True


@rule
def send_at_once(f: Any, d: Any, port: Any, size: int, slot: int) -> bool:
    """Take what a packet needs from a port where nothing waits and that may send; return whether it may go."""
    if port[DATA_FIRST] >= 0 or port[CONTROL_FIRST] >= 0 or port[LINK_FAULT] != 0 or pauses(f):
        return False
    credit = credit_of(f, d, port, slot)
    if credit <= 0:
        return False
    port[CREDIT] = credit - size
    return True


@rule
def transmit(f: Any, w: Any, q: Any, d: Any, part: int, port: Any, slot: int) -> bool:
    """Let a port send what it may in a slot; return whether anything still waits."""
    credit = credit_of(f, d, port, slot)
    stopped = pauses(f) and is_stopped(f, port, slot)
    while credit > 0:
        mark = 0
        row = port[CONTROL_FIRST]
        if row >= 0:
            packet = q.rows[row]
            size = packet[BYTES]
            port[CONTROL_FIRST] = packet[AFTER]
            port[CONTROL_BYTES] -= size
        else:
            row = port[DATA_FIRST]
            if row < 0 or stopped:
                break
            packet = q.rows[row]
            size = packet[BYTES]
            port[DATA_FIRST] = packet[AFTER]
            port[DATA_BYTES] -= size
            if pauses(f) and (packet[STATE] >> HOP_SHIFT) & HOP_MASK:
                f.holds[packet[EXTRA], HELD] -= size
            if port[DATA_BYTES] > port[MARK_FROM] and _marks(f.grades[port[GRADE]], port, packet):
                mark = MARKED
        credit -= size
        if port[LINK_FAULT] == 0 or not _is_lost(f, d, port, packet, slot):
            _launch(f, w, d, part, port, packet, packet[STATE] | mark, size, slot)
        give_queue_row(q, part, row)
    port[CREDIT] = credit
    following = port[CONTROL_FIRST] if port[CONTROL_FIRST] >= 0 else port[DATA_FIRST]
    if following >= 0:
        prefetch(q.rows, following, UID)
    return following >= 0


@rule
def is_stopped(f: Any, port: Any, slot: int) -> bool:
    """Put pauses and resumes that act by now into force; return whether the port may start no data packet."""
    row = f.holds[port[NUMBER]]
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
    return row[PAUSED] != 0 and (port[LINK_FAULT] == 0 or f.harms[port[LINK_FAULT]] != LINK_DOWN)


@rule
def decide_pause(f: Any, d: Any, number: int, slot: int) -> None:
    """Ask the port with this number for a pause, or take that back, by what this slot leaves of it."""
    row = f.holds[number]
    held = row[HELD]
    row[OVERRUN] = 1 if held > f.figures[ROOM] else 0
    wants = held > f.figures[XON] if row[ASKED] else held > f.figures[XOFF]
    if wants == (row[ASKED] != 0):
        return
    row[ASKED] ^= 1
    d.count[ASKS_SENT] += row[ASKED]
    at = row[NEXT_WRITTEN]
    row[CHANGES + at] = slot + row[LAG]
    row[NEXT_WRITTEN] = at + 1 if at + 1 < MOST_CHANGES else 0


@rule
def held_behind(ports: Any, rows: Any, queues: Any, sums: Any, found: Any) -> int:
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
def _marks(grade: Any, port: Any, packet: Any) -> bool:
    """Decide on a mark: the chance grows evenly between the two limits; the packet's key is the random draw."""
    low, high = grade[ECN_LOW], grade[ECN_HIGH]
    if port[DATA_BYTES] >= high:
        return True
    die = (packet[PLACE] >> PLACE_BITS) & _DIE_MASK
    return die * (high - low) < (port[DATA_BYTES] - low) * grade[ECN_MOST]


@rule
def _launch(f: Any, w: Any, d: Any, part: int, port: Any, packet: Any, state: int, size: int, slot: int) -> None:
    """Put a packet on the wire, in this state; its place within the slot stays what its delays made it."""
    row = on_the_way(f, w, d, part, port, packet[PLACE] & PLACE_MASK, size, slot)
    target = w.rows[row]
    target[UID] = packet[UID]
    copy_four(target, packet, NAME)
    target[STATE] = state + (1 << HOP_SHIFT)


@rule
def on_the_way(f: Any, w: Any, d: Any, part: int, port: Any, now_ps: int, size: int, slot: int) -> int:
    """Take a row of the wire for a packet that leaves `now_ps` into a slot; return it, its place written."""
    slot_ps = f.figures[SLOT_PS]
    place_ps = now_ps + size * port[PACE] + port[WAY]
    if slot_ps <= place_ps < f.figures[NEAR]:
        slots = (place_ps * f.figures[PER_SLOT]) >> PER_SLOT_BITS
    else:
        place_ps = _far_place(f, port, now_ps, size, slot)
        slots = min(place_ps // slot_ps, f.figures[FURTHEST])
    row = place_on_wire(w, d, part, port[FAR], slot + slots)
    w.rows[row, PLACE] = (place_ps - slots * slot_ps) | (port[NUMBER] << PLACE_BITS)
    prefetch(w.rows, row + 1, GOAL)
    return row


@rule
def _far_place(f: Any, port: Any, now_ps: int, size: int, slot: int) -> int:
    """Return the place on the wire of a packet for which the quick arithmetic does not hold."""
    slot_ps = f.figures[SLOT_PS]
    rate = f.rates[port[RATE]]
    took_ps = size * rate[PER_BYTE] if rate[PER_BYTE] else -(-size * _BITS // rate[BPS])
    place_ps = max(now_ps + took_ps + f.grades[port[GRADE], DELAY], slot_ps)
    if keeps_order(f):
        # Nothing overtakes on a link, though a short packet behind a long one would in this arithmetic.
        place_ps = max(place_ps, f.arrives[port[NUMBER]] + 1 - slot * slot_ps)
        f.arrives[port[NUMBER]] = slot * slot_ps + place_ps
    return place_ps


@rule
def forward(f: Any, w: Any, d: Any, part: int, node: int, packet: Any, slot: int) -> None:
    """Put a packet whose time has not come, because the ring was too short, on the wire again."""
    slot_ps = f.figures[SLOT_PS]
    slots = min((packet[PLACE] & PLACE_MASK) // slot_ps, f.figures[FURTHEST])
    row = place_on_wire(w, d, part, node, slot + slots)
    for word in range(WORDS):
        w.rows[row, word] = packet[word]
    w.rows[row, PLACE] -= slots * slot_ps


@rule
def _is_lost(f: Any, d: Any, port: Any, packet: Any, slot: int) -> bool:
    """Decide whether a port that is not well loses a packet, and note it."""
    state = packet[STATE]
    hop = (state >> HOP_SHIFT) & HOP_MASK
    die = (mix64(f.figures[LOSS_WORD], (packet[UID] << 4) + hop) >> 32) & LOW32
    harm = f.harms[port[LINK_FAULT]]
    if harm != LINK_DOWN and die >= harm:
        return False
    d.count[LOST] += 1
    at = d.count[LOSSES]
    if at >= len(d.lost):
        d.count[FAULTY] = OUT_OF_LOG
        return True
    d.lost[at, 0] = port[NUMBER]
    d.lost[at, 1] = packet[NAME] >> HALF_SHIFT
    data = state & CONTROL == 0 or (state >> TRIM_SHIFT) & TRIM_MASK != 0
    d.lost[at, 2] = state & PSN_MASK if data else -1
    d.lost[at, 3] = slot
    d.count[LOSSES] = at + 1
    return True
