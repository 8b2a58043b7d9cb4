"""Every MRC header as a table of fields, read and written by one codec.

A header is a frozen dataclass; its `layout` lists fields in wire order, most significant bit first, with their width
in bits; a negative width is a signed field, an empty name is reserved and sent as zero. Sizes and fields are those of
facts section 3 (the OCP specification through public dissectors). What the public record leaves open is chosen here:

- SETH: `cack_psn` is the last PSN received with all before it; bit i of the bitmap is PSN `cack_psn + sack_offset + i`;
  `ack_psn_offset` is the PSN that caused the SACK, relative to `cack_psn`, or the probe's id in a probe response.
- RETH: `length` is the payload of this packet, so that it survives trimming.
- PETH, ERTH, EETH: field order inside the published sizes; the rest is reserved.
"""

from dataclasses import dataclass, fields
from typing import ClassVar, Self

BITS_PER_BYTE = 8


class DecodeError(Exception):
    """The bytes are not an MRC packet; the text says at which header and why."""


@dataclass(frozen=True)
class Header:
    """The base of all headers: encodes and decodes by the class's table."""

    layout: ClassVar[tuple[tuple[str, int], ...]] = ()
    """Field names and widths in wire order."""

    @classmethod
    def size(cls) -> int:
        """Return the header's length in bytes."""
        return sum(abs(width) for _, width in cls.layout) // BITS_PER_BYTE

    @classmethod
    def byte_of(cls, name: str) -> int:
        """Return in which byte of the header a field begins."""
        return cls._bits_before(name) // BITS_PER_BYTE

    @classmethod
    def shift_of(cls, name: str) -> int:
        """Return how many bits stand behind a field in its last byte."""
        width = abs(dict(cls.layout)[name])
        return -(cls._bits_before(name) + width) % BITS_PER_BYTE  # up to the next whole byte

    @classmethod
    def _bits_before(cls, name: str) -> int:
        place = [field for field, _ in cls.layout].index(name)
        return sum(abs(width) for _, width in cls.layout[:place])

    @classmethod
    def decode(cls, data: bytes, at: int = 0) -> Self:
        """Return the header that starts at byte `at` of `data`."""
        size = cls.size()
        if len(data) - at < size:
            raise DecodeError(f"{cls.__name__} needs {size} bytes at {at}, found {max(0, len(data) - at)}")
        # One big number for the header, cut from its upper end: fields need not keep to byte boundaries.
        word = int.from_bytes(data[at : at + size], "big")
        left = size * BITS_PER_BYTE
        values: dict[str, int] = {}
        for name, width in cls.layout:
            bits = abs(width)
            left -= bits
            value = (word >> left) & ((1 << bits) - 1)
            if width < 0 and value >> (bits - 1):
                value -= 1 << bits
            if name:
                values[name] = value
        return cls(**values)

    def encode(self) -> bytes:
        """Return the header's bytes."""
        word = 0
        for name, width in self.layout:
            bits = abs(width)
            value = getattr(self, name) if name else 0
            low, high = (-(1 << (bits - 1)), (1 << (bits - 1)) - 1) if width < 0 else (0, (1 << bits) - 1)
            assert low <= value <= high, f"{type(self).__name__}.{name} = {value} does not fit {bits} bits"
            word = (word << bits) | (value & ((1 << bits) - 1))
        return word.to_bytes(self.size(), "big")

    def __init_subclass__(cls) -> None:
        """Hold every table to whole bytes."""
        assert sum(abs(width) for _, width in cls.layout) % BITS_PER_BYTE == 0, cls.__name__


@dataclass(frozen=True)
class Bth(Header):
    """Base transport header, InfiniBand's layout with MRC's two flags in byte 8."""

    layout = (
        ("opcode", 8),
        ("solicited", 1),
        ("migrated", 1),
        ("pad", 2),
        ("version", 4),
        ("partition", 16),
        ("", 8),
        ("queue_pair", 24),
        ("ack_request", 1),
        ("", 1),
        ("retransmission", 1),
        ("timestamped", 1),
        ("", 4),
        ("psn", 24),
    )
    opcode: int
    queue_pair: int
    psn: int
    ack_request: int = 0
    retransmission: int = 0
    timestamped: int = 0
    pad: int = 0
    solicited: int = 0
    migrated: int = 0
    version: int = 0
    partition: int = 0xFFFF


@dataclass(frozen=True)
class Meth(Header):
    """Message sequence numbers, in every request packet."""

    layout = (("rqmsn", 16), ("msn", 16))
    rqmsn: int
    msn: int


@dataclass(frozen=True)
class Tseth(Header):
    """The time of sending: 16 bits in units of 128 ns, or of 1 us where `coarse` is set."""

    layout = (("tx_timestamp", 16), ("coarse", 1), ("format", 4), ("", 11))
    tx_timestamp: int
    coarse: int = 0
    format: int = 0


@dataclass(frozen=True)
class Reth(Header):
    """Where the payload goes, in every data packet: what lets it be placed in any order."""

    layout = (("address", 64), ("key", 32), ("length", 32))
    address: int
    key: int
    length: int


@dataclass(frozen=True)
class ImmDt(Header):
    """Four bytes for the receiving program, with the last packet of a write-with-immediate."""

    layout = (("immediate", 32),)
    immediate: int


@dataclass(frozen=True)
class Seth(Header):
    """Selective acknowledgement: cumulative PSN, 64-bit bitmap, the EV and its verdict, the receive window."""

    layout = (
        ("verdict", 2),
        ("probe_response", 1),
        ("", 13),
        ("ack_psn_offset", -16),
        ("entropy", 32),
        ("source_context", 16),
        ("destination_context", 16),
        ("cack_psn", 24),
        ("cc_type", 4),
        ("cc_flags", 4),
        ("mpr", 8),
        ("", 8),
        ("sack_offset", -16),
        ("sack_bitmap", 64),
    )
    verdict: int
    ack_psn_offset: int
    entropy: int
    cack_psn: int
    mpr: int
    sack_offset: int
    sack_bitmap: int
    probe_response: int = 0
    source_context: int = 0
    destination_context: int = 0
    cc_type: int = 0
    cc_flags: int = 0


@dataclass(frozen=True)
class CcState(Header):
    """What congestion control learns from a SACK (type 0)."""

    layout = (
        ("tx_timestamp", 16),
        ("ooo_count", 15),
        ("restore_cwnd", 1),
        ("rcv_cwnd_pen", 7),
        ("", 1),
        ("rcvd_bytes", 24),
    )
    tx_timestamp: int = 0
    ooo_count: int = 0
    restore_cwnd: int = 0
    rcv_cwnd_pen: int = 0
    rcvd_bytes: int = 0


@dataclass(frozen=True)
class Neth(Header):
    """Negative acknowledgement of one packet, with the reason and the EV that it came on."""

    layout = (
        ("reason", 8),
        ("vendor", 8),
        ("", 16),
        ("entropy", 32),
        ("source_context", 16),
        ("destination_context", 16),
        ("nack_psn", 24),
        ("cc_type", 4),
        ("cc_flags", 4),
        ("tx_timestamp", 16),
        ("", 16),
    )
    reason: int
    entropy: int
    nack_psn: int
    vendor: int = 0
    source_context: int = 0
    destination_context: int = 0
    cc_type: int = 0
    cc_flags: int = 0
    tx_timestamp: int = 0


@dataclass(frozen=True)
class Peth(Header):
    """Reliability probe: asks for a SACK and consumes no PSN."""

    layout = (
        ("probe_id", 16),
        ("", 16),
        ("source_context", 16),
        ("destination_context", 16),
        ("tx_timestamp", 16),
        ("coarse", 1),
        ("format", 4),
        ("", 11),
        ("", 32),
    )
    probe_id: int
    source_context: int = 0
    destination_context: int = 0
    tx_timestamp: int = 0
    coarse: int = 0
    format: int = 0


@dataclass(frozen=True)
class Erth(Header):
    """Endpoint operation, request: port status (operation 0) or EV probe (operation 1)."""

    layout = (
        ("operation", 8),
        ("", 24),
        ("source_context", 16),
        ("destination_context", 16),
        ("port_status", 32),
        ("tx_timestamp", 16),
        ("coarse", 1),
        ("format", 4),
        ("", 11),
    )
    operation: int
    port_status: int = 0
    source_context: int = 0
    destination_context: int = 0
    tx_timestamp: int = 0
    coarse: int = 0
    format: int = 0


@dataclass(frozen=True)
class Eeth(Header):
    """Endpoint operation, response: the EV that the request came on and the verdict on it."""

    layout = (
        ("operation", 8),
        ("verdict", 2),
        ("", 22),
        ("entropy", 32),
        ("source_context", 16),
        ("destination_context", 16),
        ("port_status", 32),
        ("tx_timestamp", 16),
        ("", 16),
        ("", 128),
    )
    operation: int
    verdict: int = 0
    entropy: int = 0
    port_status: int = 0
    source_context: int = 0
    destination_context: int = 0
    tx_timestamp: int = 0


@dataclass(frozen=True)
class Aeth(Header):
    """The classic transport acknowledgement; the credit part of the syndrome is fixed at 0x1F."""

    layout = (("syndrome", 8), ("msn", 24))
    msn: int
    syndrome: int = 0x1F


HEADERS: tuple[type[Header], ...] = (*(Bth, Meth, Tseth, Reth, ImmDt, Seth, CcState, Neth, Peth, Erth, Eeth, Aeth),)
"""Every header of the protocol."""

# A field without a place on the wire, or a place without a field, would go unnoticed until somebody reads it.
for _header in HEADERS:
    assert {field.name for field in fields(_header)} == {name for name, _ in _header.layout if name}, _header.__name__
