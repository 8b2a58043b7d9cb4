"""Minimises the Huber loss of a scaling law in logarithms from many starts at once.

The law is written about the middle of the points (log A less alpha times the mean log N, and so on), where its
constants hardly depend on each other. There are two laws, a sum of terms and a joint one, and a weak pull of both
exponents for those who ask for it. A quasi-Newton method (BFGS) begins every round with the curvature of a weighted
least-squares problem and runs for all starts as one batch of numpy columns. The objective is divided by delta and by
the number of points: unscaled it is so small that stopping rules end the search early. What the constants mean is said
in `scaling`. scipy's BFGS, one problem at a time, ends in the same places after 1.8 to 42 times the CPU time
(docs/decisions/0011-scaling-fit.md).
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

_KEEP = 24
_SAME = 1e-6
_ROUNDS, _STEPS, _FIRST_STEPS, _HALVINGS = 8, 25, 30, 14
_LONGEST_STEP = 1.5
_ARMIJO = 1e-4
_GAIN = 1e-11
_DAMPING = 1e-9
_FAR = 50.0
_LEAST_BETA = 0.02
PRIOR_MIDDLE, PRIOR_WIDTH = 0.25, 0.125
"""Mean and standard deviation of the six published exponents: 0.076 and 0.095 (arXiv 2001.08361), 0.34 and 0.28 (arXiv
2203.15556), 0.35 and 0.37 (arXiv 2404.10102)."""


@dataclass(frozen=True)
class Surface:
    """What is minimised: the points in logarithms, about their middle."""

    x: Floats
    """Log parameters, less their middle."""
    y: Floats
    """Log tokens, less their middle."""
    z: Floats
    """Log loss."""
    delta: float
    """Huber delta."""
    middle: tuple[float, float]
    """What was taken from log parameters and log tokens."""
    joint: bool = False
    """Whether the law is the joint one."""
    noise: float = 0.0
    """Scatter of log losses beside which published exponents are weighed; 0 where they are not asked."""
    prior: float = PRIOR_MIDDLE
    """What the exponents are pulled to."""

    @classmethod
    def of(
        cls, x: Floats, y: Floats, z: Floats, delta: float, *, joint: bool = False, like: "Surface | None" = None
    ) -> "Surface":
        """Return the surface of points in logarithms; `like` is one of which it takes the middle and the pull."""
        middle = (float(x.mean()), float(y.mean())) if like is None else like.middle
        pulled = (0.0, PRIOR_MIDDLE) if like is None else (like.noise, like.prior)
        return cls(x - middle[0], y - middle[1], z, delta, middle, joint, *pulled)

    @property
    def size(self) -> int:
        """Return the number of points."""
        return len(self.z)

    def uncentred(self, theta: Floats) -> Floats:
        """Return rows (log E, log A, log B, alpha, beta) of constants written about the middle."""
        raw = theta.copy()
        if self.joint:
            raw[:, 4] = np.maximum(raw[:, 4], _LEAST_BETA)
        raw[:, 1] += raw[:, 3] * self.middle[0]
        raw[:, 2] += raw[:, 4] * self.middle[1]
        return raw

    def residuals(self, theta: Floats) -> Floats:
        """Return predicted less measured log loss of every point, for one set of constants."""
        return self._predicted(theta[None, :])[0][0] - self.z

    def objective(self, theta: Floats) -> float:
        """Return the sum of Huber losses, unscaled."""
        return float(self._huber(self.residuals(theta)[None, :]).sum())

    def value(self, theta: Floats, weights: Floats | None) -> Floats:
        """Return the scaled objective of every row of `theta`."""
        losses = self._huber(self._predicted(theta)[0] - self.z)
        pulled = 0.5 * self._pull * ((theta[:, 3:] - self.prior) ** 2).sum(1)
        return (losses if weights is None else losses * weights).sum(1) / (self.delta * self.size) + pulled

    def slope(self, theta: Floats, weights: Floats | None) -> Floats:
        """Return the gradient of the scaled objective, row by row."""
        predicted, columns = self._predicted(theta)
        residuals = predicted - self.z
        pull = np.clip(residuals, -self.delta, self.delta) / (self.delta * self.size)
        if weights is not None:
            pull *= weights
        slope = np.stack([(pull * column).sum(1) for column in columns], axis=1)
        slope[:, 3:] += self._pull * (theta[:, 3:] - self.prior)
        return slope

    def curvature(self, theta: Floats, weights: Floats | None) -> Floats:
        """Return the curvature of the least-squares problem that the Huber loss is nearest to, row by row."""
        predicted, slopes = self._predicted(theta)
        residuals = predicted - self.z
        pull = 1 / np.maximum(np.abs(residuals), self.delta) / self.size
        if weights is not None:
            pull *= weights
        columns = np.stack(slopes, axis=2)
        found = np.einsum("snk,sn,snl->skl", columns, pull, columns, optimize=True)
        trace = np.trace(found, axis1=1, axis2=2)
        found = found + np.diag([0.0, 0.0, 0.0, self._pull, self._pull])
        return found + (_DAMPING * trace + 1e-12)[:, None, None] * np.eye(5)

    @property
    def _pull(self) -> float:
        """How hard the exponents are pulled to what was published, in units of the scaled objective."""
        return (self.noise / PRIOR_WIDTH) ** 2 / (self.delta * self.size)

    def _huber(self, residuals: Floats) -> Floats:
        size = np.abs(residuals)
        return np.where(size <= self.delta, 0.5 * size * size, self.delta * (size - 0.5 * self.delta))

    def _predicted(self, theta: Floats) -> tuple[Floats, list[Floats]]:
        """Return the log loss of every point, and how it changes with each of the five constants."""
        return self._jointly(theta) if self.joint else self._summed(theta)

    def _summed(self, theta: Floats) -> tuple[Floats, list[Floats]]:
        still = np.broadcast_to(theta[:, :1], (len(theta), self.size))
        params = theta[:, 1:2] - theta[:, 3:4] * self.x
        tokens = theta[:, 2:3] - theta[:, 4:5] * self.y
        top = np.maximum(np.maximum(still, params), tokens)
        parts = [np.exp(term - top) for term in (still, params, tokens)]
        total = parts[0] + parts[1] + parts[2]
        shares = [part / total for part in parts]
        return top + np.log(total), [*shares, -shares[1] * self.x, -shares[2] * self.y]

    def _jointly(self, theta: Floats) -> tuple[Floats, list[Floats]]:
        beta = np.maximum(theta[:, 4:5], _LEAST_BETA)
        params = (theta[:, 1:2] - theta[:, 3:4] * self.x) / beta
        tokens = (theta[:, 2:3] - beta * self.y) / beta
        total = np.logaddexp(params, tokens)
        shares = [np.exp(params - total), np.exp(tokens - total)]
        mixed = total - shares[0] * params - shares[1] * tokens
        by_beta = np.where(theta[:, 4:5] > _LEAST_BETA, mixed - shares[1] * self.y, 0.0)
        loss = np.logaddexp(theta[:, :1], beta * total)
        still, falling = np.exp(theta[:, :1] - loss), np.exp(beta * total - loss)
        return loss, [still, *(falling * part for part in (*shares, -shares[0] * self.x, by_beta))]


@dataclass(frozen=True)
class Descent:
    """Where the search has ended."""

    ends: Floats
    """One row for every start."""
    best: Floats
    """The lowest of them."""
    candidates: Floats
    """The lowest few, from which a changed surface may be searched again."""
    agreed: int
    """How many of those have the same value as the best."""


def descend(surface: Surface, starts: Floats, weights: Floats | None = None) -> Descent:
    """Return where the search ends; with `weights` (a row of them for each start) every start is a problem of its own.

    Without them, all starts run a little and the best few to the end.
    """
    if weights is not None:
        ends = _minimise(surface, starts, weights, _ROUNDS, _STEPS)
        return Descent(ends, ends[0], ends, len(ends))
    first = _minimise(surface, starts, None, 1, _FIRST_STEPS)
    order = np.argsort(surface.value(first, None), kind="stable")
    ends = _minimise(surface, first[order[:_KEEP]], None, _ROUNDS, _STEPS)
    values = surface.value(ends, None)
    agreed = int((values <= values.min() * (1 + _SAME) + _SAME * _SAME).sum())
    return Descent(ends, ends[int(values.argmin())], ends, agreed)


def polish(surface: Surface, candidates: Floats) -> Floats:
    """Return the lowest place that is reached from `candidates`."""
    ends = _minimise(surface, candidates, None, _ROUNDS, _STEPS)
    return ends[int(surface.value(ends, None).argmin())]


def _minimise(surface: Surface, starts: Floats, weights: Floats | None, rounds: int, steps: int) -> Floats:
    """Run rounds of quasi-Newton steps; rows that no longer gain are left alone."""
    theta = starts.copy()
    going = np.arange(len(theta))
    for _ in range(rounds):
        before = surface.value(theta[going], _of(weights, going))
        theta[going] = _round(surface, theta[going], _of(weights, going), steps)
        after = surface.value(theta[going], _of(weights, going))
        going = going[before - after > _GAIN * np.maximum(1.0, after)]
        if not going.size:
            break
    return theta


def _of(weights: Floats | None, rows: NDArray[np.intp]) -> Floats | None:
    return None if weights is None else weights[rows]


def _round(surface: Surface, theta: Floats, weights: Floats | None, steps: int) -> Floats:
    inverse = np.linalg.inv(surface.curvature(theta, weights)).astype(np.float64)
    value, slope = surface.value(theta, weights), surface.slope(theta, weights)
    for _ in range(steps):
        step = -np.einsum("skl,sl->sk", inverse, slope)
        length = np.abs(step).max(1, keepdims=True)
        step *= np.minimum(1.0, _LONGEST_STEP / np.maximum(length, 1e-300))
        moved, reached = _line(surface, theta, step, (value, (step * slope).sum(1)), weights)
        new_slope = surface.slope(moved, weights)
        inverse = _updated(inverse, moved - theta, new_slope - slope)
        gained = float((value - reached).max())
        theta, value, slope = moved, reached, new_slope
        if gained <= _GAIN:
            break
    return theta


def _line(
    surface: Surface, theta: Floats, step: Floats, here: tuple[Floats, Floats], weights: Floats | None
) -> tuple[Floats, Floats]:
    """Halve each row's step until it gains enough, given value and fall `here`; a row that never does stays."""
    value, fall = here
    moved, reached = theta.copy(), value.copy()
    open_rows = np.flatnonzero(fall < 0)
    size = 1.0
    for _ in range(_HALVINGS):
        if not open_rows.size:
            break
        trial = np.clip(theta[open_rows] + size * step[open_rows], -_FAR, _FAR)
        found = surface.value(trial, _of(weights, open_rows))
        good = found <= value[open_rows] + _ARMIJO * size * fall[open_rows]
        moved[open_rows[good]], reached[open_rows[good]] = trial[good], found[good]
        open_rows = open_rows[~good]
        size *= 0.5
    return moved, reached


def _updated(inverse: Floats, moved: Floats, turned: Floats) -> Floats:
    """Return the BFGS update of every row's inverse curvature, where the step was along a valley that bends up."""
    along = (moved * turned).sum(1)
    good = along > 1e-14 * np.sqrt((moved**2).sum(1) * (turned**2).sum(1)) + 1e-300
    s, y, rho = moved[good], turned[good], 1 / along[good]
    keep = np.eye(5) - rho[:, None, None] * s[:, :, None] * y[:, None, :]
    updated = inverse.copy()
    updated[good] = np.einsum("sij,sjk,slk->sil", keep, inverse[good], keep, optimize=True)
    updated[good] += rho[:, None, None] * s[:, :, None] * s[:, None, :]
    return updated
