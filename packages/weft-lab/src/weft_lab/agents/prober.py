"""A prober at one host: sends small packets to itself, out to a switch and back, and counts what comes home.

It runs inside a host's namespace as a program of its own (`python -m weft_lab.agents.prober`), reads one JSON
document on its standard input and prints another. It needs nothing but the standard library, so that it starts quickly.
It judges nothing: that is `fabric.fault_localization`'s work.
"""

import json
import os
import selectors
import socket
import struct
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field

MOST_IN_FLIGHT = 256
"""Probes on their way at once: more would fill the queue of a slow link and call that loss."""

_HEAD = struct.Struct("!8sHIQ")
_NO_CHECK_TX, _NO_CHECK_RX = 101, 102
"""UDP_NO_CHECK6_TX and UDP_NO_CHECK6_RX of Linux: a carrier changes on its way, so a checksum over it cannot hold."""
_IDLE_S = 0.002


@dataclass
class Tally:
    """What came of one path's probes."""

    sent: int = 0
    came: int = 0
    round_trips_ns: list[int] = field(default_factory=list)


@dataclass
class Prober:
    """The probes of one host."""

    carriers: Sequence[str]
    """Where they go."""
    size: int
    """Bytes of each."""
    patience_s: float
    """How long after its sending a probe may still come back."""

    def __post_init__(self) -> None:
        """Open the socket; a number of its own tells this run's probes from all others."""
        self.word = os.urandom(8)
        self.tallies = [Tally() for _ in self.carriers]
        self.pending: dict[tuple[int, int], int] = {}
        self.socket = socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)
        for option in (_NO_CHECK_TX, _NO_CHECK_RX):
            self.socket.setsockopt(socket.IPPROTO_UDP, option, 1)
        self.socket.bind(("::", 0))
        self.port = self.socket.getsockname()[1]
        self.socket.setblocking(False)
        self.arrival = selectors.DefaultSelector()
        self.arrival.register(self.socket, selectors.EVENT_READ)

    def run(self, probes: int) -> None:
        """Send `probes` on every path, in turn, never too many at once, and wait for the last."""
        for number in range(probes):
            for path in range(len(self.carriers)):
                while len(self.pending) >= MOST_IN_FLIGHT:
                    self._take_in(_IDLE_S)
                    self._forget()
                self._send(path, number)
            self._take_in(0)
        deadline = time.monotonic() + self.patience_s
        while self.pending and time.monotonic() < deadline:
            self._take_in(_IDLE_S)

    def _send(self, path: int, number: int) -> None:
        self.tallies[path].sent += 1
        now = time.monotonic_ns()
        packet = _HEAD.pack(self.word, path, number, now).ljust(self.size, b"\0")
        # A port that is down refuses at once; that is a probe that does not come back.
        with suppress(OSError):
            self.socket.sendto(packet, (self.carriers[path], self.port))
            self.pending[path, number] = now

    def _take_in(self, wait_s: float) -> None:
        if wait_s:
            self.arrival.select(wait_s)
        with suppress(BlockingIOError):
            while True:
                packet = self.socket.recv(65_536)
                if len(packet) < _HEAD.size:
                    continue
                word, path, number, _ = _HEAD.unpack_from(packet)
                sent_ns = self.pending.pop((path, number), None) if word == self.word else None
                if sent_ns is not None:
                    self.tallies[path].came += 1
                    self.tallies[path].round_trips_ns.append(time.monotonic_ns() - sent_ns)

    def _forget(self) -> None:
        """Give up probes that have been away too long, so that dead paths do not hold up the others."""
        oldest = time.monotonic_ns() - int(self.patience_s * 1e9)
        # They were put in in the order of their sending, so the old ones come first.
        for key, sent_ns in list(self.pending.items()):
            if sent_ns > oldest:
                break
            del self.pending[key]


def main() -> None:
    """Do what the document on standard input asks."""
    asked = json.load(sys.stdin)
    prober = Prober(asked["carriers"], asked["size"], asked["patience_s"])
    prober.run(asked["probes"])
    json.dump(
        [
            {"sent": one.sent, "came": one.came, "round_trip_ns": sorted(one.round_trips_ns)[one.came // 2 :][:1]}
            for one in prober.tallies
        ],
        sys.stdout,
    )


if __name__ == "__main__":
    main()
