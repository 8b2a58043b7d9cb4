"""Costs: no algorithm beats what physics asks for, more of anything never costs less, and two levels meet one."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from weft.collectives import costs
from weft.collectives.costs import Column
from weft.collectives.registry import CollectiveAlgorithm, known

RANKS = st.sampled_from((2, 4, 8, 16, 64, 512))
SIZES, ALPHAS, RATES = st.floats(1, 1e10), st.floats(0, 1e-3), st.floats(1e6, 1e12)
EACH = {f"{one.kind} by {one.algorithm}": one for one in known()}
HALVES = ("reduce-scatter", "all-gather", "all-to-all")


def col(value: float) -> Column:
    return np.array([float(value)])


def took(one: CollectiveAlgorithm, ranks: float, size: float, alpha: float, rate: float) -> float:
    assert one.cost is not None
    return float(one.cost(col(ranks), col(size), alpha, rate)[0])


@pytest.mark.parametrize("name", sorted(EACH))
@given(ranks=RANKS, size=SIZES, alpha=ALPHAS, rate=RATES)
def test_nothing_is_faster_than_its_bytes_and_its_messages(
    name: str, ranks: int, size: float, alpha: float, rate: float
):
    one = EACH[name]
    least = float(costs.latency_floor(col(ranks), alpha)[0]) if one.kind != "all-to-all" else alpha
    if one.kind in HALVES:
        least = max(least, float(costs.half_bandwidth_floor(col(ranks), col(size), rate)[0]))
    elif one.kind == "all-reduce":
        least = max(least, float(costs.all_reduce_bandwidth_floor(col(ranks), col(size), rate)[0]))
    assert took(one, ranks, size, alpha, rate) >= least * (1 - 1e-9)


@pytest.mark.parametrize("name", sorted(EACH))
@given(ranks=RANKS, size=SIZES, alpha=ALPHAS, rate=RATES, more=st.floats(1, 100))
def test_a_larger_buffer_a_slower_link_or_a_longer_wait_never_helps(
    name: str, ranks: int, size: float, alpha: float, rate: float, more: float
):
    one = EACH[name]
    before = took(one, ranks, size, alpha, rate) * (1 - 1e-12)
    assert took(one, ranks, size * more, alpha, rate) >= before
    assert took(one, ranks, size, alpha, rate / more) >= before
    assert took(one, ranks, size, alpha * more, rate) >= before


@given(ranks=st.integers(2, 1000), size=SIZES, alpha=ALPHAS, rate=RATES)
def test_the_better_half_is_never_worse_than_a_ring(ranks: int, size: float, alpha: float, rate: float):
    best = float(costs.best_half(col(ranks), col(size), alpha, rate)[0])
    assert best <= float(costs.ring_half(col(ranks), col(size), alpha, rate)[0]) * (1 + 1e-12)
    assert best >= float(costs.half_bandwidth_floor(col(ranks), col(size), rate)[0]) * (1 - 1e-9)


@given(ranks=RANKS, size=SIZES, alpha=ALPHAS, rate=RATES)
def test_two_levels_of_which_one_is_empty_are_one_level(ranks: int, size: float, alpha: float, rate: float):
    one = float(costs.best_half(col(ranks), col(size), alpha, rate)[0])
    link, other = (alpha, rate), (7.0, 3.0)
    inside = costs.two_level_half(col(ranks), col(1), col(size), link, other)
    between = costs.two_level_half(col(1), col(ranks), col(size), other, link)
    assert float(inside[0]) == pytest.approx(one)
    assert float(between[0]) == pytest.approx(one)


@given(inner=RANKS, outer=RANKS, size=SIZES, rate=RATES)
def test_all_far_links_of_a_group_work(inner: int, outer: int, size: float, rate: float):
    free, far = (0.0, 1e30), (0.0, rate)
    found = float(costs.two_level_half(col(inner), col(outer), col(size), free, far)[0])
    assert found == pytest.approx((outer - 1) / outer * size / inner / rate)


@given(ranks=RANKS, size=SIZES, alpha=ALPHAS, rate=RATES)
def test_an_all_reduce_is_two_halves(ranks: int, size: float, alpha: float, rate: float):
    args = (col(ranks), col(size), alpha, rate)
    assert float(costs.ring_all_reduce(*args)[0]) == pytest.approx(2 * float(costs.ring_half(*args)[0]))
    assert float(costs.halving_all_reduce(*args)[0]) == pytest.approx(2 * float(costs.halving_half(*args)[0]))


@given(ranks=st.integers(3, 500), size=SIZES, alpha=ALPHAS, rate=RATES)
def test_ranks_beyond_a_power_of_two_hand_over_and_get_back(ranks: int, size: float, alpha: float, rate: float):
    power = 1 << (ranks.bit_length() - 1)
    whole = float(costs.halving_all_reduce(col(power), col(size), alpha, rate)[0])
    extra = 0.0 if power == ranks else 2 * float(costs.send(col(size), alpha, rate)[0])
    assert float(costs.halving_all_reduce(col(ranks), col(size), alpha, rate)[0]) == pytest.approx(whole + extra)


@given(ranks=RANKS, size=SIZES, alpha=ALPHAS, rate=RATES, pieces=st.integers(2, 64))
def test_pieces_hide_all_but_one_hop_of_a_long_chain(ranks: int, size: float, alpha: float, rate: float, pieces: int):
    whole = float(costs.ring_broadcast(col(ranks), col(size), 0.0, rate, 1)[0])
    cut = float(costs.ring_broadcast(col(ranks), col(size), 0.0, rate, pieces)[0])
    assert size / rate * (1 - 1e-9) <= cut <= whole * (1 + 1e-9)
    assert float(costs.ring_broadcast(col(ranks), col(size), alpha, rate, pieces)[0]) >= cut


def test_columns_give_what_single_figures_give():
    ranks, sizes = np.array([2.0, 8.0, 64.0]), np.array([1e3, 1e6, 1e9])
    for one in EACH.values():
        assert one.cost is not None
        each = [took(one, float(n), float(s), 1e-6, 1e9) for n, s in zip(ranks, sizes, strict=True)]
        assert one.cost(ranks, sizes, 1e-6, 1e9).tolist() == pytest.approx(each)
