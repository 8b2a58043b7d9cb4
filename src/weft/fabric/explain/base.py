"""What an explanation is made of: plain frozen data that a terminal, a web page or a program can show."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from weft.core.provenance import Provenance, provenance
from weft.core.quantity import significant
from weft.core.seeds import Seed
from weft.fabric.theory.estimate import Estimate, agrees
from weft.specs.site import SiteSpec

Unit = Literal["", "share", "x", "us", "frames", "packets"]
_PERCENT = 100.0
_SMALL = 1e-4
_DECIMALS = 3


@dataclass(frozen=True, slots=True)
class ClosedFormCheck:
    """One closed form beside the simulation of the same thing."""

    quantity: str
    """What is computed."""
    formula: str
    """The closed form, as text; empty where there is none."""
    unit: Unit
    """Unit of both values; a share is between 0 and 1."""
    closed: float | None
    """What the formula gives, where there is one."""
    simulated: Estimate
    """What the simulation gives."""
    tolerance: float = 0.0
    """Relative error of the formula itself, where it is an approximation."""

    @property
    def verdict(self) -> Literal["agrees", "disagrees", "simulated only"]:
        """Say whether the two agree within four standard errors."""
        if self.closed is None:
            return "simulated only"
        return "agrees" if agrees(self.closed, self.simulated, self.tolerance) else "disagrees"

    def as_json(self) -> dict[str, Any]:
        """Return the fields as plain values."""
        return {**asdict(self), "verdict": self.verdict}


@dataclass(frozen=True, slots=True)
class Table:
    """Figures without chance, side by side."""

    columns: tuple[str, ...]
    """Headings; the first names the quantity."""
    rows: tuple[tuple[str, ...], ...]
    """Cells as text."""


@dataclass(frozen=True, slots=True)
class PlotSeries:
    """One curve or one set of points of a plot."""

    name: str
    """What the legend says."""
    x: tuple[float, ...]
    """Abscissae."""
    y: tuple[float, ...]
    """Ordinates."""
    error: tuple[float, ...] = ()
    """One standard error of each ordinate, where they are simulated."""
    marks: Literal["line", "dashes", "points"] = "line"
    """How it is drawn: formulas as lines, asymptotes and limits as dashes, simulations as points."""


@dataclass(frozen=True, slots=True)
class Panel:
    """One set of axes with its series."""

    title: str
    """What it shows."""
    x_label: str
    """Meaning and unit of the abscissa."""
    y_label: str
    """Meaning and unit of the ordinate."""
    series: tuple[PlotSeries, ...]
    """What is drawn, in order."""
    x_log: bool = False
    """Whether the abscissa is logarithmic."""
    y_log: bool = False
    """Whether the ordinate is logarithmic."""
    x_ticks: tuple[float, ...] = ()
    """Where to write numbers on the abscissa; empty leaves it to the painter."""


@dataclass(frozen=True, slots=True)
class Explanation:
    """Why one decision works on one site."""

    topic: str
    """Name of the topic."""
    title: str
    """The decision in a few words."""
    site: str
    """Name of the site."""
    decision: str
    """The decision in one sentence."""
    surprise: str
    """Why it goes against the grain."""
    paragraphs: tuple[str, ...]
    """The reasoning, with the site's numbers in it."""
    table: Table
    """Figures without chance."""
    checks: tuple[ClosedFormCheck, ...]
    """Closed forms beside simulations."""
    panels: tuple[Panel, ...]
    """What to draw."""
    sources: tuple[str, ...]
    """Where the facts and formulas come from."""
    provenance: Provenance
    """What was asked, with which seed."""

    def as_json(self) -> dict[str, Any]:
        """Return everything as plain values."""
        plain: dict[str, Any] = asdict(self)
        return {**plain, "checks": [check.as_json() for check in self.checks]}


def named(topic: str, site: SiteSpec, seed: Seed) -> Provenance:
    """Return the provenance of the explanation of `topic` for `site`."""
    return provenance({"explain": topic, "site": site.as_written()}, seed.root)


def shown(value: float, unit: Unit, digits: int = 3) -> str:
    """Return a value with its unit, for people."""
    scaled, after = (value * _PERCENT, " %") if unit == "share" else (value, f" {unit}" if unit else "")
    if unit == "x":
        after = " x"
    tiny = scaled != 0 and abs(scaled) < _SMALL
    return f"{scaled:.{digits - 1}e}{after}" if tiny else f"{significant(scaled, digits)}{after}"


def shown_pair(estimate: Estimate, unit: Unit) -> tuple[str, str]:
    """Return a simulated value and its error, both to the last digit that the error leaves meaningful."""
    scale, after = (_PERCENT, " %") if unit == "share" else (1.0, f" {unit}" if unit else "")
    value, error = estimate.value * scale, estimate.standard_error * scale
    if error == 0:
        return shown(estimate.value, unit), "0"
    rounded = f"{error:.1e}"
    decimals = max(0, 1 - int(rounded.partition("e")[2]))
    if decimals > 2 * _DECIMALS:
        return f"{value:.2e}{after}", f"± {rounded}"
    return f"{value:,.{decimals}f}{after}", f"± {float(rounded):,.{decimals}f}"


def points(name: str, x: Sequence[float], estimates: Sequence[Estimate]) -> PlotSeries:
    """Return simulated values as points with error bars."""
    values = tuple(estimate.value for estimate in estimates)
    errors = tuple(estimate.standard_error for estimate in estimates)
    return PlotSeries(name, tuple(x), values, errors, marks="points")


def curves(x: Sequence[float], lines: Mapping[str, Sequence[float]]) -> tuple[PlotSeries, ...]:
    """Return formulas as lines over the same abscissae."""
    return tuple(PlotSeries(name, tuple(x), tuple(y)) for name, y in lines.items())
