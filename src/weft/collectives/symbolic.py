"""Proof and price of a schedule: a run with contributions instead of numbers, and its critical path.

`contributions` carries, for each rank and part, how often every rank's contribution is in it; `missing` says what is
not as it should be at the end. `critical_path` plays the sends on an ideal network where a rank sends one message at a
time and receives one at a time; it is the number that the closed forms in `costs` must equal.
"""

import heapq
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from weft.collectives.schedule import Schedule

Counts = NDArray[np.int16]


def initial(schedule: Schedule) -> Counts:
    """Return what every rank holds at the start: counts by (rank, part, contributor)."""
    ranks, parts = schedule.ranks, schedule.parts
    held = np.zeros((ranks, parts, ranks), dtype=np.int16)
    if schedule.kind in ("all-reduce", "reduce-scatter"):
        held[np.arange(ranks), :, np.arange(ranks)] = 1
    elif schedule.kind == "all-gather":
        held[np.arange(ranks), np.arange(ranks), np.arange(ranks)] = 1
    elif schedule.kind == "all-to-all":
        for rank in range(ranks):
            held[rank, rank * ranks : (rank + 1) * ranks, rank] = 1
    else:
        held[0, :, 0] = 1
    return held


def contributions(schedule: Schedule, order: Sequence[int] | None = None) -> Counts:
    """Return what every rank holds at the end, when sends are carried out in `order`, or as they are numbered."""
    held = initial(schedule)
    for send in range(len(schedule)) if order is None else order:
        first, count = int(schedule.first[send]), int(schedule.count[send])
        run = slice(first, first + count)
        source, target = int(schedule.source[send]), int(schedule.target[send])
        if schedule.adds[send]:
            held[target, run] += held[source, run]
        else:
            held[target, run] = held[source, run]
    return held


def missing(schedule: Schedule, order: Sequence[int] | None = None) -> list[str]:
    """Return every (rank, part) that does not end with each contribution exactly once; empty where all is well."""
    held = contributions(schedule, order)
    wanted = _wanted(schedule)
    wrong = np.argwhere((held != wanted).any(axis=2) & (wanted.sum(axis=2) > 0))
    return [f"rank {rank} ends with part {part} = {held[rank, part].tolist()}" for rank, part in wrong]


def _wanted(schedule: Schedule) -> Counts:
    ranks, parts = schedule.ranks, schedule.parts
    wanted = np.zeros((ranks, parts, ranks), dtype=np.int16)
    if schedule.kind == "all-reduce":
        wanted[:] = 1
    elif schedule.kind == "reduce-scatter":
        wanted[np.arange(ranks), np.arange(ranks), :] = 1
    elif schedule.kind == "all-gather":
        wanted[:, np.arange(ranks), np.arange(ranks)] = 1
    elif schedule.kind == "all-to-all":
        for source in range(ranks):
            for target in range(ranks):
                wanted[target, source * ranks + target, source] = 1
    else:
        wanted[:, :, 0] = 1
    return wanted


def critical_path(
    schedule: Schedule, size: float, near: tuple[float, float], far: tuple[float, float] | None = None
) -> float:
    """Return when the last send arrives; `near` and `far` are (alpha, rate) of sends inside and between domains."""
    tiers = (near, far or near)
    sends = len(schedule)
    waiting = np.diff(schedule.before_start).astype(np.int64)
    after: list[list[int]] = [[] for _ in range(sends)]
    for send in range(sends):
        for earlier in schedule.before_of(send):
            after[int(earlier)].append(send)
    ready = [(0.0, send) for send in range(sends) if waiting[send] == 0]
    heapq.heapify(ready)
    out, into = np.zeros(schedule.ranks), np.zeros(schedule.ranks)
    finish, earliest = 0.0, np.zeros(sends)
    while ready:
        begin, send = heapq.heappop(ready)
        source, target = int(schedule.source[send]), int(schedule.target[send])
        free = max(begin, float(out[source]), float(into[target]))
        if free > begin:
            heapq.heappush(ready, (free, send))
            continue
        alpha, rate = tiers[int(schedule.far[send])]
        end = begin + alpha + int(schedule.count[send]) * size / schedule.parts / rate
        out[source] = into[target] = end
        finish = max(finish, end)
        for later in after[send]:
            earliest[later] = max(float(earliest[later]), end)
            waiting[later] -= 1
            if waiting[later] == 0:
                heapq.heappush(ready, (float(earliest[later]), later))
    assert not waiting.any(), "sends wait for each other in a circle"
    return finish
