"""The pictures behind `--plot`. Loaded only when one is drawn, because matplotlib is slow to import."""

import itertools
from collections.abc import Callable

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from weft.core.quantity import RATE, counted, significant
from weft.fabric.design import Design

COLOURS = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#f0e442", "#999999")
"""Okabe and Ito's palette, which colour-blind readers can tell apart."""


def draw_fabric(figure: Figure, found: Design) -> None:
    """Draw one NIC, its port in every plane, and a few switches of each tier with their number."""
    axes = figure.subplots()
    axes.set_axis_off()
    axes.set_title(
        f"{found.name}: {found.spec.gpus:,} NICs, {counted(found.spec.planes, 'plane')} of "
        f"{RATE.format(found.spec.port_rate)}, "
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


def _draw_plane(axes: Axes, found: Design, plane: int, planes: int) -> None:
    colour = COLOURS[plane % len(COLOURS)]
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


def draw_comparison(figure: Figure, found: tuple[Design, ...]) -> None:
    """Draw what each fabric needs for a GPU, side by side."""
    measures: tuple[tuple[str, Callable[[Design], float]], ...] = (
        ("switches per 1,000 GPUs", lambda each: 1000 * each.shape.switches / each.spec.gpus),
        ("optics per GPU", lambda each: each.bill.count("optic") / each.spec.gpus),
        ("network watts per GPU", lambda each: each.bill.power_mw / 1000 / each.spec.gpus),
        ("switches on the longest path", lambda each: each.limits.hops_max),
    )
    names = [each.name.replace(", ", "\n") for each in found]
    for axes, (title, measure) in zip(figure.subplots(1, len(measures)), measures, strict=True):
        values = [measure(each) for each in found]
        bars = axes.bar(names, values, color=[COLOURS[each.spec.tiers % len(COLOURS)] for each in found])
        axes.bar_label(bars, [significant(value) for value in values], fontsize=8)
        axes.set_title(title, fontsize=9)
        axes.tick_params(axis="x", labelsize=7, rotation=90)
        axes.grid(visible=False, axis="x")
    figure.suptitle(f"fabrics for {found[0].spec.gpus:,} GPUs, cheapest first")
