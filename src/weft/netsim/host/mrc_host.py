"""What the NICs of a simulated fabric do with MRC's rules, slot by slot, themselves as rules over columns.

Two questions, each asked once in a slot for everybody: `take_in` (what arrived) and `send_out` (what goes out). They
run plain or compiled like the rules below them, so the reference and the compiled engine share them. The way of a
packet between two NICs is not their business.

A queue pair here carries data one way: its sending half sits at the source; its receiving half, with a sending half of
its own that only answers and probes, at the destination. "Half" number 2i is the first, 2i + 1 the second.
"""

from typing import Any

from weft.core.compile.intrinsics import apart
from weft.core.compile.rules import replaceable, rule
from weft.mrc.columns import DATA, NACK, NEVER, NOTHING, PROBE, SACK
from weft.mrc.rules.acks import transmission
from weft.mrc.rules.endpoint import (
    ANSWER,
    NEW,
    PairEnd,
    Passage,
    next_due,
    next_look_ps,
    next_packet,
    next_probe_back,
    next_sack,
    operation_ev,
    pass_time,
    post_message,
    refuse,
    report_port,
    take_data,
    take_operation,
    take_probe,
    take_reply,
)
from weft.mrc.rules.numbers import seq_near
from weft.mrc.rules.sender import sendable, unfinished
from weft.mrc.wire.packets import TRIMMED, TRIMMED_LASTHOP
from weft.netsim.host.ends import destination_end, opposite, passage_of, receiving_end, shared_end, source_end
from weft.netsim.host.host_state import (
    ACKNOWLEDGED,
    ARRIVED,
    DRAW,
    DUE,
    ECHOES,
    FAILED,
    HALF,
    KIND,
    PAIR,
    RECYCLE,
    REPS,
    ROUTE,
    ROW,
    SIZE,
    TIME,
    TRIMMED_LAST_HOP,
    UNTIL,
    WORD_MASK,
    WORD_SHIFT,
    Column,
    HostState,
    Outgoing,
    Record,
)
from weft.netsim.host.reps_ring import freeze, remember, used, wished
from weft.netsim.host.reverse_path import echoed, reply_route
from weft.netsim.host.timers import keep_deadline, next_ready, set_deadline, wake


@replaceable("stack_row in the engine, which keeps no headers")
@rule
def take_head(outbox: Outgoing) -> Any:
    """Take a free header of the pool."""
    height = outbox.free[0]
    assert height > 0, "the pool of headers is used up"
    outbox.free[0] = height - 1
    return outbox.pool[outbox.free[height]]


@replaceable("forget in the engine, which keeps no headers")
@rule
def give_head(outbox: Outgoing, head: Record) -> None:
    """Give a header back."""
    outbox.free[0] += 1
    outbox.free[outbox.free[0]] = head["row"]


@replaceable("launch in the engine, where a packet leaves at once")
@rule
def emit(outbox: Outgoing, head: Record, half: int, route: int, size: int, time_ps: int) -> None:
    """Put the packet with this header on the wire, on the path that EV bits `route` name."""
    # Rows are reserved by the caller for the most that a call can send, so that nothing is checked here.
    at = outbox.count[0]
    out = outbox.out
    out[at, ROW] = head["row"]
    out[at, PAIR] = half >> 1
    out[at, HALF] = half & 1
    out[at, ROUTE] = route
    out[at, SIZE] = size
    out[at, KIND] = head["kind"]
    out[at, TIME] = time_ps
    head["pair"] = half >> 1
    head["half"] = half & 1
    outbox.count[0] = at + 1


@rule
def tell(outbox: Outgoing, kind: int, pair: int, time_ps: int) -> None:
    """Note what was completed."""
    at = outbox.count[1]
    outbox.events[at, 0] = time_ps
    outbox.events[at, 1] = pair
    outbox.events[at, 2] = kind
    outbox.count[1] = at + 1


@rule
def _answer(hosts: HostState, outbox: Outgoing, head: Record, pair: int, time_ps: int) -> None:
    """Send the SACK or NACK with this header from the end that receives, or lose it where no path is left."""
    route = reply_route(hosts, head, pair, time_ps)
    if route < 0:
        give_head(outbox, head)
        return
    emit(outbox, head, 2 * pair + 1, route, hosts.nics.sizes[head["kind"]], time_ps)


@rule
def take_in(hosts: HostState, outbox: Outgoing, arrivals: Column, count: int) -> int:
    """Take in what arrived at all NICs in one slot; return the bytes placed.

    A row of `arrivals` is: header row, whether marked, whether trimmed (and where), time. Its last column is set to 1
    where a data packet was new.
    """
    placed = 0
    for k in range(count):
        head = outbox.pool[arrivals[k, 0]]
        fresh = take_one(hosts, outbox, head, arrivals[k, 1], arrivals[k, 2], arrivals[k, 3])
        arrivals[k, 4] = fresh
        placed += fresh * head["length"]
        give_head(outbox, head)
    return placed


@replaceable("roce.take_one in RoCE")
@rule
def take_one(hosts: HostState, outbox: Outgoing, head: Record, marked: int, trimmed: int, time_ps: int) -> int:
    """Take in one packet and return 1 where it brought new data."""
    pair = head["pair"]
    kind = head["kind"]
    if kind == DATA:
        return _take_data(hosts, outbox, head, marked, trimmed, time_ps)
    if kind in (SACK, NACK):
        _take_reply(hosts, outbox, head, time_ps)
    elif kind == PROBE:
        take_probe(receiving_end(hosts, pair), head, passage_of(hosts, head, marked, 0), time_ps)
        _send_sacks(hosts, outbox, pair, time_ps)
        set_deadline(hosts, 2 * pair + 1)
    else:
        _take_endpoint(hosts, outbox, head, marked, time_ps)
        set_deadline(hosts, 2 * pair + 1 - head["half"])
    return 0


@rule
def _take_data(hosts: HostState, outbox: Outgoing, head: Record, marked: int, trimmed: int, time_ps: int) -> int:
    """Take in one data packet, answer it, and return 1 where its bytes are new."""
    pair = head["pair"]
    qp = hosts.r.qp[pair]
    cut = TRIMMED_LASTHOP if trimmed == TRIMMED_LAST_HOP else TRIMMED
    passage = passage_of(hosts, head, marked, cut if trimmed else 0)
    outcome = take_data(receiving_end(hosts, pair), head, passage, time_ps)
    if outcome == ANSWER:
        _refuse(hosts, outbox, head, passage, time_ps)
    if qp["due"] != 0 or qp["probe_due"] != 0:
        _send_sacks(hosts, outbox, pair, time_ps)
    if qp["expected"] >= hosts.nics.each[2 * pair + 1, UNTIL]:
        hosts.nics.each[2 * pair + 1, UNTIL] = NEVER
        tell(outbox, ARRIVED, pair, time_ps)
    # Of a half that takes data only the next reverse probe can be due sooner than it was.
    if hosts.nics.each[2 * pair + 1, DUE] > qp["reverse_probe_ps"]:
        set_deadline(hosts, 2 * pair + 1)
    return 1 if outcome == NEW else 0


@rule
def _refuse(hosts: HostState, outbox: Outgoing, head: Record, passage: Passage, time_ps: int) -> None:
    """Answer a data packet that was trimmed or not taken, where an answer is due."""
    pair = head["pair"]
    reply = take_head(outbox)
    if refuse(receiving_end(hosts, pair), head, passage, time_ps, reply) != NOTHING:
        _answer(hosts, outbox, reply, pair, time_ps)
    else:
        give_head(outbox, reply)


@rule
def _send_sacks(hosts: HostState, outbox: Outgoing, pair: int, time_ps: int) -> None:
    """Send every SACK that is due."""
    head = take_head(outbox)
    while next_sack(receiving_end(hosts, pair), time_ps, head) != NOTHING:
        _answer(hosts, outbox, head, pair, time_ps)
        head = take_head(outbox)
    give_head(outbox, head)


@rule
def _take_reply(hosts: HostState, outbox: Outgoing, head: Record, time_ps: int) -> None:
    """Take in a SACK or a NACK."""
    pair = head["pair"]
    qp = hosts.s.qp[pair]
    failed = qp["error"] != 0
    pressed = qp["backoff"] != 0
    sack = head["kind"] == SACK
    recycles = hosts.spray[0] == RECYCLE or hosts.spray[0] == REPS
    if sack and recycles and head["verdict"] == 0 and head["probe_response"] == 0:
        _recycle(hosts, pair, seq_near(head["cack_psn"], qp["una"]) + head["ack_psn_offset"], head["value"])
    # Compared before and after: a silent loss that a SACK shows is what freezes REPS.
    silent = qp["silent"] if hosts.spray[0] == REPS else 0
    take_reply(source_end(hosts, pair), head, time_ps)
    if sack and hosts.spray[0] == REPS and qp["silent"] > silent:
        freeze(hosts, pair, time_ps)
    if sack and qp["una"] >= hosts.nics.each[2 * pair, UNTIL]:
        hosts.nics.each[2 * pair, UNTIL] = NEVER
        tell(outbox, ACKNOWLEDGED, pair, time_ps)
    if qp["error"] != 0 and not failed:
        tell(outbox, FAILED, pair, time_ps)
    # Only a sender that backs off or has retired EVs can be due sooner than it was; for others a look is enough.
    if pressed or qp["bad"] != 0:
        set_deadline(hosts, 2 * pair)
    else:
        keep_deadline(hosts, pair, time_ps)
    if unfinished(hosts.s, pair):
        wake(hosts.nics, 2 * pair)


@rule
def _recycle(hosts: HostState, pair: int, seq: int, value: int) -> None:
    """Keep the EV whose packet `seq` came back unmarked, where the ring has room."""
    room = hosts.ring.shape[1]
    held = hosts.ring_at[pair, 1]
    ev = transmission(hosts.s, pair, seq, value)
    if hosts.spray[0] == REPS:
        if ev >= 0:
            remember(hosts, pair, ev)
    elif held < room and ev >= 0:
        at = hosts.ring_at[pair, 0] + held
        hosts.ring[pair, at if at < room else at - room] = ev
        hosts.ring_at[pair, 1] = held + 1


@rule
def _take_endpoint(hosts: HostState, outbox: Outgoing, head: Record, marked: int, time_ps: int) -> None:
    """Take in an endpoint operation or the answer to one."""
    apart()
    pair = head["pair"]
    half = 2 * pair + 1 - head["half"]
    k = opposite(hosts, pair)
    passage = Passage(head["value"], head["plane"], marked, 0)
    reply = take_head(outbox)
    if half & 1 == 0:
        route = _operate(hosts, source_end(hosts, pair), head, passage, time_ps, reply)
    elif k >= 0:
        route = _operate(hosts, shared_end(hosts, pair, k), head, passage, time_ps, reply)
        # What the peer says of its ports is for the half that sends there.
        set_deadline(hosts, 2 * k)
        wake(hosts.nics, 2 * k)
    else:
        route = _operate(hosts, destination_end(hosts, pair), head, passage, time_ps, reply)
    if route >= 0:
        emit(outbox, reply, half, route, hosts.nics.sizes[reply["kind"]], time_ps)
    else:
        give_head(outbox, reply)
    wake(hosts.nics, half)


@rule
def _operate(hosts: HostState, end: PairEnd, head: Record, passage: Passage, time_ps: int, reply: Record) -> int:
    """Give an end an operation or the answer to one; return the EV bits for what is in `reply` then, or -1."""
    if take_operation(end, head, passage, time_ps, reply) == NOTHING:
        return -1
    echo = echoed(hosts, reply, head["pair"]) if hosts.spray[ECHOES] and head["half"] == 0 else -1
    if echo >= 0:
        return echo
    ev_index = operation_ev(end, head["id"], passage, time_ps)
    return end.sender.evs[end.row, ev_index]["value"] if ev_index >= 0 else -1


@rule
def send_out(hosts: HostState, outbox: Outgoing, start_ps: int, phase: Column, room: Column) -> None:
    """Let every NIC send what it may in the slot that begins at `start_ps`.

    `room` holds the bytes that every port (NIC, plane) can still take, `phase` how far into the slot a NIC begins.
    """
    for nic in range(len(hosts.nics.turn)):
        if hosts.nics.first[nic + 1] > hosts.nics.first[nic]:
            send_control(hosts, outbox, nic, start_ps)
            send_data(hosts, outbox, nic, start_ps + phase[nic], room[nic], free_planes(room[nic]))


@replaceable("roce.send_control in RoCE")
@rule
def send_control(hosts: HostState, outbox: Outgoing, nic: int, now_ps: int) -> None:
    """Let time pass for the halves of a NIC whose deadline has come, and send the control packets that are due."""
    if hosts.nics.due[nic] > now_ps:
        return
    # The earliest of all halves is worked out anew on the way, because `due` may have been early.
    due_ps = NEVER
    soon_ps = now_ps + min(hosts.s.params[0]["probe_after_ps"], hosts.s.params[0]["timeout_ps"]) // 2
    for k in range(hosts.nics.first[nic], hosts.nics.first[nic + 1]):
        half = hosts.nics.of_nic[k]
        known_ps = hosts.nics.each[half, DUE]
        if known_ps <= now_ps:
            _pass_time(hosts, outbox, half, now_ps)
        elif known_ps <= soon_ps:
            # Deadlines that are early are put right together, so that not each of many halves calls for a look at all.
            set_deadline(hosts, half)
            hosts.nics.each[half, DUE] = max(hosts.nics.each[half, DUE], known_ps)
        due_ps = min(due_ps, hosts.nics.each[half, DUE])
    hosts.nics.due[nic] = due_ps


@rule
def _pass_time(hosts: HostState, outbox: Outgoing, half: int, now_ps: int) -> None:
    """Let time pass for one half, and send the control packets that are due."""
    pair = half >> 1
    side = half & 1
    if side == 0:
        failed = hosts.s.qp[pair]["error"] != 0
        missed = hosts.s.qp[pair]["silent"] + hosts.s.qp[pair]["timeouts"]
        pass_time(source_end(hosts, pair), now_ps)
        if hosts.spray[0] == REPS and hosts.s.qp[pair]["silent"] + hosts.s.qp[pair]["timeouts"] > missed:
            freeze(hosts, pair, now_ps)
        if hosts.s.qp[pair]["error"] != 0 and not failed:
            tell(outbox, FAILED, pair, now_ps)
    elif opposite(hosts, pair) < 0:
        pass_time(destination_end(hosts, pair), now_ps)
    head = take_head(outbox)
    while _next_control(hosts, pair, side, now_ps, head) != NOTHING:
        emit(outbox, head, 2 * pair + side, head["value"], hosts.nics.sizes[head["kind"]], now_ps)
        head = take_head(outbox)
    give_head(outbox, head)
    set_deadline(hosts, half)
    hosts.nics.each[half, DUE] = next_look_ps(hosts.s.params[0], hosts.nics.each[half, DUE], now_ps)
    wake(hosts.nics, half)


@rule
def _next_control(hosts: HostState, pair: int, side: int, now_ps: int, out: Record) -> int:
    """Fill `out` with the next control packet of a half that is due."""
    k = opposite(hosts, pair)
    if side == 0:
        # The reverse path of what its opposite brings is probed by the other half of this end.
        return next_due(PairEnd(hosts.s, pair, hosts.r, -1, 2 * pair, hosts.journal), now_ps, out)
    if k >= 0:
        return next_probe_back(shared_end(hosts, pair, k), now_ps, out)
    return next_due(destination_end(hosts, pair), now_ps, out)


@replaceable("roce.send_data in RoCE")
@rule
def send_data(hosts: HostState, outbox: Outgoing, nic: int, now_ps: int, room: Column, free: int) -> int:
    """Send data of a NIC's halves in turn, a packet each, while its ports have `room`; return how many packets.

    `free` has a bit for every port that has room.
    """
    if hosts.nics.awake[nic] == 0:
        return 0
    first = hosts.nics.first[nic]
    halves = hosts.nics.first[nic + 1] - first
    # Where EVs are drawn, trying to send would begin a round; elsewhere nothing changes that is not sent.
    asks = hosts.spray[0] >= DRAW
    # The turn is kept from slot to slot, so that no half goes first more often than others.
    sent = 0
    at = hosts.nics.turn[nic]
    # Place of the first half that could send but for its ports; having come round to it, the NIC is done.
    held = -1
    while free != 0:
        place = next_ready(hosts.nics, nic, at)
        if place < 0:
            hosts.nics.awake[nic] = 0
            break
        if place == held:
            break
        half = hosts.nics.of_nic[first + place]
        pair = half >> 1
        at = place + 1 if place + 1 < halves else 0
        may = not asks or sendable(hosts.s, pair)
        free_now = _send_one(hosts, outbox, pair, now_ps, free, room) if may else -1
        if free_now < 0:
            if may and (asks or sendable(hosts.s, pair)):
                set_deadline(hosts, 2 * pair)
                held = place if held < 0 else held
            else:
                # Its bit goes out; `wake` sets it again, as soon as something happens that may let it send.
                hosts.nics.ready[hosts.nics.first_word[nic] + (place >> WORD_SHIFT)] &= ~(1 << (place & WORD_MASK))
            continue
        free = free_now
        held = -1
        sent += 1
        hosts.nics.turn[nic] = at
    return sent


@rule
def free_planes(room: Column) -> int:
    """Return a bit for every plane whose port has room."""
    free = 0
    for plane in range(len(room)):
        if room[plane] > 0:
            free |= 1 << plane
    return free


@rule
def _send_one(hosts: HostState, outbox: Outgoing, pair: int, now_ps: int, free: int, room: Column) -> int:
    """Send one packet of pair `i`; return the planes that have room after it, or -1 where it could not go."""
    head = take_head(outbox)
    if _next_packet(hosts, pair, now_ps, free, head) == NOTHING:
        give_head(outbox, head)
        return -1
    keep_deadline(hosts, pair, now_ps)
    size = head["length"] + hosts.nics.sizes[DATA]
    plane = head["plane"]
    emit(outbox, head, 2 * pair, head["value"], size, now_ps)
    room[plane] -= size
    return free & ~(1 << plane) if room[plane] <= 0 else free


@rule
def _next_packet(hosts: HostState, pair: int, now_ps: int, free: int, head: Record) -> int:
    """Fill `head` with the next data packet of pair `i`, its EV chosen as the transport does."""
    sender = hosts.s
    wish = -1
    if hosts.spray[0] == DRAW:
        # At the beginning of a round every EV is as likely as any other.
        sender.qp[pair]["cursor"] = 0
    elif hosts.spray[0] == RECYCLE and hosts.ring_at[pair, 1] > 0:
        wish = hosts.ring[pair, hosts.ring_at[pair, 0]]
    elif hosts.spray[0] == REPS:
        wish = wished(hosts, pair, now_ps)
        if wish < 0:
            sender.qp[pair]["cursor"] = 0
    found = next_packet(source_end(hosts, pair), wish, now_ps, free, head)
    if wish >= 0 and found != NOTHING:
        if hosts.spray[0] == REPS:
            used(hosts, pair)
        else:
            _drop_recycled(hosts, pair)
    return found


@rule
def _drop_recycled(hosts: HostState, pair: int) -> None:
    """Take the oldest EV out of the ring."""
    at = hosts.ring_at[pair, 0] + 1
    hosts.ring_at[pair, 0] = at if at < hosts.ring.shape[1] else 0
    hosts.ring_at[pair, 1] -= 1


@rule
def post_messages(hosts: HostState, table: Column) -> None:
    """Give pairs messages to send: a row of pairs, and a row of lengths that become what `post` answers."""
    # Awake before it is posted: a half may be early, never late.
    for k in range(table.shape[1]):
        wake(hosts.nics, 2 * table[0, k])
        table[1, k] = post_message(source_end(hosts, table[0, k]), 0, 0, table[1, k], -1, 0)


@rule
def change_port(hosts: HostState, nic: int, plane: int, up: int, now_ps: int) -> None:
    """Tell the halves of a NIC that its port of `plane` went up or down."""
    for k in range(hosts.nics.first[nic], hosts.nics.first[nic + 1]):
        half = hosts.nics.of_nic[k]
        if half & 1 == 0:
            report_port(source_end(hosts, half >> 1), plane, up, now_ps)
        elif opposite(hosts, half >> 1) < 0:
            report_port(destination_end(hosts, half >> 1), plane, up, now_ps)
        set_deadline(hosts, half)
        wake(hosts.nics, half)
