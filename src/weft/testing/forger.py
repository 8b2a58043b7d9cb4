"""An attacker on the wire: packets with all the right numbers that nobody has signed, and genuine ones sent again.

It knows what can be guessed, read or overheard: the ports, the number of the queue pair, sequence numbers in its
window, key and address of a region, packets of the peer. It does not know the secrets that the peers gave each other.
Tests and `benchmarks/attack.py` send what it makes; nothing here listens.
"""

import socket
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from weft.mrc.wire.headers import Bth, CcState, Eeth, Erth, Header, ImmDt, Meth, Neth, Peth, Reth, Seth, Tseth
from weft.mrc.wire.packets import (
    ENDPOINT_QUEUE_PAIR,
    ENDPOINT_REQUEST,
    ENDPOINT_RESPONSE,
    FIRST,
    NACK,
    NACK_REASONS,
    ONLY_IMMEDIATE,
    PROBE,
    SACK,
    Packet,
    encode,
)

_PREFIX, _TRAILER, _ICRC = 4, 24, 4
_OPCODES = (*range(FIRST, ONLY_IMMEDIATE + 1), SACK, NACK, PROBE, ENDPOINT_REQUEST, ENDPOINT_RESPONSE)
_UDP_SEGMENT, _AT_ONCE = 103, 60
_LOOPBACK = "127.0.0.1"


@dataclass(frozen=True)
class Overheard:
    """What an attacker has found out about one queue pair."""

    queue_pair: int
    """Its number at the endpoint under attack."""
    psn: int
    """A packet sequence number that is in its window."""
    address: int
    """Of memory that the peer may write to."""
    key: int
    """Of that memory."""
    packets: tuple[bytes, ...] = ()
    """Genuine packets, as they came."""


class Forger:
    """Makes forged packets, the same ones for the same seed."""

    def __init__(self, seed: int, known: Overheard) -> None:
        """Use what is `known`."""
        self._random, self._known = np.random.default_rng(seed), known

    def packets(self, count: int) -> list[bytes]:
        """Return `count` packets, of every kind."""
        genuine = (self._again, self._changed) if self._known.packets else ()
        makers = (self._forged, self._forged, self._noise, *genuine)
        return [makers[number % len(makers)]() for number in range(count)]

    def _draw(self, most: int) -> int:
        return int(self._random.integers(most))

    def _forged(self) -> bytes:
        """Return a whole packet of a drawn opcode, with an ICRC or a drawn tag."""
        opcode, known, front = _OPCODES[self._draw(len(_OPCODES))], self._known, self._draw(4).to_bytes(4, "big")
        psn = (known.psn + self._draw(256)) & 0xFFFFFF
        data = opcode <= ONLY_IMMEDIATE
        operation = opcode in (ENDPOINT_REQUEST, ENDPOINT_RESPONSE)
        bth = Bth(opcode, ENDPOINT_QUEUE_PAIR if operation else known.queue_pair, psn, timestamped=int(data))
        payload = self._random.bytes(1 + self._draw(64)) if data else b""
        whole = front + encode(Packet(bth, self._headers(opcode, psn, len(payload)), payload), front)
        if self._draw(4) == 0:
            return whole
        end = len(whole) - _ICRC - len(payload)
        sequence = self._draw(1 << 40).to_bytes(8, "big")
        return whole[:end] + sequence + self._random.bytes(8) + payload + (self._random.bytes(8) if data else b"")

    def _headers(self, opcode: int, psn: int, length: int) -> tuple[Header, ...]:
        """Return headers that would stop a pair if they were believed."""
        known, context = self._known, self._known.queue_pair & 0xFFFF
        if opcode <= ONLY_IMMEDIATE:
            last = (ImmDt(self._draw(1 << 32)),) if opcode in (0xC9, ONLY_IMMEDIATE) else ()
            return (Meth(0, self._draw(1 << 16)), Tseth(0), Reth(known.address, known.key, length), *last)
        if opcode == SACK:
            # Everything that is in flight would count as arrived.
            sack = Seth(self._draw(3), 0, self._draw(4), psn, 255, 1, (1 << 64) - 1, self._draw(2))
            return (sack, CcState(rcv_cwnd_pen=127))
        if opcode == NACK:
            return (Neth(NACK_REASONS[self._draw(len(NACK_REASONS))], self._draw(4), psn),)
        if opcode == PROBE:
            return (Peth(self._draw(1 << 16)),)
        # No port of the peer would be up, and no path whole.
        if opcode == ENDPOINT_REQUEST:
            return (Erth(self._draw(2), 0, destination_context=context, source_context=context),)
        return (Eeth(self._draw(2), 2, self._draw(4), 0, context, context),)

    def _noise(self) -> bytes:
        """Return bytes of any kind behind a plausible beginning."""
        head = bytes(3) + bytes([self._draw(4), self._draw(256), 0, 0xFF, 0xFF, 0])
        return head + self._known.queue_pair.to_bytes(3, "big") + self._random.bytes(self._draw(200))

    def _again(self) -> bytes:
        """Return a genuine packet."""
        return self._known.packets[self._draw(len(self._known.packets))]

    def _changed(self) -> bytes:
        """Return a genuine packet with another sequence number, so that it would count as new."""
        packet = bytearray(self._again())
        at = _PREFIX + self._draw(max(1, len(packet) - _PREFIX))
        packet[at] ^= 1 << self._draw(8)
        return bytes(packet)


def spoofed(packet: bytes, source: int, target: int) -> bytes:
    """Return a UDP datagram for a raw socket: it says that it comes from port `source`."""
    return struct.pack("!HHHH", source, target, 8 + len(packet), 0) + packet


def bursts(packets: Sequence[bytes]) -> Iterator[tuple[bytes, int]]:
    """Return packets of one size behind each other, with that size: the kernel cuts them apart again."""
    sizes: dict[int, list[bytes]] = {}
    for packet in packets:
        sizes.setdefault(len(packet), []).append(packet)
    for size, group in sizes.items():
        for first in range(0, len(group), _AT_ONCE):
            yield b"".join(group[first : first + _AT_ONCE]), size


def send_burst(out: socket.socket, burst: bytes, size: int, port: int) -> int:
    """Send a burst to a port on loopback; return how many packets it was."""
    segment = [(socket.IPPROTO_UDP, _UDP_SEGMENT, struct.pack("H", size))] if len(burst) > size else []
    out.sendmsg([burst], segment, 0, (_LOOPBACK, port))
    return -(-len(burst) // size)
