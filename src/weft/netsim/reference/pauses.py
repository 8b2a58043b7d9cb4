"""Pausing ports instead of dropping packets: who holds how much of whom, who is paused, and by whom in the end.

A switch counts, for every port that sends to it, the data bytes that came over that port and still wait in its queues.
Port numbers here are those of the sending side: `held[p]` waits at the far end of p, and p is what gets paused.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from weft.netsim.network import Network, pause_lags
from weft.netsim.reference.ports import Port
from weft.netsim.switching import Pause


@dataclass(frozen=True)
class Tree:
    """Ports that wait for one that is not paused itself, at one moment."""

    at_ps: int
    """When it was seen."""
    root: int
    """The port that they all wait for."""
    ports: tuple[int, ...]
    """The paused ports, nearest to the root first."""
    depth: int
    """Pauses between the root and the farthest of them."""
    innocent: int
    """Queue pairs that wait in them though their packets do not cross the root."""


@dataclass
class PauseRecord:
    """What pausing did in a run."""

    pauses: int = 0
    """Pause frames sent."""
    paused_slots: list[int] = field(default_factory=list)
    """Slots for which every port was paused."""
    largest: Tree | None = None
    """The tree with the most ports."""
    trees: int = 0
    """Trees seen at the ends of bins, added up."""
    deadlock: tuple[int, ...] = ()
    """Ports that wait for each other in a circle."""
    deadlock_ps: int = -1
    """When that was seen."""


class Pauses:
    """The pauses of all ports of a run."""

    def __init__(self, network: Network, pause: Pause) -> None:
        self.pause = pause
        self.held = [0] * network.ports
        self.asked = bytearray(network.ports)
        self.record = PauseRecord(paused_slots=[0] * network.ports)
        self.lag = pause_lags(network, pause)
        self._pending: dict[int, list[int]] = {}
        self._paused_since: dict[int, int] = {}
        self._touched: set[int] = set()
        self._full: set[int] = set()

    def begin(self, slot: int, ports: Sequence[Port]) -> None:
        """Put into force what was asked for long enough ago: pauses and resumes follow each other at every port."""
        for number in self._pending.pop(slot, ()):
            port = ports[number]
            port.paused = not port.paused
            if port.paused:
                self._paused_since[number] = slot
            else:
                self.record.paused_slots[number] += slot - self._paused_since.pop(number)

    def finish(self, slot: int) -> None:
        """Count the pauses that are still in force at the end of a run."""
        for number, since in self._paused_since.items():
            self.record.paused_slots[number] += slot - since
        self._paused_since.clear()

    def overruns(self, number: int) -> bool:
        """Return whether the headroom for a port was used up when the last slot ended."""
        return number in self._full

    def enter(self, number: int, size: int) -> None:
        """Count a data packet that came over port `number` and was queued."""
        self.held[number] += size
        self._touched.add(number)

    def leave(self, number: int, size: int) -> None:
        """Count a data packet that came over port `number` and has left its queue."""
        self.held[number] -= size
        self._touched.add(number)

    def decide(self, slot: int) -> None:
        """Ask for pauses and resumes by what this slot leaves."""
        for number in self._touched:
            held = self.held[number]
            if held > self.pause.xoff + self.pause.headroom:
                self._full.add(number)
            else:
                self._full.discard(number)
            if held > self.pause.xoff if not self.asked[number] else held <= self.pause.xon:
                self.asked[number] ^= 1
                self.record.pauses += self.asked[number]
                self._pending.setdefault(slot + self.lag[number], []).append(number)
        self._touched.clear()

    def pending_slot(self) -> int | None:
        """Return the next slot in which a pause or a resume comes into force."""
        return min(self._pending, default=None)

    def look(self, ports: Sequence[Port], now_ps: int) -> None:
        """Record the trees of paused ports, and a deadlock where there is one."""
        paused = {port.number for port in ports if port.paused}
        if not paused:
            return
        waits = _waits(ports, paused)
        self._trees(ports, waits, now_ps)
        stuck = _stuck(waits, {p for p in paused if self.asked[p] and not ports[p].dark}, self.pause.xon)
        if stuck:
            self.record.deadlock, self.record.deadlock_ps = tuple(sorted(stuck)), now_ps

    def _trees(self, ports: Sequence[Port], waits: dict[int, dict[int, int]], now_ps: int) -> None:
        below: dict[int, list[int]] = {}
        for paused in sorted(waits):
            for blocking in waits[paused]:
                below.setdefault(blocking, []).append(paused)
        for root in sorted(below):
            if root in waits:
                continue
            self.record.trees += 1
            members, depth = _tree(root, below)
            largest = self.record.largest
            if largest is None or len(members) > len(largest.ports):
                self.record.largest = Tree(now_ps, root, members, depth, _innocent(root, members, ports))


def _waits(ports: Sequence[Port], paused: set[int]) -> dict[int, dict[int, int]]:
    """Return, for every paused port, the ports at its far end that hold its packets, with how many bytes."""
    found: dict[int, dict[int, int]] = {number: {} for number in paused}
    for port in ports:
        for packet in port.data:
            held = found.get(packet.port)
            if held is not None and packet.hop > 0:
                held[port.number] = held.get(port.number, 0) + packet.size
    return {number: held for number, held in found.items() if held}


def _tree(root: int, below: dict[int, list[int]]) -> tuple[tuple[int, ...], int]:
    """Return every port that waits for `root`, nearest first, and how far the farthest is."""
    seen, layer, depth = [root], [root], 0
    while layer:
        layer = [each for port in layer for each in below.get(port, ()) if each not in seen]
        layer = list(dict.fromkeys(layer))
        seen += layer
        depth += bool(layer)
    return tuple(seen[1:]), depth


def _innocent(root: int, members: Sequence[int], ports: Sequence[Port]) -> int:
    return len({packet.pair for number in members for packet in ports[number].data if root not in packet.path})


def _stuck(waits: dict[int, dict[int, int]], paused: set[int], xon: int) -> set[int]:
    """Return the largest set of paused ports each of which has more than `xon` bytes behind others of the set.

    None of them can ever be let go: that is a deadlock, and there is no other.
    """
    stuck = {number for number in paused if number in waits}
    while True:
        freed = {p for p in stuck if sum(size for q, size in waits[p].items() if q in stuck) <= xon}
        if not freed:
            return stuck
        stuck -= freed
