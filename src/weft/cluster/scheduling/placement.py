"""Which nodes a gang gets: the fewest pods, T0s and scale-up domains, and the tightest fit among those.

One rule at every level of the topology: if one group holds the whole gang, the tightest such group, so that large holes
stay large; otherwise the fullest groups, and the tightest one for the rest. Ranks follow the topology (tensor-parallel
ranks share a node, pipeline neighbours stand close, as `planning.run.placement` numbers them). Services are spread
instead. Pure; columns in, node numbers out.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

Column = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]


def compact(candidates: Column, count: int, levels: Sequence[Column]) -> Column:
    """Return `count` of `candidates`; `levels` hold each node's group, the widest level first."""
    assert len(candidates) >= count, "a gang is placed only where it fits"
    if count == len(candidates):
        return candidates
    if not levels:
        return candidates[:count]
    groups = levels[0][candidates]
    sizes = np.bincount(groups)
    holding = np.flatnonzero(sizes >= count)
    if len(holding):
        tightest = holding[np.argmin(sizes[holding])]
        return compact(candidates[groups == tightest], count, levels[1:])
    fullest = np.argsort(-sizes, kind="stable")
    reached = np.cumsum(sizes[fullest])
    whole = int(np.searchsorted(reached, count, side="right"))
    taken = candidates[np.isin(groups, fullest[:whole])]
    rest = count - len(taken)
    if rest == 0:
        return taken
    sizes[fullest[:whole]] = 0
    holding = np.flatnonzero(sizes >= rest)
    tightest = holding[np.argmin(sizes[holding])]
    return np.concatenate([taken, compact(candidates[groups == tightest], rest, levels[1:])])


def tightest(candidates: Column, count: int, free: Column) -> Column:
    """Return the candidates with the fewest free GPUs that are enough: whole nodes stay whole for who needs them."""
    each = free[candidates]
    reached = np.cumsum(np.bincount(each))
    most = int(np.searchsorted(reached, count))
    return candidates[each <= most]


def apart(candidates: Column, count: int, t0: Column) -> Column:
    """Return `count` of `candidates`, as far from each other as can be: one in each T0 before a second in any."""
    assert len(candidates) >= count, "a service is placed only where it fits"
    groups = t0[candidates]
    order = np.argsort(groups, kind="stable")
    sizes = np.bincount(groups)
    begins = np.cumsum(sizes) - sizes
    turn = np.empty(len(candidates), dtype=np.int64)
    turn[order] = np.arange(len(candidates)) - begins[groups[order]]
    # Among equals the fullest switches come first, so that idle ones stay whole for gangs.
    return candidates[np.lexsort((candidates, sizes[groups], turn))[:count]]


def capped(candidates: Column, groups: Column, slots: Column) -> Column:
    """Return those of `candidates` that a budget by group leaves: the first `slots` of each group."""
    each = groups[candidates]
    order = np.argsort(each, kind="stable")
    sizes = np.bincount(each, minlength=len(slots))
    begins = np.cumsum(sizes) - sizes
    turn = np.empty(len(candidates), dtype=np.int64)
    turn[order] = np.arange(len(candidates)) - begins[each[order]]
    return candidates[turn < slots[each]]


def switches(nodes: Column, t0: Column) -> int:
    """Return how many T0s a placement touches."""
    return int(np.count_nonzero(np.bincount(t0[nodes])))
