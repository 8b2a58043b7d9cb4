"""The numbers of a site that the explanations share: frame time, round trip, entropy values, rotation.

A site file says nothing about end points and entropy values; what is assumed for them stands here with its source.
"""

from dataclasses import dataclass
from functools import cached_property

from weft.core.quantity import RATE
from weft.core.units import transfer_ps
from weft.fabric.graph.shape import Shape, shape_of
from weft.fabric.theory import frames
from weft.specs.fabric import FabricSpec
from weft.specs.site import SiteSpec

ENDPOINT_PS = 4_410_000
"""Time of both end points on one way: arXiv 2605.04333, section 5.2.1, 5.09 us through one switch and 20 m of cable and
6.54 us through three switches and 80 m leave the same 4.41 us once switches of 580 ns and light are taken off."""

LIGHT_PS_PER_MM = 4.9
"""Light in fibre."""

LEAST_VALUES, MOST_VALUES, VALUES_PER_PLANE = 128, 256, 32
"""Entropy values of a connection: 128 to 256, as many in each plane (arXiv 2605.04333, section 2.3). 32 in a plane is
256 over eight planes, and 128 over four, which gives the quarter of connections that a dead T1 touched in figure 8."""

TIMEOUT_PS = 262_144_000
"""Local acknowledgement timeout of the example in the OCP MRC interface: 1.024 us x 2^8."""

PS_PER_US = 1e6


@dataclass(frozen=True)
class Figures:
    """A site's fabric in the numbers that the formulas take."""

    name: str
    """Name of the site."""
    fabric: FabricSpec
    """Its fabric."""
    flap_fit: int
    """How often one link flaps."""

    @cached_property
    def shape(self) -> Shape:
        """Return the fabric's sizes."""
        return shape_of(self.fabric)

    @cached_property
    def split(self) -> str:
        """Return the split in words: "8 x 100 Gb/s"."""
        return f"{self.fabric.planes} x {RATE.format(self.fabric.port_rate)}"

    @cached_property
    def frame_bytes(self) -> int:
        """Return what one packet takes on the wire."""
        return frames.frame_bytes(self.fabric.packet)

    @cached_property
    def port_frame_us(self) -> float:
        """Return the time of one frame on a port."""
        return transfer_ps(self.frame_bytes, self.fabric.port_rate) / PS_PER_US

    @cached_property
    def round_trip_ps(self) -> int:
        """Return the round trip of a small message over the longest path without queues."""
        links = self.fabric.links
        stages = [stage for stage in (links.nic_t0, links.t0_t1, links.t1_t2) if stage is not None]
        crossed = (self.shape.hops_max + 1) // 2
        cable_mm = 2 * sum(stage.length for stage in stages[:crossed])
        one_way = ENDPOINT_PS + self.shape.hops_max * self.fabric.parts.switch.latency + cable_mm * LIGHT_PS_PER_MM
        return round(2 * one_way)

    @property
    def round_trip_us(self) -> float:
        """Return the round trip in microseconds."""
        return self.round_trip_ps / PS_PER_US

    @cached_property
    def values_per_plane(self) -> int:
        """Return a connection's entropy values in one plane; never more than there are paths."""
        planes = self.fabric.planes
        wanted = min(MOST_VALUES, max(LEAST_VALUES, VALUES_PER_PLANE * planes))
        return min(max(1, wanted // planes), self.shape.paths)

    @property
    def values(self) -> int:
        """Return a connection's entropy values in all planes."""
        return self.values_per_plane * self.fabric.planes

    @cached_property
    def rotation_ps(self) -> int:
        """Return the time in which a connection at the NIC's rate uses each entropy value once."""
        return frames.rotation_ps(self.values, self.frame_bytes, self.fabric.nic_rate)

    @property
    def rotation_us(self) -> float:
        """Return the rotation in microseconds."""
        return self.rotation_ps / PS_PER_US

    @cached_property
    def in_flight(self) -> float:
        """Return the frames that fill a NIC's round trip."""
        return frames.in_flight(self.fabric.nic_rate, self.round_trip_ps, self.frame_bytes)

    @cached_property
    def plane_in_flight(self) -> float:
        """Return the frames that fill a round trip in one plane."""
        return frames.in_flight(self.fabric.port_rate, self.round_trip_ps, self.frame_bytes)


def figures_of(site: SiteSpec) -> Figures:
    """Return the numbers of a site."""
    return Figures(site.name, site.fabric, site.failures.link_flap)
