"""What comes to an endpoint: packets are received many at a time, checked, and given to the protocol's rules.

A packet changes nothing before it has shown that it is whole, that it is for an open queue pair, and, where it carries
data, that its key opens a region which holds all of its bytes. What fails is counted by its reason and dropped; so is
what came before. Payload goes from the receive ring to its place in one copy while it is still in the cache; where that
place adds, the sum is made in the same pass.
"""

from typing import Any

from weft.core.compile.rules import rule
from weft.mrc.columns import NOTHING
from weft.mrc.rules.acks import on_nack, on_sack
from weft.mrc.rules.control import on_ev_probe_answer
from weft.mrc.rules.ports import on_port_answer, on_port_status
from weft.mrc.rules.receiver import (
    ACCEPTED,
    DUPLICATE,
    on_probe,
    placement,
    receive,
    refusal,
    take_immediate,
    take_sack,
)
from weft.mrc.rules.reverse import REVERSE_ID, on_reverse_answer
from weft.mrc.wire.icrc import ICRC_BYTES, ICRC_START
from weft.mrc.wire.inplace import (
    FINE,
    TOO_SHORT,
    UNKNOWN_OPCODE,
    WRONG_CHECK,
    WRONG_LENGTH,
    WRONG_VERSION,
    get16,
    get32,
    packet_shape,
    read_check,
    read_headers,
)
from weft.mrc.wire.packets import (
    ENDPOINT_REQUEST,
    ENDPOINT_RESPONSE,
    NACK,
    ONLY_IMMEDIATE,
    OPERATION_EV_PROBE,
    OPERATION_PORT_STATUS,
    PROBE,
    SACK,
)
from weft.transport.memory import native
from weft.transport.memory.arithmetic import reduce_at, width_of
from weft.transport.memory.journal import (
    EV_ANSWER,
    ON_NACK,
    ON_PROBE,
    ON_SACK,
    PORT_ANSWER,
    PORT_STATUS,
    RECEIVE,
    REVERSE_ANSWER,
    TAKE_IMMEDIATE,
    TAKE_SACK,
    note,
    note_all,
)
from weft.transport.memory.layout import EVENTS, IMMEDIATE, INDEX_MASK, PREFIX, RX_SLOTS
from weft.transport.messages.transfers import take_word
from weft.transport.packets.departures import INWARD, KEEP_ALIVE, capture, send_answer, send_reply, shim_loses

_apart, _crc_at, _move, _recvmmsg = native.apart, native.crc_at, native.move, native.recvmmsg
_DONT_WAIT = 0x40
_CHANGEABLE = PREFIX + 4
_CONTEXT_REQUEST, _CONTEXT_RESPONSE = PREFIX + 12 + 6, PREFIX + 12 + 10
_CONTEXT_MASK = 0xFFFF
_OVERSIZED = 0x20
"""Flag of a datagram that was cut off because it is longer than its place: it is none of ours."""


@rule
def receive_batch(w: Any, now_ps: int) -> int:
    """Take in what the socket holds, one ring at most; return how many packets that were."""
    hub = w.hub[0]
    count = _recvmmsg(hub["socket"], w.rx_at[1], RX_SLOTS, _DONT_WAIT, 0)
    if count <= 0:
        return 0
    hub["batches_in"] += 1
    for k in range(count):
        size = w.rx_msg[k, 7] & 0xFFFFFFFF
        if w.rx_msg[k, 6] & _OVERSIZED:
            hub["wrong_length"] += 1
        else:
            take_packet(w, k * hub["slot_bytes"], size, now_ps)
    for i in range(hub["queue_pairs"]):
        if w.peers[i]["waiting"]:
            w.peers[i]["waiting"] = 0
            acknowledge(w, i, now_ps)
    return count


@rule
def _count_wrong(hub: Any, wrong: int) -> None:
    """Count what `packet_shape` or `read_headers` found wrong."""
    if wrong == TOO_SHORT:
        hub["too_short"] += 1
    elif wrong == UNKNOWN_OPCODE:
        hub["unknown_opcode"] += 1
    elif wrong == WRONG_VERSION:
        hub["wrong_version"] += 1
    elif wrong == WRONG_CHECK:
        hub["wrong_check"] += 1
    elif wrong == WRONG_LENGTH:
        hub["wrong_length"] += 1
    else:
        hub["wrong_reason"] += 1


@rule
def take_packet(w: Any, base: int, size: int, now_ps: int) -> None:
    """Take in the datagram of `size` bytes at `base` in the receive ring."""
    _apart()
    hub = w.hub[0]
    data = w.rx
    start, end = base + PREFIX, base + size
    hub["packets_in"] += 1
    hub["bytes_in"] += size
    wrong = packet_shape(data, start, end, False)
    if wrong == FINE and hub["check"]:
        kept = data[base + _CHANGEABLE]
        data[base + _CHANGEABLE] = 0xFF
        if _crc_at(w.rx_at[0] + base, size - ICRC_BYTES, ICRC_START, w.scratch) != read_check(data, end - ICRC_BYTES):
            wrong = WRONG_CHECK
        data[base + _CHANGEABLE] = kept
    view = w.seen[0]
    if wrong == FINE:
        wrong = read_headers(data, start, end - ICRC_BYTES, False, view)
    if wrong != FINE:
        _count_wrong(hub, wrong)
        return
    value = get32(data, base)
    i = _queue_pair(w, data, base, view)
    if i < 0:
        hub["no_queue_pair"] += 1
        return
    stride = hub["stride"]
    if value >= stride * w.s.params[0]["planes"]:
        hub["wrong_ev"] += 1
        return
    if hub["capture_on"]:
        capture(w, INWARD, i, value, w.rx_at[0] + base, size, size, now_ps)
    if shim_loses(w, value // stride):
        hub["shim_in"] += 1
        return
    w.heard_on[i, value // stride] = now_ps
    _take(w, i, value, now_ps)


@rule
def _queue_pair(w: Any, data: Any, base: int, view: Any) -> int:
    """Return the queue pair that a packet is for, or -1."""
    opcode = view["opcode"]
    number = view["queue_pair"]
    mask = -1
    if opcode == ENDPOINT_REQUEST:
        number = get16(data, base + _CONTEXT_REQUEST)
        mask = _CONTEXT_MASK
    elif opcode == ENDPOINT_RESPONSE:
        number = get16(data, base + _CONTEXT_RESPONSE)
        mask = _CONTEXT_MASK
    i = number & INDEX_MASK
    if i >= w.hub[0]["queue_pairs"] or w.peers[i]["open"] == 0 or w.peers[i]["number"] & mask != number:
        return -1
    return i


@rule
def _take(w: Any, i: int, value: int, now_ps: int) -> None:
    """Give a whole packet for queue pair `i` to the rules."""
    _apart()
    view = w.seen[0]
    opcode = view["opcode"]
    peer = w.peers[i]
    if opcode <= ONLY_IMMEDIATE:
        if not _take_data(w, i, value, now_ps):
            return
    elif opcode == SACK:
        acked = on_sack(w.s, i, view, now_ps)
        note_all(
            w,
            ON_SACK,
            i,
            now_ps,
            view["cack_psn"],
            view["ack_psn_offset"],
            view["value"],
            view["verdict"] | view["probe_response"] << 8,
            view["mpr"],
            view["sack_offset"],
            view["bitmap_low"],
            view["bitmap_high"],
            view["penalty"],
            acked,
            w.s.qp[i]["una"],
            w.s.qp[i]["waiting"],
        )
    elif opcode == NACK:
        on_nack(w.s, i, view, now_ps)
        note(w, ON_NACK, i, now_ps, view["reason"], view["psn"], view["value"], w.s.qp[i]["waiting"])
    elif opcode == PROBE:
        on_probe(w.r, i, view["id"], value, now_ps)
        note(w, ON_PROBE, i, now_ps, view["id"], value, 0, 0)
        peer["waiting"] = 1
    elif opcode == ENDPOINT_REQUEST:
        if view["operation"] == OPERATION_PORT_STATUS:
            on_port_status(w.s, i, view["port_status"])
            note(w, PORT_STATUS, i, now_ps, view["port_status"], 0, 0, 0)
        send_answer(w, i, view["operation"], view["id"], value, now_ps)
    elif opcode == ENDPOINT_RESPONSE:
        _take_answer(w, i, now_ps)
    _heard(w, i, now_ps)
    peer["dirty"] = 1


@rule
def _take_answer(w: Any, i: int, now_ps: int) -> None:
    """Take in the answer to an endpoint operation."""
    view = w.seen[0]
    number = view["id"]
    if view["operation"] == OPERATION_EV_PROBE:
        if number & REVERSE_ID:
            on_reverse_answer(w.s, i, w.r, i, number)
            note(w, REVERSE_ANSWER, i, now_ps, number, 0, 0, 0)
        elif number != KEEP_ALIVE:
            on_ev_probe_answer(w.s, i, number, view["verdict"])
            note(w, EV_ANSWER, i, now_ps, number, view["verdict"], 0, 0)
    else:
        on_port_answer(w.s, i, number)
        note(w, PORT_ANSWER, i, now_ps, number, 0, 0, 0)


@rule
def _heard(w: Any, i: int, now_ps: int) -> None:
    """Note that the peer is there, and how long that took where it was waited for."""
    peer = w.peers[i]
    if peer["watched"]:
        gap = (now_ps - peer["heard_ps"]) >> 20
        bucket = 0
        while gap > 0:
            gap >>= 1
            bucket += 1
        w.gaps[i, bucket] += 1
    peer["heard_ps"] = now_ps
    peer["asks"] = 0


@rule
def _take_data(w: Any, i: int, value: int, now_ps: int) -> bool:
    """Take in one data packet; return whether it was one that may be."""
    _apart()
    hub = w.hub[0]
    view = w.seen[0]
    key, length = view["key"], view["length"]
    region = w.regions[key & INDEX_MASK]
    if region["open"] == 0 or region["key"] != key:
        hub["wrong_key"] += 1
        return False
    offset = placement(view["address"], length, region["address"], region["size"])
    adds = region["adds"]
    broken = adds > 0 and (offset | length) & (width_of(adds - 1) - 1) != 0
    if offset < 0 or length > w.r.params[0]["payload"] or broken:
        hub["out_of_bounds"] += 1
        return False
    verdict = receive(
        w.r, i, view["psn"], value, 0, view["retransmission"], view["ack_request"], length, view["immediate"], now_ps
    )
    note_all(
        w,
        RECEIVE,
        i,
        now_ps,
        view["psn"],
        value,
        view["retransmission"],
        view["ack_request"],
        length,
        view["immediate"],
        verdict,
        0,
        0,
        0,
        0,
        0,
    )
    if verdict == ACCEPTED and adds > 0:
        reduce_at(adds - 1, region["address"] + offset, w.rx_at[0] + view["payload_at"], length // width_of(adds - 1))
    elif verdict == ACCEPTED:
        _move(region["address"] + offset, w.rx_at[0] + view["payload_at"], length)
    elif verdict == DUPLICATE:
        hub["replayed"] += 1
    else:
        hub["refused"] += 1
        if refusal(w.r, i, verdict, view["psn"], value, w.reply[0]) != NOTHING:
            send_reply(w, i, now_ps)
    w.peers[i]["waiting"] = 1
    return True


@rule
def acknowledge(w: Any, i: int, now_ps: int) -> None:
    """Send the SACKs that are due and hand on the immediates whose bytes have all landed."""
    _apart()
    reply = w.reply[0]
    while True:
        due = take_sack(w.r, i, reply)
        if due == NOTHING:
            break
        note_all(
            w,
            TAKE_SACK,
            i,
            now_ps,
            reply["cack_psn"],
            reply["ack_psn_offset"],
            reply["value"],
            reply["verdict"],
            reply["sack_offset"],
            reply["bitmap_low"],
            reply["bitmap_high"],
            0,
            0,
            0,
            0,
            0,
        )
        send_reply(w, i, now_ps)
    hub = w.hub[0]
    while hub["told"] - hub["heard_of"] < EVENTS - 256:
        immediate = take_immediate(w.r, i)
        if immediate < 0:
            break
        note(w, TAKE_IMMEDIATE, i, now_ps, immediate, 0, 0, 0)
        if w.peers[i]["engine"]:
            take_word(w, i, immediate, now_ps)
        else:
            tell(w, IMMEDIATE, i, immediate, 0)


@rule
def tell(w: Any, kind: int, i: int, tag: int, status: int) -> None:
    """Leave word for Python."""
    _apart()
    hub = w.hub[0]
    row = w.events[hub["told"] % EVENTS]
    row[0], row[1], row[2], row[3] = kind, i, tag, status
    hub["told"] += 1
