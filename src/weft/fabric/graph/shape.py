"""The shape of a Clos fabric as arithmetic: how many of everything, and who is wired to whom.

This is the implicit form of the topology. Where nothing has failed, a neighbour, a path or a name is a few integer
operations here and no table is kept. `topology` writes the same wiring out as columns; tests hold the two equal.

Wiring of one plane, d down ports and u uplinks at a T0 of radix k:

- NIC i hangs on T0 i // d, at down port i % d.
- Two tiers: uplink x of every T0 goes to T1 x // bundle, member x % bundle.
- Three tiers: T0s stand in pods of k/2; uplink x goes to T1 x of the pod; uplink y of T1 x goes to T2 y // bundle of
  group x. A T2 reaches T1 x of every pod.
"""

from dataclasses import dataclass
from functools import cached_property

from weft.core.ids import Axis, Grid
from weft.specs.fabric import FabricSpec

TWO_TIERS, THREE_TIERS = 2, 3


@dataclass(frozen=True)
class Shape:
    """Sizes of a fabric of identical planes; everything else follows from these by arithmetic."""

    hosts: int
    """NICs; each has one port in every plane."""
    planes: int
    """Independent networks."""
    tiers: int
    """Switch tiers of a plane."""
    radix: int
    """Ports of a switch."""
    down: int
    """Ports of a T0 that face NICs."""
    up: int
    """Ports of a T0 that face T1s; 0 with a single tier."""
    bundle: int = 1
    """Parallel links between the same two switches below the top tier's switches."""

    @cached_property
    def t0(self) -> int:
        """Return the number of T0s of a plane."""
        return -(-self.hosts // self.down)

    @cached_property
    def pods(self) -> int:
        """Return the number of pods of a plane: groups of T0s that share their T1s."""
        return 1 if self.tiers < THREE_TIERS else -(-self.t0 // self.pod_t0)

    @cached_property
    def pod_t0(self) -> int:
        """Return how many T0s a full pod has."""
        return self.t0 if self.tiers < THREE_TIERS else self.radix // 2

    @cached_property
    def pod_t1(self) -> int:
        """Return how many T1s a pod has."""
        if self.tiers == 1:
            return 0
        return self.up // self.bundle if self.tiers == TWO_TIERS else self.up

    @cached_property
    def t1(self) -> int:
        """Return the number of T1s of a plane."""
        return self.pods * self.pod_t1

    @cached_property
    def t1_up(self) -> int:
        """Return the number of uplinks of a T1."""
        return self.radix // 2 if self.tiers == THREE_TIERS else 0

    @cached_property
    def group_t2(self) -> int:
        """Return how many T2s the T1s with the same place in their pod share."""
        return self.t1_up // self.bundle if self.tiers == THREE_TIERS else 0

    @cached_property
    def t2(self) -> int:
        """Return the number of T2s of a plane."""
        return self.pod_t1 * self.group_t2

    @cached_property
    def switches(self) -> int:
        """Return the number of switches of all planes."""
        return self.planes * (self.t0 + self.t1 + self.t2)

    @cached_property
    def paths(self) -> int:
        """Return the number of longest paths between two NICs in one plane: one for each choice of uplinks."""
        return max(1, self.up) * max(1, self.t1_up)

    @cached_property
    def hops_max(self) -> int:
        """Return how many switches the longest path crosses."""
        return 1 if self.t0 == 1 else 3 if self.pods == 1 else 2 * self.tiers - 1

    @cached_property
    def links(self) -> tuple[int, ...]:
        """Return the number of links of each stage, over all planes: NIC-T0, T0-T1, T1-T2."""
        counts = (self.hosts, self.t0 * self.up, self.t1 * self.t1_up)
        return tuple(count * self.planes for count in counts[: self.tiers])

    @cached_property
    def nic(self) -> Grid:
        """Return the ids of the NICs."""
        return Grid("nic", (Axis("i", self.hosts),))

    @cached_property
    def switch_grids(self) -> tuple[Grid, ...]:
        """Return the ids of the switches, tier by tier, in one dense space; T0 first."""
        t0 = Grid("t0", (Axis("p", self.planes), Axis("i", self.t0)))
        t1 = Grid("t1", (Axis("p", self.planes), Axis("i", self.t1)), first=t0.size)
        t2 = Grid("t2", (Axis("p", self.planes), Axis("i", self.t2)), first=t0.size + t1.size)
        return (t0, t1, t2)[: self.tiers]

    @cached_property
    def link_grids(self) -> tuple[Grid, ...]:
        """Return the ids of the links, stage by stage, in one dense space; NIC-T0 first.

        `link0-p3-i5` joins NIC 5 to plane 3; `link1-p3-i17-u4` is uplink 4 of T0 17; `link2-...` of a T1.
        """
        below = (("i", self.hosts, None), ("i", self.t0, self.up), ("i", self.t1, self.t1_up))
        grids: list[Grid] = []
        first = 0
        for stage, (letter, count, ups) in enumerate(below[: self.tiers]):
            axes = [Axis("p", self.planes), Axis(letter, count)] + ([] if ups is None else [Axis("u", ups)])
            grids.append(Grid(f"link{stage}", tuple(axes), first=first))
            first += grids[-1].size
        return tuple(grids)

    def t0_of(self, nic: int) -> int:
        """Return the index, within any plane, of the T0 that `nic` hangs on."""
        return nic // self.down

    def down_port(self, nic: int) -> int:
        """Return the down port of its T0 that `nic` hangs on."""
        return nic % self.down

    def pod_of(self, t0: int) -> int:
        """Return the pod of T0 index `t0`."""
        return t0 // self.pod_t0

    def t1_above(self, t0: int, uplink: int) -> int:
        """Return the index, within the plane, of the T1 at `uplink` of T0 index `t0`."""
        if self.tiers == TWO_TIERS:
            return uplink // self.bundle
        return self.pod_of(t0) * self.pod_t1 + uplink

    def t2_above(self, t1: int, uplink: int) -> int:
        """Return the index, within the plane, of the T2 at `uplink` of T1 index `t1`."""
        return (t1 % self.pod_t1) * self.group_t2 + uplink // self.bundle


def shape_of(spec: FabricSpec) -> Shape:
    """Return the shape that a spec describes."""
    if spec.tiers == 1:
        return Shape(spec.gpus, spec.planes, 1, spec.radix, down=spec.radix, up=0)
    share_down, share_up = spec.oversubscription
    unit = spec.radix // (share_down + share_up)
    plain = Shape(spec.gpus, spec.planes, spec.tiers, spec.radix, down=unit * share_down, up=unit * share_up)
    if spec.build == "growable":
        return plain
    return Shape(**{**_sizes(plain), "bundle": _widest_bundle(plain)})


def _sizes(shape: Shape) -> dict[str, int]:
    return {name: getattr(shape, name) for name in ("hosts", "planes", "tiers", "radix", "down", "up", "bundle")}


def _widest_bundle(shape: Shape) -> int:
    """Return how many links each lower switch can have to each top switch, so that the fewest top switches are used."""
    below, uplinks = (shape.t0, shape.up) if shape.tiers == TWO_TIERS else (shape.pods, shape.t1_up)
    return max(width for width in range(1, uplinks + 1) if uplinks % width == 0 and below * width <= shape.radix)


def links_per_optic(spec: FabricSpec) -> int:
    """Return how many links one optic carries."""
    return max(1, spec.parts.optic.rate // spec.port_rate)
