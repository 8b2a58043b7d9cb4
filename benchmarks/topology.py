"""How fast the 131,072-GPU fabric is written out, and how much memory that needs.

Prints the time and the peak memory of the column builder at full size, and the ratio of its links per second to those
of a plain-Python builder that makes one object for each link of a slice: one plane of 4,096 NICs.
"""

import resource
import time
from dataclasses import dataclass, fields

from weft.fabric.graph.shape import Shape, shape_of
from weft.fabric.graph.topology import build
from weft.specs import load_site

SITE = "gb200-8x100g-131k"
SLICE_NICS = 4096


@dataclass(frozen=True, slots=True)
class PlainLink:
    """One link as an object, with what the columns hold."""

    lower: int
    lower_port: int
    upper: int
    upper_port: int
    plane: int
    stage: int
    rate_bps: int
    length_mm: int
    lower_optic: int
    upper_optic: int


def plain_links(shape: Shape, lanes: int, rate_bps: int) -> list[PlainLink]:
    """Return the links of a two-tier fabric of one plane without bundles, made one by one."""
    t0, t1 = (shape.hosts + grid.first for grid in shape.switch_grids)
    slots = shape.radix // lanes

    def optic(node: int, port: int) -> int:
        return shape.hosts + (node - shape.hosts) * slots + port // lanes

    links: list[PlainLink] = []
    for nic in range(shape.hosts):
        above, port = t0 + shape.t0_of(nic), shape.down_port(nic)
        links.append(PlainLink(nic, 0, above, port, 0, 0, rate_bps, 10_000, nic, optic(above, port)))
    for index in range(shape.t0):
        for up in range(shape.up):
            below, port, above = t0 + index, shape.down + up, t1 + shape.t1_above(index, up)
            optics = optic(below, port), optic(above, index)
            links.append(PlainLink(below, port, above, index, 0, 1, rate_bps, 30_000, *optics))
    return links


def main() -> None:
    """Measure and print."""
    spec = load_site(SITE).fabric
    before_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    start = time.perf_counter()
    topology = build(spec)
    build_s = time.perf_counter() - start
    peak_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    start = time.perf_counter()
    ports = len(topology.ports.link)
    ports_s = time.perf_counter() - start

    piece = spec.model_copy(update={"gpus": SLICE_NICS, "planes": 1})
    start = time.perf_counter()
    plain = plain_links(shape_of(piece), spec.parts.optic.rate // spec.port_rate, spec.port_rate)
    plain_s = time.perf_counter() - start
    columns = build(piece).links
    for name in (field.name for field in fields(PlainLink)):
        assert getattr(columns, name).tolist() == [getattr(link, name) for link in plain], name

    fast, slow = len(topology.links) / build_s, len(plain) / plain_s
    peak, before = peak_kib / 1024, before_kib / 1024
    print(f"{SITE}: {len(topology.links):,} links, {len(topology.switches.tier):,} switches")
    print(f"  columns: {build_s:.3f} s (limit 2 s)")
    print(f"  peak memory: {peak:.0f} MiB, of which Python and imports {before:.0f} MiB (limit 1 GiB)")
    print(f"  port table ({ports:,} ports): {ports_s:.3f} s")
    print(f"  plain Python on a slice of {len(plain):,} links, equal to the columns: {plain_s:.3f} s")
    print(f"  ratio, links per second, columns to plain Python: {fast / slow:.0f}")


if __name__ == "__main__":
    main()
