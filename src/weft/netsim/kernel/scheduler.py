"""The walk over slots and nodes: one part of the fabric through some slots, or all of it through many.

A round is as many slots as a packet needs at least to get to a NIC. So the NICs of one T0 can be taken through a whole
round before anybody else is looked at, while what they work on is at hand, and then the switches in steps of as many
slots as a packet needs to get to one.
"""

from typing import Any

from weft.core.compile.rules import rule
from weft.mrc.columns import NEVER
from weft.netsim.kernel.layout import (
    AHEAD,
    ANSWERS,
    BUSY,
    CAME,
    CHUNK,
    FAULTY,
    FIRST_WORD,
    GRANT_SLOTS,
    LOSSES,
    MOST_SENT,
    NEED,
    NIC_NODES,
    NICS,
    PLANES,
    PORTS,
    ROUND_SLOTS,
    SEEN,
    SLOT_PS,
    SWITCH_SLOTS,
    granted,
)
from weft.netsim.kernel.nics import nic_step
from weft.netsim.kernel.switches import WORD_BITS, prefetch_arrivals, switch_step
from weft.netsim.kernel.wires import arriving

NEED_SCRATCH, NEED_ROWS, NEED_CHUNKS = 1, 2, 4
"""What a part may lack before it goes on: scratch for arrivals, room in queues, room on wires."""
_PER_NODE = 2
"""Lists that are begun for a node and a slot: over links of two lengths."""
_LEAST = 4096


@rule
def lacks(f: Any, w: Any, q: Any, d: Any, part: int, nics: bool, slot: int, end: int) -> int:
    """Return what NICs, or switches, of a part may run out of in slots from `slot` to before `end`; 0 for nothing."""
    most = 0
    total = 0
    ports = 0
    first, last = members(d, nics)
    for k in range(first, last):
        number = d.nodes[k]
        for at in range(slot, end):
            count = arriving(w, number, at)
            most = max(most, count)
            total += count
        if nics:
            ports += f.nodes[number, NICS] * f.figures[PLANES]
    found = 0
    if most > len(d.came) // CAME:
        found |= NEED_SCRATCH
    rows = (ANSWERS * total + f.figures[MOST_SENT] * ports * (end - slot) if nics else total) + _LEAST
    free = q.free[part, 0] + q.free[part, 2] - q.free[part, 1]
    if free < rows:
        found |= NEED_ROWS
    chunks = (q.free[part, 3] - free + rows) // CHUNK + _PER_NODE * (end - slot + 3) * len(f.nodes)
    if w.free[part, 2] - w.free[part, 1] + w.free[part, 3] < chunks:
        found |= NEED_CHUNKS
    return found


@rule
def members(d: Any, nics: bool) -> tuple[int, int]:
    """Return where the NICs, or the switches, of a part begin and end among its nodes."""
    return (0, d.count[NIC_NODES]) if nics else (d.count[NIC_NODES], len(d.nodes))


@rule
def walk(f: Any, w: Any, q: Any, h: Any, t: Any, busy: Any, d: Any, part: int, nics: bool, slot: int, end: int) -> None:
    """Take the NICs, or the switches, of one part through slots, one node after the other."""
    for at in range(slot, end):
        for rate in range(d.grant.shape[1]):
            d.grant[at & (GRANT_SLOTS - 1), rate] = granted(f, rate, at) - granted(f, rate, at - 1)
    first, last = members(d, nics)
    for k in range(first, last):
        number = d.nodes[k]
        prefetch_arrivals(w, d.nodes[min(k + 1, last - 1)], slot)
        for at in range(slot, end):
            if nics:
                if _nics_act(f, w, busy, number, at):
                    nic_step(f, w, q, h, t, busy, d, part, number, at)
            elif _switch_acts(f, w, busy, number, at):
                switch_step(f, w, q, h, busy, d, part, number, at)
    if not nics:
        for at in range(slot, end):
            w.waiting[part, at & (w.heads.shape[1] - 1)] = 0


@rule
def _nics_act(f: Any, w: Any, busy: Any, number: int, slot: int) -> bool:
    """Return whether anything can happen at a node of NICs in a slot."""
    if f.awake[number] != 0 or f.due[number] <= slot * f.figures[SLOT_PS] or arriving(w, number, slot) > 0:
        return True
    node = f.nodes[number]
    found = 0
    for word in range(node[NICS]):
        found |= busy[node[FIRST_WORD] + word]
    return found != 0


@rule
def _switch_acts(f: Any, w: Any, busy: Any, number: int, slot: int) -> bool:
    """Return whether anything can happen at a switch in a slot."""
    if arriving(w, number, slot) > 0:
        return True
    node = f.nodes[number]
    found = 0
    for word in range((node[PORTS] + WORD_BITS - 1) // WORD_BITS):
        found |= busy[node[FIRST_WORD] + word]
    return found != 0


@rule
def next_slot(f: Any, w: Any, slot: int, stop: int) -> int:
    """Return the next slot, from `slot` on and up to `stop`, in which anything can happen while no port is busy."""
    found = stop
    ring = w.heads.shape[1]
    ahead = 0
    while ahead < ring and slot + ahead < found:
        for part in range(w.heads.shape[0]):
            if w.waiting[part, (slot + ahead) & (ring - 1)] > 0:
                found = slot + ahead
        ahead += 1
    due_ps = NEVER
    for node in range(len(f.due)):
        if f.awake[node]:
            return slot
        due_ps = min(due_ps, f.due[node])
    slot_ps = f.figures[SLOT_PS]
    return min(found, max(slot, (due_ps + slot_ps - 1) // slot_ps))


@rule
def round_end(f: Any, slot: int) -> int:
    """Return the first slot of the round after the one that `slot` belongs to."""
    return (slot // f.figures[ROUND_SLOTS] + 1) * f.figures[ROUND_SLOTS]


@rule
def advance(f: Any, w: Any, q: Any, h: Any, t: Any, busy: Any, d: Any, slot: int, stop: int) -> int:
    """Take the whole fabric, as one part, through slots up to `stop`, or until somebody has to be told something.

    Nobody is told but at the end of a round. Where a store has to grow, slots are left in which only NICs have acted;
    `AHEAD` says up to which.
    """
    while slot < stop:
        if d.count[AHEAD] <= slot:
            end = min(stop, round_end(f, slot))
            d.count[NEED] = lacks(f, w, q, d, 0, True, slot, end)
            if d.count[NEED]:
                return slot
            d.count[BUSY] = 0
            walk(f, w, q, h, t, busy, d, 0, True, slot, end)
            d.count[AHEAD] = end
        end = min(d.count[AHEAD], slot + f.figures[SWITCH_SLOTS])
        d.count[NEED] = lacks(f, w, q, d, 0, False, slot, end)
        if d.count[NEED]:
            return slot
        walk(f, w, q, h, t, busy, d, 0, False, slot, end)
        slot = end
        if slot < d.count[AHEAD]:
            continue
        over = slot % f.figures[ROUND_SLOTS] == 0
        news = d.told[1] > 0 or d.count[LOSSES] > 0 or d.count[SEEN] > 0
        if d.count[FAULTY] != 0 or (over and news):
            return slot
        if d.count[BUSY] == 0 and not news:
            slot = next_slot(f, w, slot, stop)
    return slot
