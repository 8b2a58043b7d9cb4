"""The integrity check at the end of every packet: CRC-32 over what no switch may change.

As in RoCEv2, the check runs over eight bytes of ones, then over the headers with their changeable bits set to one, then
over the rest. Which bytes of IPv6 and UDP go in front is the caller's knowledge (an endpoint on a plain socket sees
none); they are given as `front`. MRC's outer SRv6 header is never covered, because switches shift it. In the base
transport header byte 4 is changeable. The check is sent least significant byte first.
"""

import zlib
from typing import Any

import numpy as np

from weft.core.compile.rules import rule
from weft.mrc.columns import LOW32, ByteArray

ICRC_BYTES = 4
CHANGEABLE_BTH_BYTE = 4
_ONES = b"\xff" * 8
_POLYNOMIAL = 0xEDB88320
_LANES = 8


def _tables() -> np.ndarray:
    tables = np.zeros((_LANES, 256), np.int64)
    for byte in range(256):
        value = byte
        for _ in range(8):
            value = (value >> 1) ^ (_POLYNOMIAL if value & 1 else 0)
        tables[0, byte] = value
    for lane in range(1, _LANES):
        for byte in range(256):
            below = int(tables[lane - 1, byte])
            tables[lane, byte] = (below >> 8) ^ tables[0, below & 0xFF]
    return tables


_TABLES = _tables()


def icrc(packet: bytes, front: bytes = b"") -> int:
    """Return the check of a packet (from its base transport header, without the check itself)."""
    at = CHANGEABLE_BTH_BYTE
    return zlib.crc32(packet[:at] + b"\xff" + packet[at + 1 :], zlib.crc32(_ONES + front))


ICRC_START = zlib.crc32(_ONES)
"""The check over the leading ones, where the rule form begins when nothing else stands in front."""


@rule
def byte_at(data: ByteArray, at: int) -> Any:
    """Return one byte as a signed 64-bit number, which all other arithmetic here is in."""
    return np.int64(data[at])


@rule
def crc_over(data: ByteArray, at: int, end: int, crc: int) -> int:
    """Return `crc` carried on over bytes `at` to `end` - 1 of `data`, eight at a time."""
    # Eight bytes at a time: table `lane` holds what a byte does that is followed by `lane` others.
    crc = int(crc) ^ LOW32
    while end - at >= _LANES:
        first = crc ^ (
            byte_at(data, at) | byte_at(data, at + 1) << 8 | byte_at(data, at + 2) << 16 | byte_at(data, at + 3) << 24
        )
        crc = (
            _TABLES[7, first & 0xFF]
            ^ _TABLES[6, (first >> 8) & 0xFF]
            ^ _TABLES[5, (first >> 16) & 0xFF]
            ^ _TABLES[4, (first >> 24) & 0xFF]
            ^ _TABLES[3, data[at + 4]]
            ^ _TABLES[2, data[at + 5]]
            ^ _TABLES[1, data[at + 6]]
            ^ _TABLES[0, data[at + 7]]
        )
        at += _LANES
    while at < end:
        crc = (crc >> 8) ^ _TABLES[0, (crc ^ byte_at(data, at)) & 0xFF]
        at += 1
    return crc ^ LOW32


@rule
def icrc_over(data: ByteArray, at: int, end: int) -> int:
    """Return the check of the packet in bytes `at` to `end` - 1 of `data`, with nothing in front."""
    crc = crc_over(data, at, at + CHANGEABLE_BTH_BYTE, ICRC_START)
    # The changeable byte counts as 0xFF, whatever stands there.
    crc = (crc ^ LOW32) & LOW32
    crc = ((crc >> 8) ^ _TABLES[0, (crc ^ 0xFF) & 0xFF]) ^ LOW32
    return crc_over(data, at + CHANGEABLE_BTH_BYTE + 1, end, crc)
