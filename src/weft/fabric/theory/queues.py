"""The queue at one output port: frames that come at random, and frames that come in turn.

Backlog is the unfinished work in units of one frame's time on the port. Sources: Kleinrock, Queueing Systems, vol. 1,
section 5.6 (M/D/1 by Pollaczek and Khinchine); Roberts and Virtamo, "The superposition of periodic cell arrival streams
in an ATM multiplexer", IEEE Transactions on Communications 39(2), 1991, and Roberts, Mocci and Virtamo (eds.),
Broadband Network Teletraffic, LNCS 1155, 1996, part III (the nD/D/1 queue); Hajek, "Heavy traffic limit theorems for
queues with periodic arrivals", 1994 (the Brownian bridge at full load).
"""

import math

import numpy as np
from numpy.typing import NDArray

from weft.fabric.theory.estimate import Estimate, mean

_NEGLIGIBLE = 1e-12
_NODES = 8
_Floats = NDArray[np.float64]


def md1_waiting(load: float) -> float:
    """Return the mean number of frames that wait at random arrivals: rho^2 / (2 (1 - rho))."""
    return load**2 / (2 * (1 - load))


def md1_backlog(load: float) -> float:
    """Return the mean backlog at random arrivals, which is also the mean wait: rho / (2 (1 - rho))."""
    return load / (2 * (1 - load))


def ndd1_tail(backlog: float, sources: int, period: float) -> float:
    """Return the probability that the backlog exceeds `backlog`, with N sources of one frame each period.

    Sum over n > x of C(N,n) ((n-x)/D)^n (1-(n-x)/D)^(N-n) (D-N+x)/(D-n+x), with D >= N the period in frame times.
    """
    if backlog >= sources:
        return 0.0
    n = np.arange(math.floor(backlog) + 1, sources + 1)
    inside = (n - backlog) / period
    with np.errstate(divide="ignore"):
        log_terms = _log_choose(sources)[n] + n * np.log(inside)
        rest = sources - n
        log_terms = log_terms + np.where(rest > 0, rest * np.log(np.maximum(1 - inside, 0)), 0.0)
    factor = (period - sources + backlog) / (period - n + backlog)
    return float(np.sum(np.exp(log_terms) * factor))


def ndd1_backlog(sources: int, period: float) -> float:
    """Return the mean backlog with N sources of one frame each period: the integral of the tail."""
    nodes, weights = np.polynomial.legendre.leggauss(_NODES)
    total = 0.0
    for unit in range(sources):
        part = sum(w / 2 * ndd1_tail(unit + (x + 1) / 2, sources, period) for x, w in zip(nodes, weights, strict=True))
        total += part
        if part < _NEGLIGIBLE:
            break
    return total


def bridge_backlog(sources: int) -> float:
    """Return the mean backlog of N periodic sources at full load for large N: sqrt(pi N / 8)."""
    return math.sqrt(math.pi * sources / 8)


def _log_choose(total: int) -> _Floats:
    logs = np.concatenate(([0.0], np.cumsum(np.log(np.arange(1, total + 1, dtype=np.float64)))))
    return logs[-1] - logs - logs[::-1]


def simulated_md1_backlog(
    generator: np.random.Generator, load: float, replicas: int, arrivals: int, warm_up: int
) -> Estimate:
    """Estimate the mean backlog that a random arrival meets, by Lindley's recursion in independent replicas."""
    gaps = generator.standard_exponential((replicas, arrivals)) / load
    steps = np.cumsum(1.0 - gaps, axis=1)
    floor = np.minimum(np.minimum.accumulate(steps, axis=1), 0.0)
    return mean((steps - floor)[:, warm_up:].mean(axis=1))


def simulated_ndd1_backlog(
    generator: np.random.Generator, sources: int, period: float, replicas: int, periods: int = 3
) -> Estimate:
    """Estimate the time average of the backlog with N periodic sources of random phase, in its last period."""
    phases = np.sort(generator.random((replicas, sources)) * period, axis=1)
    backlog = np.zeros(replicas)
    area = np.zeros(replicas)
    for turn in range(periods):
        area[:] = 0.0
        for source in range(sources):
            backlog += 1.0
            following = phases[:, source + 1] if source + 1 < sources else phases[:, 0] + period
            left = np.maximum(backlog - (following - phases[:, source]), 0.0)
            if turn == periods - 1:
                area += (backlog**2 - left**2) / 2
            backlog = left
    return mean(area / period)
