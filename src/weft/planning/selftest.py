"""What a ladder can be trusted with: its largest runs predicted from the smaller ones, before anything larger is.

Each law is fitted to the small runs without the largest of them and held against those. The law that comes nearest is
the one to predict with, and how near it came says how far off a larger run may be. Pure: points in, verdicts out.
"""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from weft.core.seeds import Seed
from weft.planning import scaling
from weft.planning.scaling import FORMULAS, Fit, Form, Points, Prediction

HELD_TIMES = 3.0
"""Runs of more than the largest one's operations divided by this are held back."""
DELTA = 0.01
"""Log loss at which the ladder's Huber loss turns. Its runs scatter by a few thousandths and none of them is foreign:
with the 1e-3 of published tables nearly all of them would count by their sign alone, which wastes a third of them."""


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

    def as_json(self) -> dict[str, Any]:
        """Return the verdict as plain values."""
        return {
            "law": self.form, "formula": FORMULAS[self.form], "held": self.held, "times_largest": self.factor,
            "error": self.error, "worst": self.worst,
        }  # fmt: skip

    def at(self, factor: float) -> float:
        """Return the error to expect of a run of `factor` times the largest: as much again for every such factor."""
        return self.error * max(1.0, math.log(factor) / math.log(self.factor))


def self_tests(points: Points, seed: Seed) -> tuple[SelfTest, ...]:
    """Return the verdicts on all laws, the nearest first."""
    flops = points.flops
    held = np.flatnonzero(flops > flops.max() / HELD_TIMES)
    known = points.without(tuple(int(row) for row in held))
    factor = float(flops.max() / known.flops.max())
    found: list[SelfTest] = []
    for form in FORMULAS:
        law = scaling.fit(known, seed, form=form, delta=DELTA, replicates=1).law
        off = law.loss(points.params[held], points.tokens[held]) / points.loss[held] - 1
        worst = float(off[np.abs(off).argmax()])
        found.append(SelfTest(form, len(held), factor, float(np.sqrt((off**2).mean())), worst))
    return tuple(sorted(found, key=lambda test: test.error))


def foretell(points: Points, params: float, tokens: float, seed: Seed) -> tuple[Prediction, Fit, tuple[SelfTest, ...]]:
    """Predict a run by the law that passed its self-test best; the interval also holds that test's error."""
    tests = self_tests(points, seed)
    fitted = scaling.fit(points, seed, form=tests[0].form, delta=DELTA)
    factor = scaling.FLOPS_PER_PARAMETER_AND_TOKEN * params * tokens / float(points.flops.max())
    return scaling.predict(fitted, params, tokens, seed, bias=tests[0].at(factor)), fitted, tests
