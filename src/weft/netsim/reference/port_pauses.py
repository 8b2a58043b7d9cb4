"""Pausing ports instead of dropping packets: who holds how much of whom, who is paused, and by whom in the end.

A switch counts, for every port that sends to it, the data bytes that came over that port and still wait in its queues.
Port numbers here are those of the sending side: `held[p]` waits at the far end of p, and p is what gets paused.
"""

from collections.abc import Sequence
from functools import partial

from weft.netsim.model.network import Network, pause_lags
from weft.netsim.model.pause_trees import PauseRecord
from weft.netsim.model.switching import Pause
from weft.netsim.reference.ports import Port


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
        held_back = {p for p in paused if self.asked[p] and not ports[p].loses_all}
        self.record.see(
            _waits(ports, paused), held_back, self.pause.xon, now_ps, partial(_innocent, ports)
        )  # fmt: skip


def _waits(ports: Sequence[Port], paused: set[int]) -> dict[int, dict[int, int]]:
    """Return, for every paused port, the ports at its far end that hold its packets, with how many bytes."""
    found: dict[int, dict[int, int]] = {number: {} for number in paused}
    for port in ports:
        for packet in port.data:
            held = found.get(packet.port)
            if held is not None and packet.hop > 0:
                held[port.number] = held.get(port.number, 0) + packet.size
    return {number: held for number, held in found.items() if held}


def _innocent(ports: Sequence[Port], root: int, members: Sequence[int]) -> int:
    return len({packet.pair for number in members for packet in ports[number].data if root not in packet.path})
