"""What a collective costs on an ideal network, in closed form: alpha for each message, bytes over a rate for its data.

The functions take columns of figures and equal the critical path of the schedules in this package where the
sizes divide evenly; a test holds the two together. `size` is always the whole buffer: what every rank has after an
all-gather or an all-reduce, and what it sends altogether in an all-to-all. Congestion is not known here.
"""

from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

Column: TypeAlias = NDArray[np.float64]
"""A column of figures."""
Number: TypeAlias = Column | float
"""A figure for all rows, or one for each."""


def send(size: Column, alpha: Number, rate: Number) -> Column:
    """Return the time of one message."""
    return alpha + size / rate


def ring_half(ranks: Column, size: Column, alpha: Number, rate: Number) -> Column:
    """Return the time of a ring's reduce-scatter, or of its all-gather: n - 1 steps of a part each."""
    return (ranks - 1) * (alpha + size / ranks / rate)


def ring_all_reduce(ranks: Column, size: Column, alpha: Number, rate: Number) -> Column:
    """Return the time of a ring's all-reduce: both halves."""
    return 2 * ring_half(ranks, size, alpha, rate)


def halving_half(ranks: Column, size: Column, alpha: Number, rate: Number) -> Column:
    """Return the time of a recursive halving (or doubling) over a power of two of ranks."""
    return np.log2(ranks) * alpha + (ranks - 1) / ranks * size / rate


def halving_all_reduce(ranks: Column, size: Column, alpha: Number, rate: Number) -> Column:
    """Return the time of halving-doubling; ranks beyond a power of two first hand their data over, and get it back."""
    power = 2.0 ** np.floor(np.log2(ranks))
    extra = np.where(power < ranks, 2 * (alpha + size / rate), 0.0)
    return 2 * halving_half(power, size, alpha, rate) + extra


def all_to_all(ranks: Column, size: Column, alpha: Number, rate: Number) -> Column:
    """Return the time of a direct all-to-all: every rank sends one part to each other one, in n - 1 steps."""
    return (ranks - 1) * (alpha + size / ranks / rate)


def ring_broadcast(ranks: Column, size: Column, alpha: Number, rate: Number, pieces: Number) -> Column:
    """Return the time of a broadcast along a chain, cut into `pieces` that follow each other."""
    return (ranks - 1 + pieces - 1) * (alpha + size / pieces / rate)


def double_tree_all_reduce(ranks: Column, size: Column, alpha: Number, rate: Number, pieces: Number) -> Column:
    """Return a bound on the time of two binary trees, each reducing and broadcasting half of the data in `pieces`.

    A piece takes two message times at each level, because a parent hears both children through one port; pieces
    follow each other at three message times, the most that a port of a node of both trees carries for each.
    """
    levels = np.floor(np.log2(ranks)) + 1
    return (4 * levels + 6 * pieces) * (alpha + size / (2 * pieces) / rate)


def binomial_broadcast(ranks: Column, size: Column, alpha: Number, rate: Number) -> Column:
    """Return the time of a broadcast down a binomial tree, everything at once."""
    return np.ceil(np.log2(ranks)) * (alpha + size / rate)


def latency_floor(ranks: Column, alpha: Number) -> Column:
    """Return the least time in which a word of every rank can reach every other: doubling, a message at a time."""
    return np.ceil(np.log2(ranks)) * alpha


def half_bandwidth_floor(ranks: Column, size: Column, rate: Number) -> Column:
    """Return the least time of a reduce-scatter, an all-gather or an all-to-all: what must pass one rank's port."""
    return (ranks - 1) / ranks * size / rate


def all_reduce_bandwidth_floor(ranks: Column, size: Column, rate: Number) -> Column:
    """Return the least time of an all-reduce by its bytes: all but one part must leave a rank, and come back summed."""
    return 2 * half_bandwidth_floor(ranks, size, rate)


def best_half(ranks: Column, size: Column, alpha: Number, rate: Number) -> Column:
    """Return the time of the better of ring and halving for a reduce-scatter or an all-gather."""
    # Beyond a power of two halving is not used here; its logarithm would be wrong by a step.
    whole = np.exp2(np.round(np.log2(ranks))) == ranks
    ring = ring_half(ranks, size, alpha, rate)
    return np.where(whole, np.minimum(ring, halving_half(ranks, size, alpha, rate)), ring)


def two_level_half(
    inner: Column, outer: Column, size: Column, near: tuple[Number, Number], far: tuple[Number, Number]
) -> Column:
    """Return the time of a reduce-scatter or all-gather over `outer` groups of `inner` ranks that are near each other.

    `near` and `far` are (alpha, rate) of one rank inside its group and between groups. Every rank of a group carries
    its own part over the far links, so that all of the group's far links work.
    """
    alpha, rate = near
    alpha_far, rate_far = far
    inside = best_half(inner, size, alpha, rate)
    between = best_half(outer, size / inner, alpha_far, rate_far)
    return inside + between
