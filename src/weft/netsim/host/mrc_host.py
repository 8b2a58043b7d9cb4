"""What the NICs of a simulated fabric do with MRC's rules, slot by slot, themselves as rules over columns.

Two questions, each asked once in a slot for everybody: `take_in` (what arrived) and `send_out` (what goes out). They
run plain or compiled like the rules below them, so the reference and the compiled engine share them. The way of a
packet between two NICs is not their business.

A queue pair here carries data one way: its sending half sits at the source; its receiving half, with a sending half of
its own that only answers and probes, at the destination. "Half" number 2i is the first, 2i + 1 the second.
"""

from typing import Any

from weft.core.compile.rules import replaceable, rule
from weft.mrc.columns import (
    DATA,
    EV_PROBE,
    NACK,
    NEVER,
    NOTHING,
    PORT_STATUS,
    PROBE,
    SACK,
)
from weft.mrc.rules.acks import on_nack, on_sack, transmission
from weft.mrc.rules.control import next_control, on_ev_probe_answer, on_timer
from weft.mrc.rules.numbers import seq_near
from weft.mrc.rules.ports import on_port_answer, on_port_status, port_changed
from weft.mrc.rules.receiver import (
    ACCEPTED,
    DUPLICATE,
    DataHeader,
    on_probe,
    receive,
    receive_trimmed,
    refusal,
    take_sack,
)
from weft.mrc.rules.reverse import next_reverse_probe, on_reverse_answer
from weft.mrc.rules.sender import next_data_on, post, sendable, unfinished
from weft.netsim.host.host_state import (
    ACKNOWLEDGED,
    ARRIVED,
    DRAW,
    DUE,
    EV_ANSWER,
    FAILED,
    HALF,
    KIND,
    PAIR,
    PORT_ANSWER,
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
)
from weft.netsim.host.reps_ring import freeze, remember, used, wished
from weft.netsim.host.reverse_path import way_back
from weft.netsim.host.timers import keep_deadline, next_ready, opposite, set_deadline, wake


@replaceable("stack_row in the engine, which keeps no headers")
@rule
def take_head(sheet: Any) -> Any:
    """Take a free header of the pool."""
    height = sheet.free[0]
    assert height > 0, "the pool of headers is used up"
    sheet.free[0] = height - 1
    return sheet.pool[sheet.free[height]]


@replaceable("forget in the engine, which keeps no headers")
@rule
def give_head(sheet: Any, head: Any) -> None:
    """Give a header back."""
    sheet.free[0] += 1
    sheet.free[sheet.free[0]] = head["row"]


@replaceable("launch in the engine, where a packet leaves at once")
@rule
def emit(sheet: Any, head: Any, i: int, half: int, route: int, size: int, time_ps: int) -> None:
    """Put the packet with this header on the wire, on the path that EV bits `route` name."""
    at = sheet.count[0]
    out = sheet.out
    out[at, ROW] = head["row"]
    out[at, PAIR] = i
    out[at, HALF] = half
    out[at, ROUTE] = route
    out[at, SIZE] = size
    out[at, KIND] = head["kind"]
    out[at, TIME] = time_ps
    head["pair"] = i
    head["half"] = half
    sheet.count[0] = at + 1


@rule
def tell(sheet: Any, kind: int, i: int, time_ps: int) -> None:
    """Note what was completed."""
    at = sheet.count[1]
    sheet.events[at, 0] = time_ps
    sheet.events[at, 1] = i
    sheet.events[at, 2] = kind
    sheet.count[1] = at + 1


@rule
def _answer(h: Any, sheet: Any, head: Any, i: int, half: int, plane: int, time_ps: int) -> None:
    """Send the control packet with this header from a half, or lose it where no path is left."""
    route = way_back(h, head, i, half, plane)
    if route < 0:
        give_head(sheet, head)
        return
    emit(sheet, head, i, half, route, h.sizes[head["kind"]], time_ps)


@rule
def take_in(h: Any, sheet: Any, arrivals: Any, count: int) -> int:
    """Take in what arrived at all NICs in one slot; return the bytes placed.

    A row of `arrivals` is: header row, whether marked, whether trimmed (and where), time. Its last column is set to 1
    where a data packet was new.
    """
    placed = 0
    for k in range(count):
        head = sheet.pool[arrivals[k, 0]]
        fresh = take_one(h, sheet, head, arrivals[k, 1], arrivals[k, 2], arrivals[k, 3])
        arrivals[k, 4] = fresh
        placed += fresh * head["length"]
        give_head(sheet, head)
    return placed


@replaceable("roce.take_one in RoCE")
@rule
def take_one(h: Any, sheet: Any, head: Any, marked: int, trimmed: int, time_ps: int) -> int:
    """Take in one packet and return 1 where it brought new data."""
    i = head["pair"]
    kind = head["kind"]
    if kind == DATA:
        return _take_data(h, sheet, head, marked, trimmed, time_ps)
    if kind in (SACK, NACK):
        _take_reply(h, sheet, head, time_ps)
    elif kind == PROBE:
        on_probe(h.r, i, head["id"], head["value"], time_ps)
        _send_sacks(h, sheet, i, time_ps)
        set_deadline(h, 2 * i + 1)
    else:
        _take_endpoint(h, sheet, head, marked, time_ps)
        set_deadline(h, 2 * i + 1 - head["half"])
    return 0


@rule
def _take_data(h: Any, sheet: Any, head: Any, marked: int, trimmed: int, time_ps: int) -> int:
    """Take in one data packet, answer it, and return 1 where its bytes are new."""
    i = head["pair"]
    q = h.r.qp[i]
    verdict = ACCEPTED
    if not trimmed:
        header = DataHeader(
            head["psn"], head["value"], marked, head["retransmission"], head["ack_request"], head["length"],
            head["immediate"],
        )  # fmt: skip
        verdict = receive(h.r, i, header, time_ps)
    if trimmed or verdict > DUPLICATE:
        _refuse(h, sheet, head, verdict, trimmed, time_ps)
    if q["due"] != 0 or q["probe_due"] != 0:
        _send_sacks(h, sheet, i, time_ps)
    if q["expected"] >= h.each[2 * i + 1, UNTIL]:
        h.each[2 * i + 1, UNTIL] = NEVER
        tell(sheet, ARRIVED, i, time_ps)
    # Of a half that takes data only the next reverse probe can be due sooner than it was.
    if h.each[2 * i + 1, DUE] > q["reverse_probe_ps"]:
        set_deadline(h, 2 * i + 1)
    return 1 if verdict == ACCEPTED and not trimmed else 0


@rule
def _refuse(h: Any, sheet: Any, head: Any, verdict: int, trimmed: int, time_ps: int) -> None:
    """Answer a data packet that was trimmed or not taken, where an answer is due."""
    i = head["pair"]
    reply = take_head(sheet)
    if trimmed:
        due = receive_trimmed(h.r, i, head["psn"], head["value"], 1 if trimmed == TRIMMED_LAST_HOP else 0, reply)
    else:
        due = refusal(h.r, i, verdict, head["psn"], head["value"], reply)
    if due != NOTHING:
        _answer(h, sheet, reply, i, 1, 0, time_ps)
    else:
        give_head(sheet, reply)


@rule
def _send_sacks(h: Any, sheet: Any, i: int, time_ps: int) -> None:
    """Send every SACK that is due."""
    head = take_head(sheet)
    while take_sack(h.r, i, head) != NOTHING:
        _answer(h, sheet, head, i, 1, 0, time_ps)
        head = take_head(sheet)
    give_head(sheet, head)


@rule
def _take_reply(h: Any, sheet: Any, head: Any, time_ps: int) -> None:
    """Take in a SACK or a NACK."""
    i = head["pair"]
    q = h.s.qp[i]
    failed = q["error"] != 0
    pressed = q["backoff"] != 0
    if head["kind"] == NACK:
        on_nack(h.s, i, head, time_ps)
    else:
        recycles = h.spray[0] == RECYCLE or h.spray[0] == REPS
        if recycles and head["verdict"] == 0 and head["probe_response"] == 0:
            _recycle(h, i, seq_near(head["cack_psn"], q["una"]) + head["ack_psn_offset"], head["value"])
        silent = q["silent"] if h.spray[0] == REPS else 0
        on_sack(h.s, i, head, time_ps)
        if h.spray[0] == REPS and q["silent"] > silent:
            freeze(h, i, time_ps)
        if q["una"] >= h.each[2 * i, UNTIL]:
            h.each[2 * i, UNTIL] = NEVER
            tell(sheet, ACKNOWLEDGED, i, time_ps)
    if q["error"] != 0 and not failed:
        tell(sheet, FAILED, i, time_ps)
    if pressed or q["bad"] != 0:
        set_deadline(h, 2 * i)
    else:
        keep_deadline(h, i, time_ps)
    if unfinished(h.s, i):
        wake(h, 2 * i)


@rule
def _recycle(h: Any, i: int, seq: int, value: int) -> None:
    """Keep the EV whose packet `seq` came back unmarked, where the ring has room."""
    room = h.ring.shape[1]
    held = h.ring_at[i, 1]
    e = transmission(h.s, i, seq, value)
    if h.spray[0] == REPS:
        if e >= 0:
            remember(h, i, e)
    elif held < room and e >= 0:
        at = h.ring_at[i, 0] + held
        h.ring[i, at if at < room else at - room] = e
        h.ring_at[i, 1] = held + 1


@rule
def _take_endpoint(h: Any, sheet: Any, head: Any, marked: int, time_ps: int) -> None:
    """Take in an endpoint operation or the answer to one."""
    i = head["pair"]
    half = head["half"]
    kind = head["kind"]
    k = opposite(h, i)
    if kind in (EV_PROBE, PORT_STATUS):
        if kind == PORT_STATUS and half == 0 and k >= 0:
            on_port_status(h.s, k, head["port_status"])
            set_deadline(h, 2 * k)
            wake(h, 2 * k)
        elif kind == PORT_STATUS and half == 0:
            on_port_status(h.b, i, head["port_status"])
        elif kind == PORT_STATUS:
            on_port_status(h.s, i, head["port_status"])
        reply = take_head(sheet)
        reply["kind"] = EV_ANSWER if kind == EV_PROBE else PORT_ANSWER
        reply["id"] = head["id"]
        reply["verdict"] = marked
        _answer(h, sheet, reply, i, 1 - half, head["plane"], time_ps)
    elif kind == PORT_ANSWER:
        if half == 1:
            on_port_answer(h.s, i, head["id"])
        else:
            on_port_answer(h.b, i, head["id"])
    elif half == 1:
        on_ev_probe_answer(h.s, i, head["id"], head["verdict"])
    elif k >= 0:
        on_reverse_answer(h.s, k, h.r, i, head["id"])
    else:
        on_reverse_answer(h.b, i, h.r, i, head["id"])
    wake(h, 2 * i + 1 - half)


@rule
def send_out(h: Any, sheet: Any, start_ps: int, phase: Any, room: Any) -> None:
    """Let every NIC send what it may in the slot that begins at `start_ps`.

    `room` holds the bytes that every port (NIC, plane) can still take, `phase` how far into the slot a NIC begins.
    """
    for nic in range(len(h.turn)):
        if h.first[nic + 1] > h.first[nic]:
            send_control(h, sheet, nic, start_ps)
            send_data(h, sheet, nic, start_ps + phase[nic], room[nic], free_planes(room[nic]))


@replaceable("roce.send_control in RoCE")
@rule
def send_control(h: Any, sheet: Any, nic: int, now_ps: int) -> None:
    """Let time pass for the halves of a NIC whose deadline has come, and send the control packets that are due."""
    if h.due[nic] > now_ps:
        return
    due_ps = NEVER
    soon_ps = now_ps + min(h.s.params[0]["probe_after_ps"], h.s.params[0]["timeout_ps"]) // 2
    for k in range(h.first[nic], h.first[nic + 1]):
        half = h.of_nic[k]
        known_ps = h.each[half, DUE]
        if known_ps <= now_ps:
            _pass_time(h, sheet, half, now_ps)
        elif known_ps <= soon_ps:
            # Deadlines that are early are put right together, so that not each of many halves calls for a look at all.
            set_deadline(h, half)
            h.each[half, DUE] = max(h.each[half, DUE], known_ps)
        due_ps = min(due_ps, h.each[half, DUE])
    h.due[nic] = due_ps


@rule
def _pass_time(h: Any, sheet: Any, half: int, now_ps: int) -> None:
    """Let time pass for one half, and send the control packets that are due."""
    i = half >> 1
    side = half & 1
    if side == 0:
        failed = h.s.qp[i]["error"] != 0
        missed = h.s.qp[i]["silent"] + h.s.qp[i]["timeouts"]
        on_timer(h.s, i, now_ps)
        if h.spray[0] == REPS and h.s.qp[i]["silent"] + h.s.qp[i]["timeouts"] > missed:
            freeze(h, i, now_ps)
        if h.s.qp[i]["error"] != 0 and not failed:
            tell(sheet, FAILED, i, now_ps)
    elif opposite(h, i) < 0:
        on_timer(h.b, i, now_ps)
    head = take_head(sheet)
    while _next_control(h, i, side, now_ps, head) != NOTHING:
        emit(sheet, head, i, side, head["value"], h.sizes[head["kind"]], now_ps)
        head = take_head(sheet)
    give_head(sheet, head)
    set_deadline(h, half)
    if h.each[half, DUE] <= now_ps:
        # What is due cannot be sent: every plane is down. It is asked again a little later.
        h.each[half, DUE] = now_ps + h.s.params[0]["base_rtt_ps"]
    wake(h, half)


@rule
def _next_control(h: Any, i: int, side: int, now_ps: int, out: Any) -> int:
    """Fill `out` with the next control packet of a half that is due."""
    if side == 0:
        return next_control(h.s, i, now_ps, -1, out)
    k = opposite(h, i)
    if k >= 0:
        return next_reverse_probe(h.s, k, h.r, i, now_ps, out)
    found = next_control(h.b, i, now_ps, -1, out)
    if found != NOTHING:
        return found
    return next_reverse_probe(h.b, i, h.r, i, now_ps, out)


@replaceable("roce.send_data in RoCE")
@rule
def send_data(h: Any, sheet: Any, nic: int, now_ps: int, room: Any, free: int) -> int:
    """Send data of a NIC's halves in turn, a packet each, while its ports have `room`; return how many packets.

    `free` has a bit for every port that has room.
    """
    if h.awake[nic] == 0:
        return 0
    first = h.first[nic]
    halves = h.first[nic + 1] - first
    # Where EVs are drawn, trying to send would begin a round; elsewhere nothing changes that is not sent.
    asks = h.spray[0] >= DRAW
    sent = 0
    at = h.turn[nic]
    # Place of the first half that could send but for its ports; having come round to it, the NIC is done.
    held = -1
    while free != 0:
        place = next_ready(h, nic, at)
        if place < 0:
            h.awake[nic] = 0
            break
        if place == held:
            break
        half = h.of_nic[first + place]
        i = half >> 1
        at = place + 1 if place + 1 < halves else 0
        may = not asks or sendable(h.s, i)
        free_now = _send_one(h, sheet, i, now_ps, free, room) if may else -1
        if free_now < 0:
            if may and (asks or sendable(h.s, i)):
                set_deadline(h, 2 * i)
                held = place if held < 0 else held
            else:
                h.ready[h.first_word[nic] + (place >> WORD_SHIFT)] &= ~(1 << (place & WORD_MASK))
            continue
        free = free_now
        held = -1
        sent += 1
        h.turn[nic] = at
    return sent


@rule
def free_planes(room: Any) -> int:
    """Return a bit for every plane whose port has room."""
    free = 0
    for plane in range(len(room)):
        if room[plane] > 0:
            free |= 1 << plane
    return free


@rule
def _send_one(h: Any, sheet: Any, i: int, now_ps: int, free: int, room: Any) -> int:
    """Send one packet of pair `i`; return the planes that have room after it, or -1 where it could not go."""
    head = take_head(sheet)
    if _next_packet(h, i, now_ps, free, head) == NOTHING:
        give_head(sheet, head)
        return -1
    keep_deadline(h, i, now_ps)
    size = head["length"] + h.sizes[DATA]
    plane = head["plane"]
    emit(sheet, head, i, 0, head["value"], size, now_ps)
    room[plane] -= size
    return free & ~(1 << plane) if room[plane] <= 0 else free


@rule
def _next_packet(h: Any, i: int, now_ps: int, free: int, head: Any) -> int:
    """Fill `head` with the next data packet of pair `i`, its EV chosen as the transport does."""
    s = h.s
    wish = -1
    if h.spray[0] == DRAW:
        # At the beginning of a round every EV is as likely as any other.
        s.qp[i]["cursor"] = 0
    elif h.spray[0] == RECYCLE and h.ring_at[i, 1] > 0:
        wish = h.ring[i, h.ring_at[i, 0]]
    elif h.spray[0] == REPS:
        wish = wished(h, i, now_ps)
        if wish < 0:
            s.qp[i]["cursor"] = 0
    found = next_data_on(s, i, wish, now_ps, free, head)
    if wish >= 0 and found != NOTHING:
        if h.spray[0] == REPS:
            used(h, i)
        else:
            _drop_recycled(h, i)
    return found


@rule
def _drop_recycled(h: Any, i: int) -> None:
    """Take the oldest EV out of the ring."""
    at = h.ring_at[i, 0] + 1
    h.ring_at[i, 0] = at if at < h.ring.shape[1] else 0
    h.ring_at[i, 1] -= 1


@rule
def post_messages(h: Any, table: Any) -> None:
    """Give pairs messages to send: a row of pairs, and a row of lengths that become what `post` answers."""
    for k in range(table.shape[1]):
        wake(h, 2 * table[0, k])
        table[1, k] = post(h.s, table[0, k], 0, 0, table[1, k], -1)


@rule
def change_port(h: Any, nic: int, plane: int, up: int, now_ps: int) -> None:
    """Tell the halves of a NIC that its port of `plane` went up or down."""
    for k in range(h.first[nic], h.first[nic + 1]):
        half = h.of_nic[k]
        if half & 1 == 0:
            port_changed(h.s, half >> 1, plane, up, now_ps)
        elif opposite(h, half >> 1) < 0:
            port_changed(h.b, half >> 1, plane, up, now_ps)
        set_deadline(h, half)
        wake(h, half)
