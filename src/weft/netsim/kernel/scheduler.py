"""The walk over slots and nodes: one part of the fabric through some slots, or all of it through many.

A round is as many slots as a packet needs at least to get to a NIC. So the NICs of one T0 can be taken through a whole
round before anybody else is looked at, while what they work on is at hand, and then the switches in steps of as many
slots as a packet needs to get to one.
"""

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
    Fabric,
    KernelColumns,
    Shard,
    Wires,
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
def lacks(columns: KernelColumns, shard: Shard, nics: bool, slot: int, end: int) -> int:
    """Return what NICs, or switches, of a part may run out of in slots from `slot` to before `end`; 0 for nothing."""
    fabric, wires, queues = columns.fabric, columns.wires, columns.queues
    most = 0
    total = 0
    ports = 0
    first, last = members(shard, nics)
    for k in range(first, last):
        number = shard.nodes[k]
        for at in range(slot, end):
            count = arriving(wires, number, at)
            most = max(most, count)
            total += count
        if nics:
            ports += fabric.nodes[number, NICS] * fabric.figures[PLANES]
    found = 0
    if most > len(shard.came) // CAME:
        found |= NEED_SCRATCH
    # Bounds, not counts: to find out here is cheap, to run out in the middle of a slot would end the run.
    rows = (ANSWERS * total + fabric.figures[MOST_SENT] * ports * (end - slot) if nics else total) + _LEAST
    free = queues.free[shard.part, 0] + queues.free[shard.part, 2] - queues.free[shard.part, 1]
    if free < rows:
        found |= NEED_ROWS
    chunks = (queues.free[shard.part, 3] - free + rows) // CHUNK + _PER_NODE * (end - slot + 3) * len(fabric.nodes)
    if wires.free[shard.part, 2] - wires.free[shard.part, 1] + wires.free[shard.part, 3] < chunks:
        found |= NEED_CHUNKS
    return found


@rule
def members(shard: Shard, nics: bool) -> tuple[int, int]:
    """Return where the NICs, or the switches, of a part begin and end among its nodes."""
    return (0, shard.count[NIC_NODES]) if nics else (shard.count[NIC_NODES], len(shard.nodes))


@rule
def walk(columns: KernelColumns, shard: Shard, nics: bool, slot: int, end: int) -> None:
    """Take the NICs, or the switches, of one part through slots, one node after the other."""
    fabric, wires = columns.fabric, columns.wires
    for at in range(slot, end):
        for rate in range(shard.grant.shape[1]):
            shard.grant[at & (GRANT_SLOTS - 1), rate] = granted(fabric, rate, at) - granted(fabric, rate, at - 1)
    first, last = members(shard, nics)
    for k in range(first, last):
        number = shard.nodes[k]
        prefetch_arrivals(wires, shard.nodes[min(k + 1, last - 1)], slot)
        for at in range(slot, end):
            if nics:
                if _nics_act(columns, number, at):
                    nic_step(columns, shard, number, at)
            elif _switch_acts(columns, number, at):
                switch_step(columns, shard, number, at)
    # Switches go last in a step; what was begun for its slots has been read by then.
    if not nics:
        for at in range(slot, end):
            wires.waiting[shard.part, at & (wires.heads.shape[1] - 1)] = 0


@rule
def _nics_act(columns: KernelColumns, number: int, slot: int) -> bool:
    """Return whether anything can happen at a node of NICs in a slot."""
    fabric = columns.fabric
    if (
        fabric.awake[number] != 0
        or fabric.due[number] <= slot * fabric.figures[SLOT_PS]
        or arriving(columns.wires, number, slot) > 0
    ):
        return True
    node = fabric.nodes[number]
    found = 0
    for word in range(node[NICS]):
        found |= columns.busy[node[FIRST_WORD] + word]
    return found != 0


@rule
def _switch_acts(columns: KernelColumns, number: int, slot: int) -> bool:
    """Return whether anything can happen at a switch in a slot."""
    if arriving(columns.wires, number, slot) > 0:
        return True
    node = columns.fabric.nodes[number]
    found = 0
    for word in range((node[PORTS] + WORD_BITS - 1) // WORD_BITS):
        found |= columns.busy[node[FIRST_WORD] + word]
    return found != 0


@rule
def next_slot(fabric: Fabric, wires: Wires, slot: int, stop: int) -> int:
    """Return the next slot, from `slot` on and up to `stop`, in which anything can happen while no port is busy."""
    found = stop
    ring = wires.heads.shape[1]
    ahead = 0
    # Nothing can be further ahead than the ring is long.
    while ahead < ring and slot + ahead < found:
        for part in range(wires.heads.shape[0]):
            if wires.waiting[part, (slot + ahead) & (ring - 1)] > 0:
                found = slot + ahead
        ahead += 1
    due_ps = NEVER
    for node in range(len(fabric.due)):
        if fabric.awake[node]:
            return slot
        due_ps = min(due_ps, fabric.due[node])
    slot_ps = fabric.figures[SLOT_PS]
    return min(found, max(slot, (due_ps + slot_ps - 1) // slot_ps))


@rule
def round_end(fabric: Fabric, slot: int) -> int:
    """Return the first slot of the round after the one that `slot` belongs to."""
    return (slot // fabric.figures[ROUND_SLOTS] + 1) * fabric.figures[ROUND_SLOTS]


@rule
def advance(columns: KernelColumns, shard: Shard, slot: int, stop: int) -> int:
    """Take the whole fabric, as one part, through slots up to `stop`, or until there is something to report.

    Nothing is reported but at the end of a round. Where a store has to grow, slots are left in which only NICs have
    acted; `AHEAD` says up to which.
    """
    fabric = columns.fabric
    while slot < stop:
        if shard.count[AHEAD] <= slot:
            end = min(stop, round_end(fabric, slot))
            # Asked before anything moves, so that a store can grow and the same slots be tried again.
            shard.count[NEED] = lacks(columns, shard, True, slot, end)
            if shard.count[NEED]:
                return slot
            shard.count[BUSY] = 0
            walk(columns, shard, True, slot, end)
            shard.count[AHEAD] = end
        end = min(shard.count[AHEAD], slot + fabric.figures[SWITCH_SLOTS])
        shard.count[NEED] = lacks(columns, shard, False, slot, end)
        if shard.count[NEED]:
            return slot
        walk(columns, shard, False, slot, end)
        slot = end
        if slot < shard.count[AHEAD]:
            continue
        # Flows may start others only at the end of a round; in between nobody could tell the difference.
        over = slot % fabric.figures[ROUND_SLOTS] == 0
        news = shard.events_used[1] > 0 or shard.count[LOSSES] > 0 or shard.count[SEEN] > 0
        if shard.count[FAULTY] != 0 or (over and news):
            return slot
        if shard.count[BUSY] == 0 and not news:
            slot = next_slot(fabric, columns.wires, slot, stop)
    return slot
