"""What a simulation returns: a value with its standard error, and when that agrees with a formula."""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

STANDARD_ERRORS = 4.0
"""How far apart a formula and a simulation may lie; chance alone exceeds it about once in 16,000 checks."""

_ROUNDING = 1e-9


@dataclass(frozen=True, slots=True)
class Estimate:
    """A simulated value and how well it is known."""

    value: float
    """Mean of the trials."""
    standard_error: float
    """Standard deviation of `value`."""
    trials: int
    """Independent repetitions."""


def mean(samples: NDArray[np.floating] | NDArray[np.integer]) -> Estimate:
    """Return the mean of independent samples, at least two."""
    values = np.asarray(samples, dtype=np.float64)
    error = float(values.std(ddof=1)) / math.sqrt(values.size)
    return Estimate(float(values.mean()), error, int(values.size))


def mean_share(shares: NDArray[np.floating]) -> Estimate:
    """Return the mean of independent samples between 0 and 1, where equal ones may hide a rare other one."""
    estimate = mean(shares)
    if estimate.standard_error > 0:
        return estimate
    return Estimate(estimate.value, 1 / (estimate.trials + 2), estimate.trials)


def share(hits: int, trials: int) -> Estimate:
    """Return the share of trials that hit.

    The error is that of the share with one hit and one miss added (Laplace's rule), so that no hit in n trials
    means "about 1/n at most" and not "exactly 0".
    """
    smoothed = (hits + 1) / (trials + 2)
    return Estimate(hits / trials, math.sqrt(smoothed * (1 - smoothed) / (trials + 2)), trials)


def agrees(closed: float, estimate: Estimate, tolerance: float = 0.0) -> bool:
    """Return whether a closed form lies within four standard errors, plus its own stated relative error."""
    slack = (tolerance + _ROUNDING) * abs(closed)
    return abs(closed - estimate.value) <= STANDARD_ERRORS * estimate.standard_error + slack
