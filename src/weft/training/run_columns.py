"""A run's lines as columns for charts: as many points as a screen has, and none of the peaks lost.

What is longer than the limit is cut into bins of neighbouring steps; of each the step with the highest loss is shown,
with the mean of the bin's times, so that a spike is seen and the times still add up. Ranks beyond a limit are grouped
in the same way, the slowest of each group shown. Pure and free of torch.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

MOST_POINTS, MOST_ROWS = 2000, 128


def columns_of(lines: Sequence[Mapping[str, Any]], most: int = MOST_POINTS) -> dict[str, Any]:
    """Return the lines of steps as columns of at most `most` points; `every` says how many steps make one."""
    every = max(1, math.ceil(len(lines) / most))
    bins = [lines[start : start + every] for start in range(0, len(lines), every)]
    kinds = list(dict.fromkeys(kind for line in lines for kind in line["seconds"]))
    shown = [max(each, key=_loss) for each in bins]
    return {
        "every": every,
        "step": [line["step"] for line in shown],
        "loss": [line["loss"] for line in shown],
        "grad_norm": [line["grad_norm"] for line in shown],
        "tokens_per_s": [_speed(each) for each in bins],
        "seconds": {kind: [_mean([line["seconds"].get(kind, 0.0) for line in each]) for each in bins]
                    for kind in kinds},
        "energy_j": [_mean([line.get("energy_j") or 0.0 for line in each]) for each in bins],
        **_ranks(bins),
    }  # fmt: skip


def _loss(line: Mapping[str, Any]) -> float:
    # A loss that is not finite is what somebody wants to see before anything else.
    return math.inf if line["loss"] is None else float(line["loss"])


def _speed(lines: Sequence[Mapping[str, Any]]) -> float | None:
    spent = sum(sum(line["seconds"].values()) for line in lines)
    return sum(line["tokens"] for line in lines) / spent if spent > 0 else None


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def _ranks(bins: Sequence[Sequence[Mapping[str, Any]]]) -> dict[str, Any]:
    """Return by point what each rank (or each group of ranks) computed at most, and the planes that were out."""
    ranks = max((len(line.get("rank_seconds", ())) for each in bins for line in each), default=0)
    group = max(1, math.ceil(ranks / MOST_ROWS))
    seconds = [_rows([line.get("rank_seconds", ()) for line in each], ranks, group) for each in bins]
    masks = [_masks([line.get("planes_out", ()) for line in each], ranks, group) for each in bins]
    return {"ranks": ranks, "ranks_per_row": group, "rank_seconds": seconds, "planes_out": masks}


def _rows(lines: Sequence[Sequence[float]], ranks: int, group: int) -> list[float | None]:
    """Return for each group of ranks the longest time; none for ranks that a line does not have."""
    known = [line for line in lines if line]
    return [
        max((value for line in known for value in line[first : first + group]), default=None)
        for first in range(0, ranks, group)
    ]


def _masks(lines: Sequence[Sequence[int]], ranks: int, group: int) -> list[int]:
    found = [0] * math.ceil(ranks / group)
    for line in lines:
        for rank, mask in enumerate(line):
            found[rank // group] |= mask
    return found
