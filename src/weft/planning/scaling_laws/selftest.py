"""What a ladder can be trusted with: its largest runs predicted from the smaller ones, before anything larger is.

Each law is fitted to the small runs without the largest of them and held against those. A law counts by how near it
came: one over its squared error, as independent measurements are averaged. Where the laws come equally near, neither is
believed alone. How near they came together says how far off a larger run may be. Pure: points in, verdicts out.
"""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from weft.core.seeds import Seed
from weft.planning.scaling_laws import scaling
from weft.planning.scaling_laws.descent import PRIOR_MIDDLE, PRIOR_WIDTH
from weft.planning.scaling_laws.scaling import FORMULAS, Fit, Floats, Form, Points, Prediction

HELD_TIMES = 3.0
"""Runs of more than the largest one's operations divided by this are held back."""
DELTA = 0.01
"""Huber delta of the ladder, in log loss. Its runs scatter by a few thousandths and none of them is foreign:
with the 1e-3 of published tables nearly all of them would count by their sign alone, which wastes a third of them."""

PRIOR = scaling.ExponentPrior(noise=0.005)
"""Sixteen runs hardly know five constants: exponents, which E can make up for, are weighed against published ones."""
LEAST_ERROR = 1e-4
"""No law counts as if it were nearer than this."""


@dataclass(frozen=True)
class SelfTest:
    """How well one law predicts the largest runs from the others."""

    form: Form
    """The law."""
    held: int
    """Runs that it did not see."""
    factor: float
    """Operations of the largest of those, in operations of the largest that it saw."""
    error: float
    """Root mean square of how far off it was, as a share."""
    worst: float
    """The one farthest off, with its sign."""
    weight: float
    """How much it counts beside the other laws."""

    def as_json(self) -> dict[str, Any]:
        """Return the verdict as plain values."""
        return {
            "law": self.form, "formula": FORMULAS[self.form], "held": self.held, "times_largest": self.factor,
            "error": self.error, "worst": self.worst, "weight": self.weight,
        }  # fmt: skip


@dataclass(frozen=True)
class Trial:
    """How well the laws predict the largest runs from the others, each alone and all together."""

    tests: tuple[SelfTest, ...]
    """Each law alone, the nearest first."""
    error: float
    """Root mean square of how far off their mean was, as a share."""

    def as_json(self) -> dict[str, Any]:
        """Return the verdicts as plain values."""
        return {"error": self.error, "laws": [test.as_json() for test in self.tests]}

    def at(self, factor: float) -> float:
        """Return the error to expect of a run of `factor` times the largest: as much again for every such factor."""
        return self.error * max(1.0, math.log(factor) / math.log(self.tests[0].factor))


def attempt(points: Points, seed: Seed) -> Trial:
    """Return the verdicts on all laws."""
    flops = points.flops
    held = np.flatnonzero(flops > flops.max() / HELD_TIMES)
    known = points.without(tuple(int(row) for row in held))
    factor = float(flops.max() / known.flops.max())
    off: dict[Form, Floats] = {}
    for form in FORMULAS:
        law = scaling.fit(known, seed, form=form, delta=DELTA, replicates=1, prior=PRIOR).law
        off[form] = np.log(law.loss(points.params[held], points.tokens[held]) / points.loss[held])
    errors = {form: max(LEAST_ERROR, _size(values)) for form, values in off.items()}
    total = sum(error**-2 for error in errors.values())
    weights = {form: error**-2 / total for form, error in errors.items()}
    tests = [
        SelfTest(form, len(held), factor, errors[form], float(off[form][np.abs(off[form]).argmax()]), weights[form])
        for form in sorted(off, key=errors.__getitem__)
    ]
    return Trial(tuple(tests), _size(sum((weights[form] * off[form] for form in off), np.zeros(len(held)))))


def predict_large(points: Points, params: float, tokens: float, seed: Seed) -> tuple[Prediction, Fit, Trial]:
    """Predict a run by the laws as they came through their self-test.

    The interval also holds that test's error, and what published exponents decide.

    The fit that is returned is that of the law which counts the most.
    """
    trial = attempt(points, seed)
    fits = [(test.weight, scaling.fit(points, seed, form=test.form, delta=DELTA, prior=PRIOR)) for test in trial.tests]
    factor = scaling.FLOPS_PER_PARAMETER_AND_TOKEN * params * tokens / float(points.flops.max())
    bias = math.hypot(trial.at(factor), _leaning(points, params, tokens, seed, trial))
    return scaling.blend(fits, params, tokens, seed, bias=bias), fits[0][1], trial


def _leaning(points: Points, params: float, tokens: float, seed: Seed, trial: Trial) -> float:
    """Return by how much the prediction moves, as a share, where published exponents were one deviation off."""
    ends: list[float] = []
    for prior in (PRIOR_MIDDLE - PRIOR_WIDTH, PRIOR_MIDDLE + PRIOR_WIDTH):
        pull = PRIOR._replace(middle=prior)
        fits = [
            (test.weight, scaling.fit(points, seed, form=test.form, delta=DELTA, replicates=1, prior=pull))
            for test in trial.tests
        ]
        ends.append(math.log(scaling.blend(fits, params, tokens, seed).loss))
    return abs(ends[1] - ends[0]) / 2


def _size(off: Floats) -> float:
    return float(np.sqrt((off**2).mean()))
