"""Self-tests of a ladder: the law that made the runs is found, and the interval holds what the test could not know."""

import numpy as np
import pytest

from weft.core.seeds import Seed
from weft.planning.scaling_laws.scaling import Law, Points
from weft.planning.scaling_laws.selftest import HELD_TIMES, SelfTest, Trial, attempt, predict_large

LAWS = {
    "hoffmann": Law(1.3, 10.0, 60.0, 0.35, 0.4),
    "kaplan": Law(0.0, 6.0, 9.0, 0.12, 0.13, "kaplan"),
}


def rungs(law: Law, seed: int, noise: float = 0.002) -> Points:
    steps = 1.6 ** np.arange(4, dtype=np.float64)
    params, tokens = np.repeat(27e3 / steps, 4), np.tile(8e5 / steps, 4)
    scatter = np.exp(noise * np.random.default_rng(seed).standard_normal(16))
    return Points(params, tokens, law.loss(params, tokens) * scatter)


@pytest.mark.parametrize("name", LAWS)
def test_the_law_behind_the_runs_predicts_the_largest_of_them_best(name: str):
    near, far = attempt(rungs(LAWS[name], 0, noise=0.0005), Seed(0)).tests
    assert near.form == name
    assert near.error < far.error
    assert near.weight > 0.8
    assert near.weight + far.weight == pytest.approx(1)


@pytest.mark.parametrize("name", LAWS)
def test_the_interval_holds_a_run_ten_times_larger(name: str):
    law, held = LAWS[name], 0
    for seed in range(10):
        prediction, fitted, trial = predict_large(rungs(law, seed), 9e4, 2.5e6, Seed(seed))
        held += prediction.low <= law.loss(9e4, 2.5e6) <= prediction.high
        assert fitted.law.form == trial.tests[0].form
    assert held >= 8


def test_only_the_largest_runs_are_held_back():
    points = rungs(LAWS["kaplan"], 1)
    flops = points.flops
    test = attempt(points, Seed(0)).tests[0]
    assert test.held == (flops > flops.max() / HELD_TIMES).sum()
    assert test.factor > HELD_TIMES


def test_the_error_to_expect_grows_with_the_distance_and_is_never_below_the_test():
    trial = Trial((SelfTest("kaplan", 6, 4.0, 0.01, -0.02, 1.0),), 0.01)
    assert trial.at(2.0) == pytest.approx(0.01)
    assert trial.at(16.0) == pytest.approx(0.02)
