"""When what there is no longer is enough: demand, hardware, power, floor and money over years, in many futures.

Each future draws its own growth. Every quarter as many GPUs of the newest generation are bought as the demand asks for;
what keeps the purchase below that is the limit that binds. Old hardware goes at its age. Pure: a spec and a seed in.
"""

from collections import Counter
from dataclasses import dataclass
from typing import Any

import numpy as np

from weft.core.seeds import Seed
from weft.specs.capacity import CapacitySpec, GenerationSpec, SiteStepSpec

QUARTER = 0.25
LIMITS = ("power", "floor", "delivery", "money")
"""What can bind."""


@dataclass(frozen=True, slots=True)
class Quarter:
    """One quarter of one future."""

    year: float
    wanted: float
    """Useful operations per second that are asked for."""
    had: float
    """Those that the hardware gives."""
    power_w: float
    racks: float
    limit: str
    """What bound; empty for nothing."""


def future(spec: CapacitySpec, draw: np.random.Generator) -> list[Quarter]:
    """Return one future, quarter by quarter."""
    growths = [
        each.growth * float(np.exp(each.spread * draw.standard_normal())) for each in (spec.training, spec.serving)
    ]
    stock: list[tuple[float, GenerationSpec, float]] = []
    found: list[Quarter] = []
    for number in range(round(spec.years / QUARTER)):
        year = spec.begin + number * QUARTER
        stock = [entry for entry in stock if year - entry[0] < spec.retire_after]
        asked = [
            each.now * growth ** (year - spec.begin)
            for each, growth in zip((spec.training, spec.serving), growths, strict=True)
        ]
        raw = sum(want / each.utilisation for want, each in zip(asked, (spec.training, spec.serving), strict=True))
        limit = _buy(spec, stock, year, raw, first=not number)
        given = sum(gpus * kind.speed for _, kind, gpus in stock)
        power_w = sum(gpus * kind.power for _, kind, gpus in stock) / 1000
        racks = sum(gpus / kind.gpus_per_rack for _, kind, gpus in stock)
        found.append(Quarter(year, sum(asked), sum(asked) * min(1.0, given / raw), power_w, racks, limit))
    return found


def _buy(
    spec: CapacitySpec, stock: list[tuple[float, GenerationSpec, float]], year: float, raw: float, *, first: bool
) -> str:  # fmt: skip
    """Buy what is missing of the newest generation, as far as anything allows; return what binds."""
    kinds = [kind for kind in spec.generations if kind.year <= year]
    missing = raw - sum(gpus * kind.speed for _, kind, gpus in stock)
    if missing <= 0:
        return ""
    if not kinds:
        return "delivery"
    kind, site = kinds[-1], [each for each in spec.sites if each.year <= year][-1]
    wanted = missing / kind.speed
    # The first quarter brings what stands there already: only power and floor bound that.
    bounds = _room(stock, kind, site)
    if not first:
        bounds["delivery"] = kind.per_year * QUARTER
        if spec.budget_per_year is not None and kind.price:
            bounds["money"] = spec.budget_per_year * QUARTER / kind.price
    limit = min(bounds, key=lambda name: bounds[name])
    stock.append((year, kind, min(wanted, bounds[limit])))
    return limit if bounds[limit] < wanted else ""


def _room(
    stock: list[tuple[float, GenerationSpec, float]], kind: GenerationSpec, site: SiteStepSpec
) -> dict[str, float]:  # fmt: skip
    power = site.power - sum(gpus * each.power for _, each, gpus in stock)
    racks = site.racks - sum(gpus / each.gpus_per_rack for _, each, gpus in stock)
    return {"power": max(0.0, power / kind.power), "floor": max(0.0, racks * kind.gpus_per_rack)}


def forecast(spec: CapacitySpec, futures: int, seed: Seed) -> dict[str, Any]:
    """Return what binds when, over many futures."""
    drawn = [future(spec, seed.stream("futures", number)) for number in range(futures)]
    rows: list[dict[str, Any]] = []
    for quarters in zip(*drawn, strict=True):
        binding = Counter(each.limit for each in quarters if each.limit)
        rows.append({
            "year": quarters[0].year,
            "wanted": _band([each.wanted for each in quarters]),
            "had": _band([each.had for each in quarters]),
            "power_w": _band([each.power_w for each in quarters]),
            "racks": _band([each.racks for each in quarters]),
            "binds": {name: binding[name] / futures for name in LIMITS if binding[name]},
        })  # fmt: skip
    first: dict[str, Any] = {}
    for name in LIMITS:
        years = [next((each.year for each in quarters if each.limit == name), None) for quarters in drawn]
        known = [year for year in years if year is not None]
        first[name] = {"share": len(known) / futures, "year": _band(known) if known else None}
    return {"quarters": rows, "first_binds": first, "futures": futures}


def _band(values: list[float]) -> dict[str, float]:
    low, middle, high = np.percentile(values, [5, 50, 95])
    return {"p5": float(low), "median": float(middle), "p95": float(high)}
