"""Addresses that are paths: SRv6 micro-segments (uSIDs) and entropy values.

Format F3216 (RFC 9800, NEXT-CSID): a 32-bit block and six 16-bit uSIDs in one IPv6 address, the carrier. A switch that
finds its own uSID first shifts the rest left and looks up again; no header beyond the address is needed.

- Global uSIDs, 0x0001 to 0xDFFF: each switch owns one or, where links are bundled, one alias for each bundle member, so
  that a carrier names the very link. Planes follow each other with a constant step, so that changing the plane of a
  carrier adds the same number to every switch uSID (arXiv 2605.04333, section 2.3).
- Local uSIDs, 0xE000 + port: the last hop, out of a T0's down port; the same numbers at every T0.

An entropy value (EV) names plane and uplinks, densely: 8 planes x 256 uplinks are 11 bits. Source, destination and EV
together are one carrier. What a switch does with it is `tables`' and `walk`'s business.
"""

import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from weft.core.errors import UsageError
from weft.core.ids import Axis, Grid, IdError
from weft.fabric.graph.shape import THREE_TIERS, TWO_TIERS, Shape
from weft.fabric.graph.topology import Topology

BLOCK = 0xFCBBBBBB
"""The first 32 bits of every carrier: fcbb:bbbb::/32, as in published uSID set-ups."""
USIDS_IN_CARRIER = 6
FIRST_GLOBAL, LAST_GLOBAL = 0x0001, 0xDFFF
LOCAL = 0xE000
"""uSID of down port 0; port n has LOCAL + n."""
LOCAL_PORTS = 0x10000 - LOCAL

_USID_BITS = 16
_BODY_BITS = _USID_BITS * USIDS_IN_CARRIER
_BODY_MASK = (1 << _BODY_BITS) - 1
_NOBODY = -1

Column = NDArray[np.int64]


def pack(usids: Sequence[int], block: int = BLOCK) -> int:
    """Return the carrier that names `usids` in order."""
    if len(usids) > USIDS_IN_CARRIER:
        raise UsageError(f"a carrier holds {USIDS_IN_CARRIER} uSIDs, not {len(usids)}")
    body = 0
    for usid in usids:
        assert 0 < usid < 1 << _USID_BITS, usid
        body = body << _USID_BITS | usid
    return block << _BODY_BITS | body << _USID_BITS * (USIDS_IN_CARRIER - len(usids))


def unpack(carrier: int) -> tuple[int, ...]:
    """Return the uSIDs of a carrier up to the first empty one."""
    usids: list[int] = []
    while usid := first_usid(carrier):
        usids.append(usid)
        carrier = shift(carrier)
    return tuple(usids)


def first_usid(carrier: int) -> int:
    """Return the uSID that a switch matches; 0 where the carrier is used up."""
    return carrier >> (_BODY_BITS - _USID_BITS) & 0xFFFF


def block_of(carrier: int) -> int:
    """Return the first 32 bits of an address."""
    return carrier >> _BODY_BITS


def shift(carrier: int) -> int:
    """Return the carrier with its first uSID removed and the others moved up."""
    return carrier & ~_BODY_MASK | carrier << _USID_BITS & _BODY_MASK


def to_text(carrier: int) -> str:
    """Return an address as IPv6 text."""
    return str(ipaddress.IPv6Address(carrier))


def from_text(text: str) -> int:
    """Return the address that IPv6 text stands for."""
    try:
        return int(ipaddress.IPv6Address(text))
    except ipaddress.AddressValueError:
        raise UsageError(f"{text!r} is not an IPv6 address; carriers look like 'fcbb:bbbb:1:201:2:e005::'") from None


def prefix_text(usid: int, block: int = BLOCK) -> str:
    """Return the 48 bits that a table matches, as an IPv6 prefix."""
    return f"{to_text(pack((usid,), block))}/48"


@dataclass(frozen=True)
class EvSpace:
    """The entropy values of a fabric: dense integers with coordinates plane, uplink of T0, uplink of T1."""

    shape: Shape
    """The fabric."""

    @cached_property
    def grid(self) -> Grid:
        """Return the coordinates: p for the plane, u for the uplink of the T0, v for that of the T1."""
        sizes = (("p", self.shape.planes), ("u", self.shape.up), ("v", self.shape.t1_up))
        return Grid("ev", tuple(Axis(letter, size) for letter, size in sizes[: self.shape.tiers]))

    @cached_property
    def count(self) -> int:
        """Return how many entropy values there are."""
        return self.grid.size

    @cached_property
    def bits(self) -> int:
        """Return how many bits hold any of them."""
        return (self.count - 1).bit_length()

    def coordinates(self, ev: int) -> tuple[int, int, int]:
        """Return plane and both uplinks of an EV; 0 for an uplink that the fabric does not have."""
        plane, *uplinks = self.grid.coordinates(ev)
        first, second = (*uplinks, 0, 0)[:2]
        return plane, first, second

    def name(self, ev: int) -> str:
        """Return an EV as text: "p3-u17"."""
        return self.grid.name(ev).removeprefix("ev-")

    def parse(self, text: str) -> int:
        """Return the EV that `text` means: its number, or its coordinates as "p3-u17"."""
        try:
            if text.isascii() and text.isdecimal():
                self.grid.coordinates(int(text))
                return int(text)
            return self.grid.parse(f"ev-{text.removeprefix('ev-')}")
        except IdError:
            last = self.count - 1
            known = f"they run from 0 to {last}, or from {self.name(0)} to {self.name(last)}"
            raise UsageError(f"{text!r} is not an entropy value of this fabric; {known}") from None


@dataclass(frozen=True, eq=False)
class UsidPlan:
    """Which switch owns which global uSIDs."""

    first: NDArray[np.uint16]
    """First uSID of every switch."""
    aliases: NDArray[np.uint16]
    """How many it owns, from `first` on; alias m stands for member m of a bundle."""
    block: int = BLOCK
    """The block they live in."""

    def usids(self, switch: int) -> range:
        """Return every uSID of a switch."""
        first = int(self.first[switch])
        return range(first, first + int(self.aliases[switch]))

    def usid(self, switch: int, member: int = 0) -> int:
        """Return the uSID of a switch that stands for bundle member `member`."""
        assert 0 <= member < self.aliases[switch], (switch, member)
        return int(self.first[switch]) + member

    @cached_property
    def owners(self) -> NDArray[np.int32]:
        """Return the switch that owns each global uSID, or -1."""
        owner = np.full(LAST_GLOBAL + 1, _NOBODY, np.int32)
        count = self.aliases.astype(np.int64)
        within = np.arange(count.sum()) - np.repeat(np.cumsum(count) - count, count)
        owner[np.repeat(self.first.astype(np.int64), count) + within] = np.repeat(np.arange(len(count)), count)
        return owner

    def owner(self, usid: int) -> tuple[int, int] | None:
        """Return switch and bundle member that a global uSID stands for, or nothing."""
        switch = int(self.owners[usid]) if usid <= LAST_GLOBAL else _NOBODY
        return None if switch == _NOBODY else (switch, usid - int(self.first[switch]))


def plan_of_shape(shape: Shape, block: int = BLOCK) -> UsidPlan:
    """Return the uSID plan of a built fabric: plane by plane, tier by tier, bundle members side by side."""
    wide = (shape.bundle, shape.bundle) if shape.tiers == TWO_TIERS else (1, shape.bundle, shape.bundle)
    per_tier = [count * width for count, width in zip((shape.t0, shape.t1, shape.t2), wide, strict=False)]
    _refuse_overfull(shape.planes * sum(per_tier))
    first: list[Column] = []
    aliases: list[Column] = []
    for tier, grid in enumerate(shape.switch_grids):
        start = FIRST_GLOBAL + sum(per_tier[:tier])
        plane, index = np.divmod(np.arange(grid.size), max(1, grid.axes[1].size))
        first.append(start + plane * sum(per_tier) + index * wide[tier])
        aliases.append(np.full(grid.size, wide[tier]))
    return UsidPlan(np.concatenate(first).astype(np.uint16), np.concatenate(aliases).astype(np.uint16), block)


def plan_of_topology(topology: Topology, block: int = BLOCK) -> UsidPlan:
    """Return a uSID plan read off the wiring: each switch gets as many aliases as its widest bundle has links."""
    links, switches = topology.links, topology.switches
    _refuse_wide_switches(topology)
    between = links.lower >= topology.nics
    low, high = links.lower[between].astype(np.int64), links.upper[between].astype(np.int64)
    pairs, width = np.unique(np.minimum(low, high) << 32 | np.maximum(low, high), return_counts=True)
    aliases = np.ones(len(switches.tier), np.int64)
    for end in (pairs >> 32, pairs & 0xFFFFFFFF):
        np.maximum.at(aliases, end - topology.nics, width)
    _refuse_overfull(int(aliases.sum()))
    order = np.lexsort((switches.index, switches.tier, switches.plane))
    first = np.empty(len(order), np.int64)
    first[order] = FIRST_GLOBAL + np.cumsum(aliases[order]) - aliases[order]
    return UsidPlan(first.astype(np.uint16), aliases.astype(np.uint16), block)


def _refuse_overfull(needed: int) -> None:
    room = LAST_GLOBAL - FIRST_GLOBAL + 1
    if needed > room:
        raise UsageError(
            f"this fabric needs {needed:,} switch uSIDs, but 16 bits hold {room:,} (0x0001 to 0xdfff); "
            "use fewer planes, switches with more ports, or fewer GPUs"
        )


def _refuse_wide_switches(topology: Topology) -> None:
    down = topology.links.upper_port[topology.links.lower < topology.nics]
    if len(down) and int(down.max()) >= LOCAL_PORTS:
        raise UsageError(f"a NIC hangs on port {int(down.max())}, but local uSIDs reach port {LOCAL_PORTS - 1}")


@dataclass(frozen=True)
class Route:
    """What a carrier says, as far as it says it."""

    plane: int
    """The plane."""
    source_t0: int
    """Index of the T0 that it starts at."""
    destination: int
    """The NIC that it ends at."""
    uplink: int | None = None
    """Uplink of the source T0; none where both NICs hang on the same T0."""
    second_uplink: int | None = None
    """Uplink of the T1; none where the path stays below the third tier."""


@dataclass(frozen=True)
class Addressing:
    """Carriers of a built fabric by arithmetic: (source, destination, EV) to address and back."""

    shape: Shape
    """The fabric."""
    block: int = BLOCK
    """First 32 bits of every carrier."""

    @cached_property
    def plan(self) -> UsidPlan:
        """Return the uSIDs of every switch."""
        return plan_of_shape(self.shape, self.block)

    @cached_property
    def evs(self) -> EvSpace:
        """Return the entropy values."""
        return EvSpace(self.shape)

    def carrier(self, source: int, destination: int, ev: int) -> int:
        """Return the address that takes a packet from NIC `source` to NIC `destination` on the path that `ev` names."""
        shape = self.shape
        plane, first, second = self.evs.coordinates(ev)
        start, end = shape.t0_of(source), shape.t0_of(destination)
        last = LOCAL + shape.down_port(destination)
        if start == end:
            return pack((self._usid(0, plane, start), last), self.block)
        bundled = shape.tiers == TWO_TIERS
        up = self._usid(1, plane, shape.t1_above(start, first), first % shape.bundle if bundled else 0)
        into_end = self._usid(0, plane, end, first % shape.bundle if bundled else 0)
        if shape.pod_of(start) == shape.pod_of(end):
            return pack((self._usid(0, plane, start), up, into_end, last), self.block)
        member = second % shape.bundle
        top = self._usid(2, plane, shape.t2_above(shape.t1_above(start, first), second), member)
        down = self._usid(1, plane, shape.t1_above(end, first), member)
        return pack((self._usid(0, plane, start), up, top, down, into_end, last), self.block)

    def decode(self, carrier: int) -> Route:
        """Return what a carrier says, or raise where it is not one of this fabric's."""
        usids = unpack(carrier)
        switches = [self.plan.owner(usid) for usid in usids[:-1]]
        known = [switch for switch in switches if switch is not None]
        wrong = UsageError(f"{to_text(carrier)} is not a carrier of this fabric")
        if block_of(carrier) != self.block or len(known) != len(usids) - 1 or len(known) not in (1, 3, 5):
            raise wrong
        tiers = [self._place(switch) for switch, _ in known]
        tier, plane, start = tiers[0]
        end = tiers[-1][2]
        destination = end * self.shape.down + usids[-1] - LOCAL
        uplink, second = self._uplinks(tiers, [member for _, member in known])
        route = Route(plane, start, destination, uplink, second)
        # A sequence of real switches is not yet a path: only what encodes back to itself is.
        if tier != 0 or not 0 <= usids[-1] - LOCAL < self.shape.down or not 0 <= destination < self.shape.hosts:
            raise wrong
        if self.carrier(start * self.shape.down, destination, self._ev(route)) != carrier:
            raise wrong
        return route

    def carriers(
        self, source: Column, destination: Column, ev: Column
    ) -> tuple[NDArray[np.uint64], NDArray[np.uint64]]:
        """Return the carriers of many packets at once, as the upper and lower 64 bits of each."""
        shape, bundle = self.shape, self.shape.bundle
        rest, second = np.divmod(ev, max(1, shape.t1_up))
        plane, first = np.divmod(rest, max(1, shape.up))
        start, end = source // shape.down, destination // shape.down
        last = LOCAL + destination % shape.down
        t0 = self._usids(0, plane, start)
        lanes = [t0, last, *(np.zeros_like(t0) for _ in range(4))]
        if shape.tiers >= TWO_TIERS:
            two = shape.tiers == TWO_TIERS
            member = first % bundle if two else 0
            place = first // bundle if two else first
            pods = (start // shape.pod_t0, end // shape.pod_t0)
            up = self._usids(1, plane, pods[0] * shape.pod_t1 + place, member)
            into_end = self._usids(0, plane, end, member)
            lanes = _choose(start == end, lanes, [t0, up, into_end, last])
            if shape.tiers == THREE_TIERS:
                top = self._usids(2, plane, first * shape.group_t2 + second // bundle, second % bundle)
                down = self._usids(1, plane, pods[1] * shape.pod_t1 + first, second % bundle)
                lanes = _choose(pods[0] == pods[1], lanes, [t0, up, top, down, into_end, last])
        words = [lane.astype(np.uint64) for lane in lanes]
        upper = np.uint64(self.block) << np.uint64(32) | words[0] << np.uint64(16) | words[1]
        lower = words[2] << np.uint64(48) | words[3] << np.uint64(32) | words[4] << np.uint64(16) | words[5]
        return upper, lower

    def _usid(self, tier: int, plane: int, index: int, member: int = 0) -> int:
        return self.plan.usid(self.shape.switch_grids[tier].id(plane, index), member)

    def _usids(self, tier: int, plane: Column, index: Column, member: Column | int = 0) -> Column:
        grid = self.shape.switch_grids[tier]
        return self.plan.first[grid.first + plane * grid.axes[1].size + index].astype(np.int64) + member

    def _place(self, switch: int) -> tuple[int, int, int]:
        for tier, grid in enumerate(self.shape.switch_grids):
            if grid.owns(switch):
                plane, index = grid.coordinates(switch)
                return tier, plane, index
        raise AssertionError(switch)

    def _uplinks(self, tiers: list[tuple[int, int, int]], members: list[int]) -> tuple[int | None, int | None]:
        shape = self.shape
        if len(tiers) == 1:
            return None, None
        bundle = shape.bundle
        if shape.tiers == TWO_TIERS:
            return tiers[1][2] * bundle + members[1], None
        first = tiers[1][2] % shape.pod_t1 if shape.pod_t1 else 0
        second = None if len(tiers) == TWO_TIERS + 1 else tiers[2][2] % shape.group_t2 * bundle + members[2]
        return first, second

    def _ev(self, route: Route) -> int:
        coordinates = (route.plane, route.uplink or 0, route.second_uplink or 0)
        try:
            return self.evs.grid.id(*coordinates[: self.shape.tiers])
        except IdError:
            return 0


def _choose(short: NDArray[np.bool_], near: list[Column], far: list[Column]) -> list[Column]:
    """Return, uSID by uSID, the near carrier where `short` holds and the far one elsewhere, both padded with zeros."""
    none = np.zeros_like(near[0])
    far += [none] * (USIDS_IN_CARRIER - len(far))
    return [np.where(short, one, other) for one, other in zip(near, far, strict=True)]
