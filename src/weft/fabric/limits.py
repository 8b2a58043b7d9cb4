"""The limits of a fabric in closed form: paths, bisection, latency, and what each failure takes away.

Everything here is arithmetic over the spec; nothing is built or simulated. Shares are exact fractions.
"""

from dataclasses import dataclass
from fractions import Fraction

from weft.core.units import BitsPerSecond, Picoseconds
from weft.fabric.bill import bill_of
from weft.fabric.graph.shape import THREE_TIERS, TWO_TIERS, links_per_optic, shape_of
from weft.specs.fabric import FabricSpec, LinksSpec, clos_capacity

PICOSECONDS_PER_MILLIMETRE = Fraction(49, 10)
"""Light in glass, index 1.468 (G.652 fibre): 4.9 ps for a millimetre; copper is within a fifth of it."""


@dataclass(frozen=True)
class Blast:
    """What one failure takes away."""

    part: str
    """What fails."""
    nics: int
    """NICs affected."""
    share: Fraction
    """Share of their bandwidth that each of them loses: at once to its port, or of what its T0 can send upwards."""


@dataclass(frozen=True)
class Limits:
    """What a fabric can and cannot do, by arithmetic."""

    hosts_max: int
    """GPUs that these tiers and this radix reach."""
    hops_max: int
    """Switches on the longest path."""
    paths: int
    """Longest paths between two NICs over all planes."""
    bisection_bps: BitsPerSecond
    """Traffic, one direction, that two halves of the NICs can exchange."""
    latency_floor_ps: Picoseconds
    """Time of the first bit over the longest path through empty switches."""
    blasts: tuple[Blast, ...]
    """What each kind of failure takes away, smallest part first."""

    def share_lost(self, part: str) -> Fraction:
        """Return the share that those who feel the failure of `part` lose; nothing where there is no such part."""
        return next((blast.share for blast in self.blasts if blast.part == part), Fraction(0))


def limits_of(spec: FabricSpec) -> Limits:
    """Return the limits of a fabric."""
    shape = shape_of(spec)
    down, up = spec.oversubscription if spec.tiers > 1 else (1, 1)
    return Limits(
        hosts_max=clos_capacity(spec.tiers, spec.radix, spec.oversubscription),
        hops_max=shape.hops_max,
        paths=shape.planes * shape.paths,
        bisection_bps=BitsPerSecond(shape.hosts * spec.nic_rate * min(up, down) // (2 * down)),
        latency_floor_ps=latency_floor_ps(spec),
        blasts=blasts_of(spec),
    )


def latency_floor_ps(spec: FabricSpec) -> Picoseconds:
    """Return the time of the first bit over the longest path through empty switches."""
    shape = shape_of(spec)
    stages = (shape.hops_max + 1) // 2
    cables = (spec.links.nic_t0, spec.links.t0_t1, spec.links.t1_t2)[:stages]
    length_mm = 2 * sum(cable.length for cable in cables if cable is not None)
    return Picoseconds(round(length_mm * PICOSECONDS_PER_MILLIMETRE) + shape.hops_max * spec.parts.switch.latency)


def blasts_of(spec: FabricSpec) -> tuple[Blast, ...]:
    """Return what each kind of failure takes away, smallest part first."""
    shape = shape_of(spec)
    below_t0 = min(shape.down, shape.hosts)
    plane = Fraction(1, shape.planes)
    lanes = links_per_optic(spec)
    blasts = [
        Blast("nic link", 1, plane),
        Blast("nic optic", 1, min(Fraction(1), lanes * plane)),
        Blast("t0 down optic", min(lanes, below_t0), plane),
        Blast("t0", below_t0, plane),
    ]
    if shape.tiers >= TWO_TIERS:
        blasts += [
            Blast("t0-t1 link", below_t0, Fraction(1, shape.up)),
            Blast("t0 up optic", below_t0, min(Fraction(1), Fraction(lanes, shape.up))),
            Blast("t1", min(shape.pod_t0 * shape.down, shape.hosts), Fraction(1, shape.pod_t1)),
        ]
    if shape.tiers == THREE_TIERS:
        pod = min(shape.pod_t0 * shape.down, shape.hosts)
        blasts += [
            Blast("t1-t2 link", pod, Fraction(1, shape.pod_t1 * shape.t1_up)),
            Blast("t2", shape.hosts, Fraction(1, shape.t2)),
        ]
    return tuple(blasts)


@dataclass(frozen=True)
class Ratio:
    """How much of the three-tier network's hardware a design needs for each GPU."""

    switches_per_gpu: Fraction
    """Switches for each GPU, over the three-tier network's."""
    optics_per_gpu: Fraction | None
    """Optics for each GPU, over the three-tier network's; none where no link is optical."""


def ratio_to_three_tier(spec: FabricSpec) -> Ratio | None:
    """Return a design's hardware for each GPU over that of the three-tier network of the same switches and NICs."""
    rival = three_tier_rival(spec)
    if rival is None:
        return None
    ours, theirs = bill_of(spec), bill_of(rival)

    def share(part: str) -> Fraction | None:
        base = Fraction(theirs.count(part), rival.gpus)
        return Fraction(ours.count(part), spec.gpus) / base if base else None

    switches = share("switch")
    assert switches is not None
    return Ratio(switches, share("optic"))


def three_tier_rival(spec: FabricSpec) -> FabricSpec | None:
    """Return the full three-tier network, one plane at the NIC's whole rate, of the same parts; none if ports lack."""
    radix = spec.parts.switch.capacity // spec.nic_rate // 2 * 2
    if radix < 4:  # noqa: PLR2004  below four ports there is nothing to build three tiers of
        return None
    middle = spec.links.t0_t1 or spec.links.nic_t0
    links = LinksSpec(nic_t0=spec.links.nic_t0, t0_t1=middle, t1_t2=spec.links.t1_t2 or middle)
    plain = (1, 1)
    return spec.model_copy(
        update={
            "planes": 1,
            "port_rate": spec.nic_rate,
            "tiers": THREE_TIERS,
            "radix": radix,
            "oversubscription": plain,
            "gpus": clos_capacity(THREE_TIERS, radix, plain),
            "links": links,
        }
    )
