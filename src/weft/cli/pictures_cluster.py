"""The pictures of `weft cluster replay --plot`. Loaded only when one is drawn, because matplotlib is slow to import."""

from collections.abc import Mapping

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from weft.campaign.measures import Measures
from weft.cli.pictures import COLOURS

_HOUR_MS = 3_600_000
_POINTS = 4000
_MW = 1e6


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
        axes.legend(fontsize=8)
