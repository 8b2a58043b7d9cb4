import numpy as np
import pytest

from weft.core.seeds import Seed
from weft.fabric.theory import balls
from weft.fabric.theory.estimate import Estimate, agrees, mean, share


def test_the_error_is_that_of_the_mean() -> None:
    estimate = mean(np.array([1.0, 2.0, 3.0, 4.0]))
    assert (estimate.value, estimate.trials) == (2.5, 4)
    assert estimate.standard_error == pytest.approx(np.std([1, 2, 3, 4], ddof=1) / 2)


def test_no_hit_is_not_certainty() -> None:
    estimate = share(0, 1000)
    assert estimate.value == 0
    assert agrees(0.0005, estimate)
    assert not agrees(0.05, estimate)


def test_a_wrong_formula_is_found_out() -> None:
    estimate = balls.simulated_max_load(Seed(0).stream("wrong"), 64, 1, 64, 1000)
    assert agrees(balls.mean_max_load(64, 64), estimate)
    # The first term of the asymptote, ln n / ln ln n, is a plausible mistake.
    assert not agrees(np.log(64) / np.log(np.log(64)), estimate)
    assert not agrees(1.05 * balls.mean_max_load(64, 64), estimate)


def test_a_stated_error_widens_the_verdict() -> None:
    exact = Estimate(1.0, 0.0, 10)
    assert not agrees(1.01, exact)
    assert agrees(1.01, exact, tolerance=0.02)
