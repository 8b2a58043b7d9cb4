"""The pictures behind `--plot`. Loaded only when one is drawn, because matplotlib is slow to import."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib.patches import Patch

from weft.core.errors import UsageError
from weft.core.quantity import RATE, SIZE, counted, significant
from weft.core.seeds import Seed
from weft.planning.run.goodput import DAY_S, HOUR_S, daly_interval_s, daly_share
from weft.planning.scaling_laws import scaling
from weft.planning.schedule_trace import bars_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from weft.campaign.measures import Measures
    from weft.fabric.design import Design
    from weft.fabric.explain import Explanation, Panel, PlotSeries
    from weft.netsim.comparison import Row
    from weft.netsim.report import SimulationReport
    from weft.planning.report import PlanReport
    from weft.planning.scaling_laws.scaling import Fit, Prediction
    from weft.specs.scenario import SweepSpec
    from weft.training.run_dir import RunRecord

COLOURS = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#f0e442", "#999999")
"""Okabe and Ito's palette, which colour-blind readers can tell apart."""
_EXPLAINED = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#000000")
_STYLES = {"line": "-", "dashes": "--", "points": "none"}
_MARKERS = ("o", "s", "D", "^")
_HOUR_MS, _POINTS, _MW = 3_600_000, 4000, 1e6
_PS_PER_US, _KB, _GIB = 10**6, 1000, 2**30
_SHOWN_STAGES, _SHOWN_ROUNDS, _SHOWN_STEPS = 8, 16, 3
_FAR = 10
"""A limit that lies this many times above what is drawn is named, not drawn: it would flatten the rest."""
_WATTS = {"MW": 1e6, "kW": 1e3}
_KINDS = {"forward": COLOURS[0], "backward": COLOURS[1], "weights": COLOURS[2]}


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


def draw_replays(figure: Figure, found: Mapping[str, Measures]) -> None:
    """Draw use, waits, their reasons, and the site's draw with its ramp, one colour for a policy."""
    (use, waits, spread), (reasons, draw, ramp) = figure.subplots(2, 3)
    longest_ms = max(measured.end_ms - measured.first_ms for measured in found.values())
    unit, unit_s = ("h", 3600) if longest_ms > 2 * _HOUR_MS else ("min", 60)
    for (name, measured), colour in zip(found.items(), COLOURS, strict=False):
        times = np.array([at for at, _ in measured.busy]) / 1000 / unit_s
        held = np.array([gpus for _, gpus in measured.busy]) / measured.total_gpus
        use.step(times, held, where="post", color=colour, label=name, linewidth=0.8)
        seconds = np.sort([r.wait_ms / 1000 for r in measured.records.values() if r.wait_ms is not None])
        if len(seconds):
            spread.step(np.maximum(seconds, 0.1), np.arange(1, len(seconds) + 1) / len(seconds), color=colour)
        _draw_power(draw, ramp, measured, colour, unit_s)
    _draw_sizes(waits, found)
    _draw_reasons(reasons, found)
    use.set(title="GPUs held", xlabel=f"time, {unit}", ylabel="share", ylim=(0, 1.02))
    spread.set(title="jobs that started by then", xlabel="wait, s", ylabel="share", xscale="log", ylim=(0, 1.02))
    draw.set(title="draw of the site (dashed: limit)", xlabel=f"time, {unit}", ylabel="MW", ylim=(0, None))
    ramp.set(title="its change in a second (dashed: limit)", xlabel=f"time, {unit}", ylabel="MW")
    use.legend(loc="lower right")


def _draw_power(draw: Axes, ramp: Axes, measured: Measures, colour: str, unit_s: int) -> None:
    seconds, watts = measured.power_wave()
    every = max(1, len(seconds) // _POINTS)
    draw.plot(seconds[::every] / unit_s, watts[::every] / _MW, color=colour, linewidth=0.8)
    change = np.diff(watts)
    # The largest change of each stretch, so that no jump is lost by drawing few points.
    stretches = len(change) // every
    if stretches:
        blocks = change[: stretches * every].reshape(stretches, every)
        largest = blocks[np.arange(stretches), np.abs(blocks).argmax(axis=1)]
        ramp.plot(seconds[1 : stretches * every + 1 : every] / unit_s, largest / _MW, color=colour, linewidth=0.8)
    power = measured.cluster.power
    if power.site_w is not None:
        draw.axhline(power.site_w / _MW, color="#999999", linestyle="--", linewidth=1)
    if power.ramp_w_per_s is not None:
        for sign in (-1, 1):
            ramp.axhline(sign * power.ramp_w_per_s / _MW, color="#999999", linestyle="--", linewidth=1)


def _draw_sizes(axes: Axes, found: Mapping[str, Measures]) -> None:
    width = 0.8 / len(found)
    for number, ((name, measured), colour) in enumerate(zip(found.items(), COLOURS, strict=False)):
        by_size = measured.waits_by("size")
        heights = [max(0.1, each["p95"]) for each in by_size.values()]
        axes.bar(np.arange(len(heights)) + number * width, heights, width, color=colour, label=name)
        axes.set_xticks(np.arange(len(heights)) + 0.4 - width / 2, list(by_size))
    axes.set(title="wait, 95th percentile", xlabel="nodes", ylabel="s", yscale="log")


def _draw_reasons(axes: Axes, found: Mapping[str, Measures]) -> None:
    names = list(dict.fromkeys(name for measured in found.values() for name in measured.reasons()))
    left = np.zeros(len(found))
    for name, colour in zip(names, COLOURS, strict=False):
        hours = np.array([measured.reasons().get(name, 0.0) for measured in found.values()])
        axes.barh(list(found), hours, left=left, color=colour, label=name)
        left += hours
    axes.set(title="why jobs waited", xlabel="hours, summed over jobs")
    if names:
        axes.legend(fontsize=8, loc="upper right")


def draw_reports(figure: Figure, reports: tuple[SimulationReport, ...]) -> None:
    """Draw rate and deepest queue over time, and how completion times are spread, one colour a transport."""
    (rate, spread), (queue, stages) = figure.subplots(2, 2)
    for report, colour in zip(reports, COLOURS, strict=False):
        ends_us = np.array(report.series.ends_ps) / _PS_PER_US
        nics = max(1, len({destination for _, destination in report.pairs}))
        rate.step(ends_us, report.series.rates_bps() / nics / 1e9, where="pre", color=colour, label=report.transport)
        peaks = report.series.queue_peaks
        queue.step(ends_us, peaks[:, 1:].max(axis=1) / _KB, where="pre", color=colour, label=report.transport)
        times = report.completions_us()
        if len(times):
            spread.step(times, np.arange(1, len(times) + 1) / len(times), where="post", color=colour)
        stages.plot(range(1, peaks.shape[1]), peaks[:, 1:].max(axis=0) / _KB, "o-", color=colour)
    spread.axvline(reports[0].ideal_ps / _PS_PER_US, color="#999999", linestyle="--", linewidth=1)
    for at in (fault.at_ps for fault in reports[0].faults):
        rate.axvline(at / _PS_PER_US, color="#d55e00", linestyle=":", linewidth=1)
    rate.set(title="payload per receiving NIC", xlabel="time, us", ylabel="Gb/s", ylim=(0, None))
    queue.set(title="deepest data queue in the switches", xlabel="time, us", ylabel="kB", ylim=(0, None))
    spread.set(title="flows completed (dashed: ideal)", xlabel="completion time, us", ylabel="share", ylim=(0, 1.02))
    stages.set_xticks(range(1, peaks.shape[1]))
    stages.set(title="deepest data queue by hop", xlabel="hop on the path", ylabel="kB", ylim=(0, None))
    rate.legend()
    figure.suptitle(f"{reports[0].scenario}: {reports[0].hosts:,} NICs, {counted(reports[0].planes, 'plane')}")


def draw_links(figure: Figure, reports: tuple[SimulationReport, ...]) -> None:
    """Draw T0 x T1 by transport: the busiest bin of each pair's links, and their longest wait, in any plane."""
    panels = figure.subplots(len(reports), 2, squeeze=False)
    for row, report in zip(panels, reports, strict=True):
        use = report.links
        assert use is not None, "links were counted"
        between = use.place[:, 0] == 1
        lower, upper = use.place[between, 2], use.place[between, 4]
        for axes, values, what in (
            (row[0], use.shares()[:, between].max(axis=0), "busiest bin, share of the rate"),
            (row[1], use.waits_us()[between], "deepest queue, us"),
        ):
            grid = np.zeros((lower.max(initial=0) + 1, upper.max(initial=0) + 1))
            np.maximum.at(grid, (lower, upper), values)
            figure.colorbar(axes.imshow(grid, aspect="auto", origin="lower", vmin=0, interpolation="nearest"), ax=axes)
            axes.set(title=f"{report.transport}: {what}", xlabel="T1", ylabel="T0")
            axes.grid(visible=False)
            axes.locator_params(integer=True)
        for place, each in enumerate(use.worst(3)):
            if use.place[each, 0] == 1:
                row[1].annotate(str(place + 1), (use.place[each, 4], use.place[each, 2]), color="white")
    worst = ((each.transport, each.links) for each in reports if each.links is not None)
    lines = [f"{name}, worst: " + ", ".join(f"{at + 1} {use.name(row)}" for at, row in enumerate(use.worst(3)))
             for name, use in worst]  # fmt: skip
    figure.supxlabel("\n".join(lines), fontsize=8)
    figure.suptitle(f"{reports[0].scenario}: {reports[0].hosts:,} NICs, {counted(reports[0].planes, 'plane')}")


def draw_plan(figure: Figure, found: PlanReport) -> None:
    """Draw the four pictures of a plan."""
    row = found.chosen.plans.row(0)
    figure.suptitle(
        f"{found.job.name} on {found.site.name}: dp {row['dp']} x tp {row['tp']} x pp {row['pp']} x cp {row['cp']}, "
        f"step {float(found.chosen.step_s[0]):.3g} s, MFU {float(found.chosen.mfu[0]):.1%}"
    )
    places = figure.subplots(2, 2).ravel()
    _memory(places[0], found)
    _gantt(places[1], found)
    _power(places[2], found)
    _goodput(places[3], found)


def _memory(axes: Axes, found: PlanReport) -> None:
    best = found.outcome.best if len(found.outcome.best) else found.chosen
    names = [f"{p['dp']}x{p['tp']}x{p['pp']}x{p['cp']}" for p in (best.plans.row(i) for i in range(len(best)))]
    bottom = [0.0] * len(best)
    for colour, part in zip(COLOURS, ("weights", "gradients", "optimizer", "activations", "working"), strict=False):
        heights = [float(value) / _GIB for value in getattr(best.memory, part)]
        axes.bar(range(len(best)), heights, bottom=bottom, color=colour, label=part)
        bottom = [below + height for below, height in zip(bottom, heights, strict=True)]
    _limit(axes, found.machine.memory_bytes / _GIB, max(bottom), "GPU memory", "GiB")
    axes.set_xticks(range(len(best)), names, rotation=45, ha="right", fontsize=7)
    axes.set_ylabel("peak memory of a GPU, GiB")
    axes.set_title("memory of the best plans (dp x tp x pp x cp)", fontsize=10)
    axes.margins(y=0.25)
    axes.legend(fontsize=7, ncols=3, loc="upper right")


def _limit(axes: Axes, limit: float, drawn: float, what: str, unit: str) -> None:
    """Draw a limit as a line, or name it in the legend where it is far above what is drawn."""
    if limit > _FAR * drawn:
        axes.plot([], [], linestyle="none", label=f"{what}: {limit:,.3g} {unit}")
    else:
        axes.axhline(limit, color="#333333", linestyle="--", linewidth=1, label=what)


def _gantt(axes: Axes, found: PlanReport) -> None:
    row = found.chosen.plans.row(0)
    rounds = found.work.sequences // (row["dp"] * row["micro"])
    bars = bars_of(found, _SHOWN_STAGES, _SHOWN_ROUNDS)
    stages, shown = (1 + max(getattr(bar, name) for bar in bars) for name in ("stage", "micro"))
    for bar in bars:
        axes.barh(
            bar.stage, 1e3 * (bar.end_s - bar.start_s), left=1e3 * bar.start_s, height=0.85, color=_KINDS[bar.kind],
            alpha=0.55 + 0.45 * (bar.micro % 2), linewidth=0,
        )  # fmt: skip
    axes.invert_yaxis()
    axes.set_xlabel("ms")
    axes.set_ylabel("stage")
    axes.set_yticks(range(stages))
    axes.grid(visible=False)
    name = "zbv, drawn as zero-bubble" if row["schedule"] == "zbv" else row["schedule"]
    axes.set_title(f"{name}: {stages} of {row['pp']} stages, {shown} of {rounds} micro-batches", fontsize=10)
    drawn = {bar.kind for bar in bars}
    handles = [Patch(color=colour, label=kind) for kind, colour in _KINDS.items() if kind in drawn]
    # The bars fill the axes, so the legend stands below them.
    axes.legend(handles=handles, fontsize=7, ncols=len(handles), loc="lower right", bbox_to_anchor=(1.0, -0.16))


def _power(axes: Axes, found: PlanReport) -> None:
    count = max(2, round(_SHOWN_STEPS * float(found.chosen.step_s[0]) * found.per_second))
    wave = found.meter.at(found.wave[:count])
    unit, size = next(((unit, size) for unit, size in _WATTS.items() if wave.max() >= size), ("W", 1.0))
    wave = wave / size
    axes.plot([number / found.per_second for number in range(len(wave))], wave, color=COLOURS[5], linewidth=1)
    limit = found.site.power.limit
    if limit is not None:
        _limit(axes, limit / 1000 / size, float(wave.max()), "contract", unit)
        axes.legend(fontsize=7)
    axes.set_ylim(bottom=0)
    axes.set_xlabel("s")
    axes.set_ylabel(f"{unit} at the meter")
    axes.set_title(f"power over {_SHOWN_STEPS} steps, swing {found.power.swing_w / size:.3g} {unit}", fontsize=10)


def _goodput(axes: Axes, found: PlanReport) -> None:
    good = found.goodput
    nodes = int(found.chosen.plans.ranks[0]) / found.site.node.gpus
    own = 1000 * DAY_S / (good.mttf_s * nodes)
    lowest = min(0.25, own / 10) if own > 0 else 0.25
    rates = [lowest * 1.2**power for power in range(80)]
    rates = [rate for rate in rates if rate <= max(24, 10 * own)]
    for share, colour in ((1 / 3, COLOURS[2]), (1, COLOURS[0]), (3, COLOURS[1])):
        restart = share * good.restart_s
        shares: list[float] = []
        for rate in rates:
            mttf = 1000 * DAY_S / (rate * nodes)
            interval = max(float(found.chosen.step_s[0]), daly_interval_s(mttf, good.write_s))
            shares.append(daly_share(mttf, restart, good.write_s, interval))
        axes.plot(rates, shares, color=colour, label=f"restart {restart:.3g} s")
    if own > 0:
        label = f"this site: {good.mttf_s / HOUR_S:.2g} h between failures"
        axes.plot([own], [good.share], "o", color="#333333", label=label)
    else:
        axes.plot([], [], " ", label="this site: no failures")
    axes.set_xscale("log")
    axes.set_ylim(0, 1.02)
    axes.set_xlabel("failures for 1,000 node-days")
    axes.set_ylabel("share of time that is work")
    axes.set_title("goodput over failure rates", fontsize=10)
    axes.legend(fontsize=7)


def draw_collective(figure: Figure, rows: tuple[Row, ...], title: str) -> None:
    """Draw bus bandwidth over size, one colour a transport."""
    axes = figure.subplots()
    by_name: dict[str, list[Any]] = {}
    for row in sorted(rows, key=lambda row: row.size):
        by_name.setdefault(row.transport, []).append((row.size, row.bus_bps / 10**9))
    best = sorted(by_name.items(), key=lambda item: -item[1][-1][1])
    for colour, (name, points) in zip(COLOURS, best, strict=False):
        axes.plot(*zip(*points, strict=True), "o-", label=name, color=colour)
    axes.set_xscale("log", base=2)
    sizes = sorted({row.size for row in rows})
    axes.set_xticks(sizes, [SIZE.about(size) for size in sizes])
    axes.set(title=title, xlabel="size", ylabel="bus bandwidth, Gb/s", ylim=(0, None))
    axes.legend()


def draw_sweep(figure: Figure, spec: SweepSpec, rows: list[dict[str, Any]]) -> None:
    """Draw p99 and mean completion over the first key that is varied, one colour a transport.

    A second and a third key make columns and rows of panels; the title says over what else means are taken.
    """
    from weft.netsim.sweeps import axes_of

    axes = axes_of(spec)
    across, down = ([*dict.fromkeys(row[axes[n]] for row in rows)] if len(axes) > n else [None] for n in (1, 2))
    grid = figure.subplots(len(down), len(across), squeeze=False, sharex=True, sharey=True)
    for panels, below in zip(grid, down, strict=True):
        for panel, beside in zip(panels, across, strict=True):
            shown = dict(zip(axes[1:3], (beside, below), strict=False))
            mine = [row for row in rows if all(row[name] == value for name, value in shown.items())]
            _draw_over(panel, mine, axes[0] if axes else "seed")
            panel.set_title(", ".join(f"{name} {value}" for name, value in shown.items()), fontsize=8)
    grid[0][0].set_ylim(bottom=0)
    grid[0][0].legend(fontsize=8)
    averaged = [*axes[3:], *(["seeds"] if spec.seeds > 1 and axes else [])]
    figure.suptitle(spec.name + (f" (means over {', '.join(averaged)})" if averaged else ""))
    figure.supylabel("completion time, us")


def _draw_over(panel: Axes, rows: list[dict[str, Any]], varied: str) -> None:
    """Draw one panel of a sweep; values that are no numbers stand beside each other."""
    values = list(dict.fromkeys(row[varied] for row in rows))
    numbers = all(isinstance(value, int | float) for value in values)
    place = {value: value if numbers else at for at, value in enumerate(values)}
    for colour, transport in zip(COLOURS, sorted({row["transport"] for row in rows}), strict=False):
        for name, style in (("fct_mean_us", "o-"), ("fct_p99_us", "s--")):
            found = {value: [row[name] for row in rows if row["transport"] == transport and row[varied] == value
                             and row[name] is not None] for value in values}  # fmt: skip
            points = sorted((place[value], float(np.mean(each))) for value, each in found.items() if each)
            if points:
                panel.plot(*zip(*points, strict=True), style, color=colour, label=f"{transport} {name[4:-3]}")
    if not numbers:
        panel.set_xticks(list(place.values()), [str(value) for value in values], fontsize=8)
    panel.set_xlabel(varied)


def draw_explanation(figure: Figure, explanation: Explanation) -> None:
    """Draw the panels of an explanation side by side."""
    figure.suptitle(f"{explanation.title} ({explanation.site})")
    axes = figure.subplots(1, len(explanation.panels), squeeze=False)[0]
    for axis, panel in zip(axes, explanation.panels, strict=True):
        _draw_panel(axis, panel)


def _draw_panel(axis: Axes, panel: Panel) -> None:
    axis.set_title(panel.title, fontsize=10)
    axis.set_xlabel(panel.x_label)
    axis.set_ylabel(panel.y_label)
    if panel.x_log:
        axis.set_xscale("log")
    if panel.x_ticks:
        axis.set_xticks(panel.x_ticks, [f"{tick:g}" for tick in panel.x_ticks])
        axis.set_xticks([], minor=True)
    if panel.y_log:
        axis.set_yscale("log")
    markers = iter(_MARKERS)
    for number, series in enumerate(panel.series):
        marker = next(markers) if series.marks == "points" else ""
        _draw_series(axis, series, _EXPLAINED[number % len(_EXPLAINED)], marker)
    axis.legend(fontsize=8, framealpha=0.9)


def _draw_series(axis: Axes, series: PlotSeries, colour: str, marker: str) -> None:
    style = _STYLES[series.marks]
    if series.error:
        # Two standard errors: a line outside the bar deserves a look.
        bars = [2 * error for error in series.error]
        axis.errorbar(
            series.x, series.y, bars, linestyle=style, marker=marker, markersize=4, capsize=3, color=colour,
            label=series.name,
        )  # fmt: skip
    else:
        axis.plot(series.x, series.y, linestyle=style, marker=marker, color=colour, label=series.name)


def draw_fit(figure: Figure, found: Fit) -> None:
    """Draw measured over fitted losses, and the best loss for a budget of operations with its interval."""
    left, right = figure.subplots(1, 2)
    points, out = found.points, list(found.outliers)
    kept = np.delete(np.arange(len(points)), out)
    predicted = found.law.loss(points.params, points.tokens)
    span = (float(min(points.loss.min(), predicted.min())), float(max(points.loss.max(), predicted.max())))
    left.plot(span, span, color="0.6", linewidth=1)
    left.scatter(predicted[kept], points.loss[kept], s=12, label="runs")
    left.scatter(predicted[out], points.loss[out], s=24, marker="x", color="tab:red", label="left out")
    left.set(xlabel="loss by the law", ylabel="loss measured")
    left.legend()
    flops = np.geomspace(float(points.flops.min()), float(points.flops.max()) * 100, 80)
    right.scatter(points.flops[kept], points.loss[kept], s=12, color="0.5", label="runs")
    curves: list[Prediction] = []
    with contextlib.suppress(UsageError):
        curves = [scaling.optimal(found, float(value), Seed(0)).prediction for value in flops]
    if curves:
        right.plot(flops, [one.loss for one in curves], color="tab:orange", label="best use of the operations")
        lows, highs = [one.low for one in curves], [one.high for one in curves]
        right.fill_between(flops, lows, highs, color="tab:orange", alpha=0.2)
    right.set(xscale="log", xlabel="operations (6 N D)", ylabel="loss")
    right.legend()


def draw_run(figure: Figure, record: RunRecord) -> None:
    """Draw the loss with its evaluations above, and the time of each step by class below."""
    from weft.training.metrics.step_line import from_bits

    lines = record.steps()
    steps = [line["step"] for line in lines]
    upper, lower = figure.subplots(2, 1, sharex=True)
    upper.plot(steps, [from_bits(line["loss_bits"]) for line in lines], label="loss", color="#1f4e79")
    for line in record.evaluations():
        for name, value in line.items():
            if name.endswith("loss") and value is not None:
                upper.plot(line["step"], value, "o", color="#c55a11", label=name.replace("_", " "))
    known = dict(zip(*reversed(upper.get_legend_handles_labels()), strict=True))
    upper.legend(known.values(), known.keys())
    upper.set_ylabel("loss")
    upper.set_title(record.name)
    kinds = list(dict.fromkeys(kind for line in lines for kind in line["seconds"]))
    if kinds:
        series = [[line["seconds"].get(kind, 0.0) for line in lines] for kind in kinds]
        lower.stackplot(steps, series, labels=[kind.replace("_", " ") for kind in kinds], step="mid")
        lower.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0), fontsize="small")
    lower.set_ylabel("seconds in a step")
    lower.set_xlabel("step")
