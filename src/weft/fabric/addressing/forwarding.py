"""The static forwarding table of every node, made from the wiring.

A table is written once, at installation, and never changes: no routing protocol, no ECMP. A switch knows its own uSIDs
(shift and look up again), the uSIDs of the switches it is joined to (out of that port) and the local uSIDs of its down
ports. A NIC knows the uSIDs of its T0s and the local uSIDs that mean itself. Nothing here knows what a Clos network is.
"""

from dataclasses import dataclass, field
from enum import IntEnum
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from weft.fabric.addressing.srv6 import LOCAL, UsidPlan, prefix_text
from weft.fabric.graph.topology import Neighbours, Topology

NO_PORT = -1


class ForwardingAction(IntEnum):
    """What a node does with a packet whose first uSID matches."""

    SHIFT = 0
    """The uSID is its own: remove it and look up again."""
    FORWARD = 1
    """Send it out of the port."""
    DELIVER = 2
    """The packet has arrived."""


class ForwardingEntry(NamedTuple):
    """One line of a table."""

    usid: int
    action: ForwardingAction
    port: int
    """The port to send from; `NO_PORT` where nothing is sent."""

    def match(self, block: int) -> str:
        """Return the 48 bits that are matched, as an IPv6 prefix."""
        return prefix_text(self.usid, block)


@dataclass(frozen=True, eq=False)
class ForwardingTable:
    """The table of one node, sorted by uSID; 48 bits are matched, of which 32 are the block."""

    block: int
    """First 32 bits of everything that matches."""
    usid: NDArray[np.uint16]
    """The 16 bits after the block."""
    action: NDArray[np.uint8]
    """`Action` of each entry."""
    port: NDArray[np.int32]
    """Port of each entry."""

    def __len__(self) -> int:
        """Return the number of entries."""
        return len(self.usid)

    def entry(self, place: int) -> ForwardingEntry:
        """Return entry number `place`."""
        return ForwardingEntry(int(self.usid[place]), ForwardingAction(int(self.action[place])), int(self.port[place]))

    def entries(self) -> list[ForwardingEntry]:
        """Return every entry."""
        return [self.entry(place) for place in range(len(self))]

    def look_up(self, block: int, usid: int) -> ForwardingEntry | None:
        """Return the entry that matches, or nothing."""
        place = int(np.searchsorted(self.usid, np.uint16(usid)))
        if block != self.block or place == len(self) or self.usid[place] != usid:
            return None
        return self.entry(place)


@dataclass(frozen=True, eq=False)
class ForwardingPlane:
    """The tables of a fabric, each made when it is first asked for."""

    topology: Topology
    """The wiring."""
    plan: UsidPlan
    """Who owns which uSID."""
    _made: dict[int, ForwardingTable] = field(default_factory=dict, repr=False)

    def table_of(self, switch: int) -> ForwardingTable:
        """Return the table of a switch."""
        return self.of_node(self.topology.switch_node(switch))

    def of_node(self, node: int) -> ForwardingTable:
        """Return the table of a switch or a NIC."""
        table = self._made.get(node)
        if table is None:
            table = self._made[node] = self._make(node)
        return table

    def _make(self, node: int) -> ForwardingTable:
        near, nics = self.topology.neighbours(node), self.topology.nics
        to_nic = near.node < nics
        usids, ports = self._to_switches(near, ~to_nic)
        if node < nics:
            own, down = np.unique(LOCAL + near.node_port.astype(np.int64)), np.zeros(0, np.int64)
        else:
            own, down = np.array(self.plan.usids(node - nics), np.int64), near.port[to_nic]
        usid = np.concatenate((own, usids, LOCAL + down))
        port = np.concatenate((np.full(len(own), NO_PORT), ports, down))
        action = np.full(len(usid), ForwardingAction.FORWARD)
        action[: len(own)] = ForwardingAction.DELIVER if node < nics else ForwardingAction.SHIFT
        order = np.argsort(usid, kind="stable")
        return ForwardingTable(
            self.plan.block,
            usid[order].astype(np.uint16),
            action[order].astype(np.uint8),
            port[order].astype(np.int32),
        )

    def _to_switches(self, near: Neighbours, wanted: NDArray[np.bool_]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return every uSID of every neighbouring switch and its port; alias m takes member m of the bundle."""
        ports = near.port[wanted]
        switch, start, members = np.unique(
            (near.node[wanted] - self.topology.nics)[order := np.argsort(near.node[wanted], kind="stable")],
            return_index=True,
            return_counts=True,
        )
        aliases = self.plan.aliases[switch].astype(np.int64)
        alias = np.arange(aliases.sum()) - np.repeat(np.cumsum(aliases) - aliases, aliases)
        # A switch may have more aliases than links to this neighbour; those beyond come round again.
        member = np.repeat(start, aliases) + alias % np.repeat(members, aliases)
        usids = np.repeat(self.plan.first[switch].astype(np.int64), aliases) + alias
        return usids, ports[order][member]


def usids_along(topology: Topology, plan: UsidPlan, source: int, links: list[int]) -> list[int]:
    """Return the uSIDs that take a packet from NIC `source` over exactly these links, the last of them to a NIC."""
    usids: list[int] = []
    node = source
    for link in links:
        far = topology.far_end(link, node)
        if far < topology.nics:
            usids.append(LOCAL + int(topology.links.upper_port[link]))
        else:
            near = topology.neighbours(node)
            usids.append(plan.usid(far - topology.nics, int(np.flatnonzero(near.link[near.node == far] == link)[0])))
        node = far
    return usids
