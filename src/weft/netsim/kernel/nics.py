"""What the NICs below one T0 do in one slot: take in, let time pass, send, transmit; each NIC for itself.

The rules of `weft.netsim.host.mrc_host` decide; here packets are unpacked for them and packed again.
"""

from weft.core.compile.intrinsics import stack_row
from weft.core.compile.rules import rule
from weft.mrc.columns import DATA, EV_PROBE, NACK, NEVER, PORT_STATUS, PROBE, SACK
from weft.mrc.journal import no_note, note
from weft.mrc.rules.numbers import seq_near
from weft.netsim.host.host_state import AT_NIC, SEEN_AS, Column, HostState, Record
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
    Fabric,
    KernelColumns,
    Outbox,
    Shard,
    Wires,
)
from weft.netsim.kernel.queues import append, on_the_way, send_at_once, take_queue_row, transmit
from weft.netsim.kernel.switches import in_order, release_arrivals, take_arrivals
from weft.netsim.kernel.wires import OUT_OF_LOG
from weft.netsim.transports.routing import STRIDE, Routing, plane_of, way_of

_AHEAD, _NEXT = 4, 2
"""How many NICs before its turn a NIC's rows are named to memory at the beginning of a round, and its windows."""


@rule
def unpack(hosts: HostState, routing: Routing, packet: Column, head: Record) -> None:
    """Write what a packet says into a header, as far as those who take it in look at it."""
    state = packet[STATE]
    half = packet[NAME] >> HALF_SHIFT
    kind = (state >> KIND_SHIFT) & KIND_MASK
    number = (state >> NUMBER_SHIFT) & NUMBER_MASK
    head["pair"] = half >> 1
    head["half"] = half & 1
    head["kind"] = kind
    # Flipping the sign bit and taking it away again extends 32 bits to 64 without a branch.
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
        # Not carried: all receivers of a run grant the same.
        head["mpr"] = hosts.r.params[0]["mpr"]
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
        # Only what is answered needs its plane: the answer leaves there.
        head["plane"] = plane_of(routing, head["value"]) if kind in (EV_PROBE, PORT_STATUS, PROBE) else 0


@rule
def pack(head: Record, kind: int, hops: int, packet: Column) -> None:
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
def _goal(fabric: Fabric, each: Column, routing: Routing, half: int, plane: int, route: int) -> int:
    """Return the destination and the uplinks of a packet that a half sends with EV bits `route`."""
    way = way_of(routing, half, each[half, SEEN_AS], route - plane * routing.figures[STRIDE])
    seconds = fabric.figures[SECONDS]
    # Two tiers have no second uplink, and are spared a division.
    if seconds == 1:
        return each[half ^ 1, AT_NIC] | (way << UPLINK_SHIFT)
    first = way // seconds
    return each[half ^ 1, AT_NIC] | (first << UPLINK_SHIFT) | ((way - first * seconds) << SECOND_SHIFT)


@rule
def launch(outbox: Outbox, head: Record, half: int, route: int, size: int, time_ps: int) -> None:
    """Send a packet of a NIC, or put it into the queue of its port: takes the place of `emit` in the kernel."""
    columns, shard, nic = outbox.columns, outbox.shard, outbox.nic
    fabric = columns.fabric
    kind = head["kind"]
    head["pair"] = half >> 1
    head["half"] = half & 1
    plane = plane_of(columns.routing, route)
    port = fabric.ports[outbox.first_port + plane]
    now_ps = time_ps - outbox.slot * fabric.figures[SLOT_PS]
    if send_at_once(fabric, shard, port, size, outbox.slot):
        packet = columns.wires.rows[on_the_way(columns, shard, port, now_ps, size, outbox.slot)]
        hops = 1
    else:
        row = take_queue_row(columns.queues, shard)
        append(columns.queues, port, row, kind != DATA, size)
        columns.busy[outbox.word] |= 1 << plane
        packet = columns.queues.rows[row]
        packet[PLACE] = now_ps
        hops = 0
    pack(head, kind, hops, packet)
    # A NIC's own count makes the number unique without a counter that threads would share.
    packet[UID] = (nic << UID_BITS) + fabric.sent[nic]
    goal = _goal(fabric, columns.hosts.nics.each, columns.routing, half, plane, route)
    packet[GOAL] = goal | (head["sack_offset"] << OFFSET_SHIFT) if kind == SACK else goal
    fabric.sent[nic] += 1
    shard.count[INJECTED] += 1


@rule
def forget(_outbox: Outbox, _head: Record) -> None:
    """Take the place of `give_head`: nobody keeps headers here."""


AT_ONCE = {take_head: stack_row, give_head: forget, emit: launch, note: no_note}
"""In the engine a packet is on its way as soon as a rule sends it, and headers are not kept."""


@rule
def take_in_nic(outbox: Outbox, hosts: HostState, local: int) -> int:
    """Take in what arrived at one NIC; return how far into the slot the last of it came."""
    columns, shard = outbox.columns, outbox.shard
    fabric, wires = columns.fabric, columns.wires
    start_ps = outbox.slot * fabric.figures[SLOT_PS]
    place_ps = 0
    count = in_order(wires, shard, local, True)
    head = stack_row(outbox)
    for k in range(count):
        packet = wires.rows[shard.came[shard.order[k] + AT]]
        state = packet[STATE]
        unpack(hosts, columns.routing, packet, head)
        place_ps = packet[PLACE] & PLACE_MASK
        marked = 1 if state & MARKED else 0
        shard.count[MARKS] += marked
        fresh = take_one(hosts, outbox, head, marked, (state >> TRIM_SHIFT) & TRIM_MASK, start_ps + place_ps)
        if fresh and fabric.figures[WATCHING]:
            _note_seen(fabric, hosts, shard, head["pair"], head["psn"], start_ps + place_ps)
    shard.count[DELIVERED] += count
    return place_ps


@rule
def _note_seen(fabric: Fabric, hosts: HostState, shard: Shard, pair: int, psn: int, time_ps: int) -> None:
    """Note the arrival of data that may have been lost to a fault before."""
    seq = seq_near(psn, hosts.r.qp[pair]["expected"])
    if fabric.watched[pair, 0] <= seq <= fabric.watched[pair, 1]:
        at = shard.count[SEEN]
        if at >= len(shard.seen):
            shard.count[FAULTY] = OUT_OF_LOG
            return
        shard.seen[at, 0] = pair
        shard.seen[at, 1] = seq
        shard.seen[at, 2] = time_ps
        shard.count[SEEN] = at + 1


@rule
def _send(outbox: Outbox, hosts: HostState, phase_ps: int) -> int:
    """Let a NIC send data while its ports have room; return how many packets."""
    fabric, shard = outbox.columns.fabric, outbox.shard
    free = 0
    # A NIC hands a port about one full packet more than it sends: a longer queue would hide what paths do.
    for plane in range(fabric.figures[PLANES]):
        room = fabric.figures[FULL] - fabric.ports[outbox.first_port + plane, DATA_BYTES]
        shard.room[plane] = room
        free |= (1 if room > 0 else 0) << plane
    return send_data(hosts, outbox, outbox.nic, outbox.slot * fabric.figures[SLOT_PS] + phase_ps, shard.room, free)


@rule
def _prefetch_paths(wires: Wires, hosts: HostState, shard: Shard, entries: int) -> None:
    """Name the EVs and packets that the SACKs among the arrivals in so many `entries` tell of."""
    for each in range(0, entries, CAME):
        packet = wires.rows[shard.came[each + AT]]
        state = packet[STATE]
        if (state >> KIND_SHIFT) & KIND_MASK == SACK:
            pair = packet[NAME] >> PAIR_SHIFT
            prefetch_path(hosts, pair, state + (state >> NUMBER_SHIFT))
            prefetch_acked(hosts, pair, (state & PSN_MASK) + (packet[GOAL] >> OFFSET_SHIFT), packet[EXTRA])


@rule
def _prefetch_nics(hosts: HostState, nic: int, left: int) -> None:
    """Name what will be looked at of NICs that follow soon, where `left` of the node, with this one, are left."""
    if left > _AHEAD:
        prefetch_nic(hosts, nic + _AHEAD)
    if left > _NEXT:
        prefetch_windows(hosts, nic + _NEXT)


@rule
def _transmit_all(columns: KernelColumns, shard: Shard, first_port: int, word: int, slot: int) -> None:
    """Let the ports of a NIC send what they may in a slot."""
    fabric, busy = columns.fabric, columns.busy
    for plane in range(fabric.figures[PLANES]):
        port = fabric.ports[first_port + plane]
        if busy[word] >> plane & 1 and not transmit(columns, shard, port, slot):
            busy[word] &= ~(1 << plane)
    shard.count[BUSY] += 1 if busy[word] else 0


@rule
def nic_step(columns: KernelColumns, shard: Shard, number: int, slot: int) -> None:
    """Do what the NICs of one node do in one slot."""
    fabric, wires, hosts, busy = columns.fabric, columns.wires, columns.hosts, columns.busy
    node = fabric.nodes[number]
    start_ps = slot * fabric.figures[SLOT_PS]
    _prefetch_paths(wires, hosts, shard, take_arrivals(columns, shard, number, slot))
    # What the node keeps of its NICs may be early, never late: it is made anew each time that one of them acts.
    due_ps = NEVER
    awake = 0
    begins = slot % fabric.figures[ROUND_SLOTS] == 0
    for local in range(node[NICS]):
        nic = node[FIRST_NIC] + local
        if begins:
            _prefetch_nics(hosts, nic, node[NICS] - local)
        word = node[FIRST_WORD] + local
        first_port = node[FIRST_PORT] + local * fabric.figures[PLANES]
        outbox = Outbox(
            columns, shard, nic, slot, first_port, word, shard.pool, shard.events, shard.events_used, shard.events_used,
            shard.events,
        )  # fmt: skip
        phase_ps = 0
        if shard.first[local] >= 0:
            phase_ps = take_in_nic(outbox, hosts, local)
        if hosts.nics.due[nic] <= start_ps:
            send_control(hosts, outbox, nic, start_ps)
        if hosts.nics.awake[nic]:
            # A NIC that was sending goes on at the slot's beginning; an idle one starts when it learned that it may.
            if fabric.last_sent[nic] == slot - 1:
                phase_ps = 0
            if _send(outbox, hosts, phase_ps):
                fabric.last_sent[nic] = slot
                prefetch_data(hosts, nic)
        if busy[word]:
            _transmit_all(columns, shard, first_port, word, slot)
        due_ps = min(due_ps, hosts.nics.due[nic])
        awake |= hosts.nics.awake[nic]
    fabric.due[number] = due_ps
    fabric.awake[number] = awake
    # Only now: what the NICs took in lies in those rows.
    release_arrivals(wires, shard.part, number, slot)
