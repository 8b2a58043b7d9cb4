"""The requester: takes writes, cuts them into packets and says which one goes next and on which EV.

`post` takes a message, `next_data` gives the next packet, lost ones first; acknowledgements come back through `acks`,
time through `control.on_timer`. Nothing is sent here: the caller puts what stands in the `SEND` row on the wire.
"""

from typing import Any

from weft.core.compile.rules import replaceable, rule
from weft.mrc.columns import ACTIVE, DATA, FREE, GOOD, KEPT, NEVER, NOTHING
from weft.mrc.rules.congestion import cc_allows, cc_start
from weft.mrc.rules.evs import fill_evs, pick_ev, reachable, usable
from weft.mrc.rules.numbers import mix32, psn_of
from weft.mrc.rules.recovery import link_flying, seq_of, unlink_lost
from weft.mrc.wire.packets import FIRST, LAST, LAST_IMMEDIATE, MIDDLE, ONLY, ONLY_IMMEDIATE

POSTED, POST_EMPTY, POST_TOO_LONG, POST_QUEUE_FULL, POST_IMMEDIATES_FULL, POST_CLOSED = 0, 1, 2, 3, 4, 5
"""What `post` answers."""
LONGEST_MESSAGE = 2**32 - 1
"""Bytes of the longest message (facts section 1)."""
_MOST_TRIES = 100
_MSN_MASK = 0xFFFF
_PER_MPR = 128


@rule
def start_sender(s: Any, i: int, word: int, first_seq: int, paths: int, stride: int, scratch: Any) -> None:
    """Make queue pair `i` ready: its chance, its first sequence number, its EVs (see `fill_evs`)."""
    params = s.params[0]
    q = s.qp[i]
    q["word"] = word
    q["draws"] = 0
    q["drawn"] = mix32(word, 0)
    q["una"] = first_seq
    q["next"] = first_seq
    q["end"] = first_seq
    q["granted"] = params["window"]
    for slot in range(params["slot_mask"] + 1):
        p = s.packets[i, slot]
        p["state"] = FREE
        p["ev"] = -1
        p["before"] = -1
    q["oldest"] = -1
    q["newest"] = -1
    q["lost_first"] = -1
    q["lost_last"] = -1
    q["passed_ps"] = -NEVER
    q["passed_order"] = -1
    q["spread_ps"] = params["spread_ps"]
    q["spread_at_ps"] = -NEVER
    q["heard_ps"] = -1
    q["active_ps"] = -1
    q["stalled_ps"] = NEVER
    q["probe_sent_ps"] = -1
    q["ev_probe_ev"] = -1
    q["local_up"] = (1 << params["planes"]) - 1
    q["peer_up"] = (1 << params["planes"]) - 1
    q["told"] = q["local_up"]
    q["tell_sent_ps"] = -NEVER
    q["ports_due_ps"] = NEVER
    for plane in range(params["planes"]):
        row = s.planes[i, plane]
        row["due_ps"] = NEVER
        row["up"] = 1
        row["reverse"] = -1
    fill_evs(s, i, paths, stride, scratch)
    for e in range(params["evs"]):
        ev = s.evs[i, e]
        if s.planes[i, ev["plane"]]["reverse"] < 0 and ev["value"] >= 0:
            s.planes[i, ev["plane"]]["reverse"] = e
    cc_start(params, q)


@rule
def post(s: Any, i: int, address: int, key: int, length: int, immediate: int) -> int:
    """Take one write of `length` bytes to `address`, with an immediate where that is not -1; return its fate."""
    params = s.params[0]
    q = s.qp[i]
    if q["error"] != 0:
        return POST_CLOSED
    if length <= 0:
        return POST_EMPTY
    if length > LONGEST_MESSAGE:
        return POST_TOO_LONG
    if q["msg_end"] - q["msg_first"] >= params["messages"]:
        return POST_QUEUE_FULL
    if immediate >= 0:
        if q["immediates"] >= params["immediates"]:
            return POST_IMMEDIATES_FULL
        q["immediates"] += 1
    m = s.messages[i, q["msg_end"] & params["message_mask"]]
    packets = (length + params["payload"] - 1) // params["payload"]
    m["first"] = q["end"]
    m["packets"] = packets
    m["address"] = address
    m["key"] = key
    m["length"] = length
    m["immediate"] = immediate
    m["msn"] = q["msn"]
    q["msn"] = (q["msn"] + 1) & _MSN_MASK
    q["msg_end"] += 1
    q["end"] += packets
    return POSTED


@rule
def packet_length(params: Any, m: Any, seq: int) -> int:
    """Return the payload of packet `seq` of message `m`."""
    return min(params["payload"], m["length"] - (seq - m["first"]) * params["payload"])


@rule
def window_open(s: Any, i: int) -> bool:
    """Return whether a new packet fits the receiver's window."""
    q = s.qp[i]
    return q["next"] < q["end"] and q["next"] < q["una"] + q["granted"]


@rule
def unfinished(s: Any, i: int) -> bool:
    """Return whether anything is left to send, or to send again, whether it may go now or not."""
    q = s.qp[i]
    return q["next"] < q["end"] or q["lost_first"] >= 0


@rule
def next_data(s: Any, i: int, now_ps: int, room: int, out: Any) -> int:
    """Fill `out` with the next data packet and return DATA, or return NOTHING.

    `room` has a bit for each plane whose port can take a packet now.
    """
    return next_data_on(s, i, -1, now_ps, room, out)


@rule
def sendable(s: Any, i: int) -> bool:
    """Return whether `next_data` would give a packet if every port had room; changes nothing."""
    q = s.qp[i]
    if q["error"] != 0 or (q["reach"] & q["local_up"] & q["peer_up"] == 0 and q["stalled_ps"] < NEVER):
        return False
    if q["lost_first"] >= 0:
        return cc_allows(q, s.packets[i, q["lost_first"]]["bytes"])
    if not window_open(s, i):
        return False
    params = s.params[0]
    m = s.messages[i, q["msg_next"] & params["message_mask"]]
    return cc_allows(q, packet_length(params, m, q["next"]) + params["overhead"])


@rule
def next_data_on(s: Any, i: int, wish: int, now_ps: int, room: int, out: Any) -> int:
    """Do what `next_data` does, on EV `wish` where that is not -1, is GOOD and has not just lost the same packet."""
    q = s.qp[i]
    if q["error"] != 0:
        return NOTHING
    if q["lost_first"] >= 0:
        return _send_again(s, i, q["lost_first"], wish, now_ps, room, out)
    if not window_open(s, i):
        return NOTHING
    params = s.params[0]
    index = q["msg_next"] & params["message_mask"]
    m = s.messages[i, index]
    seq = q["next"]
    size = packet_length(params, m, seq) + params["overhead"]
    if not cc_allows(q, size):
        return NOTHING
    e = _choose_ev(s, i, wish, -1, room)
    if e < 0:
        return _no_path(s, i, now_ps)
    slot = seq & params["slot_mask"]
    p = s.packets[i, slot]
    p["message"] = index
    p["bytes"] = size
    p["tries"] = 0
    p["before"] = -1
    p["gone"] = KEPT
    q["next"] += 1
    if q["next"] == m["first"] + m["packets"]:
        q["msg_next"] += 1
    _transmit(s, i, slot, e, now_ps)
    _describe(s, i, slot, out)
    return DATA


@rule
def _choose_ev(s: Any, i: int, wish: int, avoid: int, room: int) -> int:
    """Return the EV that was wished for where it may be used, or else the next of the rotation."""
    if wish >= 0 and wish != avoid:
        ev = s.evs[i, wish]
        if ev["state"] == GOOD and ev["role"] == ACTIVE and usable(s, i, ev["plane"], room):
            return wish
    return pick_ev(s, i, avoid, room)


@rule
def _send_again(s: Any, i: int, slot: int, wish: int, now_ps: int, room: int, out: Any) -> int:
    """Send a lost packet again on a fresh EV, never on the one that it was lost on."""
    q = s.qp[i]
    p = s.packets[i, slot]
    if not cc_allows(q, p["bytes"]):
        return NOTHING
    e = _choose_ev(s, i, wish, p["before"], room)
    if e < 0:
        return _no_path(s, i, now_ps)
    unlink_lost(s, i, slot)
    q["resent"] += 1
    _transmit(s, i, slot, e, now_ps)
    _describe(s, i, slot, out)
    return DATA


@rule
def _no_path(s: Any, i: int, now_ps: int) -> int:
    """Note since when no path at all can be used; a port that is merely busy is no such case."""
    q = s.qp[i]
    if q["stalled_ps"] == NEVER and not reachable(s, i):
        q["stalled_ps"] = now_ps
    return NOTHING


@rule
def _transmit(s: Any, i: int, slot: int, e: int, now_ps: int) -> None:
    """Note one transmission of the packet in `slot` on EV `e`."""
    q = s.qp[i]
    p = s.packets[i, slot]
    p["ev"] = e
    p["sent_ps"] = now_ps
    p["order"] = q["order"]
    p["tries"] = min(p["tries"] + 1, _MOST_TRIES)
    q["order"] += 1
    q["sent"] += 1
    q["active_ps"] = now_ps
    q["stalled_ps"] = NEVER
    link_flying(s, i, slot)


@rule
def _describe(s: Any, i: int, slot: int, out: Any) -> None:
    """Write what goes on the wire for the packet in `slot` into `out`."""
    params = s.params[0]
    p = s.packets[i, slot]
    m = s.messages[i, p["message"]]
    ev = s.evs[i, p["ev"]]
    seq = seq_of(s, i, slot)
    last = seq == m["first"] + m["packets"] - 1
    out["kind"] = DATA
    out["psn"] = psn_of(seq)
    out["value"] = ev["value"]
    out["plane"] = ev["plane"]
    out["length"] = p["bytes"] - params["overhead"]
    out["retransmission"] = 1 if p["tries"] > 1 else 0
    out["ack_request"] = 1 if last or p["tries"] > 1 else 0
    describe_write(params, p, m, seq, last, out)


@replaceable("describe_no_write in simulations, where packets carry no bytes")
@rule
def describe_write(params: Any, p: Any, m: Any, seq: int, last: bool, out: Any) -> None:
    """Write what places the bytes of a packet into `out`, and what the sender knows it by."""
    with_immediate = last and m["immediate"] >= 0
    out["seq"] = seq
    out["ev"] = p["ev"]
    out["opcode"] = _opcode(seq == m["first"], last, with_immediate)
    out["address"] = m["address"] + (seq - m["first"]) * params["payload"]
    out["key"] = m["key"]
    out["immediate"] = m["immediate"] if with_immediate else -1
    out["msn"] = m["msn"]
    out["bytes"] = p["bytes"]


@rule
def describe_no_write(params: Any, p: Any, m: Any, seq: int, last: bool, out: Any) -> None:
    """Take the place of `describe_write` where packets carry no bytes."""


@rule
def _opcode(first: bool, last: bool, with_immediate: bool) -> int:
    """Return the opcode for a packet's place in its message."""
    if first and last:
        return ONLY_IMMEDIATE if with_immediate else ONLY
    if last:
        return LAST_IMMEDIATE if with_immediate else LAST
    return FIRST if first else MIDDLE


@rule
def idle(s: Any, i: int) -> bool:
    """Return whether everything that was posted has been acknowledged."""
    return s.qp[i]["una"] == s.qp[i]["end"]


@rule
def grant(s: Any, i: int, mpr: int) -> None:
    """Take the receive window of `mpr` x 128 packets that the peer announces, within what the columns hold."""
    if mpr > 0:
        s.qp[i]["granted"] = min(mpr * _PER_MPR, s.params[0]["window"])
