"""Ordinary routes beside the source routes: one address for each NIC and plane, one fixed path to it.

Programs that know nothing of carriers (TCP, ping) need an address that does not change on the way. NIC n has
`fd77:6566:7400:<plane+1>::<n+1>` in each plane; switches forward to it by destination, always the same way, over the
uplinks that the NIC's number picks. So a stream to one address takes the path of one EV. Nothing is ever rerouted: this
is what a network without routing daemons gives a transport that knows one path.

Pure: routes are data here. `linux` says how its commands are run.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from weft.fabric.addressing import srv6
from weft.fabric.addressing.forwarding import ForwardingPlane
from weft.fabric.addressing.srv6 import Addressing
from weft.fabric.addressing.walk import Walker
from weft.fabric.linux import NIC_NETWORK, Command, addresses_at, device_of, namespace_of

NETWORK_TEXT = f"{srv6.to_text(NIC_NETWORK)}/48"
"""Every NIC's addresses, of all planes."""

_PLANE_SHIFT = 64


def plane_address(plane: int, nic: int) -> str:
    """Return the address of a NIC in a plane."""
    return srv6.to_text(NIC_NETWORK + ((plane + 1) << _PLANE_SHIFT) + nic + 1)


def ev_to(addressing: Addressing, plane: int, nic: int) -> int:
    """Return the EV whose path packets to `plane_address(plane, nic)` take."""
    shape = addressing.shape
    place = (plane, nic % max(1, shape.up), nic % max(1, shape.t1_up))
    return addressing.evs.grid.id(*place[: shape.tiers])


@dataclass(frozen=True)
class PlainRoutes:
    """The ordinary routes of a fabric: what each port of each node leads to."""

    tables: ForwardingPlane
    """The fabric."""
    by_port: Mapping[tuple[int, int], tuple[str, ...]]
    """Node and port to the destinations sent there."""

    def own(self, node: int) -> list[tuple[str, ...]]:
        """Return what gives a node its own addresses, as words for `ip`."""
        topology = self.tables.topology
        if node >= topology.nics:
            return []
        planes = topology.neighbours(node).port.tolist()
        # Deprecated addresses are used when asked for and never chosen, so packets to carriers keep their usual source.
        return [
            ("address", "add", f"{plane_address(plane, node)}/128", "dev", "lo", "nodad", "preferred_lft", "0")
            for plane in planes
        ]

    def at_port(self, node: int, port: int) -> list[tuple[str, ...]]:
        """Return the routes through one port, as words for `ip`."""
        topology = self.tables.topology
        device, gateway = device_of(topology, node, port), addresses_at(topology, node, port)[1]
        source = ("src", plane_address(port, node)) if node < topology.nics else ()
        return [
            ("route", "add", match, "via", gateway, "dev", device, *source)
            for match in self.by_port.get((node, port), ())
        ]

    def link_up(self, ends: tuple[tuple[int, int], ...], prefix: str) -> tuple[Command, ...]:
        """Return the commands that bring back the routes at the ends of a healed link."""
        return tuple(
            Command(words, namespace_of(self.tables.topology, node, prefix))
            for node, port in ends
            for words in self.at_port(node, port)
        )


def plain_routes(addressing: Addressing, tables: ForwardingPlane) -> PlainRoutes:
    """Return the ordinary routes of a built fabric, read off the ways that carriers take."""
    shape, topology = addressing.shape, tables.topology
    walker = Walker(tables)
    found: dict[tuple[int, int], dict[str, None]] = {}
    for nic in range(shape.hosts):
        for plane in range(shape.planes):
            network = srv6.to_text(NIC_NETWORK + ((plane + 1) << _PLANE_SHIFT))
            found.setdefault((nic, plane), {})[f"{network}/64"] = None
    # Two NICs of a T0 share the way from it; one source under each T0 shows them all.
    for destination in range(shape.hosts):
        for source in range(0, shape.hosts, shape.down):
            for plane in range(shape.planes):
                ev = ev_to(addressing, plane, destination)
                for hop in walker.walk(source, addressing.carrier(source, destination, ev)).hops:
                    if hop.node >= topology.nics and hop.port is not None:
                        matches = found.setdefault((hop.node, hop.port), {})
                        matches[f"{plane_address(plane, destination)}/128"] = None
    return PlainRoutes(tables, {place: tuple(matches) for place, matches in found.items()})
