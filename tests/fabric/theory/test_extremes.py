import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from weft.core.seeds import Seed
from weft.fabric.theory import extremes
from weft.fabric.theory.estimate import agrees

# Formula and simulation differ by chance: the same examples every time, so that a failure is a fault.
CHANCE = settings(derandomize=True, deadline=None)

GPUS = 131_072


@pytest.mark.parametrize(("chance", "share"), [(1e-6, 0.12), (1e-5, 0.73), (1e-4, 1.0)])
def test_rare_delays_are_common_at_scale(chance: float, share: float) -> None:
    assert extremes.any_bad(chance, GPUS) == pytest.approx(share, abs=0.005)


def test_a_certain_delay_is_certain() -> None:
    assert (extremes.any_bad(1.0, 3), extremes.any_bad(0.0, 3)) == (1.0, 0.0)


def test_the_largest_of_all_exponentials_is_twelve_means() -> None:
    assert extremes.harmonic(GPUS) == pytest.approx(12.4, abs=0.05)


def test_both_ways_to_a_harmonic_number_meet() -> None:
    assert extremes.harmonic(10_001) == pytest.approx(extremes.harmonic(10_000) + 1 / 10_001, abs=1e-12)


@given(st.integers(1, 5000))
def test_the_integral_gives_the_harmonic_number(count: int) -> None:
    numeric = extremes.mean_of_max(lambda x: 1 - np.exp(-x), count, 0.0, 40.0)
    assert numeric == pytest.approx(extremes.harmonic(count), rel=1e-4)


def test_known_means_of_the_largest_normal_value() -> None:
    assert extremes.mean_of_max_normal(1) == pytest.approx(0, abs=1e-6)
    assert extremes.mean_of_max_normal(2) == pytest.approx(1 / math.sqrt(math.pi), abs=1e-6)
    assert extremes.mean_of_max_normal(3) == pytest.approx(1.5 / math.sqrt(math.pi), abs=1e-6)


def test_one_heavy_tailed_value_has_its_mean() -> None:
    assert extremes.mean_of_max_pareto(1, 3.0) == pytest.approx(1.5)


@settings(CHANCE, max_examples=10)
@given(st.integers(0, 9), st.integers(1, 300))
def test_drawn_maxima_agree(seed: int, count: int) -> None:
    generator = Seed(seed).stream("tails")
    assert agrees(extremes.harmonic(count), extremes.simulated_max(generator.standard_exponential, count, 500))
    assert agrees(
        extremes.mean_of_max_normal(count),
        extremes.simulated_max(generator.standard_normal, count, 500),
    )
    assert agrees(extremes.any_bad(0.01, count), extremes.simulated_any_bad(generator, 0.01, count, 500))
