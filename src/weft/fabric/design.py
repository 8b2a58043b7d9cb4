"""Designs: one fabric described in figures, and every sensible fabric for a number of GPUs side by side.

`describe` answers for a site; `candidates` answers "which network?": for each split of the NIC into planes the fewest
tiers that reach, cheapest first.
"""

from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from weft.core import quantity
from weft.core.errors import UsageError
from weft.core.provenance import provenance
from weft.core.units import BitsPerSecond, Cents, Milliwatts
from weft.fabric.bill import Bill, bill_of
from weft.fabric.graph.shape import Shape, shape_of
from weft.fabric.limits import Limits, Ratio, limits_of, ratio_to_three_tier
from weft.specs.fabric import FabricSpec, LinksSpec, SwitchPart, clos_capacity

PORT_RATES_BPS = tuple(rate * 10**9 for rate in (10, 25, 40, 50, 100, 200, 400, 800, 1600))
"""Ethernet port rates that exist or are being standardised (IEEE 802.3 up to 1.6 Tb/s)."""
SMALLEST_PORT_BPS = 100 * 10**9
"""Switches of 51.2 Tb/s and more have lanes of 100 Gb/s or faster: a slower port wastes lanes."""
_MOST_PLANES = 16
_MOST_TIERS = 3


@dataclass(frozen=True)
class Design:
    """A fabric in figures."""

    name: str
    """What it is called: a site's name, or the split, such as "8 x 100 Gb/s, 2 tiers"."""
    spec: FabricSpec
    """What was asked for."""
    shape: Shape
    """How many of everything."""
    limits: Limits
    """What it can do, and what each failure takes away."""
    bill: Bill
    """What it is made of."""
    ratio: Ratio | None
    """Hardware for each GPU over the three-tier network's, where one can be built of these parts."""

    def as_json(self) -> dict[str, Any]:
        """Return the stable form for programs."""
        shape, spec = self.shape, self.spec
        tiers = {f"t{tier}": grid.size for tier, grid in enumerate(shape.switch_grids)}
        return {
            "name": self.name,
            "gpus": spec.gpus,
            "gpus_max": self.limits.hosts_max,
            "planes": spec.planes,
            "tiers": spec.tiers,
            "radix": spec.radix,
            "port_rate_bps": spec.port_rate,
            "switches": {"t0": 0, "t1": 0, "t2": 0, **tiers, "total": shape.switches},
            "links": sum(shape.links),
            "optics": self.bill.count("optic"),
            "hops_max": self.limits.hops_max,
            "paths_cross_t1": self.limits.paths,
            "latency_floor_ps": self.limits.latency_floor_ps,
            "loss": {
                "fabric_link": float(self.limits.share_lost("t0-t1 link")),
                "nic_link": float(self.limits.share_lost("nic link")),
                "t0": float(self.limits.share_lost("t0")),
                "t1": float(self.limits.share_lost("t1")),
            },
            "blast_radius": [
                {"part": blast.part, "nics": blast.nics, "share": float(blast.share)} for blast in self.limits.blasts
            ],
            "bisection_bps": self.limits.bisection_bps,
            "power_w": self.bill.power_mw / 1000,
            "price_usd": self.bill.price_cents / 100,
            "failures_fit": self.bill.failures_fit,
            "bill": self.bill.as_json(),
            "ratio_to_three_tier": None if self.ratio is None else ratio_json(self.ratio),
            "provenance": provenance(spec.as_written()).as_json(),
        }


def ratio_json(ratio: Ratio) -> dict[str, float | None]:
    """Return the ratios as plain numbers."""
    optics = ratio.optics_per_gpu
    return {
        "switches_per_gpu": float(ratio.switches_per_gpu),
        "optics_per_gpu": None if optics is None else float(optics),
    }


def describe(name: str, spec: FabricSpec) -> Design:
    """Return the design that a spec describes."""
    return Design(name, spec, shape_of(spec), limits_of(spec), bill_of(spec), ratio_to_three_tier(spec))


def candidates(
    template: FabricSpec, gpus: int, nic_rate: BitsPerSecond, switch: BitsPerSecond, planes: tuple[int, ...] = ()
) -> tuple[Design, ...]:
    """Return every sensible fabric for `gpus`, cheapest first; parts, cables and packets come from `template`.

    `planes` keeps only these splits of the NIC. For each split the fewest tiers that reach are taken, built compactly.
    """
    if gpus < 1:
        raise UsageError(f"a fabric for {gpus} GPUs makes no sense; ask for at least 1")
    splits = [split for split in _splits(nic_rate) if not planes or split in planes]
    if not splits:
        known = ", ".join(str(split) for split in _splits(nic_rate))
        shown = quantity.RATE.format(nic_rate)
        raise UsageError(f"a NIC of {shown} cannot be split so; it can be split into {known or 'nothing'} planes")
    found = [
        describe(f"{split} x {quantity.RATE.format(spec.port_rate)}, {_tiers(spec.tiers)}", spec)
        for split in splits
        if (spec := _smallest(template, gpus, nic_rate, switch, split)) is not None
    ]
    if not found:
        raise UsageError(_out_of_reach(gpus, nic_rate, switch, splits))
    return tuple(
        sorted(found, key=lambda design: (design.bill.price_cents, design.limits.hops_max, -design.spec.planes))
    )


def _splits(nic_rate: int) -> list[int]:
    smallest = min(nic_rate, SMALLEST_PORT_BPS)
    ports = [rate for rate in PORT_RATES_BPS if smallest <= rate and nic_rate % rate == 0]
    return sorted(nic_rate // rate for rate in ports if nic_rate // rate <= _MOST_PLANES)


def _smallest(
    template: FabricSpec, gpus: int, nic_rate: BitsPerSecond, switch: BitsPerSecond, planes: int
) -> FabricSpec | None:
    port_rate = nic_rate // planes
    radix = switch // port_rate // 2 * 2
    for tiers in range(1, _MOST_TIERS + 1):
        if radix >= 2 and clos_capacity(tiers, radix, (1, 1)) >= gpus:  # noqa: PLR2004  a switch has two ports
            return template.model_copy(
                update={
                    "gpus": gpus,
                    "nic_rate": nic_rate,
                    "planes": planes,
                    "port_rate": BitsPerSecond(port_rate),
                    "tiers": tiers,
                    "radix": radix,
                    "oversubscription": (1, 1),
                    "build": "compact",
                    "links": _all_stages(template.links),
                    "parts": template.parts.model_copy(
                        update={
                            "switch": _scaled(template.parts.switch, switch),
                            "nic": template.parts.nic.model_copy(update={"rate": nic_rate}),
                        }
                    ),
                }
            )
    return None


def _scaled(part: SwitchPart, capacity: BitsPerSecond) -> SwitchPart:
    """Return the switch at another capacity; power and price are taken to grow with it, which flatters neither side."""
    if capacity == part.capacity:
        return part
    factor = Fraction(capacity, part.capacity)
    return part.model_copy(
        update={
            "capacity": capacity,
            "power": Milliwatts(round(part.power * factor)),
            "price": Cents(round(part.price * factor)),
        }
    )


def _all_stages(links: LinksSpec) -> LinksSpec:
    middle = links.t0_t1 or links.nic_t0
    return LinksSpec(nic_t0=links.nic_t0, t0_t1=middle, t1_t2=links.t1_t2 or middle)


def _tiers(count: int) -> str:
    return "1 tier" if count == 1 else f"{count} tiers"


def _out_of_reach(gpus: int, nic_rate: int, switch: int, splits: list[int]) -> str:
    radix = max(switch // (nic_rate // split) for split in splits) // 2 * 2
    shown = quantity.RATE.format
    if radix < 2:  # noqa: PLR2004  a switch has two ports
        return f"a switch of {shown(switch)} has no two ports for a NIC of {shown(nic_rate)}; name a larger switch"
    reach = clos_capacity(_MOST_TIERS, radix, (1, 1))
    return f"{gpus:,} GPUs are out of reach: three tiers of {radix}-port switches reach {reach:,}; name a larger switch"
