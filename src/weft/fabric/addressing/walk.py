"""Follows a carrier through the static tables, node by node, and says where it arrives or dies.

Only tables and the list of links are used: the walker does not know the shape of the fabric, so it can disagree with
the arithmetic that made the carrier. Failures change no table; they decide on which link a packet is lost.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np

from weft.core.errors import UsageError
from weft.fabric.addressing import srv6
from weft.fabric.addressing.forwarding import ForwardingAction, ForwardingEntry, ForwardingPlane
from weft.fabric.graph.naming import Kind
from weft.fabric.graph.topology import NO_LINK, NO_OPTIC, Topology

HOP_LIMIT = 64
"""Nodes that a packet may be sent from: the usual hop limit of IPv6."""

_FAILING: tuple[Kind, ...] = ("link", "switch", "optic", "nic")


@dataclass(frozen=True)
class FailedParts:
    """What is down."""

    links: frozenset[int] = frozenset()
    """Dead links."""
    switches: frozenset[int] = frozenset()
    """Dead switches."""
    optics: frozenset[int] = frozenset()
    """Dead transceivers; every link that they carry is down."""
    nics: frozenset[int] = frozenset()
    """Dead NICs."""


NOTHING_FAILED = FailedParts()


@dataclass(frozen=True)
class Hop:
    """What one node did with the packet."""

    node: int
    """The NIC or switch."""
    matched: tuple[int, ...]
    """The uSIDs that its table matched, in order."""
    remaining: int
    """The carrier as the node leaves it."""
    port: int | None = None
    """The port it was sent from; none at the last node."""
    link: int | None = None
    """The link it was sent over."""


@dataclass(frozen=True)
class Walk:
    """The way of one packet."""

    hops: tuple[Hop, ...]
    """Every node that had it, from the source on."""
    arrived: int | None = None
    """The NIC that it was delivered at."""
    death: str | None = None
    """Where and why it was lost."""

    @property
    def links(self) -> tuple[int, ...]:
        """Return the links that it crossed."""
        crossed = self.hops if self.death is None else self.hops[:-1]
        return tuple(hop.link for hop in crossed if hop.link is not None)


def failures_named(topology: Topology, names: Iterable[str]) -> FailedParts:
    """Return the failures that `names` (links, switches, optics, NICs) stand for, or raise with what exists."""
    found: dict[Kind, set[int]] = {kind: set() for kind in _FAILING}
    for name in names:
        kind, dense = topology.names.find(name, _FAILING)
        if kind == "optic" and not _carries_links(topology, dense):
            raise UsageError(f"{name} carries no link: its port is empty or its cable is copper; name a link or switch")
        found[kind].add(dense)
    return FailedParts(*(frozenset(found[kind]) for kind in ("link", "switch", "optic", "nic")))


def _carries_links(topology: Topology, optic: int) -> bool:
    return bool(np.any(topology.links.lower_optic == optic) or np.any(topology.links.upper_optic == optic))


@dataclass(frozen=True)
class Walker:
    """A fabric that packets can be followed through."""

    tables: ForwardingPlane
    """What every node does."""
    failures: FailedParts = NOTHING_FAILED
    """What is down."""
    hop_limit: int = HOP_LIMIT
    """Nodes that a packet may be sent from."""
    _topology: Topology = field(init=False, repr=False)

    def __post_init__(self) -> None:
        """Keep the wiring at hand."""
        object.__setattr__(self, "_topology", self.tables.topology)

    def walk(self, source: int, carrier: int) -> Walk:
        """Return the way of a packet that NIC `source` sends to the address `carrier`."""
        node = source
        hops: list[Hop] = []
        if source in self.failures.nics:
            return Walk((), death=f"dies at {self._name(source)}: the NIC is down")
        while True:
            matched, carrier, entry = self._decide(node, carrier)
            if entry is None:
                hops.append(Hop(node, matched, carrier))
                return Walk(tuple(hops), death=f"dies at {self._name(node)}: {self._no_entry(carrier)}")
            if entry.action is ForwardingAction.DELIVER:
                hops.append(Hop(node, matched, carrier))
                return Walk(tuple(hops), arrived=node)
            link = int(self._topology.ports.of(node)[entry.port])
            assert link != NO_LINK, "a table sends out of used ports only"
            hops.append(Hop(node, matched, carrier, entry.port, link))
            lost = self._lost_on(link, node)
            if lost is None and len(hops) > self.hop_limit:
                lost = f"its hop limit of {self.hop_limit} is used up"
            if lost is not None:
                return Walk(tuple(hops), death=f"dies at {self._name(node)}: {lost}")
            node = self._topology.far_end(link, node)

    def _decide(self, node: int, carrier: int) -> tuple[tuple[int, ...], int, ForwardingEntry | None]:
        """Return what the table of `node` says, own uSIDs shifted away first."""
        table = self.tables.of_node(node)
        matched: list[int] = []
        while True:
            usid = srv6.first_usid(carrier)
            entry = table.look_up(srv6.block_of(carrier), usid) if usid else None
            if entry is None:
                return tuple(matched), carrier, None
            matched.append(usid)
            if entry.action is not ForwardingAction.SHIFT:
                return tuple(matched), carrier, entry
            carrier = srv6.shift(carrier)

    def _no_entry(self, carrier: int) -> str:
        usid = srv6.first_usid(carrier)
        if srv6.block_of(carrier) != self.tables.plan.block:
            return f"{srv6.to_text(carrier)} is outside its block {srv6.to_text(self.tables.plan.block << 96)}/32"
        return f"its table has no entry for uSID {usid:#06x}" if usid else "no uSID is left in the carrier"

    def _lost_on(self, link: int, node: int) -> str | None:
        """Return why a packet from `node` does not come through `link`, or nothing."""
        cause = self._cause(link, far := self._topology.far_end(link, node))
        if cause is None:
            return None
        return f"its link {self._topology.name_of_link(link)} to {self._name(far)} {cause}"

    def _cause(self, link: int, far: int) -> str | None:
        topology, down = self._topology, self.failures
        if link in down.links:
            return "is down"
        for optic in (int(topology.links.lower_optic[link]), int(topology.links.upper_optic[link])):
            if optic != NO_OPTIC and optic in down.optics:
                return f"is down with {topology.names.of('optic', optic)}"
        if far < topology.nics:
            return "leads to a dead NIC" if far in down.nics else None
        return "leads to a dead switch" if far - topology.nics in down.switches else None

    def _name(self, node: int) -> str:
        return self._topology.name_of_node(node)
