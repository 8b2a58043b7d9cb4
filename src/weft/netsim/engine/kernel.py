"""The walk over slots and nodes: one part of the fabric through one slot, or all of it through many."""

from typing import Any

from weft.mrc.columns import NEVER
from weft.mrc.compiled import rule
from weft.netsim.engine.layout import (
    AT_NICS,
    BUSY,
    CHUNK,
    FAULTY,
    FIRST_WORD,
    LOSSES,
    NEED,
    NICS,
    PLANES,
    PORTS,
    QUEUED,
    SEEN,
    SLOT_PS,
    TIER,
    granted,
)
from weft.netsim.engine.nics import nic_step
from weft.netsim.engine.switches import WORD_BITS, switch_step
from weft.netsim.engine.wires import arriving

NEED_SCRATCH, NEED_ROWS, NEED_CHUNKS = 1, 2, 4
"""What a part may lack before a slot: scratch for arrivals, room in queues, room on wires."""
_PER_ARRIVAL = 4
_PER_PORT = 2
_LEAST = 4096


@rule
def lacks(f: Any, w: Any, q: Any, d: Any, part: int, slot: int) -> int:
    """Return what a part may run out of in the coming slot; 0 where it has enough of everything."""
    most = 0
    total = 0
    ports = 0
    for k in range(len(d.nodes)):
        number = d.nodes[k]
        count = arriving(w, number, slot)
        most = max(most, count)
        total += count
        if f.nodes[number, TIER] == AT_NICS:
            ports += f.nodes[number, NICS] * f.figures[PLANES]
    found = 0
    if most > len(d.at):
        found |= NEED_SCRATCH
    rows = _PER_ARRIVAL * total + _PER_PORT * ports + _LEAST
    if q.free[part, 3] - d.count[QUEUED] < rows:
        found |= NEED_ROWS
    chunks = (d.count[QUEUED] + rows) // (CHUNK // 4) + _PER_ARRIVAL * len(d.nodes)
    if w.free[part, 2] - w.free[part, 1] + w.free[part, 3] < chunks:
        found |= NEED_CHUNKS
    return found


@rule
def one_slot(f: Any, w: Any, q: Any, h: Any, t: Any, busy: Any, d: Any, part: int, slot: int) -> None:
    """Take the nodes of one part through one slot."""
    start_ps = slot * f.figures[SLOT_PS]
    for rate in range(len(d.grant)):
        d.grant[rate] = granted(f, rate, slot) - granted(f, rate, slot - 1)
    d.count[BUSY] = 0
    for k in range(len(d.nodes)):
        number = d.nodes[k]
        node = f.nodes[number]
        work = arriving(w, number, slot) > 0
        if node[TIER] == AT_NICS:
            work = work or f.awake[number] != 0 or f.due[number] <= start_ps
            words = node[NICS]
        else:
            words = (node[PORTS] + WORD_BITS - 1) // WORD_BITS
        word = 0
        while not work and word < words:
            work = busy[node[FIRST_WORD] + word] != 0
            word += 1
        if not work:
            continue
        if node[TIER] == AT_NICS:
            nic_step(f, w, q, h, t, busy, d, part, number, slot)
        else:
            switch_step(f, w, q, h, busy, d, part, number, slot)
    w.waiting[part, slot & (w.heads.shape[1] - 1)] = 0


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
def advance(f: Any, w: Any, q: Any, h: Any, t: Any, busy: Any, d: Any, slot: int, stop: int) -> int:
    """Take the whole fabric, as one part, through slots up to `stop`, or until somebody has to be told something."""
    while slot < stop:
        d.count[NEED] = lacks(f, w, q, d, 0, slot)
        if d.count[NEED]:
            return slot
        one_slot(f, w, q, h, t, busy, d, 0, slot)
        slot += 1
        if d.sheet.count[1] > 0 or d.count[LOSSES] > 0 or d.count[SEEN] > 0 or d.count[FAULTY] != 0:
            return slot
        if d.count[BUSY] == 0:
            slot = next_slot(f, w, slot, stop)
    return slot
