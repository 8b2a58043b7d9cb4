"""The draw of eight measured nodes of eight H100 against the planner's levels: mean, swing, and a stop.

    python -m verification.node_power FOLDER [--json]

FOLDER holds one MLPerf power log for each node (lines `:::MLLOG` with `power_reading`), `*node_*.txt` or `.txt.gz`: Dell's
submission to MLPerf v4.1, Llama 2 70B LoRA. The levels are the planner's own, of the site `h100-400g-16k`: idle, copying and
full. What the job does when is read off the first half of the nodes; the mean and the largest change within five seconds
are then foretold for the other half, which nothing was read from. The program fails where a bar is missed.
"""

import argparse
import gzip
import json
import sys
from pathlib import Path

import numpy as np

from weft.collectives.costs import Column
from weft.planning.run.goodput import Goodput
from weft.planning.run.power import Meter, events_of
from weft.specs import load_site

MEAN_BAR, SWING_BAR = 0.05, 0.15
WINDOW_S = 5
_LOW, _HIGH = 0.25, 0.8
"""Shares of the range between which a node neither rests nor computes: it loads, or evaluates."""


def readings(path: Path) -> tuple[int, Column]:
    """Return the second of a node's first sample, and its draw, one sample a second."""
    content = path.read_bytes()
    text = (gzip.decompress(content) if path.suffix == ".gz" else content).decode()
    found = [json.loads(line.partition(":::MLLOG")[2]) for line in text.splitlines() if "power_reading" in line]
    moments, watts = (np.array([float(each[name]) for each in found]) for name in ("time_ms", "value"))
    seconds = np.arange(np.ceil(moments[0] / 1000), np.floor(moments[-1] / 1000))
    return int(seconds[0]), np.interp(seconds, moments / 1000, watts)


def aligned(nodes: list[tuple[int, Column]]) -> list[Column]:
    """Return the draw of all nodes over the seconds that all of them have."""
    begin, end = max(first for first, _ in nodes), min(first + len(wave) for first, wave in nodes)
    return [wave[begin - first : end - first] for first, wave in nodes]


def levels() -> tuple[float, float, float]:
    """Return the planner's watts of a node of `h100-400g-16k`: idle, copying, full."""
    site = load_site("h100-400g-16k")
    meter = Meter(site.node.gpus, site.node.power / 1000 / site.node.gpus, 1.0)
    quiet = Goodput(1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 0, 1.0, ())
    stop, _, checkpoint = events_of(meter, site.gpu.power / 1000, site.gpu.idle_power / 1000, quiet)
    return stop.to_w, checkpoint.to_w, stop.from_w


def swing(wave: Column) -> float:
    """Return the largest change within the window."""
    views = np.lib.stride_tricks.sliding_window_view(wave, WINDOW_S + 1)
    return float((views.max(axis=1) - views.min(axis=1)).max())


def foretold(waves: list[Column]) -> Column:
    """Return the planner's wave for what nodes with these readings do."""
    mean = np.mean(waves, axis=0)
    share = (mean - mean.min()) / np.ptp(mean)
    idle, copying, full = levels()
    return np.where(share < _LOW, idle, np.where(share < _HIGH, copying, full))


def _errors(wave: Column, measured: Column) -> tuple[float, float]:
    """Return how far mean and swing of a wave are from the measured ones."""
    return float(wave.mean() / measured.mean() - 1), swing(wave) / swing(measured) - 1


def main() -> int:
    """Print each unread node and the summary; return 1 where a bar is missed."""
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("folder", type=Path, help="folder of the nodes' power logs")
    options.add_argument("--json", action="store_true", help="print JSON")
    asked = options.parse_args()
    waves = aligned([readings(path) for path in sorted(asked.folder.glob("*node_*.txt*"))])
    half = len(waves) // 2
    wave = foretold(waves[:half])
    together = np.sum(waves[half:], axis=0)
    rows = [_errors(wave, other) for other in waves[half:]]
    mean = float(wave.mean() * len(rows) / together.mean() - 1)
    # The nodes' clocks do not agree: their stops are minutes apart, so that a swing is a node's own.
    change = max(abs(row[1]) for row in rows)
    if asked.json:
        each = [{"mean_error": row[0], "swing_error": row[1]} for row in rows]
        print(json.dumps({"nodes": each, "mean_error": mean, "worst_swing_error": change}))
    else:
        for number, row in enumerate(rows, half):
            draw = f"mean {waves[number].mean():,.0f} W, swing {swing(waves[number]):,.0f} W"
            print(f"node {number}: {draw}; foretold {row[0]:+.1%} and {row[1]:+.1%}")
    print(f"{len(rows)} nodes that nothing was read from, together: mean {mean:+.1%}; swing of one within "
          f"{WINDOW_S} s {change:.1%} at worst", file=sys.stderr)  # fmt: skip
    return int(abs(mean) > MEAN_BAR or change > SWING_BAR)


if __name__ == "__main__":
    sys.exit(main())
