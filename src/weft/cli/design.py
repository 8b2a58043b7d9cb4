"""`weft design`: the fabric of a site in figures, or every sensible fabric for a number of GPUs side by side."""

import itertools
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from weft import api
from weft.cli.output import JsonFlag, PlotFile, print_json, print_table, save_plot
from weft.core.errors import UsageError
from weft.core.quantity import MONEY, POWER, RATE, TIME, significant
from weft.fabric.design import Design

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def design(
    site: str | None = None,
    /,
    *,
    gpus: Annotated[int | None, Parameter(help="Compare fabrics for this many GPUs.")] = None,
    nic: Annotated[str, Parameter(help="Rate of one NIC.")] = "800 Gb/s",
    switch: Annotated[str, Parameter(help="Capacity of one switch.")] = "51.2 Tb/s",
    planes: Annotated[
        list[int] | None, Parameter(help="Only these splits of the NIC.", consume_multiple=True, negative="")
    ] = None,
    json: JsonFlag = False,
    plot: PlotFile = None,
) -> None:
    """Describe the fabric of SITE, or compare every sensible fabric for --gpus GPUs, the best first.

    Parameters
    ----------
    site
        Built-in name or path of a site file.

    """
    if (site is None) == (gpus is None):
        raise UsageError("name a site (weft design gb200-8x100g-131k) or a number of GPUs (weft design --gpus 131072)")
    if site is not None:
        _one(api.design(site), json=json, plot=plot)
    else:
        assert gpus is not None
        _several(api.compare(gpus, nic, switch, tuple(planes or ())), json=json, plot=plot)


def _one(found: Design, *, json: bool, plot: Path | None) -> None:
    save_plot(plot, lambda figure: _draw_fabric(figure, found), size=(9, 5))
    if json:
        print_json(found.as_json())
        return
    print_table(f"{found.name}: the fabric", ("what", "value"), _facts(found), words=(0, 1))
    print_table(
        "what a failure takes away",
        ("failed part", "NICs that feel it", "share each loses"),
        [(b.part, f"{b.nics:,}", share_text(b.share)) for b in found.limits.blasts],
    )
    total = (("all", "", "", POWER.about(found.bill.power_mw), _money(found.bill.price_cents), ""),)
    rows = [
        (line.part, line.place, f"{line.count:,}", POWER.about(line.count * line.spec.power),
         _money(line.count * line.spec.price), _per_year(line.count * line.spec.failure_rate))
        for line in found.bill.lines
    ]  # fmt: skip
    print_table(
        "bill of materials (prices are classes, for ratios)",
        ("part", "place", "count", "power", "price", "failures a year"),
        [*rows, *total],
        words=(0, 1),
    )


def _facts(found: Design) -> list[tuple[str, str]]:
    spec, shape, limits = found.spec, found.shape, found.limits
    tiers = " + ".join(f"{grid.size:,} T{tier}" for tier, grid in enumerate(shape.switch_grids))
    facts = [
        ("GPUs", f"{spec.gpus:,} of at most {limits.hosts_max:,}"),
        ("planes", f"{spec.planes} of {RATE.format(spec.port_rate)}, each {spec.tiers} tiers of radix {spec.radix}"),
        ("switches", f"{shape.switches:,} = {tiers}"),
        ("links", f"{sum(shape.links):,}"),
        ("optics", f"{found.bill.count('optic'):,}"),
        ("longest path", f"{limits.hops_max} switches, {TIME.about(limits.latency_floor_ps)} through empty ones"),
        ("paths between two NICs", f"{limits.paths:,}"),
        ("bisection", RATE.about(limits.bisection_bps)),
        ("power of the network", POWER.about(found.bill.power_mw)),
    ]
    if found.ratio is not None:
        facts.append(("switches per GPU, to three tiers", fraction_text(found.ratio.switches_per_gpu)))
        if found.ratio.optics_per_gpu is not None:
            facts.append(("optics per GPU, to three tiers", fraction_text(found.ratio.optics_per_gpu)))
    return facts


def _several(found: tuple[Design, ...], *, json: bool, plot: Path | None) -> None:
    save_plot(plot, lambda figure: _draw_comparison(figure, found))
    if json:
        print_json([each.as_json() for each in found])
        return
    rows = [
        (
            f"{each.spec.planes} x {RATE.format(each.spec.port_rate)}",
            str(each.spec.tiers),
            f"{each.shape.switches:,}",
            f"{each.bill.count('optic'):,}",
            str(each.limits.hops_max),
            f"{each.limits.paths:,}",
            fraction_text(each.limits.share_lost("nic link")),
            fraction_text(each.limits.share_lost("t0-t1 link")),
            POWER.about(each.bill.power_mw),
            _money(each.bill.price_cents),
            "-" if each.ratio is None else significant(float(each.ratio.switches_per_gpu)),
            "-" if each.ratio is None or each.ratio.optics_per_gpu is None
            else significant(float(each.ratio.optics_per_gpu)),
        )
        for each in found
    ]  # fmt: skip
    print_table(
        f"fabrics for {found[0].spec.gpus:,} GPUs, cheapest first (share lost per failed link; ratios to three tiers)",
        ("planes", "tiers", "switches", "optics", "hops", "paths", "NIC link", "fabric link", "power", "price",
         "switches to 3T", "optics to 3T"),
        rows,
    )  # fmt: skip


def share_text(share: Fraction) -> str:
    """Return a share as people say it: "1/256 (0.39 %)"."""
    if share in (0, 1):
        return "all" if share else "nothing"
    return f"{share} ({significant(float(share) * 100)} %)"


def fraction_text(value: Fraction) -> str:
    """Return a ratio as a fraction where that is short, as a decimal otherwise."""
    longest = 1000
    return str(value) if value.denominator < longest else significant(float(value))


def _money(cents: int) -> str:
    million = 10**8
    return f"{significant(cents / million)} M$" if cents >= million else MONEY.about(cents)


def _per_year(fit: int) -> str:
    return significant(fit * 8766 / 10**9, 2)


_COLOURS = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#f0e442", "#999999")
"""Okabe and Ito's palette, which colour-blind readers can tell apart."""


def _draw_fabric(figure: "Figure", found: Design) -> None:
    axes = figure.subplots()
    axes.set_axis_off()
    axes.set_title(
        f"{found.name}: {found.spec.gpus:,} NICs, {found.spec.planes} planes of {RATE.format(found.spec.port_rate)}, "
        f"{found.shape.switches:,} switches"
    )
    planes = found.spec.planes
    for plane in range(planes):
        _draw_plane(axes, found, plane, planes)
    axes.plot([0.5], [0], marker="s", markersize=14, color="#333333", zorder=3)
    axes.annotate(
        f"one NIC, {RATE.format(found.spec.nic_rate)}, a port in every plane",
        (0.5, 0), xytext=(0, -22), textcoords="offset points", ha="center",
    )  # fmt: skip
    labels = ["NIC", *(f"T{tier}" for tier in range(found.spec.tiers))]
    for height, label in enumerate(labels):
        axes.text(-0.06, height, label, va="center", ha="right", fontweight="bold")
    axes.set_ylim(-0.6, found.spec.tiers + 0.55)
    axes.set_xlim(-0.1, 1.05)


def _draw_plane(axes: "Axes", found: Design, plane: int, planes: int) -> None:
    colour = _COLOURS[plane % len(_COLOURS)]
    width = 1 / planes
    left = plane * width + 0.1 * width
    counts = [grid.size // planes for grid in found.shape.switch_grids]
    dots = [min(4, count) for count in counts]
    rows = [[left + 0.8 * width * (i + 0.5) / dot for i in range(dot)] for dot in dots]
    axes.plot([0.5, rows[0][0]], [0, 1], color=colour, linewidth=1.2, zorder=1)
    for tier, (lower, upper) in enumerate(itertools.pairwise(rows), start=1):
        for x in lower:
            axes.plot([x, *[end for y in upper for end in (y, x)]], [tier] + [tier + 1, tier] * len(upper),
                      color=colour, linewidth=0.5, alpha=0.6, zorder=1)  # fmt: skip
    for tier, (xs, count) in enumerate(zip(rows, counts, strict=True), start=1):
        axes.plot(xs, [tier] * len(xs), "s", color=colour, markersize=6, zorder=2)
        axes.text(
            left + 0.4 * width, tier + 0.12, f"{count:,}", ha="center", fontsize=8, color="#333333",
            bbox={"facecolor": "white", "edgecolor": "none", "pad": 1.0},
        )  # fmt: skip


def _draw_comparison(figure: "Figure", found: tuple[Design, ...]) -> None:
    measures: tuple[tuple[str, Callable[[Design], float]], ...] = (
        ("switches per 1,000 GPUs", lambda each: 1000 * each.shape.switches / each.spec.gpus),
        ("optics per GPU", lambda each: each.bill.count("optic") / each.spec.gpus),
        ("network watts per GPU", lambda each: each.bill.power_mw / 1000 / each.spec.gpus),
        ("switches on the longest path", lambda each: each.limits.hops_max),
    )
    names = [each.name.replace(", ", "\n") for each in found]
    for axes, (title, measure) in zip(figure.subplots(1, len(measures)), measures, strict=True):
        values = [measure(each) for each in found]
        bars = axes.bar(names, values, color=[_COLOURS[each.spec.tiers % len(_COLOURS)] for each in found])
        axes.bar_label(bars, [significant(value) for value in values], fontsize=8)
        axes.set_title(title, fontsize=9)
        axes.tick_params(axis="x", labelsize=7, rotation=90)
        axes.grid(visible=False, axis="x")
    figure.suptitle(f"fabrics for {found[0].spec.gpus:,} GPUs, cheapest first")
