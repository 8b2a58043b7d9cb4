import itertools
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from weft.core.seeds import Seed
from weft.fabric.theory import balls
from weft.fabric.theory.estimate import agrees

# Formula and simulation differ by chance: the same examples every time, so that a failure is a fault.
CHANCE = settings(derandomize=True, deadline=None)


@pytest.mark.parametrize(("flows", "chance"), [(4, 0.094), (8, 0.0024), (16, 1.13e-6)])
def test_n_flows_rarely_meet_nowhere(flows: int, chance: float) -> None:
    assert balls.collision_free(flows) == pytest.approx(chance, rel=0.01)


@pytest.mark.parametrize(("n", "load"), [(4, 2.15), (8, 2.6), (16, 3.05), (32, 3.5), (64, 3.97), (256, 4.76)])
def test_the_fullest_of_n_links(n: int, load: float) -> None:
    # The published figures are simulated and rounded.
    assert balls.mean_max_load(n, n) == pytest.approx(load, rel=0.015)


@pytest.mark.parametrize(("subflows", "load"), [(1, 3.9), (8, 1.93), (16, 1.63), (128, 1.21), (256, 1.15)])
def test_subflows_help_slowly(subflows: int, load: float) -> None:
    assert balls.mean_max_load(64 * subflows, 64) / subflows == pytest.approx(load, rel=0.015)


@given(st.integers(1, 6), st.integers(1, 4))
def test_the_expected_maximum_equals_that_of_all_outcomes(thrown: int, bins: int) -> None:
    largest = [max(map(outcome.count, range(bins))) for outcome in itertools.product(range(bins), repeat=thrown)]
    assert balls.mean_max_load(thrown, bins) == pytest.approx(sum(largest) / len(largest), abs=1e-6)


@given(st.integers(1, 4), st.integers(1, 3), st.data())
def test_one_senders_choice_is_computed_exactly(links: int, each: int, data: st.DataObject) -> None:
    paths = links * each
    chosen = data.draw(st.integers(1, paths))
    largest = [
        max(sum(1 for path in pick if path * links // paths == link) for link in range(links))
        for pick in itertools.combinations(range(paths), chosen)
    ]
    exact = balls.mean_max_load_of_subsets(1, chosen, paths, links)
    assert exact == pytest.approx(sum(largest) / len(largest), abs=1e-6)


def test_every_path_chosen_is_perfect_balance() -> None:
    assert balls.mean_max_load_of_subsets(16, 8, 8, 8) == 16


def test_a_random_permutation_gets_63_percent() -> None:
    assert balls.busy_share(1000, 1000) == pytest.approx(1 - math.exp(-1), abs=1e-3)


@settings(CHANCE, max_examples=10)
@given(st.integers(0, 9), st.sampled_from([4, 16, 64]), st.sampled_from([1, 4, 16]))
def test_thrown_balls_agree_with_the_formulas(seed: int, n: int, subflows: int) -> None:
    generator = Seed(seed).stream("balls")
    closed = balls.mean_max_load(n * subflows, n) / subflows
    assert agrees(closed, balls.simulated_max_load(generator, n, subflows, n, 300))
    assert agrees(balls.busy_share(n, n), balls.simulated_busy_share(generator, n, n, 300))
    assert agrees(balls.collision_free(n), balls.simulated_collision_free(generator, n, 2000))


def test_a_choice_of_different_paths_agrees_within_its_stated_error() -> None:
    closed = balls.mean_max_load_of_subsets(128, 32, 128, 128) / 32
    estimate = balls.simulated_max_load_of_subsets(Seed(1).stream("subsets"), 128, 32, 128, 128, trials=300)
    assert agrees(closed, estimate, tolerance=0.005)


@given(st.integers(1, 20), st.integers(1, 30), st.data())
def test_subsets_hold_different_paths(senders: int, paths: int, data: st.DataObject) -> None:
    chosen = data.draw(st.integers(1, paths))
    picks = balls.pick_subsets(Seed(3).stream("pick"), senders, chosen, paths)
    assert all(len(set(row)) == chosen and set(row) <= set(range(paths)) for row in picks.tolist())
