"""When a waiting job will start: an estimate from a state's columns, and an interval that history has calibrated.

The estimate lets jobs start one after the other in their order, by GPUs alone, as running ones end when jobs like them
do. It knows nothing of backfill or places, and need not: how far starts of jobs of a size class have been from it is
learned as they happen, and an interval is what eight in ten of them kept to. Pure; whoever owns a `StartCalibration`
tells it what came true.
"""

import heapq
import math
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from weft.cluster.records.snapshot import FAR_MS, MINUTE_MS
from weft.cluster.scheduling.state import ClusterState

COVERED = 0.8
"""Share of starts that an interval is to hold."""
_USED = 0.5
"""Share of its limit that a job is thought to use: people declare about twice what they need."""
_STEP = 0.08
"""How far a bound moves for one start that was outside; larger follows changes sooner and is less steady."""
_LEAST_MS = MINUTE_MS
"""Added to waits before they are compared: a second or a minute late is all the same."""
_LONGEST_LOG = 12.0
_CLASSES = 24


def expected_starts(cluster: ClusterState, now_ms: int) -> dict[str, int]:
    """Return when each job that stands in a line would start if all went in order; who never fits is not in it."""
    order, _ = cluster.rules.order(cluster.queue, cluster.shares, now_ms)
    ages_ms = cluster.running.ages_by_class(now_ms)
    ends = _running_ends(cluster, ages_ms, now_ms)
    heapq.heapify(ends)
    free, at_ms = cluster.pool.free_gpus, now_ms
    found: dict[str, int] = {}
    total, limit_ms, classes = (
        cluster.queue.column(name)[order].tolist() for name in ("total", "limit_ms", "size_class")
    )
    all_gpus = int(cluster.pool.usable.sum())
    for row, gpus, limit, size_class in zip(order.tolist(), total, limit_ms, classes, strict=True):
        if gpus > all_gpus:
            continue
        while free < gpus and ends:
            at_ms, given = heapq.heappop(ends)
            free += given
        if free < gpus:
            break
        found[cluster.queue.ids[row]] = at_ms
        free -= gpus
        span_ms = int(ages_ms[size_class]) if limit >= FAR_MS else int(limit * _USED)
        heapq.heappush(ends, (at_ms + span_ms, gpus))
    return found


def expected_end_ms(cluster: ClusterState, job_id: str, now_ms: int) -> int | None:
    """Return when a running job is thought to end; nothing where it does not run."""
    row = cluster.running.rows.get(job_id)
    if row is None:
        return None
    live = np.flatnonzero(cluster.running.mask("live")).tolist()
    ends = _running_ends(cluster, cluster.running.ages_by_class(now_ms), now_ms)
    return ends[live.index(row)][0]


def _running_ends(cluster: ClusterState, ages_ms: np.ndarray, now_ms: int) -> list[tuple[int, int]]:
    """Return when running jobs are thought to end, with the GPUs that each gives back."""
    running = cluster.running
    live = np.flatnonzero(running.mask("live"))
    start_ms, back_ms = running.column("start_ms")[live], running.column("back_ms")[live]
    ran_ms = now_ms - start_ms
    limited = back_ms < FAR_MS
    span_ms = np.where(limited, (back_ms - start_ms) * _USED, ran_ms + ages_ms[running.column("size_class")[live]])
    # Who has run for longer than expected is thought to go on for half of what is left of its limit.
    late_ms = np.where(limited, ran_ms + (back_ms - now_ms) // 2, span_ms)
    ends_ms = start_ms + np.where(span_ms > ran_ms, span_ms, late_ms)
    ends_ms = np.maximum(np.where(limited, np.minimum(ends_ms, back_ms), ends_ms), now_ms).astype(np.int64)
    gpus = running.column("nodes")[live] * running.column("gpus")[live]
    return list(zip(ends_ms.tolist(), gpus.tolist(), strict=True))


@dataclass(slots=True)
class StartCalibration:
    """What is known of how far starts are from their estimates, by size class; one owner.

    Two bounds for each class, as logarithms of wait over estimated wait. A start below the lower bound moves it down by
    much, one above it up by little, so that one in ten stays below in the long run, whatever the trace; the upper alike
    (a quantile tracked by stochastic gradient).
    """

    bounds: dict[int, tuple[float, float]] = field(default_factory=dict)

    def interval_ms(self, now_ms: int, expected_ms: int, gpus: int, pool_gpus: int) -> tuple[int, int]:
        """Return between which times a job is likely to start that is estimated to start at `expected_ms`."""
        number = _class_of(gpus, pool_gpus)
        low, high = self.bounds.get(number, _usual(number))
        wait_ms = max(0, expected_ms - now_ms) + _LEAST_MS
        spans = (max(0.0, wait_ms * math.exp(bound) - _LEAST_MS) for bound in (low, high))
        early_ms, late_ms = (now_ms + round(min(span, FAR_MS / 4)) for span in spans)
        return early_ms, late_ms

    def started(self, waited_ms: int, estimated_ms: int, gpus: int, pool_gpus: int) -> None:
        """Take in that a job has started which was estimated to wait so long."""
        number = _class_of(gpus, pool_gpus)
        low, high = self.bounds.get(number, _usual(number))
        seen = math.log((waited_ms + _LEAST_MS) / (max(0, estimated_ms) + _LEAST_MS))
        tail = (1 - COVERED) / 2
        low += 2 * _STEP * (tail if seen > low else tail - 1)
        high += 2 * _STEP * (1 - tail if seen > high else -tail)
        low = max(-_LONGEST_LOG, low)
        self.bounds[number] = (low, min(_LONGEST_LOG, max(low, high)))

    def as_plain(self) -> Mapping[str, list[float]]:
        """Return what is known as plain values."""
        return {str(number): [low, high] for number, (low, high) in sorted(self.bounds.items())}


USUAL: Mapping[int, tuple[float, float]] = {
    15: (-5.4, -0.4), 16: (-6.2, -0.1), 17: (-6.5, 0.0), 18: (-6.6, 0.0), 19: (-5.0, -0.6), 20: (-4.6, 0.1),
    21: (-3.6, 0.8), 22: (-0.4, 2.5),
}  # fmt: skip
"""Bounds of each class before anything is known: from replays of generated traces at loads from 0.8 to 1.2.

Small jobs start long before their turn, because they are backfilled; gangs of half the pool somewhat after it."""


def _usual(size_class: int) -> tuple[float, float]:
    return USUAL[min(max(size_class, min(USUAL)), max(USUAL))]


def _class_of(gpus: int, pool_gpus: int) -> int:
    """Return a job's size class: by halvings of the pool."""
    halvings = max(0, (max(1, pool_gpus) // max(1, gpus)).bit_length() - 1)
    return max(0, _CLASSES - 1 - halvings)
