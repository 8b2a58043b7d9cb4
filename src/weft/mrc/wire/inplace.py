"""The same packets as in `packets`, read and written in place by rules: for code that holds no object per packet.

Rows of columns go straight into a byte array and back. `pack_*` returns where the headers end; payload follows there,
then `seal` adds the check. `read_packet` checks everything that `packets.decode` checks and fills a `VIEW` row, whose
names are those that the protocol's rules read, so that a view can be given to them as it is. 32-bit EVs and 64-bit
addresses are kept signed, as everywhere in the columns.
"""

from typing import NamedTuple, TypeAlias

import numpy as np

from weft.core.compile.rules import rule
from weft.mrc import columns
from weft.mrc.columns import REPLY, ByteArray, ReplyRow, SendRow
from weft.mrc.wire.headers import (
    Aeth,
    Bth,
    CcState,
    Eeth,
    Erth,
    ImmDt,
    Meth,
    Neth,
    Peth,
    Reth,
    Seth,
    Tseth,
)
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
    OPERATION_EV_PROBE,
    OPERATION_PORT_STATUS,
    PROBE,
    SACK,
)

VIEW = np.dtype(
    [
        *((name, "i8") for name in REPLY.names or ()),
        *((name, "i8") for name in ("opcode", "queue_pair", "ack_request", "retransmission", "timestamped")),
        *((name, "i8") for name in ("rqmsn", "msn", "address", "key", "length", "immediate", "payload_at")),
        *((name, "i8") for name in ("restore_cwnd",)),
        *((name, "i8") for name in ("operation", "port_status")),
    ]
)
"""Everything that any packet says, one row; what a packet does not say is left as it was."""
ViewRow: TypeAlias = np.void
"""A row of `VIEW`."""

FINE, TOO_SHORT, UNKNOWN_OPCODE, WRONG_VERSION, WRONG_CHECK, WRONG_LENGTH, WRONG_REASON = 0, 1, 2, 3, 4, 5, 6
"""What `read_packet` answers."""
# Sizes and places come from the header tables; worked out once here, compiled code holds them as constants.
_BTH, _METH, _TSETH, _RETH, _IMMEDIATE = Bth.size(), Meth.size(), Tseth.size(), Reth.size(), ImmDt.size()
_SETH, _NETH, _PETH, _ERTH, _EETH, _AETH = (one.size() for one in (Seth, Neth, Peth, Erth, Eeth, Aeth))
_SACK_BYTES = _SETH + CcState.size()
_VERSION_AT, _PARTITION_AT, _QUEUE_PAIR_AT = Bth.byte_of("version"), Bth.byte_of("partition"), Bth.byte_of("queue_pair")
_FLAGS_AT, _PSN_AT = Bth.byte_of("ack_request"), Bth.byte_of("psn")
_ACK_REQUEST, _RETRANSMISSION = Bth.shift_of("ack_request"), Bth.shift_of("retransmission")
_TIMESTAMPED = Bth.shift_of("timestamped")
_PARTITION = Bth.partition
_MSN_AT, _COARSE_AT = Meth.byte_of("msn"), Tseth.byte_of("coarse")
_KEY_AT, _LENGTH_AT = Reth.byte_of("key"), Reth.byte_of("length")
_VERDICT, _PROBE_RESPONSE = Seth.shift_of("verdict"), Seth.shift_of("probe_response")
_ACK_OFFSET_AT, _SACK_EV_AT, _CACK_AT = (Seth.byte_of(one) for one in ("ack_psn_offset", "entropy", "cack_psn"))
_MPR_AT, _SACK_OFFSET_AT, _BITMAP_AT = (Seth.byte_of(one) for one in ("mpr", "sack_offset", "sack_bitmap"))
_SACK_STAMP_AT = _SETH + CcState.byte_of("tx_timestamp")
_OOO_AT, _OOO = _SETH + CcState.byte_of("ooo_count"), CcState.shift_of("ooo_count")
_RESTORE_AT = _SETH + CcState.byte_of("restore_cwnd")
_PENALTY_AT, _PENALTY = _SETH + CcState.byte_of("rcv_cwnd_pen"), CcState.shift_of("rcv_cwnd_pen")
_NACK_EV_AT, _NACK_PSN_AT, _NACK_STAMP_AT = (Neth.byte_of(one) for one in ("entropy", "nack_psn", "tx_timestamp"))
_PROBE_STAMP_AT, _REQUEST_PORTS_AT = Peth.byte_of("tx_timestamp"), Erth.byte_of("port_status")
_RESPONSE_VERDICT_AT, _RESPONSE_VERDICT = Eeth.byte_of("verdict"), Eeth.shift_of("verdict")
_RESPONSE_EV_AT, _RESPONSE_PORTS_AT = Eeth.byte_of("entropy"), Eeth.byte_of("port_status")
_STAMP_AFTER_PORTS = Eeth.byte_of("tx_timestamp") - _RESPONSE_PORTS_AT
_ACK_MSN_AT = Aeth.byte_of("msn")
_UNITS_MASK = 0xFFFFFF
_REASONS = np.array(NACK_REASONS, np.int64)


@rule
def put16(data: ByteArray, at: int, value: int) -> None:
    """Write 16 bits, most significant byte first."""
    data[at] = (value >> 8) & 0xFF
    data[at + 1] = value & 0xFF


@rule
def put24(data: ByteArray, at: int, value: int) -> None:
    """Write 24 bits."""
    data[at] = (value >> 16) & 0xFF
    put16(data, at + 1, value)


@rule
def put32(data: ByteArray, at: int, value: int) -> None:
    """Write 32 bits."""
    put16(data, at, value >> 16)
    put16(data, at + 2, value)


@rule
def get16(data: ByteArray, at: int) -> int:
    """Read 16 bits."""
    return byte_at(data, at) << 8 | byte_at(data, at + 1)


@rule
def get24(data: ByteArray, at: int) -> int:
    """Read 24 bits."""
    return byte_at(data, at) << 16 | get16(data, at + 1)


@rule
def get32(data: ByteArray, at: int) -> int:
    """Read 32 bits."""
    return get16(data, at) << 16 | get16(data, at + 2)


@rule
def signed(value: int, bits: int) -> int:
    """Return the number that `bits` bits stand for in two's complement."""
    return value - (1 << bits) if value >> (bits - 1) else value


@rule
def _pack_bth(data: ByteArray, at: int, opcode: int, queue_pair: int, psn: int, flags: int) -> int:
    """Write a base transport header; `flags` is the byte of its three flags."""
    data[at] = opcode
    data[at + _VERSION_AT] = 0
    put16(data, at + _PARTITION_AT, _PARTITION)
    data[at + _QUEUE_PAIR_AT - 1] = 0  # reserved
    put24(data, at + _QUEUE_PAIR_AT, queue_pair)
    data[at + _FLAGS_AT] = flags
    put24(data, at + _PSN_AT, psn)
    return at + _BTH


@rule
def pack_data(data: ByteArray, at: int, queue_pair: int, send: SendRow, stamp: int) -> int:
    """Write the headers of a data packet from a `SEND` row, with a timestamp, and return where its payload begins."""
    flags = send["ack_request"] << _ACK_REQUEST | send["retransmission"] << _RETRANSMISSION | 1 << _TIMESTAMPED
    at = _pack_bth(data, at, send["opcode"], queue_pair, send["psn"], flags)
    put16(data, at, 0)
    put16(data, at + _MSN_AT, send["msn"])
    at += _METH
    put16(data, at, stamp)
    put16(data, at + _COARSE_AT, 0)
    at += _TSETH
    put32(data, at, send["address"] >> 32)
    put32(data, at + 4, send["address"])
    put32(data, at + _KEY_AT, send["key"])
    put32(data, at + _LENGTH_AT, send["length"])
    at += _RETH
    if send["immediate"] >= 0:
        put32(data, at, send["immediate"])
        at += _IMMEDIATE
    return at


@rule
def pack_reply(data: ByteArray, at: int, queue_pair: int, reply: ReplyRow) -> int:
    """Write a SACK or a NACK from a `REPLY` row and return where it ends."""
    if reply["reason"] != 0:
        at = _pack_bth(data, at, NACK, queue_pair, 0, 0)
        data[at : at + _NETH] = 0
        data[at] = reply["reason"]
        put32(data, at + _NACK_EV_AT, reply["value"])
        put24(data, at + _NACK_PSN_AT, reply["psn"])
        put16(data, at + _NACK_STAMP_AT, reply["stamp"])
        return at + _NETH
    at = _pack_bth(data, at, SACK, queue_pair, 0, 0)
    data[at : at + _SACK_BYTES] = 0
    data[at] = reply["verdict"] << _VERDICT | reply["probe_response"] << _PROBE_RESPONSE
    put16(data, at + _ACK_OFFSET_AT, reply["ack_psn_offset"])
    put32(data, at + _SACK_EV_AT, reply["value"])
    put24(data, at + _CACK_AT, reply["cack_psn"])
    data[at + _MPR_AT] = reply["mpr"]
    put16(data, at + _SACK_OFFSET_AT, reply["sack_offset"])
    put32(data, at + _BITMAP_AT, reply["bitmap_high"])
    put32(data, at + _BITMAP_AT + 4, reply["bitmap_low"])
    put16(data, at + _SACK_STAMP_AT, reply["stamp"])
    put16(data, at + _OOO_AT, reply["ooo_count"] << _OOO)
    # The penalty and a reserved bit share a word with the 24 bits of what was received.
    put32(data, at + _PENALTY_AT, reply["penalty"] << (24 + _PENALTY) | reply["received_units"])
    return at + _SACK_BYTES


@rule
def pack_probe(data: ByteArray, at: int, queue_pair: int, number: int, stamp: int) -> int:
    """Write a reliability probe and return where it ends."""
    at = _pack_bth(data, at, PROBE, queue_pair, 0, 0)
    data[at : at + _PETH] = 0
    put16(data, at, number)
    put16(data, at + _PROBE_STAMP_AT, stamp)
    return at + _PETH


@rule
def pack_request(data: ByteArray, at: int, operation: int, number: int, port_status: int) -> int:
    """Write an endpoint operation and return where it ends."""
    at = _pack_bth(data, at, ENDPOINT_REQUEST, ENDPOINT_QUEUE_PAIR, number, 0)
    data[at : at + _ERTH] = 0
    data[at] = operation
    put32(data, at + _REQUEST_PORTS_AT, port_status)
    return at + _ERTH


class EndpointResponse(NamedTuple):
    """What the answer to an endpoint operation says."""

    operation: int
    number: int
    verdict: int
    value: int
    """The 32 bits of the EV that the request came on."""
    port_status: int


@rule
def pack_response(data: ByteArray, at: int, response: EndpointResponse) -> int:
    """Write the answer to an endpoint operation and return where it ends."""
    at = _pack_bth(data, at, ENDPOINT_RESPONSE, ENDPOINT_QUEUE_PAIR, response.number, 0)
    data[at : at + _EETH] = 0
    data[at] = response.operation
    data[at + _RESPONSE_VERDICT_AT] = response.verdict << _RESPONSE_VERDICT
    put32(data, at + _RESPONSE_EV_AT, response.value)
    put32(data, at + _RESPONSE_PORTS_AT, response.port_status)
    return at + _EETH


@rule
def seal(data: ByteArray, start: int, end: int) -> int:
    """Add the check behind the packet in bytes `start` to `end` - 1 and return the new end."""
    check = icrc_over(data, start, end)
    for k in range(ICRC_BYTES):  # least significant byte first, unlike everything else
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
def read_packet(data: ByteArray, start: int, end: int, trimmed: bool, view: ViewRow) -> int:
    """Check the packet in bytes `start` to `end` - 1, fill `view` and return FINE, or say what is wrong with it."""
    body_end = end if trimmed else end - ICRC_BYTES
    wrong = packet_shape(data, start, body_end, trimmed)
    if wrong != FINE:
        return wrong
    if not trimmed and icrc_over(data, start, body_end) != read_check(data, body_end):
        return WRONG_CHECK
    return read_headers(data, start, body_end, trimmed, view)


@rule
def packet_shape(data: ByteArray, start: int, body_end: int, trimmed: bool) -> int:
    """Return FINE where a packet up to the end of its body is long enough for its opcode, else what is wrong."""
    if body_end - start < _BTH:
        return TOO_SHORT
    opcode = byte_at(data, start)
    if byte_at(data, start + _VERSION_AT) & 0xF:
        return WRONG_VERSION
    size = _header_bytes(opcode, byte_at(data, start + _FLAGS_AT) >> _TIMESTAMPED & 1)
    # A switch trims data only: a short control packet is damaged.
    if size < 0 or (trimmed and opcode > ONLY_IMMEDIATE):
        return UNKNOWN_OPCODE
    return TOO_SHORT if body_end < start + _BTH + size else FINE


@rule
def read_headers(data: ByteArray, start: int, body_end: int, trimmed: bool, view: ViewRow) -> int:
    """Read a packet whose opcode and size are right and whose check has been looked at."""
    opcode = byte_at(data, start)
    flags = byte_at(data, start + _FLAGS_AT)
    at = start + _BTH
    size = _header_bytes(opcode, flags >> _TIMESTAMPED & 1)
    view["opcode"] = opcode
    view["queue_pair"] = get24(data, start + _QUEUE_PAIR_AT)
    view["psn"] = get24(data, start + _PSN_AT)
    view["ack_request"] = flags >> _ACK_REQUEST
    view["retransmission"] = flags >> _RETRANSMISSION & 1
    view["timestamped"] = flags >> _TIMESTAMPED & 1
    view["payload_at"] = at + size
    # Opcodes of data come before those of control.
    if opcode <= ONLY_IMMEDIATE:
        _read_data(data, at, view)
        return FINE if trimmed or view["length"] == body_end - at - size else WRONG_LENGTH
    return _read_control(data, at, opcode, view) if body_end == at + size else WRONG_LENGTH


@rule
def kind_of(view: ViewRow) -> int:
    """Return which kind of packet `weft.mrc.columns` calls what was read, or NOTHING for what none takes."""
    opcode = view["opcode"]
    kind = columns.NOTHING
    if opcode <= ONLY_IMMEDIATE:
        kind = columns.DATA
    elif opcode == SACK:
        kind = columns.SACK
    elif opcode == NACK:
        kind = columns.NACK
    elif opcode == PROBE:
        kind = columns.PROBE
    elif opcode in (ENDPOINT_REQUEST, ENDPOINT_RESPONSE):
        asks = opcode == ENDPOINT_REQUEST
        if view["operation"] == OPERATION_EV_PROBE:
            kind = columns.EV_PROBE if asks else columns.EV_ANSWER
        elif view["operation"] == OPERATION_PORT_STATUS:
            kind = columns.PORT_STATUS if asks else columns.PORT_ANSWER
    return kind


@rule
def read_check(data: ByteArray, at: int) -> int:
    """Read the check, which stands least significant byte first."""
    return byte_at(data, at) | byte_at(data, at + 1) << 8 | byte_at(data, at + 2) << 16 | byte_at(data, at + 3) << 24


@rule
def _read_data(data: ByteArray, at: int, view: ViewRow) -> None:
    """Read the headers of a data packet."""
    view["rqmsn"] = get16(data, at)
    view["msn"] = get16(data, at + _MSN_AT)
    at += _METH
    if view["timestamped"]:
        view["stamp"] = get16(data, at)
        at += _TSETH
    # Kept signed as all columns are: the high word gives the sign, the low one must not.
    view["address"] = (signed(get32(data, at), 32) << 32) + get32(data, at + 4)
    view["key"] = get32(data, at + _KEY_AT)
    view["length"] = get32(data, at + _LENGTH_AT)
    has_immediate = view["opcode"] in (LAST_IMMEDIATE, ONLY_IMMEDIATE)
    view["immediate"] = get32(data, at + _RETH) if has_immediate else -1


@rule
def _read_control(data: ByteArray, at: int, opcode: int, view: ViewRow) -> int:
    """Read the headers of a control packet."""
    if opcode == SACK:
        _read_sack(data, at, view)
    elif opcode == NACK:
        view["reason"] = byte_at(data, at)
        view["value"] = signed(get32(data, at + _NACK_EV_AT), 32)
        view["psn"] = get24(data, at + _NACK_PSN_AT)
        view["stamp"] = get16(data, at + _NACK_STAMP_AT)
        # No `in` over an array in compiled code; seven comparisons.
        known = False
        for reason in _REASONS:
            known = known or reason == byte_at(data, at)
        return FINE if known else WRONG_REASON
    elif opcode == PROBE:
        view["id"] = get16(data, at)
        view["stamp"] = get16(data, at + _PROBE_STAMP_AT)
    elif opcode in (ENDPOINT_REQUEST, ENDPOINT_RESPONSE):
        view["id"] = view["psn"] & 0xFFFF
        view["operation"] = byte_at(data, at)
        masks_at = at + (_REQUEST_PORTS_AT if opcode == ENDPOINT_REQUEST else _RESPONSE_PORTS_AT)
        view["port_status"] = get32(data, masks_at)
        view["stamp"] = get16(data, masks_at + _STAMP_AFTER_PORTS)
        if opcode == ENDPOINT_RESPONSE:
            view["verdict"] = byte_at(data, at + _RESPONSE_VERDICT_AT) >> _RESPONSE_VERDICT
            view["value"] = signed(get32(data, at + _RESPONSE_EV_AT), 32)
    else:
        view["msn"] = get24(data, at + _ACK_MSN_AT)
    return FINE


@rule
def _read_sack(data: ByteArray, at: int, view: ViewRow) -> None:
    """Read a selective acknowledgement with its congestion state."""
    view["reason"] = 0
    view["verdict"] = byte_at(data, at) >> _VERDICT
    view["probe_response"] = byte_at(data, at) >> _PROBE_RESPONSE & 1
    view["ack_psn_offset"] = signed(get16(data, at + _ACK_OFFSET_AT), 16)
    view["value"] = signed(get32(data, at + _SACK_EV_AT), 32)
    view["cack_psn"] = get24(data, at + _CACK_AT)
    view["mpr"] = byte_at(data, at + _MPR_AT)
    view["sack_offset"] = signed(get16(data, at + _SACK_OFFSET_AT), 16)
    view["bitmap_high"] = get32(data, at + _BITMAP_AT)
    view["bitmap_low"] = get32(data, at + _BITMAP_AT + 4)
    view["stamp"] = get16(data, at + _SACK_STAMP_AT)
    view["ooo_count"] = get16(data, at + _OOO_AT) >> _OOO
    view["restore_cwnd"] = byte_at(data, at + _RESTORE_AT) & 1
    view["penalty"] = byte_at(data, at + _PENALTY_AT) >> _PENALTY
    view["received_units"] = get32(data, at + _PENALTY_AT) & _UNITS_MASK
