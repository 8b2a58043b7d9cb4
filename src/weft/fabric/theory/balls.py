"""Balls into bins: what hashing flows, sub-flows or packets to links does to the fullest link.

Sources: Feller, An Introduction to Probability Theory, vol. 1, chapters II and IV (occupancy); Raab and Steger, "Balls
into Bins: A Simple and Tight Analysis", RANDOM 1998 (the asymptotes). The expected maximum is not taken from an
asymptote: it is computed exactly. Independent Poisson (or binomial) loads, given their sum, are the multinomial (or
hypergeometric) loads, so P(max <= m) is one coefficient of the n-th power of a truncated generating function
(Holst, "On birthday, collectors', occupancy and other classical urn problems", 1986), and that coefficient is
read off with one Fourier transform.
"""

import math
from functools import cache

import numpy as np
from numpy.typing import NDArray

from weft.fabric.theory.estimate import Estimate, mean, mean_share, share

_NEGLIGIBLE = 1e-8  # the transform keeps about eleven digits of a probability
_Floats = NDArray[np.float64]


def collision_free(flows: int) -> float:
    """Return the probability that n flows, hashed to n links, meet nowhere: n!/n^n."""
    return math.exp(math.lgamma(flows + 1) - flows * math.log(flows))


def busy_share(flows: int, links: int) -> float:
    """Return the expected share of links that carry anything, 1 - (1 - 1/n)^m; with m = n also the mean flow's share.

    A busy link is full and an idle one is wasted, so this is the throughput of a permutation.
    """
    return 1 - (1 - 1 / links) ** flows


def excess(links: int, subflows: int) -> float:
    """Return the asymptote of the relative excess of the fullest of n links with q sub-flows each: sqrt(2 ln n / q)."""
    return math.sqrt(2 * math.log(links) / subflows)


@cache
def mean_max_load(balls: int, bins: int) -> float:
    """Return the exact expected load of the fullest of `bins` with `balls` thrown independently."""
    rate = balls / bins
    counts = np.arange(balls + 1)
    log_weights = counts * math.log(rate) - rate - _log_factorials(balls)
    log_whole = balls * math.log(balls) - balls - math.lgamma(balls + 1)
    return _mean_of_largest(np.exp(log_weights), bins, balls, math.exp(log_whole))


@cache
def mean_max_load_of_subsets(senders: int, chosen: int, paths: int, links: int) -> float:
    """Return the expected load of the fullest link where each sender picks `chosen` different ones of `paths` paths.

    Links carry equally many paths. The computation fixes the sum over all senders instead of each sender's own sum,
    which is exact for one sender and within a few parts in a thousand for many.
    """
    cells, total = senders * paths // links, senders * chosen
    chance = chosen / paths
    if chosen == paths:
        return float(cells)
    log_weights = _log_binomial(cells, chance)
    log_whole = float(_log_binomial(cells * links, chance)[total])
    return _mean_of_largest(np.exp(log_weights), links, total, math.exp(log_whole))


def _mean_of_largest(weights: _Floats, bins: int, total: int, whole: float) -> float:
    """Return E[max] of `bins` independent counts with the given weights, given their sum, by summing P(max > m)."""

    def at_most(largest: int) -> float:
        # Long enough that no other possible sum falls on the wanted coefficient.
        size = 1 << max(total, bins * largest - total, 1).bit_length()
        spectrum = np.fft.rfft(weights[: largest + 1], size)
        return float(np.fft.irfft(_power(spectrum, bins), size)[total]) / whole

    last = weights.size - 1
    low = -(-total // bins) - 1
    # P(max <= m) rises with m: skip the part where it is nothing, first in growing steps, then by halving.
    step = 1
    while low + step < last and at_most(low + step) <= _NEGLIGIBLE:
        low, step = low + step, 2 * step
    high = min(low + step, last)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if at_most(middle) > _NEGLIGIBLE else (middle, high)
    expected, largest = float(high), high
    while largest < last and (beyond := 1 - at_most(largest)) > _NEGLIGIBLE:
        expected += beyond
        largest += 1
    return expected


def _power(values: NDArray[np.complex128], exponent: int) -> NDArray[np.complex128]:
    """Return each value to a whole power by repeated squaring, several times quicker than numpy's general power."""
    result = np.ones_like(values)
    while exponent:
        if exponent & 1:
            result *= values
        exponent >>= 1
        if exponent:
            values = values * values
    return result


def _log_factorials(most: int) -> _Floats:
    return np.concatenate(([0.0], np.cumsum(np.log(np.arange(1, most + 1, dtype=np.float64)))))


def _log_binomial(trials: int, chance: float) -> _Floats:
    factorials = _log_factorials(trials)
    hits = np.arange(trials + 1)
    ways = factorials[-1] - factorials - factorials[::-1]
    return ways + hits * math.log(chance) + (trials - hits) * math.log1p(-chance)


def throw(generator: np.random.Generator, balls: int, bins: int, trials: int) -> NDArray[np.int64]:
    """Return the loads of `bins` in each trial, with `balls` thrown independently."""
    hits = generator.integers(0, bins, (trials, balls)) + bins * np.arange(trials)[:, None]
    return np.bincount(hits.ravel(), minlength=trials * bins).reshape(trials, bins)


def throw_subsets(
    generator: np.random.Generator, senders: int, chosen: int, paths: int, links: int, *, trials: int
) -> NDArray[np.int64]:
    """Return the loads of `links` in each trial, where each sender picks `chosen` different ones of `paths` paths."""
    loads = np.empty((trials, links), dtype=np.int64)
    for trial in range(trials):
        picks = pick_subsets(generator, senders, chosen, paths)
        loads[trial] = np.bincount((picks * links // paths).ravel(), minlength=links)
    return loads


def pick_subsets(generator: np.random.Generator, senders: int, chosen: int, paths: int) -> NDArray[np.int64]:
    """Return one row of `chosen` different path numbers for each sender."""
    order = generator.random((senders, paths), dtype=np.float32)
    return np.argpartition(order, chosen - 1, axis=1)[:, :chosen].astype(np.int64)


def simulated_collision_free(generator: np.random.Generator, flows: int, trials: int) -> Estimate:
    """Estimate how often n flows on n links meet nowhere."""
    loads = throw(generator, flows, flows, trials)
    return share(int((loads.max(axis=1) == 1).sum()), trials)


def simulated_busy_share(generator: np.random.Generator, flows: int, links: int, trials: int) -> Estimate:
    """Estimate the share of links that carry anything."""
    return mean_share((throw(generator, flows, links, trials) > 0).mean(axis=1))


def simulated_max_load(generator: np.random.Generator, flows: int, subflows: int, links: int, trials: int) -> Estimate:
    """Estimate the load of the fullest link over that of a mean one, with each flow cut into `subflows`."""
    loads = throw(generator, flows * subflows, links, trials)
    return mean(loads.max(axis=1) * (links / (flows * subflows)))


def simulated_max_load_of_subsets(
    generator: np.random.Generator, senders: int, chosen: int, paths: int, links: int, *, trials: int
) -> Estimate:
    """Estimate the load of the fullest link over that of a mean one, with `chosen` different paths for each sender."""
    loads = throw_subsets(generator, senders, chosen, paths, links, trials=trials)
    return mean(loads.max(axis=1) * (links / (senders * chosen)))
