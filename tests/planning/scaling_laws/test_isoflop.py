"""IsoFLOP profiles find the best size of a law without its form; kept rows count, the largest run is looked at."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from weft.core.seeds import Seed
from weft.planning.scaling_laws.isoflop import isoflops
from weft.planning.scaling_laws.scaling import Law, Points, fit


def profiles(law: Law, noise: float, seed: int, far: float = 0.0) -> Points:
    """Return nine budgets of nine sizes around the law's best, and one large run that is off by `far`."""
    chance = np.random.default_rng(seed)
    budgets = np.geomspace(1e18, 1e21, 9)
    params = np.array([law.optimal(flops)[0] * factor for flops in budgets for factor in np.geomspace(0.3, 3.3, 9)])
    tokens = np.repeat(budgets, 9) / 6 / params
    loss = law.loss(params, tokens) * np.exp(chance.normal(0, noise, len(params)))
    if far:
        params, tokens = np.append(params, 7e10), np.append(tokens, 1.4e12)
        loss = np.append(loss, law.loss(7e10, 1.4e12) * (1 + far))
    return Points(params, tokens, loss)


laws = st.builds(
    Law, E=st.floats(1.5, 2.0), A=st.floats(200, 600), B=st.floats(200, 600), alpha=st.floats(0.28, 0.38),
    beta=st.floats(0.25, 0.35),
)  # fmt: skip


@given(laws, st.integers(0, 99))
@settings(max_examples=15, deadline=None)
def test_the_exponent_is_that_of_the_law(law: Law, seed: int):
    found = isoflops(profiles(law, 0.001, seed), Seed(seed))
    assert found is not None
    assert found.exponent == pytest.approx(law.beta / (law.alpha + law.beta), abs=0.05)
    assert found.exponent_low <= found.exponent <= found.exponent_high
    assert found.optimal(1e20)[0] == pytest.approx(law.optimal(1e20)[0], rel=0.15)


def test_points_without_budgets_have_no_profiles():
    law = Law(1.7, 400.0, 400.0, 0.34, 0.28)
    params = np.geomspace(1e7, 1e9, 30)
    assert isoflops(Points(params, 20 * params, law.loss(params, 20 * params)), Seed(0)) is None


@pytest.mark.parametrize(("far", "warned"), [(0.0005, False), (0.06, True), (-0.06, True)])
def test_a_largest_run_outside_the_interval_is_warned_about(far: float, warned: bool):
    points = profiles(Law(1.7, 400.0, 400.0, 0.34, 0.28), 0.002, 3, far)
    found = fit(points, Seed(1), replicates=100)
    assert any("largest known run" in text for text in found.warnings) == warned
    assert (len(points) - 1 in found.outliers) == warned


def test_a_kept_row_counts_though_it_is_far():
    points = profiles(Law(1.7, 400.0, 400.0, 0.34, 0.28), 0.002, 3, 0.06)
    last = len(points) - 1
    left, kept = (fit(replace(points, keep=frozenset(rows)), Seed(1), replicates=100) for rows in ((), (last,)))
    assert last in left.outliers
    assert last not in kept.outliers
