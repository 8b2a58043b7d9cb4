"""The same packets as in `packets`, read and written in place by rules: for code that holds no object per packet.

Rows of columns go straight into a byte array and back. `pack_*` returns where the headers end; payload follows there,
then `seal` adds the check. `read_packet` checks everything that `packets.decode` checks and fills a `VIEW` row, whose
names are those that the protocol's rules read, so that a view can be given to them as it is. 32-bit EVs and 64-bit
addresses are kept signed, as everywhere in the columns.
"""

from typing import Any

import numpy as np

from weft.core.compile.rules import rule
from weft.mrc.columns import REPLY
from weft.mrc.wire.icrc import ICRC_BYTES, byte_at, icrc_over
from weft.mrc.wire.packets import (
    ACK,
    ENDPOINT_QUEUE_PAIR,
    ENDPOINT_REQUEST,
    ENDPOINT_RESPONSE,
    FIRST,
    LAST_IMMEDIATE,
    NACK,
    NACK_REASONS,
    ONLY_IMMEDIATE,
    PROBE,
    SACK,
)

VIEW = np.dtype(
    [
        *((name, "i8") for name in REPLY.names or ()),
        *((name, "i8") for name in ("opcode", "queue_pair", "ack_request", "retransmission", "timestamped")),
        *((name, "i8") for name in ("rqmsn", "msn", "address", "key", "length", "immediate", "payload_at")),
        *((name, "i8") for name in ("restore_cwnd",)),
        *((name, "i8") for name in ("id", "operation", "port_status")),
    ]
)
"""Everything that any packet says, one row; what a packet does not say is left as it was."""

FINE, TOO_SHORT, UNKNOWN_OPCODE, WRONG_VERSION, WRONG_CHECK, WRONG_LENGTH, WRONG_REASON = 0, 1, 2, 3, 4, 5, 6
"""What `read_packet` answers."""
_BTH, _METH, _TSETH, _RETH, _IMMEDIATE = 12, 4, 4, 16, 4
_SACK_BYTES, _NETH, _PETH, _ERTH, _EETH, _AETH = 36, 20, 16, 16, 36, 4
_PARTITION = 0xFFFF
_REASONS = np.array(NACK_REASONS, np.int64)


@rule
def put16(data: Any, at: int, value: int) -> None:
    """Write 16 bits, most significant byte first."""
    data[at] = (value >> 8) & 0xFF
    data[at + 1] = value & 0xFF


@rule
def put24(data: Any, at: int, value: int) -> None:
    """Write 24 bits."""
    data[at] = (value >> 16) & 0xFF
    put16(data, at + 1, value)


@rule
def put32(data: Any, at: int, value: int) -> None:
    """Write 32 bits."""
    put16(data, at, value >> 16)
    put16(data, at + 2, value)


@rule
def get16(data: Any, at: int) -> int:
    """Read 16 bits."""
    return byte_at(data, at) << 8 | byte_at(data, at + 1)


@rule
def get24(data: Any, at: int) -> int:
    """Read 24 bits."""
    return byte_at(data, at) << 16 | get16(data, at + 1)


@rule
def get32(data: Any, at: int) -> int:
    """Read 32 bits."""
    return get16(data, at) << 16 | get16(data, at + 2)


@rule
def signed(value: int, bits: int) -> int:
    """Return the number that `bits` bits stand for in two's complement."""
    return value - (1 << bits) if value >> (bits - 1) else value


@rule
def _pack_bth(data: Any, at: int, opcode: int, queue_pair: int, psn: int, flags: int) -> int:
    """Write a base transport header; `flags` is byte 8."""
    data[at] = opcode
    data[at + 1] = 0
    put16(data, at + 2, _PARTITION)
    data[at + 4] = 0
    put24(data, at + 5, queue_pair)
    data[at + 8] = flags
    put24(data, at + 9, psn)
    return at + _BTH


@rule
def pack_data(data: Any, at: int, queue_pair: int, send: Any, stamp: int) -> int:
    """Write the headers of a data packet from a `SEND` row, with a timestamp, and return where its payload begins."""
    flags = send["ack_request"] << 7 | send["retransmission"] << 5 | 1 << 4
    at = _pack_bth(data, at, send["opcode"], queue_pair, send["psn"], flags)
    put16(data, at, 0)
    put16(data, at + 2, send["msn"])
    put16(data, at + 4, stamp)
    put16(data, at + 6, 0)
    put32(data, at + 8, send["address"] >> 32)
    put32(data, at + 12, send["address"])
    put32(data, at + 16, send["key"])
    put32(data, at + 20, send["length"])
    at += _METH + _TSETH + _RETH
    if send["immediate"] >= 0:
        put32(data, at, send["immediate"])
        at += _IMMEDIATE
    return at


@rule
def pack_reply(data: Any, at: int, queue_pair: int, reply: Any) -> int:
    """Write a SACK or a NACK from a `REPLY` row and return where it ends."""
    if reply["reason"] != 0:
        at = _pack_bth(data, at, NACK, queue_pair, 0, 0)
        data[at : at + _NETH] = 0
        data[at] = reply["reason"]
        put32(data, at + 4, reply["value"])
        put24(data, at + 12, reply["psn"])
        put16(data, at + 16, reply["stamp"])
        return at + _NETH
    at = _pack_bth(data, at, SACK, queue_pair, 0, 0)
    data[at : at + _SACK_BYTES] = 0
    data[at] = reply["verdict"] << 6 | reply["probe_response"] << 5
    put16(data, at + 2, reply["ack_psn_offset"])
    put32(data, at + 4, reply["value"])
    put24(data, at + 12, reply["cack_psn"])
    data[at + 16] = reply["mpr"]
    put16(data, at + 18, reply["sack_offset"])
    put32(data, at + 20, reply["bitmap_high"])
    put32(data, at + 24, reply["bitmap_low"])
    put16(data, at + 28, reply["stamp"])
    put16(data, at + 30, reply["ooo_count"] << 1)
    put32(data, at + 32, reply["penalty"] << 25 | reply["received_units"])
    return at + _SACK_BYTES


@rule
def pack_probe(data: Any, at: int, queue_pair: int, number: int, stamp: int) -> int:
    """Write a reliability probe and return where it ends."""
    at = _pack_bth(data, at, PROBE, queue_pair, 0, 0)
    data[at : at + _PETH] = 0
    put16(data, at, number)
    put16(data, at + 8, stamp)
    return at + _PETH


@rule
def pack_request(data: Any, at: int, operation: int, number: int, port_status: int) -> int:
    """Write an endpoint operation and return where it ends."""
    at = _pack_bth(data, at, ENDPOINT_REQUEST, ENDPOINT_QUEUE_PAIR, number, 0)
    data[at : at + _ERTH] = 0
    data[at] = operation
    put32(data, at + 8, port_status)
    return at + _ERTH


@rule
def pack_response(data: Any, at: int, operation: int, number: int, verdict: int, value: int, port_status: int) -> int:
    """Write the answer to an endpoint operation and return where it ends."""
    at = _pack_bth(data, at, ENDPOINT_RESPONSE, ENDPOINT_QUEUE_PAIR, number, 0)
    data[at : at + _EETH] = 0
    data[at] = operation
    data[at + 1] = verdict << 6
    put32(data, at + 4, value)
    put32(data, at + 12, port_status)
    return at + _EETH


@rule
def seal(data: Any, start: int, end: int) -> int:
    """Add the check behind the packet in bytes `start` to `end` - 1 and return the new end."""
    check = icrc_over(data, start, end)
    for k in range(ICRC_BYTES):
        data[end + k] = (check >> (8 * k)) & 0xFF
    return end + ICRC_BYTES


@rule
def _header_bytes(opcode: int, timestamped: int) -> int:
    """Return how many bytes of headers follow the base transport header, or -1 for an unknown opcode."""
    if FIRST <= opcode <= ONLY_IMMEDIATE:
        immediate = _IMMEDIATE if opcode in (LAST_IMMEDIATE, ONLY_IMMEDIATE) else 0
        return _METH + (_TSETH if timestamped else 0) + _RETH + immediate
    if opcode in (SACK, ENDPOINT_RESPONSE):
        return _SACK_BYTES
    if opcode == NACK:
        return _NETH
    if opcode in (PROBE, ENDPOINT_REQUEST):
        return _PETH
    return _AETH if opcode == ACK else -1


@rule
def read_packet(data: Any, start: int, end: int, trimmed: bool, view: Any) -> int:
    """Check the packet in bytes `start` to `end` - 1, fill `view` and return FINE, or say what is wrong with it."""
    wrong = packet_shape(data, start, end, trimmed)
    if wrong != FINE:
        return wrong
    body_end = end if trimmed else end - ICRC_BYTES
    if not trimmed and icrc_over(data, start, body_end) != read_check(data, body_end):
        return WRONG_CHECK
    return read_headers(data, start, body_end, trimmed, view)


@rule
def packet_shape(data: Any, start: int, end: int, trimmed: bool) -> int:
    """Return FINE where a packet is long enough for what its opcode asks for, else what is wrong."""
    if end - start < _BTH:
        return TOO_SHORT
    opcode = byte_at(data, start)
    if byte_at(data, start + 1) & 0xF:
        return WRONG_VERSION
    size = _header_bytes(opcode, byte_at(data, start + 8) >> 4 & 1)
    if size < 0 or (trimmed and opcode > ONLY_IMMEDIATE):
        return UNKNOWN_OPCODE
    body_end = end if trimmed else end - ICRC_BYTES
    return TOO_SHORT if body_end < start + _BTH + size else FINE


@rule
def read_headers(data: Any, start: int, body_end: int, trimmed: bool, view: Any) -> int:
    """Read a packet whose opcode and size are right and whose check has been looked at."""
    opcode = byte_at(data, start)
    flags = byte_at(data, start + 8)
    at = start + _BTH
    size = _header_bytes(opcode, flags >> 4 & 1)
    view["opcode"] = opcode
    view["queue_pair"] = get24(data, start + 5)
    view["psn"] = get24(data, start + 9)
    view["ack_request"] = flags >> 7
    view["retransmission"] = flags >> 5 & 1
    view["timestamped"] = flags >> 4 & 1
    view["payload_at"] = at + size
    if opcode <= ONLY_IMMEDIATE:
        _read_data(data, at, view)
        return FINE if trimmed or view["length"] == body_end - at - size else WRONG_LENGTH
    return _read_control(data, at, opcode, view) if body_end == at + size else WRONG_LENGTH


@rule
def read_check(data: Any, at: int) -> int:
    """Read the check, which stands least significant byte first."""
    return byte_at(data, at) | byte_at(data, at + 1) << 8 | byte_at(data, at + 2) << 16 | byte_at(data, at + 3) << 24


@rule
def _read_data(data: Any, at: int, view: Any) -> None:
    """Read the headers of a data packet."""
    view["rqmsn"] = get16(data, at)
    view["msn"] = get16(data, at + 2)
    at += _METH
    if view["timestamped"]:
        view["stamp"] = get16(data, at)
        at += _TSETH
    view["address"] = (signed(get32(data, at), 32) << 32) + get32(data, at + 4)
    view["key"] = get32(data, at + 8)
    view["length"] = get32(data, at + 12)
    has_immediate = view["opcode"] in (LAST_IMMEDIATE, ONLY_IMMEDIATE)
    view["immediate"] = get32(data, at + _RETH) if has_immediate else -1


@rule
def _read_control(data: Any, at: int, opcode: int, view: Any) -> int:
    """Read the headers of a control packet."""
    if opcode == SACK:
        _read_sack(data, at, view)
    elif opcode == NACK:
        view["reason"] = byte_at(data, at)
        view["value"] = signed(get32(data, at + 4), 32)
        view["psn"] = get24(data, at + 12)
        view["stamp"] = get16(data, at + 16)
        known = False
        for reason in _REASONS:
            known = known or reason == byte_at(data, at)
        return FINE if known else WRONG_REASON
    elif opcode == PROBE:
        view["id"] = get16(data, at)
        view["stamp"] = get16(data, at + 8)
    elif opcode in (ENDPOINT_REQUEST, ENDPOINT_RESPONSE):
        view["id"] = view["psn"] & 0xFFFF
        view["operation"] = byte_at(data, at)
        masks_at = at + (8 if opcode == ENDPOINT_REQUEST else 12)
        view["port_status"] = get32(data, masks_at)
        view["stamp"] = get16(data, masks_at + 4)
        if opcode == ENDPOINT_RESPONSE:
            view["verdict"] = byte_at(data, at + 1) >> 6
            view["value"] = signed(get32(data, at + 4), 32)
    else:
        view["msn"] = get24(data, at + 1)
    return FINE


@rule
def _read_sack(data: Any, at: int, view: Any) -> None:
    """Read a selective acknowledgement with its congestion state."""
    view["reason"] = 0
    view["verdict"] = byte_at(data, at) >> 6
    view["probe_response"] = byte_at(data, at) >> 5 & 1
    view["ack_psn_offset"] = signed(get16(data, at + 2), 16)
    view["value"] = signed(get32(data, at + 4), 32)
    view["cack_psn"] = get24(data, at + 12)
    view["mpr"] = byte_at(data, at + 16)
    view["sack_offset"] = signed(get16(data, at + 18), 16)
    view["bitmap_high"] = get32(data, at + 20)
    view["bitmap_low"] = get32(data, at + 24)
    view["stamp"] = get16(data, at + 28)
    view["ooo_count"] = get16(data, at + 30) >> 1
    view["restore_cwnd"] = byte_at(data, at + 31) & 1
    view["penalty"] = byte_at(data, at + 32) >> 1
    view["received_units"] = get32(data, at + 32) & 0xFFFFFF
