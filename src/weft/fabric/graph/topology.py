"""A fabric written out as columns: NICs, switches, and every link with both its ends.

The explicit form of the wiring that `shape` knows as arithmetic; also what an imported edge list becomes (`edges`).
Tables, walks and exports are made from these columns alone. Nodes share one id space: NIC i is node i, switch s is
node `nics + s`. Columns are read-only and as narrow as their largest value allows.
"""

from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from weft.core.ids import Axis, Grid
from weft.fabric.graph.naming import Names
from weft.fabric.graph.shape import THREE_TIERS, TWO_TIERS, Shape, links_per_optic, shape_of
from weft.specs.fabric import FabricSpec, LinkSpec

NO_OPTIC = -1
"""In an optic column: the end of a passive copper cable."""
NO_LINK = -1
"""In a port table: nothing is plugged in."""


@dataclass(frozen=True, eq=False)
class Switches:
    """One row for each switch."""

    tier: NDArray[np.uint8]
    """0 next to the NICs."""
    plane: NDArray[np.uint8]
    """The network it belongs to."""
    index: NDArray[np.int32]
    """Its number among the switches of its tier and plane."""


@dataclass(frozen=True, eq=False)
class Links:
    """One row for each link; the upper end is the one further from the NICs and always a switch."""

    lower: NDArray[np.int32]
    """Node at the lower end."""
    lower_port: NDArray[np.uint16]
    """Port of that node."""
    upper: NDArray[np.int32]
    """Node at the upper end."""
    upper_port: NDArray[np.uint16]
    """Port of that node."""
    plane: NDArray[np.uint8]
    """The network it belongs to."""
    stage: NDArray[np.uint8]
    """0 for NIC to T0, 1 for T0 to T1, 2 for T1 to T2."""
    rate_bps: NDArray[np.int64]
    """Rate, one direction."""
    length_mm: NDArray[np.int32]
    """Length of the cable."""
    lower_optic: NDArray[np.int32]
    """Transceiver at the lower end, shared by all links that fail with it; `NO_OPTIC` for copper."""
    upper_optic: NDArray[np.int32]
    """Transceiver at the upper end."""

    def __len__(self) -> int:
        """Return the number of links."""
        return len(self.lower)


_LINK_COLUMNS: dict[str, Any] = {
    "lower": np.int32, "lower_port": np.uint16, "upper": np.int32, "upper_port": np.uint16, "plane": np.uint8,
    "stage": np.uint8, "rate_bps": np.int64, "length_mm": np.int32, "lower_optic": np.int32, "upper_optic": np.int32,
}  # fmt: skip


@dataclass(frozen=True, eq=False)
class PortTable:
    """Which link is plugged into which port of which node."""

    first: NDArray[np.int64]
    """Where the ports of a node begin in `link`; one more entry than nodes."""
    link: NDArray[np.int32]
    """Link at a port, or `NO_LINK`."""

    def of(self, node: int) -> NDArray[np.int32]:
        """Return the link at every port of `node`."""
        return self.link[self.first[node] : self.first[node + 1]]


class Neighbours(NamedTuple):
    """What the used ports of one node are joined to, in the order of the ports."""

    port: NDArray[np.int64]
    link: NDArray[np.int32]
    node: NDArray[np.int32]
    node_port: NDArray[np.uint16]


@dataclass(frozen=True, eq=False)
class Topology:
    """A fabric as columns."""

    nics: int
    """Number of NICs; each is a host of the network."""
    switches: Switches
    """Every switch."""
    links: Links
    """Every link."""
    optics: int
    """Number of optic ids; slots that no optical cable uses have an id and no link."""
    names: Names
    """How everything is called."""
    shape: Shape | None = None
    """The arithmetic form, where the fabric was built and not imported."""

    def __post_init__(self) -> None:
        """Make the columns read-only."""
        for table in (self.switches, self.links):
            for column in fields(table):
                getattr(table, column.name).setflags(write=False)

    @cached_property
    def nodes(self) -> int:
        """Return the number of NICs and switches together."""
        return self.nics + len(self.switches.tier)

    @cached_property
    def ports(self) -> PortTable:
        """Return which link is plugged in where."""
        ends = ((self.links.lower, self.links.lower_port), (self.links.upper, self.links.upper_port))
        width = np.zeros(self.nodes, np.int64)
        for node, port in ends:
            np.maximum.at(width, node, port.astype(np.int64) + 1)
        first = np.concatenate((np.zeros(1, np.int64), np.cumsum(width)))
        link = np.full(int(first[-1]), NO_LINK, np.int32)
        for node, port in ends:
            link[first[node] + port] = np.arange(len(node), dtype=np.int32)
        return PortTable(first, link)

    def switch_node(self, switch: int) -> int:
        """Return the node id of a switch."""
        return self.nics + switch

    def name_of_node(self, node: int) -> str:
        """Return the name of the NIC or switch that is `node`."""
        return self.names.of("nic", node) if node < self.nics else self.names.of("switch", node - self.nics)

    def name_of_link(self, link: int) -> str:
        """Return the name of a link."""
        return self.names.of("link", link)

    def far_end(self, link: int, node: int) -> int:
        """Return the node at the other end of `link` from `node`."""
        lower, upper = int(self.links.lower[link]), int(self.links.upper[link])
        assert node in (lower, upper), (link, node)
        return upper if node == lower else lower

    def neighbours(self, node: int) -> Neighbours:
        """Return what every used port of `node` is joined to."""
        at_port = self.ports.of(node)
        port = np.flatnonzero(at_port != NO_LINK)
        link = at_port[port]
        below = self.links.lower[link] == node
        far = np.where(below, self.links.upper[link], self.links.lower[link])
        far_port = np.where(below, self.links.upper_port[link], self.links.lower_port[link])
        return Neighbours(port, link, far, far_port)


@dataclass(frozen=True)
class _Optics:
    """How transceivers are shared: `lanes` links each, those of a NIC by plane, those of a switch by port.

    No transceiver of a switch serves ports that face down and ports that face up.
    """

    shape: Shape
    lanes: int

    @cached_property
    def per_nic(self) -> int:
        return -(-self.shape.planes // self.lanes)

    @cached_property
    def grids(self) -> tuple[Grid, ...]:
        """Return the ids of the optics: those in NICs, then those in the switches of each tier."""
        grids = [Grid("nicoptic", (Axis("i", self.shape.hosts), Axis("o", self.per_nic)))]
        for tier, switch in enumerate(self.shape.switch_grids):
            first = grids[-1].first + grids[-1].size
            slots = self._slots(self._down(tier)) + self._slots(self.shape.radix - self._down(tier))
            grids.append(Grid(f"optic{tier}", (*switch.axes, Axis("o", slots)), first=first))
        return tuple(grids)

    def _slots(self, ports: int) -> int:
        return -(-ports // self.lanes)

    def _down(self, tier: int) -> int:
        """Return how many ports of a switch of `tier` face down; they are numbered first."""
        top = tier == self.shape.tiers - 1
        return self.shape.radix if top else self.shape.down if tier == 0 else self.shape.pod_t0

    def at_nic(self, nic: NDArray[Any], plane: NDArray[Any]) -> NDArray[Any]:
        return nic * self.per_nic + plane // self.lanes

    def at_switch(self, tier: int, switch: NDArray[Any], port: NDArray[Any]) -> NDArray[Any]:
        """Return the optic at a port of a switch, which is numbered among all switches."""
        grid, down = self.grids[tier + 1], self._down(tier)
        slot = np.where(port < down, port // self.lanes, self._slots(down) + (port - down) // self.lanes)
        return grid.first + (switch - self.shape.switch_grids[tier].first) * grid.axes[-1].size + slot


class _Ends(NamedTuple):
    """The links of one stage: nodes and ports at both ends, and the grid (plane, ...) they broadcast to."""

    plane: NDArray[Any]
    lower: NDArray[Any]
    lower_port: NDArray[Any]
    upper: NDArray[Any]
    upper_port: NDArray[Any]


def build(spec: FabricSpec) -> Topology:
    """Return the fabric that `spec` describes, with every link."""
    shape = shape_of(spec)
    optics = _Optics(shape, links_per_optic(spec))
    cables = (spec.links.nic_t0, spec.links.t0_t1, spec.links.t1_t2)
    links = Links(**{name: np.empty(sum(shape.links), kind) for name, kind in _LINK_COLUMNS.items()})
    links.rate_bps.fill(spec.port_rate)
    start = 0
    for stage, ends in enumerate(_stages(shape)):
        cable = cables[stage]
        assert cable is not None, "the spec checks that every stage has a cable"
        rows = slice(start, start + shape.links[stage])
        _fill(links, rows, stage, ends, cable=cable, optics=optics)
        start = rows.stop
    names = Names({"nic": (shape.nic,), "switch": shape.switch_grids, "link": shape.link_grids, "optic": optics.grids})
    last = optics.grids[-1]
    return Topology(shape.hosts, _switches(shape), links, last.first + last.size, names, shape)


def _switches(shape: Shape) -> Switches:
    sizes = [grid.axes[1].size for grid in shape.switch_grids]
    index = [np.tile(np.arange(size, dtype=np.int32), shape.planes) for size in sizes]
    plane = [np.repeat(np.arange(shape.planes, dtype=np.uint8), size) for size in sizes]
    tier = [np.full(size * shape.planes, number, np.uint8) for number, size in enumerate(sizes)]
    return Switches(np.concatenate(tier), np.concatenate(plane), np.concatenate(index))


def _stages(shape: Shape) -> list[_Ends]:
    """Return the ends of every stage as small arrays that broadcast to (plane, lower node[, uplink])."""
    first = [shape.hosts + grid.first for grid in shape.switch_grids]
    plane = np.arange(shape.planes, dtype=np.int32)
    nic = np.arange(shape.hosts, dtype=np.int32)
    across = plane[:, None]
    stages = [_Ends(across, nic, across, first[0] + across * shape.t0 + nic // shape.down, nic % shape.down)]
    if shape.tiers >= TWO_TIERS:
        across, t0, up = plane[:, None, None], np.arange(shape.t0, dtype=np.int32)[:, None], _range(shape.up)
        if shape.tiers == TWO_TIERS:
            t1, port = up // shape.bundle, t0 * shape.bundle + up % shape.bundle
        else:
            t1, port = t0 // shape.pod_t0 * shape.pod_t1 + up, t0 % shape.pod_t0
        lower, upper = first[0] + across * shape.t0 + t0, first[1] + across * shape.t1 + t1
        stages.append(_Ends(across, lower, shape.down + up, upper, port))
    if shape.tiers == THREE_TIERS:
        t1, up = np.arange(shape.t1, dtype=np.int32)[:, None], _range(shape.t1_up)
        pod, place = t1 // shape.pod_t1, t1 % shape.pod_t1
        lower = first[1] + across * shape.t1 + t1
        upper = first[2] + across * shape.t2 + place * shape.group_t2 + up // shape.bundle
        stages.append(_Ends(across, lower, shape.pod_t0 + up, upper, pod * shape.bundle + up % shape.bundle))
    return stages


def _range(size: int) -> NDArray[np.int32]:
    return np.arange(size, dtype=np.int32)


def _fill(links: Links, rows: slice, stage: int, ends: _Ends, *, cable: LinkSpec, optics: _Optics) -> None:
    """Write the links of one stage into their rows; broadcasting writes each column once and keeps no copy."""
    nics = optics.shape.hosts
    grid = np.broadcast_shapes(*(part.shape for part in ends))

    def put(column: NDArray[Any], values: NDArray[Any] | int) -> None:
        column[rows].reshape(grid)[...] = values

    put(links.stage, stage)
    put(links.length_mm, cable.length)
    for name, values in ends._asdict().items():
        put(getattr(links, name), values)
    if cable.medium == "copper":
        put(links.lower_optic, NO_OPTIC)
        put(links.upper_optic, NO_OPTIC)
        return
    if stage == 0:
        put(links.lower_optic, optics.at_nic(ends.lower, ends.plane))
    else:
        put(links.lower_optic, optics.at_switch(stage - 1, ends.lower - nics, ends.lower_port))
    put(links.upper_optic, optics.at_switch(stage, ends.upper - nics, ends.upper_port))
