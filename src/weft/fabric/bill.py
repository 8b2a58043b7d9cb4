"""The bill of materials of a fabric: how many of each part, what they draw, cost and how often one of them fails.

Counts follow from the shape alone. An optic carries as many links as its rate is a multiple of the port rate, and a
module is never shared between ports that face up and ports that face down.
"""

from dataclasses import dataclass
from typing import Any

from weft.core.units import Cents, Fit, Milliwatts
from weft.fabric.graph.shape import THREE_TIERS, Shape, links_per_optic, shape_of
from weft.specs.fabric import FabricSpec, LinkSpec, PartSpec


@dataclass(frozen=True)
class BillLine:
    """One line of the bill."""

    part: str
    """Which part: "switch", "nic", "optic", "fibre" or "copper"."""
    place: str
    """Where it is used: "t0", "t1 down", "nic"."""
    count: int
    """How many."""
    spec: PartSpec
    """What one of them is."""


@dataclass(frozen=True)
class Bill:
    """Every part of a fabric."""

    lines: tuple[BillLine, ...]
    """One line for each part and place."""

    def count(self, part: str) -> int:
        """Return how many of `part` there are."""
        return sum(line.count for line in self.lines if line.part == part)

    @property
    def power_mw(self) -> Milliwatts:
        """Return the power of all parts."""
        return Milliwatts(sum(line.count * line.spec.power for line in self.lines))

    @property
    def price_cents(self) -> Cents:
        """Return the price class of all parts together."""
        return Cents(sum(line.count * line.spec.price for line in self.lines))

    @property
    def failures_fit(self) -> Fit:
        """Return the rate at which some part of the fabric fails hard."""
        return Fit(sum(line.count * line.spec.failure_rate for line in self.lines))

    def as_json(self) -> list[dict[str, Any]]:
        """Return the lines as plain values."""
        return [
            {
                "part": line.part,
                "place": line.place,
                "count": line.count,
                "power_w": line.count * line.spec.power / 1000,
                "price_usd": line.count * line.spec.price / 100,
                "failures_fit": line.count * line.spec.failure_rate,
                "source": line.spec.source,
            }
            for line in self.lines
        ]


def bill_of(spec: FabricSpec) -> Bill:
    """Return the bill of materials of a fabric."""
    shape, parts = shape_of(spec), spec.parts
    counts = (shape.t0, shape.t1, shape.t2)[: shape.tiers]
    lines = [BillLine("nic", "nic", shape.hosts, parts.nic)]
    lines += [BillLine("switch", f"t{tier}", count * shape.planes, parts.switch) for tier, count in enumerate(counts)]
    for stage, cable in enumerate(cables_of(spec)):
        low, high = module_counts(shape, stage, links_per_optic(spec))
        places = (f"{_below(stage)} up" if stage else "nic", f"t{stage} down")
        if cable.medium == "optical":
            lines += [BillLine("optic", places[0], low, parts.optic), BillLine("optic", places[1], high, parts.optic)]
            lines.append(BillLine("fibre", f"{places[0]} to {places[1]}", max(low, high), parts.fibre))
        else:
            lines.append(BillLine("copper", f"{places[0]} to {places[1]}", max(low, high), parts.copper))
    return Bill(tuple(lines))


def module_counts(shape: Shape, stage: int, lanes: int) -> tuple[int, int]:
    """Return how many modules of `lanes` links each end of a stage needs, lower end first."""
    if stage == 0:
        full, rest = divmod(shape.hosts, shape.down)
        upper = full * _modules(shape.down, lanes) + _modules(rest, lanes)
        return shape.hosts * _modules(shape.planes, lanes), upper * shape.planes
    if stage == 1:
        upper = _t1_down_modules(shape, lanes)
        return shape.t0 * _modules(shape.up, lanes) * shape.planes, upper * shape.planes
    upper = shape.t2 * _modules(shape.pods * shape.bundle, lanes)
    return shape.t1 * _modules(shape.t1_up, lanes) * shape.planes, upper * shape.planes


def _t1_down_modules(shape: Shape, lanes: int) -> int:
    if shape.tiers < THREE_TIERS:
        return shape.t1 * _modules(shape.t0 * shape.bundle, lanes)
    full, rest = divmod(shape.t0, shape.pod_t0)
    return shape.pod_t1 * (full * _modules(shape.pod_t0, lanes) + _modules(rest, lanes))


def _modules(links: int, lanes: int) -> int:
    return -(-links // lanes)


def _below(stage: int) -> str:
    return f"t{stage - 1}"


def cables_of(spec: FabricSpec) -> list[LinkSpec]:
    """Return the cables of every stage, the NICs' first."""
    cables = (spec.links.nic_t0, spec.links.t0_t1, spec.links.t1_t2)[: spec.tiers]
    return [cable for cable in cables if cable is not None]
