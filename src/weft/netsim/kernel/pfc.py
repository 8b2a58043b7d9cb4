"""Who is paused and by whom, read from the engine's columns between two slots."""

from typing import TYPE_CHECKING

import numpy as np

from weft.netsim.host.compiling import Fixed
from weft.netsim.host.host_state import AT_NIC
from weft.netsim.kernel import layout
from weft.netsim.kernel.queues import held_behind, is_stopped
from weft.netsim.model.pause_trees import PauseRecord

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from weft.netsim.kernel.compiled_simulator import CompiledSimulator


class PauseColumns:
    """The pauses of one run."""

    def __init__(self, world: "CompiledSimulator") -> None:
        self._world = world
        self.record = PauseRecord()
        self._held_behind = Fixed(held_behind)
        self._sums = np.zeros(world.network.ports, np.int64)

    def look(self, now_ps: int) -> None:
        """Record the trees of paused ports, and a deadlock where there is one."""
        fabric, slot = self._world.fabric, self._world.slot
        self._settle(slot)
        paused = set(np.flatnonzero(fabric.holds[:, layout.PAUSED]).tolist())
        if not paused:
            return
        waits = self._waits(paused)
        held_back = {p for p in paused if fabric.holds[p, layout.ASKED] and not self._is_down(p)}
        self.record.see(waits, held_back, int(fabric.figures[layout.XON]), now_ps, self._innocent)

    def _waits(self, paused: set[int]) -> dict[int, dict[int, int]]:
        """Return for every paused port whose packets wait the ports that they wait at, with how many bytes."""
        world = self._world
        ports = world.fabric.ports
        queues = np.flatnonzero((ports[:, layout.NUMBER] >= 0) & (ports[:, layout.DATA_FIRST] >= 0))
        most = len(queues) * int(world.fabric.nodes[:, layout.PORTS].max())
        found = np.empty((most, 3), np.int64)
        count = self._held_behind(ports, world.queues.rows, queues, self._sums, found)
        waits: dict[int, dict[int, int]] = {}
        for number, at, size in found[:count].tolist():
            if number in paused:
                waits.setdefault(number, {})[at] = size
        return waits

    def finish(self, pauses: int) -> None:
        """Bring the totals into the record, with the pauses that are still in force."""
        fabric, slot = self._world.fabric, self._world.slot
        self._settle(slot)
        holds = fabric.holds
        lasting = np.where(holds[:, layout.PAUSED] != 0, slot - holds[:, layout.PAUSED_SINCE], 0)
        self.record.pauses = pauses
        self.record.paused_slots = (holds[:, layout.PAUSED_SLOTS] + lasting).tolist()

    def _settle(self, slot: int) -> None:
        """Put into force what acts before `slot`, at ports too that nobody has looked at since."""
        fabric = self._world.fabric
        late = (fabric.holds[:, layout.CHANGES :] < slot).any(axis=1)
        for number in np.flatnonzero(late).tolist():
            is_stopped(fabric, fabric.ports[int(self._world.row_of[number])], slot - 1)

    def _is_down(self, number: int) -> bool:
        fabric = self._world.fabric
        fault = int(fabric.ports[int(self._world.row_of[number]), layout.LINK_FAULT])
        return fault > 0 and int(fabric.link_faults[fault]) == layout.LINK_DOWN

    def _waiting(self, row: int) -> "Iterator[np.ndarray]":
        """Go through the data queue of the port in `row`."""
        queues = self._world.queues
        at = int(self._world.fabric.ports[row, layout.DATA_FIRST])
        while at >= 0:
            yield queues.rows[at]
            at = int(queues.rows[at, layout.AFTER])

    def _innocent(self, root: int, members: "Sequence[int]") -> int:
        ways: set[tuple[int, int, int]] = set()
        for number in members:
            for packet in self._waiting(int(self._world.row_of[number])):
                ways.add((number, int(packet[layout.NAME]) >> layout.HALF_SHIFT, int(packet[layout.GOAL])))
        return len({half >> 1 for number, half, goal in ways if root not in self._path(number, half, goal)})

    def _path(self, number: int, half: int, goal: int) -> tuple[int, ...]:
        """Return the ports of a packet's path."""
        network = self._world.network
        source = int(self._world.endpoints.host_state.nics.each[half, AT_NIC])
        plane = int(network.topology.links.plane[number // 2])
        first, second = (goal >> shift & layout.UPLINK_MASK for shift in (layout.UPLINK_SHIFT, layout.SECOND_SHIFT))
        return network.path(source, goal & layout.PORT_MASK, plane, first * max(1, network.shape.t1_up) + second)
