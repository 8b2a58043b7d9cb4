"""What can be written in a `capacity` file: demand that grows, hardware that comes, and what there is room for."""

from typing import Annotated, Any, ClassVar

from pydantic import Field

from weft.core.spec import Check, Power, Price, Spec, Speed
from weft.core.units import Cents

Year = Annotated[float, Field(ge=2000, le=2100)]
Growth = Annotated[float, Field(gt=0, le=1000)]
Share = Annotated[float, Field(ge=0, le=1)]


class GrowthSpec(Spec):
    """A demand that grows."""

    now: Speed
    """What is asked for at the beginning: useful floating-point operations per second."""
    growth: Growth
    """By what it is multiplied in a year."""
    spread: Annotated[float, Field(ge=0, le=2)] = 0.2
    """Standard deviation of the logarithm of that, over possible futures."""
    utilisation: Annotated[float, Field(gt=0, le=1)] = 0.4
    """Share of a GPU's speed that the work reaches, and of the time in which it works: MFU times goodput."""


class GenerationSpec(Spec):
    """One generation of hardware."""

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._ -]{0,62}$")]
    """Its name."""
    year: Year
    """When it can be had, 2027.5 for July 2027."""
    speed: Speed
    """Dense bf16 speed of a GPU."""
    power: Power
    """What a GPU and its share of everything else draw, at the meter."""
    gpus_per_rack: Annotated[int, Field(ge=1, le=4096)]
    """GPUs in a rack."""
    per_year: Annotated[int, Field(ge=0, le=10**9)]
    """Most GPUs of it that are delivered in a year."""
    price: Price = Cents(0)
    """A GPU with its share of everything else."""


class SiteStepSpec(Spec):
    """Power and floor from a date on."""

    year: Year
    power: Power
    """What may be drawn in all."""
    racks: Annotated[int, Field(ge=0, le=10**7)]
    """Racks that stand in all."""


def _dated(name: str) -> Check:
    def rule(table: Any) -> str | None:
        years = [each.year for each in getattr(table, name)]
        if not years:
            return "none is written; write at least one"
        return None if years == sorted(years) else "the years are not in order; write the earliest first"

    return Check((name,), rule)


def _begins(table: Any) -> str | None:
    if table.sites and table.sites[0].year > table.begin:
        return f"begin = {table.begin:g} is before any site; the first is of {table.sites[0].year:g}"
    return None


class CapacitySpec(Spec):
    """A capacity file."""

    description: str = ""
    """One sentence for people."""
    begin: Year = 2026.0
    """First day of the forecast."""
    years: Annotated[float, Field(gt=0, le=30)] = 6.0
    """How long it is."""
    training: GrowthSpec
    """What training asks for."""
    serving: GrowthSpec
    """What serving asks for."""
    generations: Annotated[tuple[GenerationSpec, ...], Field(strict=False)]
    """Hardware, the earliest first."""
    sites: Annotated[tuple[SiteStepSpec, ...], Field(strict=False)]
    """Power and floor over time, the earliest first."""
    budget_per_year: Price | None = None
    """Money for hardware in a year; none: always enough."""
    retire_after: Annotated[float, Field(gt=0, le=30)] = 5.0
    """Age in years at which hardware goes."""

    checks: ClassVar[tuple[Check, ...]] = (_dated("generations"), _dated("sites"), Check(("begin", "sites"), _begins))
