"""From a log of parts to how they fail: Weibull lives with censored parts, and constant rates by age, with intervals.

A row is one part: when it was put in, when it was taken out or last seen, and whether it had failed. Parts that still
work, or left for another reason, are censored: they count for as long as they were seen. The estimates are maximum
likelihood by scipy, which weft has already: lifelines brings pandas and autograd for these two, and reliability has had
no release for long. Intervals come from the observed information; those of rates are exact (Garwood).
"""

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

import numpy as np

from weft.campaign.csv_rows import csv_rows
from weft.campaign.fleet import FIT_HOURS, Numbers
from weft.core.errors import Mistake, SpecError, UsageError

COLUMNS = ("serial", "installed", "removed", "event")
EVENTS = ("failed", "removed", "running")
_FEWEST = 3
SURE_FAILURES = 30
"""From so many failures on, intervals hold the true values about as often as they say (docs/campaign.md)."""
_MOST_SHOWN = 10
_SHORTEST_H, _LONGEST_H = 1 / 3600, 1000 * 365 * 24.0
_AGES_H = (0, 30 * 24, 90 * 24, 365 * 24, 3 * 365 * 24)


@dataclass(frozen=True, slots=True)
class Lives:
    """How long each part was seen, in hours, and whether it had failed then."""

    hours: np.ndarray
    failed: np.ndarray


def read_lives(text: str, name: str) -> Lives:
    """Return the parts of a log; every mistake is named with its line."""
    mistakes: list[Mistake] = []
    hours: list[float] = []
    failed: list[bool] = []
    for number, values in csv_rows(text, name, COLUMNS):
        try:
            span, ended = _row(*(values[column] for column in COLUMNS[1:]))
        except _RowError as error:
            mistakes.append(Mistake(name, error.column, str(error), line=number))
            continue
        hours.append(span)
        failed.append(ended)
    if mistakes:
        raise SpecError(mistakes[:_MOST_SHOWN])
    if sum(failed) < _FEWEST:
        raise UsageError(f"{name} has {sum(failed)} failures; a fit needs at least {_FEWEST}")
    return Lives(np.array(hours), np.array(failed))


class _RowError(Exception):
    def __init__(self, column: str, text: str) -> None:
        super().__init__(text)
        self.column = column


def _row(installed: str, removed: str, event: str) -> tuple[float, bool]:
    if event not in EVENTS:
        raise _RowError("event", f"{event!r} is no event; write one of {', '.join(EVENTS)}")
    begin, end = _moment("installed", installed), _moment("removed", removed)
    span = end - begin
    if span <= 0:
        raise _RowError(
            "removed", f"{removed!r} is not after {installed!r}; a running part has the day of the log here"
        )
    if not _SHORTEST_H <= span <= _LONGEST_H:
        raise _RowError("removed", f"{span:g} h is no life of a part; write one from a second to 1,000 years")
    return span, event == "failed"


def _moment(column: str, text: str) -> float:
    """Return a moment in hours: a date, a date with a time (UTC where no zone is written), or a number of hours."""
    try:
        hours = float(text)
    except ValueError:
        pass
    else:
        if math.isfinite(hours):
            return hours
    try:
        found = datetime.fromisoformat(text)
        # Without a zone the machine's own would count, and a log would say something else in summer.
        return (found if found.tzinfo else found.replace(tzinfo=UTC)).timestamp() / 3600
    except (ValueError, OverflowError):
        raise _RowError(column, f"{text!r} is no time; write 2026-03-01, 2026-03-01T12:00 or hours") from None


@dataclass(frozen=True, slots=True)
class IntervalEstimate:
    """A number and its 95 % interval."""

    value: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class WeibullFit:
    """Weibull lives of parts."""

    shape: IntervalEstimate
    scale_h: IntervalEstimate
    mean_h: float
    log_likelihood: float

    @property
    def rate_fit(self) -> float:
        """Return the rate whose mean life is this one's, in FIT: what a scenario's component takes beside the shape."""
        return FIT_HOURS / self.mean_h


def fit_weibull(lives: Lives) -> WeibullFit:
    """Return the likeliest Weibull law of parts, some of which have not failed."""
    from scipy.optimize import root_scalar

    times, failed = lives.hours, lives.failed
    unit = float(times.max())
    scaled = times / unit
    logs = np.log(scaled)
    mean_log = float(logs[failed].mean())
    failures = int(failed.sum())

    def score(shape: float) -> float:
        powers = scaled**shape
        return float((powers * logs).sum() / powers.sum()) - 1 / shape - mean_log

    try:
        shape = float(root_scalar(score, bracket=(0.02, 100.0), xtol=1e-12).root)
    except ValueError:
        raise UsageError(
            "no Weibull law fits: all failures are at the same age, or none is before the others"
        ) from None
    scale = float((scaled**shape).sum() / failures) ** (1 / shape)
    # Observed information in (log shape, log scale): both are positive, and their logarithms are nearly normal.
    ratio = (scaled / scale) ** shape
    steps = shape * np.log(scaled / scale)
    first, second = float((ratio * steps).sum()), float((ratio * steps * steps).sum())
    both = -shape * first
    information = np.array([
        [second + first - float(steps[failed].sum()), both], [both, shape * shape * float(ratio.sum())],
    ])  # fmt: skip
    spread = 1.96 * np.sqrt(np.maximum(np.diag(np.linalg.inv(information)), 0.0))
    likelihood = failures * (math.log(shape) - shape * math.log(scale)) + (shape - 1) * float(logs[failed].sum())
    likelihood -= float(ratio.sum()) + failures * math.log(unit)
    return WeibullFit(
        _interval(shape, spread[0]),
        _interval(scale * unit, spread[1]),
        scale * unit * math.gamma(1 + 1 / shape),
        likelihood,
    )


def _interval(value: float, spread: float) -> IntervalEstimate:
    return IntervalEstimate(value, value * math.exp(-spread), value * math.exp(spread))


@dataclass(frozen=True, slots=True)
class AgeRate:
    """Failures of parts of an age."""

    from_h: float
    to_h: float
    failures: int
    part_h: float
    fit: IntervalEstimate
    """Rate in FIT."""


def rates_by_age(lives: Lives, ages_h: Sequence[float] = _AGES_H) -> list[AgeRate]:
    """Return the rate of parts in each band of age in which any was seen."""
    bounds = [*ages_h, math.inf]
    found: list[AgeRate] = []
    for low, high in itertools.pairwise(bounds):
        part_h = float((np.minimum(lives.hours, high) - low).clip(min=0).sum())
        inside: Numbers = (lives.failed & (lives.hours > low) & (lives.hours <= high)).astype(np.int64)
        if part_h > 0:
            failures = int(inside.sum())
            found.append(AgeRate(low, min(high, float(lives.hours.max())), failures, part_h, rate_of(failures, part_h)))
    return found


def rate_of(failures: int, part_h: float) -> IntervalEstimate:
    """Return a constant rate in FIT from failures and part-hours, with its exact 95 % interval."""
    from scipy.stats import chi2

    low = float(chi2.ppf(0.025, 2 * failures)) / 2 if failures else 0.0
    high = float(chi2.ppf(0.975, 2 * failures + 2)) / 2
    return IntervalEstimate(*(FIT_HOURS * each / part_h for each in (failures, low, high)))
