"""What the NICs of a simulated fabric do with RoCEv2: one path for a queue pair, go-back-N, DCQCN.

The twin of `hosts` for the usual network, with the same questions (`take_in`, `send_out`) asked in the same way, as
rules over columns. Sources: InfiniBand Architecture 1.4 sections 9.5 to 9.9 and annex A17 (RoCEv2) for sequence
numbers, NAKs and timers; Zhu et al., "Congestion Control for Large-Scale RDMA Deployments", SIGCOMM 2015, section 3 for
DCQCN. Which path a queue pair is hashed to, and what pauses it, is decided elsewhere.
"""

from typing import Any, NamedTuple

import numpy as np

from weft.core.compile.rules import rule
from weft.mrc.columns import DATA, ERROR_RETRIES, NACK, NEVER, SACK
from weft.mrc.rules.numbers import psn_of, seq_near
from weft.mrc.rules.sender import POST_QUEUE_FULL, POSTED
from weft.netsim.host.host_state import ACKNOWLEDGED, ARRIVED, AT_NIC, DUE, FAILED, UNTIL
from weft.netsim.host.mrc_host import emit, free_planes, give_head, take_head, tell
from weft.netsim.host.timers import next_ready, wake

CNP = 9
"""Kind of a congestion notification packet, besides those of `weft.netsim.host.mrc_host`."""
KINDS = 10

ALPHA_BITS = 20
ALPHA_ONE = 1 << ALPHA_BITS
"""DCQCN's estimate of congestion is a whole number out of this."""
_PS_PER_SECOND_BITS = 8 * 10**12
_MOST_DECAYS = 8192
_NEARLY = 10
_WORD_SHIFT, _WORD_MASK = 5, 31


def _wide(*names: str) -> np.dtype[Any]:
    return np.dtype([(name, "i8") for name in names])


PARAMS = _wide(
    *("payload", "slot_ps", "timeout_ps", "retries", "ack_every", "window", "message_mask"),
    *("dcqcn", "line_bps", "least_bps", "ai_bps", "hai_bps", "gain", "cnp_ps", "alpha_ps", "rise_ps", "rise_bytes"),
    *("fast", "first_alpha", "burst_bytes", "window_max", "mpr"),
)
"""The parameters of all queue pairs, one row; the last two are what an engine asks of every transport."""
SENDER = _wide(
    # Packets: oldest not acknowledged, next to send, end of what was posted, end of what was ever sent.
    *("una", "next", "end", "high", "msg_first", "msg_next", "msg_end"),
    # The retransmission timer, when the rate allows the next packet, and when that has to be waited for.
    *("timer_ps", "retries", "error", "pace_ps", "wait_ps"),
    # DCQCN: current and target rate, alpha and since when it decays; rounds of the byte counter and of the timer.
    *("rate_bps", "target_bps", "alpha", "alpha_ps", "bytes", "byte_rounds", "time_rounds", "rise_ps"),
    # Where it goes: its plane, the paths there and back.
    *("plane", "route", "back_route"),
    *("sent", "resent", "timeouts", "naks", "cnps"),
)
"""One queue pair's sender."""
RECEIVER = _wide(
    *("expected", "nak_sent", "unacked", "cnp_ps", "received_bytes"),
    *("accepted", "duplicates", "outside", "marked", "acks", "naks", "cnps"),
)
"""One queue pair's receiver."""
MESSAGE = _wide("first", "packets", "length")
"""One write: its packets and bytes."""


class Side(NamedTuple):
    """One half of all queue pairs."""

    params: Any
    """The parameters, one row."""
    qp: Any
    """One row for each."""


class RoceHostState(NamedTuple):
    """The columns of all queue pairs of a run, and what ties them to NICs."""

    s: Any
    """Senders: `params` and `qp`."""
    r: Any
    """Receivers: `params` and `qp`."""
    messages: Any
    """Writes of every queue pair, in a ring."""
    each: Any
    """One row for every half, as in `Halves`: 2i is at the source, 2i + 1 at the destination."""
    first: Any
    """Where the halves of a NIC begin in `of_nic`; one more entry than NICs."""
    of_nic: Any
    """The halves of every NIC."""
    turn: Any
    """Whose turn it is at every NIC."""
    place: Any
    """Where every half stands among those of its NIC."""
    ready: Any
    """Halves that may have data to send, bits in words of 32, those of a NIC from `first_word` on."""
    first_word: Any
    """Where the words of a NIC begin in `ready`; one more entry than NICs."""
    awake: Any
    """1 for every NIC that has a bit in `ready`."""
    due: Any
    """A time before which no half of a NIC has anything to do by itself."""
    sizes: Any
    """Bytes of every kind of control packet; of a data packet, its header."""


@rule
def start_pair(h: Any, i: int, plane: int, route: int, back_route: int) -> None:
    """Make a queue pair ready: at line rate, with nothing sent."""
    q = h.s.qp[i]
    q["timer_ps"] = q["wait_ps"] = q["rise_ps"] = NEVER
    q["rate_bps"] = q["target_bps"] = h.s.params[0]["line_bps"]
    q["alpha"] = h.s.params[0]["first_alpha"]
    q["plane"] = plane
    q["route"] = route
    q["back_route"] = back_route
    h.r.qp[i]["cnp_ps"] = -NEVER


@rule
def set_deadline(h: Any, half: int) -> None:
    """Work out when a half has something to do by itself; receivers never have."""
    if half & 1:
        h.each[half, DUE] = NEVER
        return
    q = h.s.qp[half >> 1]
    due_ps = min(q["timer_ps"], q["rise_ps"], q["wait_ps"])
    if q["error"] != 0:
        due_ps = NEVER
    h.each[half, DUE] = due_ps
    nic = h.each[half, AT_NIC]
    h.due[nic] = min(h.due[nic], due_ps)


@rule
def post_messages(h: Any, table: Any) -> None:
    """Give pairs messages to send: a row of pairs, and a row of lengths that become the answers."""
    for k in range(table.shape[1]):
        table[1, k] = _post(h, table[0, k], table[1, k])


@rule
def _post(h: Any, i: int, length: int) -> int:
    """Give pair `i` a message to send; return whether it had room for it."""
    q = h.s.qp[i]
    params = h.s.params[0]
    if q["msg_end"] - q["msg_first"] > params["message_mask"]:
        return POST_QUEUE_FULL
    packets = (length + params["payload"] - 1) // params["payload"]
    m = h.messages[i, q["msg_end"] & params["message_mask"]]
    m["first"] = q["end"]
    m["packets"] = packets
    m["length"] = length
    q["end"] += packets
    q["msg_end"] += 1
    wake(h, 2 * i)
    return POSTED


@rule
def take_in(h: Any, sheet: Any, arrivals: Any, count: int) -> int:
    """Take in what arrived at all NICs in one slot, as `hosts.take_in` does; return the bytes placed."""
    placed = 0
    for k in range(count):
        head = sheet.pool[arrivals[k, 0]]
        fresh = take_one(h, sheet, head, arrivals[k, 1], arrivals[k, 2], arrivals[k, 3])
        arrivals[k, 4] = fresh
        placed += fresh * head["length"]
        give_head(sheet, head)
    return placed


@rule
def take_one(h: Any, sheet: Any, head: Any, marked: int, _trimmed: int, time_ps: int) -> int:
    """Take in one packet and return 1 where it brought new data."""
    i = head["pair"]
    kind = head["kind"]
    if kind == DATA:
        return _take_data(h, sheet, head, marked, time_ps)
    if kind == CNP:
        _slow_down(h, i, time_ps)
    else:
        psn = head["psn"] if kind == NACK else head["cack_psn"]
        _acknowledged(h, sheet, i, seq_near(psn, h.s.qp[i]["una"]), time_ps)
        if kind == NACK:
            _go_back(h, i)
            h.s.qp[i]["naks"] += 1
    set_deadline(h, 2 * i)
    wake(h, 2 * i)
    return 0


@rule
def _take_data(h: Any, sheet: Any, head: Any, marked: int, time_ps: int) -> int:
    """Take in a data packet: only the next one in order is kept; a gap is told once, until it is filled."""
    i = head["pair"]
    r = h.r.qp[i]
    if marked:
        r["marked"] += 1
        if h.s.params[0]["dcqcn"] and time_ps - r["cnp_ps"] >= h.s.params[0]["cnp_ps"]:
            r["cnp_ps"] = time_ps
            r["cnps"] += 1
            _answer(h, sheet, i, CNP, time_ps)
    seq = seq_near(head["psn"], r["expected"])
    if seq > r["expected"]:
        r["outside"] += 1
        if r["nak_sent"] == 0:
            r["nak_sent"] = 1
            r["naks"] += 1
            _answer(h, sheet, i, NACK, time_ps)
        return 0
    if seq < r["expected"]:
        r["duplicates"] += 1
        r["acks"] += 1
        _answer(h, sheet, i, SACK, time_ps)
        return 0
    r["expected"] += 1
    r["nak_sent"] = 0
    r["accepted"] += 1
    r["received_bytes"] += head["length"]
    r["unacked"] += 1
    if head["ack_request"] or r["unacked"] >= h.s.params[0]["ack_every"]:
        r["unacked"] = 0
        r["acks"] += 1
        _answer(h, sheet, i, SACK, time_ps)
    if r["expected"] >= h.each[2 * i + 1, UNTIL]:
        h.each[2 * i + 1, UNTIL] = NEVER
        tell(sheet, ARRIVED, i, time_ps)
    return 1


@rule
def _answer(h: Any, sheet: Any, i: int, kind: int, time_ps: int) -> None:
    """Send a control packet back that says what is expected next."""
    reply = take_head(sheet)
    reply["kind"] = kind
    reply["psn"] = reply["cack_psn"] = psn_of(h.r.qp[i]["expected"])
    reply["length"] = 0
    emit(sheet, reply, i, 1, h.s.qp[i]["back_route"], h.sizes[kind], time_ps)


@rule
def _acknowledged(h: Any, sheet: Any, i: int, upto: int, time_ps: int) -> None:
    """Take in that everything before packet `upto` has arrived."""
    q = h.s.qp[i]
    if upto <= q["una"]:
        return
    q["una"] = upto
    q["next"] = max(q["next"], upto)
    q["retries"] = 0
    q["timer_ps"] = NEVER if upto >= q["high"] else time_ps + h.s.params[0]["timeout_ps"]
    mask = h.s.params[0]["message_mask"]
    while q["msg_first"] < q["msg_end"]:
        m = h.messages[i, q["msg_first"] & mask]
        if m["first"] + m["packets"] > upto:
            break
        q["msg_first"] += 1
    q["msg_next"] = max(q["msg_next"], q["msg_first"])
    if upto >= h.each[2 * i, UNTIL]:
        h.each[2 * i, UNTIL] = NEVER
        tell(sheet, ACKNOWLEDGED, i, time_ps)


@rule
def _go_back(h: Any, i: int) -> None:
    """Send again from the oldest packet that is not acknowledged on."""
    q = h.s.qp[i]
    q["next"] = q["una"]
    q["msg_next"] = q["msg_first"]


@rule
def _slow_down(h: Any, i: int, time_ps: int) -> None:
    """React to a CNP (SIGCOMM 2015, equations 1 and 2): alpha first decays by what time has passed since the last."""
    q = h.s.qp[i]
    params = h.s.params[0]
    q["cnps"] += 1
    if q["cnps"] > 1:
        decays = min((time_ps - q["alpha_ps"]) // params["alpha_ps"], _MOST_DECAYS)
        for _ in range(decays):
            q["alpha"] -= (q["alpha"] * params["gain"]) >> ALPHA_BITS
    q["target_bps"] = q["rate_bps"]
    q["rate_bps"] = max(params["least_bps"], q["rate_bps"] - ((q["rate_bps"] >> 1) * q["alpha"] >> ALPHA_BITS))
    q["alpha"] += ((ALPHA_ONE - q["alpha"]) * params["gain"]) >> ALPHA_BITS
    q["alpha_ps"] = time_ps
    q["bytes"] = q["byte_rounds"] = q["time_rounds"] = 0
    q["rise_ps"] = time_ps + params["rise_ps"]


@rule
def _speed_up(h: Any, i: int) -> None:
    """Raise the rate after a round of the byte counter or the timer: recovery, then additive, then hyper increase."""
    q = h.s.qp[i]
    params = h.s.params[0]
    line = params["line_bps"]
    fewest = min(q["byte_rounds"], q["time_rounds"])
    if fewest > params["fast"]:
        q["target_bps"] += (fewest - params["fast"]) * params["hai_bps"]
    elif max(q["byte_rounds"], q["time_rounds"]) >= params["fast"]:
        q["target_bps"] += params["ai_bps"]
    q["target_bps"] = min(q["target_bps"], line)
    q["rate_bps"] = (q["rate_bps"] + q["target_bps"]) >> 1
    if line - q["rate_bps"] <= line >> _NEARLY:
        q["rate_bps"] = line
        q["rise_ps"] = NEVER


@rule
def send_out(h: Any, sheet: Any, start_ps: int, phase: Any, room: Any) -> None:
    """Let every NIC send what it may in the slot that begins at `start_ps`, as `hosts.send_out` does."""
    for nic in range(len(h.turn)):
        if h.first[nic + 1] > h.first[nic]:
            send_control(h, sheet, nic, start_ps)
            send_data(h, sheet, nic, start_ps + phase[nic], room[nic], free_planes(room[nic]))


@rule
def send_control(h: Any, sheet: Any, nic: int, now_ps: int) -> None:
    """Let time pass for the halves of a NIC whose deadline has come."""
    if h.due[nic] > now_ps:
        return
    due_ps = NEVER
    for k in range(h.first[nic], h.first[nic + 1]):
        half = h.of_nic[k]
        if h.each[half, DUE] <= now_ps:
            _pass_time(h, sheet, half >> 1, now_ps)
            set_deadline(h, half)
            wake(h, half)
        due_ps = min(due_ps, h.each[half, DUE])
    h.due[nic] = due_ps


@rule
def _pass_time(h: Any, sheet: Any, i: int, now_ps: int) -> None:
    """Run the timers of a sender that are due."""
    q = h.s.qp[i]
    params = h.s.params[0]
    q["wait_ps"] = NEVER
    while q["rise_ps"] <= now_ps:
        q["rise_ps"] += params["rise_ps"]
        q["time_rounds"] += 1
        _speed_up(h, i)
    if q["timer_ps"] > now_ps:
        return
    q["timeouts"] += 1
    q["retries"] += 1
    q["timer_ps"] = now_ps + params["timeout_ps"]
    if q["retries"] > params["retries"]:
        q["error"] = ERROR_RETRIES
        tell(sheet, FAILED, i, now_ps)
    else:
        _go_back(h, i)


@rule
def send_data(h: Any, sheet: Any, nic: int, now_ps: int, room: Any, free: int) -> int:
    """Send data of a NIC's queue pairs in turn, a packet each, while their ports have `room`; return how many.

    `free` has a bit for every port that has room.
    """
    if h.awake[nic] == 0:
        return 0
    first = h.first[nic]
    halves = h.first[nic + 1] - first
    sent = 0
    at = h.turn[nic]
    # Place of the first half that could send but for its port; having come round to it, the NIC is done.
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
        if not _sendable(h, i, now_ps):
            h.ready[h.first_word[nic] + (place >> _WORD_SHIFT)] &= ~(1 << (place & _WORD_MASK))
            set_deadline(h, half)
            continue
        plane = h.s.qp[i]["plane"]
        if room[plane] <= 0:
            held = place if held < 0 else held
            continue
        room[plane] -= _send_one(h, sheet, i, now_ps)
        if room[plane] <= 0:
            free &= ~(1 << plane)
        held = -1
        sent += 1
        h.turn[nic] = at
    return sent


@rule
def _sendable(h: Any, i: int, now_ps: int) -> bool:
    """Return whether a sender has a packet that its window and its rate allow now; notes what it waits for."""
    q = h.s.qp[i]
    if q["error"] != 0 or q["next"] >= q["end"] or q["next"] - q["una"] >= h.s.params[0]["window"]:
        return False
    if q["pace_ps"] > now_ps:
        q["wait_ps"] = q["pace_ps"]
        return False
    return True


@rule
def _send_one(h: Any, sheet: Any, i: int, now_ps: int) -> int:
    """Send the next packet of pair `i` and return its bytes on the wire."""
    q = h.s.qp[i]
    params = h.s.params[0]
    mask = params["message_mask"]
    seq = q["next"]
    m = h.messages[i, q["msg_next"] & mask]
    while seq >= m["first"] + m["packets"]:
        q["msg_next"] += 1
        m = h.messages[i, q["msg_next"] & mask]
    last = seq == m["first"] + m["packets"] - 1
    head = take_head(sheet)
    head["kind"] = DATA
    head["seq"] = seq
    head["psn"] = psn_of(seq)
    head["length"] = m["length"] - (m["packets"] - 1) * params["payload"] if last else params["payload"]
    head["ack_request"] = 1 if last else 0
    head["plane"] = q["plane"]
    size = head["length"] + h.sizes[DATA]
    q["sent"] += 1
    if seq < q["high"]:
        q["resent"] += 1
    q["next"] = seq + 1
    q["high"] = max(q["high"], seq + 1)
    if q["timer_ps"] == NEVER:
        q["timer_ps"] = now_ps + params["timeout_ps"]
    # Over time exactly the rate; what was not used is saved up for a slot, or for what its bucket holds.
    saved_ps = max(params["slot_ps"], params["burst_bytes"] * _PS_PER_SECOND_BITS // q["rate_bps"])
    q["pace_ps"] = max(q["pace_ps"], now_ps - saved_ps) + size * _PS_PER_SECOND_BITS // q["rate_bps"]
    if q["rise_ps"] < NEVER:
        q["bytes"] += size
        if q["bytes"] >= params["rise_bytes"]:
            q["bytes"] -= params["rise_bytes"]
            q["byte_rounds"] += 1
            _speed_up(h, i)
    emit(sheet, head, i, 0, q["route"], size, now_ps)
    set_deadline(h, 2 * i)
    return size


@rule
def change_port(_h: Any, _nic: int, _plane: int, _up: int, _now_ps: int) -> None:
    """Do nothing: a queue pair whose port is down runs into its timer."""
