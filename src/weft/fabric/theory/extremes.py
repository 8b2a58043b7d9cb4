"""The slowest of many: what a synchronous step sees of a distribution.

Sources: David and Nagaraja, Order Statistics, 3rd edition, chapters 2 and 3 (P(max <= x) = F(x)^N; Renyi's
representation gives H_N for exponentials); Dean and Barroso, "The Tail at Scale", CACM 56(2), 2013.
"""

import math
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from weft.fabric.theory.estimate import Estimate, mean, share

_EULER = 0.5772156649015329
_EXACT_HARMONIC = 10_000
_STEPS = 20_000
_NORMAL_SPAN = 12.0
_BLOCK = 1 << 22
_WORD = 2**32
_Floats = NDArray[np.float64]


def any_bad(chance: float, count: int) -> float:
    """Return the probability that at least one of `count` is bad: 1 - (1 - p)^N."""
    return -math.expm1(count * math.log1p(-chance)) if chance < 1 else 1.0


def harmonic(count: int) -> float:
    """Return H_N = 1 + 1/2 + ... + 1/N: the mean of the largest of N exponentials, in units of one's mean."""
    if count <= _EXACT_HARMONIC:
        return math.fsum(1 / k for k in range(1, count + 1))
    return math.log(count) + _EULER + 1 / (2 * count) - 1 / (12 * count**2)


def mean_of_max(distribution: Callable[[_Floats], _Floats], count: int, low: float, high: float) -> float:
    """Return the mean of the largest of `count`, from the distribution function F: low + integral of 1 - F(x)^N.

    `low` and `high` enclose all of the distribution that matters.
    """
    at = np.linspace(low, high, _STEPS + 1)
    return low + float(np.trapezoid(1 - distribution(at) ** count, at))


def mean_of_max_normal(count: int) -> float:
    """Return how many standard deviations above the mean the largest of `count` normal values lies on average."""
    half = _NORMAL_SPAN
    return mean_of_max(_below_normal, count, -half, half)


def _below_normal(at: _Floats) -> _Floats:
    # The far tail is subtracted from 1 at the very end, so that it keeps its digits until then.
    return np.array([1 - 0.5 * math.erfc(x / math.sqrt(2)) for x in at.tolist()])


def mean_of_max_pareto(count: int, shape: float) -> float:
    """Return the mean of the largest of `count` Pareto values (least value 1, tail x^-shape, shape above 1)."""
    lgamma = math.lgamma
    return math.exp(lgamma(count + 1) + lgamma(1 - 1 / shape) - lgamma(count + 1 - 1 / shape))


def simulated_any_bad(generator: np.random.Generator, chance: float, count: int, trials: int) -> Estimate:
    """Estimate how often at least one of `count` is bad, by drawing every one of them."""
    limit = round(chance * _WORD)
    hits = sum(bool((np.frombuffer(generator.bytes(4 * count), dtype=np.uint32) < limit).any()) for _ in range(trials))
    return share(hits, trials)


def simulated_max(draw: Callable[[int], _Floats], count: int, trials: int) -> Estimate:
    """Estimate the mean of the largest of `count` values that `draw` makes."""
    rows = max(1, _BLOCK // count)
    largest: list[_Floats] = []
    for first in range(0, trials, rows):
        block = min(rows, trials - first)
        largest.append(draw(block * count).reshape(block, count).max(axis=1))
    return mean(np.concatenate(largest))
