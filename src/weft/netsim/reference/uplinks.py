"""Adaptive routing: a switch sends every packet up the uplink with the shortest queue of those that lead there."""

from collections.abc import Sequence

from weft.netsim.model.network import Network
from weft.netsim.reference.packets import SimPacket
from weft.netsim.reference.ports import Port

_TIE_SHIFT = 16
_FAR_PATH = 6


class Uplinks:
    """What switches know to choose by: the lengths of their own queues, and which links are dead."""

    def __init__(self, network: Network) -> None:
        self.network = network
        self.dead: frozenset[int] = frozenset()
        """Links that routing knows to be dead."""
        self._paths: dict[tuple[int, int, int, int], tuple[int, ...]] = {}

    def path(self, packet: SimPacket, ports: Sequence[Port]) -> tuple[int, ...]:
        """Return the path of a packet that has just arrived at a switch, with this switch's choice in it."""
        path = packet.path
        shape = self.network.shape
        ups = path[1 : len(path) // 2]
        if packet.hop > len(ups) or packet.hop == 0:
            return path
        plane, source = divmod(path[0] // 2, shape.hosts)
        destination = path[-1] // 2 % shape.hosts
        seconds = max(1, shape.t1_up)
        start, end = shape.t0_of(source), shape.t0_of(destination)
        first, second = divmod(self._way(path), seconds)
        grids = shape.link_grids
        if packet.hop == 1:
            links = [(grids[1].id(plane, start, u), grids[1].id(plane, end, u)) for u in range(shape.up)]
            way = self._shortest(links, packet.key, ports) * seconds + second
        else:
            below, above = shape.t1_above(start, first), shape.t1_above(end, first)
            links = [(grids[2].id(plane, below, u), grids[2].id(plane, above, u)) for u in range(seconds)]
            way = first * seconds + self._shortest(links, packet.key, ports)
        key = (source, destination, plane, way)
        found = self._paths.get(key)
        if found is None:
            found = self._paths[key] = self.network.path(source, destination, plane, way)
        return found

    def _way(self, path: tuple[int, ...]) -> int:
        """Return the number, within its plane, of a path that goes up."""
        shape = self.network.shape
        first = (path[1] // 2 - shape.link_grids[1].first) % shape.up
        if len(path) < _FAR_PATH:
            return first * max(1, shape.t1_up)
        return first * shape.t1_up + (path[2] // 2 - shape.link_grids[2].first) % shape.t1_up

    def _shortest(self, links: Sequence[tuple[int, int]], key: int, ports: Sequence[Port]) -> int:
        """Return the number of the uplink with the fewest data bytes waiting; ties go round from the packet's key."""
        count = len(links)
        start = (key >> _TIE_SHIFT) % count
        best, fewest = -1, 0
        for step in range(count):
            number = (start + step) % count
            up, down = links[number]
            if up in self.dead or down in self.dead or ports[2 * up].is_down():
                continue
            waiting = ports[2 * up].data_bytes
            if best < 0 or waiting < fewest:
                best, fewest = number, waiting
        return best if best >= 0 else start
