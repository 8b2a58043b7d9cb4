"""Whole packets: which headers follow which opcode, the payload, and the check at the end.

From the base transport header to the ICRC; Ethernet, IPv6, SRv6 and UDP around it belong to whoever sends. The EV does
not stand in a request: it travels in the UDP source port and the IPv6 flow label (`ev_fields`), and comes back in SACK,
NACK and probe responses. Anything that is not a well-formed packet raises `DecodeError` and nothing else.
"""

from dataclasses import dataclass, field

from weft.mrc.wire.headers import (
    Aeth,
    Bth,
    CcState,
    DecodeError,
    Eeth,
    Erth,
    Header,
    ImmDt,
    Meth,
    Neth,
    Peth,
    Reth,
    Seth,
    Tseth,
)
from weft.mrc.wire.icrc import ICRC_BYTES, icrc

FIRST, MIDDLE, LAST, LAST_IMMEDIATE, ONLY, ONLY_IMMEDIATE = 0xC6, 0xC7, 0xC8, 0xC9, 0xCA, 0xCB
ACK, ENDPOINT_REQUEST, ENDPOINT_RESPONSE, SACK, NACK, PROBE = 0xD1, 0xD8, 0xD9, 0xDC, 0xDD, 0xDE

ENDPOINT_QUEUE_PAIR = 2
"""Destination queue pair of endpoint operations, which belong to a port and not to a connection."""
UDP_PORT = 4791
"""RoCEv2's destination port. The specification prints 4971, probably a transposition (facts section 3); dissectors
accept both, we send the registered one."""

CONTROL_DSCP, DATA_DSCP, TRIMMED_DSCP, TRIMMED_LAST_HOP_DSCP = 46, 4, 12, 14
"""Classes of packets: control goes before data; data may be cut, and what was cut goes with control (facts, section 4).
The first three are the defaults of a published emulation; that of a last hop is ours."""
ECN_CAPABLE, ECN_MARKED = 2, 3
"""The lower two bits of a traffic class: may be marked, is marked (RFC 3168)."""

TRIMMED, TRIMMED_LASTHOP, NO_BITMAP, NO_PKT_BUFFER, NO_RESOURCE, PSN_OOR_WINDOW, UNEXP_EVENT = 1, 2, 6, 7, 10, 11, 25
NACK_REASONS = (TRIMMED, TRIMMED_LASTHOP, NO_BITMAP, NO_PKT_BUFFER, NO_RESOURCE, PSN_OOR_WINDOW, UNEXP_EVENT)
VERDICT_NONE, VERDICT_SKIP_ONCE, VERDICT_ALWAYS_SKIP = 0, 1, 2
OPERATION_PORT_STATUS, OPERATION_EV_PROBE = 0, 1

# Which headers follow which opcode; data packets also carry what `headers_of` adds.
_DATA = (FIRST, MIDDLE, LAST, LAST_IMMEDIATE, ONLY, ONLY_IMMEDIATE)
_WITH_IMMEDIATE = (LAST_IMMEDIATE, ONLY_IMMEDIATE)
_CONTROL: dict[int, tuple[type[Header], ...]] = {
    ACK: (Aeth,),
    ENDPOINT_REQUEST: (Erth,),
    ENDPOINT_RESPONSE: (Eeth,),
    SACK: (Seth, CcState),
    NACK: (Neth,),
    PROBE: (Peth,),
}


@dataclass(frozen=True)
class Packet:
    """One packet: its base transport header, the headers that its opcode asks for, and the payload."""

    bth: Bth
    headers: tuple[Header, ...]
    payload: bytes = b""
    trimmed: bool = field(default=False, compare=False)
    """Whether the payload was cut off by a switch (known from the traffic class, not from these bytes)."""


def headers_of(bth: Bth) -> tuple[type[Header], ...]:
    """Return which headers follow a base transport header."""
    if bth.opcode in _DATA:
        stamp: tuple[type[Header], ...] = (Tseth,) if bth.timestamped else ()
        immediate: tuple[type[Header], ...] = (ImmDt,) if bth.opcode in _WITH_IMMEDIATE else ()
        return (Meth, *stamp, Reth, *immediate)
    if bth.opcode in _CONTROL:
        return _CONTROL[bth.opcode]
    raise DecodeError(f"opcode {bth.opcode:#04x} is not one of MRC's")


def encode(packet: Packet, front: bytes = b"") -> bytes:
    """Return a packet's bytes, check included; `front` is what the check covers before it."""
    assert tuple(type(header) for header in packet.headers) == headers_of(packet.bth), "headers do not fit the opcode"
    assert packet.bth.opcode in _DATA or not packet.payload, "only data packets carry a payload"
    body = b"".join(header.encode() for header in (packet.bth, *packet.headers)) + packet.payload
    return body + icrc(body, front).to_bytes(ICRC_BYTES, "little")


def decode(data: bytes, front: bytes = b"", *, trimmed: bool = False) -> Packet:
    """Return the packet that `data` holds, or raise `DecodeError`.

    A trimmed packet has lost its payload and with it the check; its headers are taken as they are: safe, because
    all that a receiver does with them is to ask for the packet again.
    """
    bth = Bth.decode(data)
    if bth.version != 0:
        raise DecodeError(f"transport version {bth.version} is not 0")
    # In wire order: where a header begins is known only when those before it are.
    at = Bth.size()
    headers: list[Header] = []
    for kind in headers_of(bth):
        header = kind.decode(data, at)
        headers.append(header)
        at += kind.size()
    if trimmed:
        if bth.opcode not in _DATA:
            raise DecodeError("a control packet is never trimmed")
        return Packet(bth, tuple(headers), trimmed=True)
    if len(data) - at < ICRC_BYTES:
        raise DecodeError(f"the check needs {ICRC_BYTES} bytes at {at}, found {len(data) - at}")
    body, sent = data[:-ICRC_BYTES], int.from_bytes(data[-ICRC_BYTES:], "little")
    if icrc(body, front) != sent:
        raise DecodeError("the integrity check does not fit the bytes")
    payload = body[at:]  # after the check: bytes that fail it are never looked at
    _check_payload(bth, tuple(headers), payload)
    return Packet(bth, tuple(headers), payload)


def _check_payload(bth: Bth, headers: tuple[Header, ...], payload: bytes) -> None:
    length = sum(header.length for header in headers if isinstance(header, Reth))
    if len(payload) != length:
        raise DecodeError(f"{len(payload)} bytes of payload where the headers say {length}")
    if bth.opcode == NACK and any(isinstance(h, Neth) and h.reason not in NACK_REASONS for h in headers):
        raise DecodeError("the NACK has no known reason")


def ev_fields(entropy: int) -> tuple[int, int]:
    """Return the UDP source port and the low 16 bits of the flow label that carry an EV.

    Low half to the port, high half to the label; the public sources disagree (facts section 4.1).
    """
    return entropy & 0xFFFF, entropy >> 16


def ev_from_fields(port: int, label: int) -> int:
    """Return the EV that a UDP source port and a flow label carry."""
    return (label & 0xFFFF) << 16 | port
