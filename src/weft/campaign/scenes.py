"""Traces with a point: small scenes that show one rule at work, made for any number of nodes."""

from collections.abc import Callable

from weft.campaign.trace import TraceJob, generated
from weft.core.errors import UsageError
from weft.core.seeds import Seed

_MINUTE_MS = 60_000
_HOUR_MS = 60 * _MINUTE_MS
SMALL = 200
"""Small experiments of the scene `small-beside-big`."""


def small_beside_big(nodes: int, gpus: int, *, small: int = SMALL) -> list[TraceJob]:
    """Return a gang of nine tenths that runs, another that waits, and one-node experiments over ten minutes."""
    big = round(nodes * 0.9)
    lines = [
        TraceJob(0, 2 * _HOUR_MS, 3 * _HOUR_MS, big, gpus, "models", 100, "training"),
        TraceJob(10_000, _HOUR_MS, 2 * _HOUR_MS, big, gpus, "models", 100, "training"),
    ]
    for number in range(small):
        submit_ms = _MINUTE_MS + number * 10 * _MINUTE_MS // max(1, small)
        # Between half a minute and half an hour, and limits twice as long.
        duration_ms = 30_000 + number * 7919 % 1_770_000
        lines.append(TraceJob(submit_ms, duration_ms, 2 * duration_ms, 1, gpus, "research", 100, "experiment"))
    return lines


def full_site(nodes: int, gpus: int) -> list[TraceJob]:
    """Return one gang of the whole site: all its GPUs rise and fall at once where nobody staggers them."""
    return [TraceJob(5_000, 10 * _MINUTE_MS, _HOUR_MS, nodes, gpus, "models", 100, "training")]


def scene(name: str, nodes: int, gpus: int, *, jobs: int, seed: Seed, load: float) -> list[TraceJob]:
    """Return a trace by name."""
    table: dict[str, Callable[[], list[TraceJob]]] = {
        "mixed": lambda: generated(jobs, nodes, gpus, seed, load=load),
        "small-beside-big": lambda: small_beside_big(nodes, gpus),
        "full-site": lambda: full_site(nodes, gpus),
    }
    if name not in table:
        raise UsageError(f"there is no scene {name!r}; there are: {', '.join(table)}")
    return table[name]()
