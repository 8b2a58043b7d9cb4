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
from weft.netsim.host.host_state import (
    ACKNOWLEDGED,
    ARRIVED,
    AT_NIC,
    DUE,
    FAILED,
    UNTIL,
    Column,
    NicColumns,
    Outgoing,
    Record,
    Records,
)
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

    params: Records
    """The parameters, one row."""
    qp: Records
    """One row for each."""


class RoceHostState(NamedTuple):
    """The columns of all queue pairs of a run, and what ties them to NICs."""

    nics: NicColumns
    """Their NICs."""
    s: Side
    """Senders: `params` and `qp`."""
    r: Side
    """Receivers: `params` and `qp`."""
    messages: Records
    """Writes of every queue pair, in a ring."""


@rule
def start_pair(hosts: RoceHostState, pair: int, plane: int, route: int, back_route: int) -> None:
    """Make a queue pair ready: at line rate, with nothing sent."""
    qp = hosts.s.qp[pair]
    qp["timer_ps"] = qp["wait_ps"] = qp["rise_ps"] = NEVER
    qp["rate_bps"] = qp["target_bps"] = hosts.s.params[0]["line_bps"]
    qp["alpha"] = hosts.s.params[0]["first_alpha"]
    qp["plane"] = plane
    qp["route"] = route
    qp["back_route"] = back_route
    hosts.r.qp[pair]["cnp_ps"] = -NEVER


@rule
def set_deadline(hosts: RoceHostState, half: int) -> None:
    """Work out when a half has something to do by itself; receivers never have."""
    if half & 1:
        hosts.nics.each[half, DUE] = NEVER
        return
    qp = hosts.s.qp[half >> 1]
    due_ps = min(qp["timer_ps"], qp["rise_ps"], qp["wait_ps"])
    if qp["error"] != 0:
        due_ps = NEVER
    hosts.nics.each[half, DUE] = due_ps
    nic = hosts.nics.each[half, AT_NIC]
    hosts.nics.due[nic] = min(hosts.nics.due[nic], due_ps)


@rule
def post_messages(hosts: RoceHostState, table: Column) -> None:
    """Give pairs messages to send: a row of pairs, and a row of lengths that become the answers."""
    for k in range(table.shape[1]):
        table[1, k] = _post(hosts, table[0, k], table[1, k])


@rule
def _post(hosts: RoceHostState, pair: int, length: int) -> int:
    """Give pair `i` a message to send; return whether it had room for it."""
    qp = hosts.s.qp[pair]
    params = hosts.s.params[0]
    if qp["msg_end"] - qp["msg_first"] > params["message_mask"]:
        return POST_QUEUE_FULL
    packets = (length + params["payload"] - 1) // params["payload"]
    message = hosts.messages[pair, qp["msg_end"] & params["message_mask"]]
    message["first"] = qp["end"]
    message["packets"] = packets
    message["length"] = length
    qp["end"] += packets
    qp["msg_end"] += 1
    wake(hosts.nics, 2 * pair)
    return POSTED


@rule
def take_in(hosts: RoceHostState, outbox: Outgoing, arrivals: Column, count: int) -> int:
    """Take in what arrived at all NICs in one slot, as `hosts.take_in` does; return the bytes placed."""
    placed = 0
    for k in range(count):
        head = outbox.pool[arrivals[k, 0]]
        fresh = take_one(hosts, outbox, head, arrivals[k, 1], arrivals[k, 2], arrivals[k, 3])
        arrivals[k, 4] = fresh
        placed += fresh * head["length"]
        give_head(outbox, head)
    return placed


@rule
def take_one(hosts: RoceHostState, outbox: Outgoing, head: Record, marked: int, _trimmed: int, time_ps: int) -> int:
    """Take in one packet and return 1 where it brought new data."""
    pair = head["pair"]
    kind = head["kind"]
    if kind == DATA:
        return _take_data(hosts, outbox, head, marked, time_ps)
    if kind == CNP:
        _slow_down(hosts, pair, time_ps)
    else:
        psn = head["psn"] if kind == NACK else head["cack_psn"]
        _acknowledged(hosts, outbox, pair, seq_near(psn, hosts.s.qp[pair]["una"]), time_ps)
        if kind == NACK:
            _go_back(hosts, pair)
            hosts.s.qp[pair]["naks"] += 1
    set_deadline(hosts, 2 * pair)
    wake(hosts.nics, 2 * pair)
    return 0


@rule
def _take_data(hosts: RoceHostState, outbox: Outgoing, head: Record, marked: int, time_ps: int) -> int:
    """Take in a data packet: only the next one in order is kept; a gap is reported once, until it is filled."""
    pair = head["pair"]
    r = hosts.r.qp[pair]
    if marked:
        r["marked"] += 1
        if hosts.s.params[0]["dcqcn"] and time_ps - r["cnp_ps"] >= hosts.s.params[0]["cnp_ps"]:
            r["cnp_ps"] = time_ps
            r["cnps"] += 1
            _answer(hosts, outbox, pair, CNP, time_ps)
    seq = seq_near(head["psn"], r["expected"])
    if seq > r["expected"]:
        r["outside"] += 1
        # One NAK for a gap: each further one would make the sender go back again.
        if r["nak_sent"] == 0:
            r["nak_sent"] = 1
            r["naks"] += 1
            _answer(hosts, outbox, pair, NACK, time_ps)
        return 0
    if seq < r["expected"]:
        # Its acknowledgement was lost, or is late: it is sent again, or the sender would never move on.
        r["duplicates"] += 1
        r["acks"] += 1
        _answer(hosts, outbox, pair, SACK, time_ps)
        return 0
    r["expected"] += 1
    r["nak_sent"] = 0
    r["accepted"] += 1
    r["received_bytes"] += head["length"]
    r["unacked"] += 1
    if head["ack_request"] or r["unacked"] >= hosts.s.params[0]["ack_every"]:
        r["unacked"] = 0
        r["acks"] += 1
        _answer(hosts, outbox, pair, SACK, time_ps)
    if r["expected"] >= hosts.nics.each[2 * pair + 1, UNTIL]:
        hosts.nics.each[2 * pair + 1, UNTIL] = NEVER
        tell(outbox, ARRIVED, pair, time_ps)
    return 1


@rule
def _answer(hosts: RoceHostState, outbox: Outgoing, pair: int, kind: int, time_ps: int) -> None:
    """Send a control packet back that says what is expected next."""
    reply = take_head(outbox)
    reply["kind"] = kind
    reply["psn"] = reply["cack_psn"] = psn_of(hosts.r.qp[pair]["expected"])
    reply["length"] = 0
    emit(outbox, reply, 2 * pair + 1, hosts.s.qp[pair]["back_route"], hosts.nics.sizes[kind], time_ps)


@rule
def _acknowledged(hosts: RoceHostState, outbox: Outgoing, pair: int, upto: int, time_ps: int) -> None:
    """Take in that everything before packet `upto` has arrived."""
    qp = hosts.s.qp[pair]
    if upto <= qp["una"]:
        return
    qp["una"] = upto
    # After going back, what was about to be sent again may be acknowledged already.
    qp["next"] = max(qp["next"], upto)
    qp["retries"] = 0
    qp["timer_ps"] = NEVER if upto >= qp["high"] else time_ps + hosts.s.params[0]["timeout_ps"]
    mask = hosts.s.params[0]["message_mask"]
    while qp["msg_first"] < qp["msg_end"]:
        message = hosts.messages[pair, qp["msg_first"] & mask]
        if message["first"] + message["packets"] > upto:
            break
        qp["msg_first"] += 1
    qp["msg_next"] = max(qp["msg_next"], qp["msg_first"])
    if upto >= hosts.nics.each[2 * pair, UNTIL]:
        hosts.nics.each[2 * pair, UNTIL] = NEVER
        tell(outbox, ACKNOWLEDGED, pair, time_ps)


@rule
def _go_back(hosts: RoceHostState, pair: int) -> None:
    """Send again from the oldest packet that is not acknowledged on."""
    qp = hosts.s.qp[pair]
    qp["next"] = qp["una"]
    qp["msg_next"] = qp["msg_first"]


@rule
def _slow_down(hosts: RoceHostState, pair: int, time_ps: int) -> None:
    """React to a CNP (SIGCOMM 2015, equations 1 and 2): alpha first decays by what time has passed since the last."""
    qp = hosts.s.qp[pair]
    params = hosts.s.params[0]
    qp["cnps"] += 1
    if qp["cnps"] > 1:
        # Nobody looks at alpha between two CNPs, so its timer is made up for here; far below the limit it is 0.
        decays = min((time_ps - qp["alpha_ps"]) // params["alpha_ps"], _MOST_DECAYS)
        for _ in range(decays):
            qp["alpha"] -= (qp["alpha"] * params["gain"]) >> ALPHA_BITS
    # The rate is halved before it is multiplied: with alpha of 20 bits, even 1 Tb/s stays within 63.
    qp["target_bps"] = qp["rate_bps"]
    qp["rate_bps"] = max(params["least_bps"], qp["rate_bps"] - ((qp["rate_bps"] >> 1) * qp["alpha"] >> ALPHA_BITS))
    qp["alpha"] += ((ALPHA_ONE - qp["alpha"]) * params["gain"]) >> ALPHA_BITS
    qp["alpha_ps"] = time_ps
    qp["bytes"] = qp["byte_rounds"] = qp["time_rounds"] = 0
    qp["rise_ps"] = time_ps + params["rise_ps"]


@rule
def _speed_up(hosts: RoceHostState, pair: int) -> None:
    """Raise the rate after a round of the byte counter or the timer: recovery, then additive, then hyper increase."""
    qp = hosts.s.qp[pair]
    params = hosts.s.params[0]
    line = params["line_bps"]
    fewest = min(qp["byte_rounds"], qp["time_rounds"])
    if fewest > params["fast"]:
        qp["target_bps"] += (fewest - params["fast"]) * params["hai_bps"]
    elif max(qp["byte_rounds"], qp["time_rounds"]) >= params["fast"]:
        qp["target_bps"] += params["ai_bps"]
    qp["target_bps"] = min(qp["target_bps"], line)
    qp["rate_bps"] = (qp["rate_bps"] + qp["target_bps"]) >> 1
    if line - qp["rate_bps"] <= line >> _NEARLY:
        qp["rate_bps"] = line
        qp["rise_ps"] = NEVER


@rule
def send_out(hosts: RoceHostState, outbox: Outgoing, start_ps: int, phase: Column, room: Column) -> None:
    """Let every NIC send what it may in the slot that begins at `start_ps`, as `hosts.send_out` does."""
    for nic in range(len(hosts.nics.turn)):
        if hosts.nics.first[nic + 1] > hosts.nics.first[nic]:
            send_control(hosts, outbox, nic, start_ps)
            send_data(hosts, outbox, nic, start_ps + phase[nic], room[nic], free_planes(room[nic]))


@rule
def send_control(hosts: RoceHostState, outbox: Outgoing, nic: int, now_ps: int) -> None:
    """Let time pass for the halves of a NIC whose deadline has come."""
    if hosts.nics.due[nic] > now_ps:
        return
    due_ps = NEVER
    for k in range(hosts.nics.first[nic], hosts.nics.first[nic + 1]):
        half = hosts.nics.of_nic[k]
        if hosts.nics.each[half, DUE] <= now_ps:
            _pass_time(hosts, outbox, half >> 1, now_ps)
            set_deadline(hosts, half)
            wake(hosts.nics, half)
        due_ps = min(due_ps, hosts.nics.each[half, DUE])
    hosts.nics.due[nic] = due_ps


@rule
def _pass_time(hosts: RoceHostState, outbox: Outgoing, pair: int, now_ps: int) -> None:
    """Run the timers of a sender that are due."""
    qp = hosts.s.qp[pair]
    params = hosts.s.params[0]
    qp["wait_ps"] = NEVER
    while qp["rise_ps"] <= now_ps:
        qp["rise_ps"] += params["rise_ps"]
        qp["time_rounds"] += 1
        _speed_up(hosts, pair)
    if qp["timer_ps"] > now_ps:
        return
    qp["timeouts"] += 1
    qp["retries"] += 1
    qp["timer_ps"] = now_ps + params["timeout_ps"]
    if qp["retries"] > params["retries"]:
        qp["error"] = ERROR_RETRIES
        tell(outbox, FAILED, pair, now_ps)
    else:
        _go_back(hosts, pair)


@rule
def send_data(hosts: RoceHostState, outbox: Outgoing, nic: int, now_ps: int, room: Column, free: int) -> int:
    """Send data of a NIC's queue pairs in turn, a packet each, while their ports have `room`; return how many.

    `free` has a bit for every port that has room.
    """
    if hosts.nics.awake[nic] == 0:
        return 0
    first = hosts.nics.first[nic]
    halves = hosts.nics.first[nic + 1] - first
    sent = 0
    at = hosts.nics.turn[nic]
    # Place of the first half that could send but for its port; having come round to it, the NIC is done.
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
        if not _sendable(hosts, pair, now_ps):
            hosts.nics.ready[hosts.nics.first_word[nic] + (place >> _WORD_SHIFT)] &= ~(1 << (place & _WORD_MASK))
            set_deadline(hosts, half)
            continue
        plane = hosts.s.qp[pair]["plane"]
        if room[plane] <= 0:
            held = place if held < 0 else held
            continue
        room[plane] -= _send_one(hosts, outbox, pair, now_ps)
        if room[plane] <= 0:
            free &= ~(1 << plane)
        held = -1
        sent += 1
        hosts.nics.turn[nic] = at
    return sent


@rule
def _sendable(hosts: RoceHostState, pair: int, now_ps: int) -> bool:
    """Return whether a sender has a packet that its window and its rate allow now; notes what it waits for."""
    qp = hosts.s.qp[pair]
    if qp["error"] != 0 or qp["next"] >= qp["end"] or qp["next"] - qp["una"] >= hosts.s.params[0]["window"]:
        return False
    if qp["pace_ps"] > now_ps:
        qp["wait_ps"] = qp["pace_ps"]
        return False
    return True


@rule
def _send_one(hosts: RoceHostState, outbox: Outgoing, pair: int, now_ps: int) -> int:
    """Send the next packet of pair `i` and return its bytes on the wire."""
    qp = hosts.s.qp[pair]
    params = hosts.s.params[0]
    mask = params["message_mask"]
    seq = qp["next"]
    message = hosts.messages[pair, qp["msg_next"] & mask]
    while seq >= message["first"] + message["packets"]:
        qp["msg_next"] += 1
        message = hosts.messages[pair, qp["msg_next"] & mask]
    last = seq == message["first"] + message["packets"] - 1
    head = take_head(outbox)
    head["kind"] = DATA
    head["seq"] = seq
    head["psn"] = psn_of(seq)
    head["length"] = message["length"] - (message["packets"] - 1) * params["payload"] if last else params["payload"]
    head["ack_request"] = 1 if last else 0
    head["plane"] = qp["plane"]
    size = head["length"] + hosts.nics.sizes[DATA]
    qp["sent"] += 1
    if seq < qp["high"]:
        qp["resent"] += 1
    qp["next"] = seq + 1
    qp["high"] = max(qp["high"], seq + 1)
    if qp["timer_ps"] == NEVER:
        qp["timer_ps"] = now_ps + params["timeout_ps"]
    # Over time exactly the rate; what was not used is saved up for a slot, or for what its bucket holds.
    saved_ps = max(params["slot_ps"], params["burst_bytes"] * _PS_PER_SECOND_BITS // qp["rate_bps"])
    qp["pace_ps"] = max(qp["pace_ps"], now_ps - saved_ps) + size * _PS_PER_SECOND_BITS // qp["rate_bps"]
    if qp["rise_ps"] < NEVER:
        qp["bytes"] += size
        if qp["bytes"] >= params["rise_bytes"]:
            qp["bytes"] -= params["rise_bytes"]
            qp["byte_rounds"] += 1
            _speed_up(hosts, pair)
    emit(outbox, head, 2 * pair, qp["route"], size, now_ps)
    set_deadline(hosts, 2 * pair)
    return size


@rule
def change_port(_hosts: RoceHostState, _nic: int, _plane: int, _up: int, _now_ps: int) -> None:
    """Do nothing: a queue pair whose port is down runs into its timer."""
