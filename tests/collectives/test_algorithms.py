"""Collectives: every contribution arrives exactly once, at the price that the closed forms say."""

import math
import random
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from weft.collectives import Builder, Schedule, algorithms, costs
from weft.collectives.symbolic import critical_path, missing

ANY_NUMBER = {
    "ring reduce-scatter": algorithms.ring_reduce_scatter,
    "ring all-gather": algorithms.ring_all_gather,
    "ring all-reduce": algorithms.ring_all_reduce,
    "halving-doubling": algorithms.halving_doubling_all_reduce,
    "double tree": algorithms.double_tree_all_reduce,
    "all-to-all": algorithms.direct_all_to_all,
    "chain broadcast": algorithms.chain_broadcast,
    "binomial broadcast": algorithms.binomial_broadcast,
}
POWERS = {"halving": algorithms.halving_reduce_scatter, "doubling": algorithms.doubling_all_gather}
ALPHA, RATE, SIZE = 3.0, 7.0, 5040.0


def column(value: float) -> costs.Column:
    return np.array([float(value)])


@pytest.mark.parametrize("name", sorted(ANY_NUMBER))
@given(ranks=st.integers(1, 20))
@settings(max_examples=20, deadline=None)
def test_every_contribution_arrives_exactly_once(name: str, ranks: int):
    assert missing(ANY_NUMBER[name](ranks)) == []


@pytest.mark.parametrize("name", sorted(POWERS))
@pytest.mark.parametrize("power", range(5))
def test_powers_of_two_arrive_exactly_once(name: str, power: int):
    assert missing(POWERS[name](2**power)) == []


@given(inner=st.integers(1, 6), outer=st.integers(1, 5))
@settings(max_examples=25, deadline=None)
def test_two_levels_deliver_everything_once(inner: int, outer: int):
    assert missing(algorithms.two_level_all_reduce(inner, outer)) == []
    assert missing(algorithms.two_level_all_to_all(inner, outer)) == []


@given(ranks=st.integers(2, 12), pieces=st.integers(1, 6))
@settings(max_examples=25, deadline=None)
def test_pieces_change_nothing_in_the_result(ranks: int, pieces: int):
    assert missing(algorithms.double_tree_all_reduce(ranks, pieces)) == []
    assert missing(algorithms.chain_broadcast(ranks, pieces)) == []


def shuffled(schedule: Schedule, chance: random.Random) -> list[int]:
    """Return the sends in a random order in which each comes after those it waits for."""
    left = set(range(len(schedule)))
    done: list[int] = []
    while left:
        ready = [send for send in left if not left.intersection(schedule.before_of(send).tolist())]
        done.append(chance.choice(sorted(ready)))
        left.remove(done[-1])
    return done


@pytest.mark.parametrize("name", sorted(ANY_NUMBER))
@given(ranks=st.integers(1, 6), chance=st.randoms(use_true_random=False))
@settings(max_examples=8, deadline=None)
def test_any_order_that_respects_the_waits_gives_the_same(name: str, ranks: int, chance: random.Random):
    schedule = ANY_NUMBER[name](ranks)
    assert missing(schedule, shuffled(schedule, chance)) == []


def test_a_schedule_that_adds_twice_is_caught():
    builder = Builder("all-reduce", 2, 1)
    builder.send(0, 1, 0, adds=True)
    builder.send(0, 1, 0, adds=True)
    assert missing(builder.build()) == [
        "rank 0 ends with part 0 = [1, 0]",
        "rank 1 ends with part 0 = [2, 1]",
    ]


CLOSED: dict[str, tuple[Callable[[int], Schedule], Callable[..., costs.Column], list[int]]] = {
    "send": (lambda _: algorithms.single_send(), lambda _n, s, a, r: costs.send(s, a, r), [2]),
    "ring half": (algorithms.ring_reduce_scatter, costs.ring_half, [1, 2, 3, 7, 12]),
    "ring gather": (algorithms.ring_all_gather, costs.ring_half, [2, 5, 8]),
    "ring": (algorithms.ring_all_reduce, costs.ring_all_reduce, [1, 2, 3, 8, 13]),
    "halving": (algorithms.halving_reduce_scatter, costs.halving_half, [2, 4, 16]),
    "doubling": (algorithms.doubling_all_gather, costs.halving_half, [2, 8, 16]),
    "halving-doubling": (algorithms.halving_doubling_all_reduce, costs.halving_all_reduce, [2, 3, 4, 6, 11, 16]),
    "all-to-all": (algorithms.direct_all_to_all, costs.all_to_all, [2, 3, 9]),
    "binomial": (algorithms.binomial_broadcast, costs.binomial_broadcast, [2, 3, 8, 11]),
}


def alltoall_size(name: str, ranks: int) -> float:
    # What one rank sends altogether is one row of the n x n parts.
    return SIZE * ranks if name == "all-to-all" else SIZE


@pytest.mark.parametrize("name", sorted(CLOSED))
def test_the_closed_form_is_the_critical_path(name: str):
    make, cost, sizes = CLOSED[name]
    for ranks in sizes:
        schedule = make(ranks)
        walked = critical_path(schedule, alltoall_size(name, ranks), (ALPHA, RATE))
        assert walked == pytest.approx(float(cost(column(ranks), column(SIZE), ALPHA, RATE)[0])), ranks


@pytest.mark.parametrize(("ranks", "pieces"), [(2, 1), (5, 4), (8, 3)])
def test_a_chain_in_pieces_costs_its_closed_form(ranks: int, pieces: int):
    walked = critical_path(algorithms.chain_broadcast(ranks, pieces), SIZE, (ALPHA, RATE))
    assert walked == pytest.approx(float(costs.ring_broadcast(column(ranks), column(SIZE), ALPHA, RATE, pieces)[0]))


@pytest.mark.parametrize(("inner", "outer"), [(4, 3), (8, 2), (3, 5)])
def test_two_levels_cost_both_rings(inner: int, outer: int):
    near, far = (1.0, 50.0), (4.0, 5.0)
    walked = critical_path(algorithms.two_level_all_reduce(inner, outer), SIZE, near, far)
    inside = float(costs.ring_all_reduce(column(inner), column(SIZE), *near)[0])
    between = float(costs.ring_all_reduce(column(outer), column(SIZE / inner), *far)[0])
    assert walked == pytest.approx(inside + between)


@given(ranks=st.integers(2, 24), pieces=st.integers(1, 6), alpha=st.floats(0, 10), size=st.floats(1, 1e4))
@settings(max_examples=40, deadline=None)
def test_nothing_beats_the_floors(ranks: int, pieces: int, alpha: float, size: float):
    n, s = column(ranks), column(size)
    latency = float(costs.latency_floor(n, alpha)[0])
    bytes_floor = float(costs.all_reduce_bandwidth_floor(n, s, RATE)[0])
    for schedule in (
        algorithms.ring_all_reduce(ranks),
        algorithms.halving_doubling_all_reduce(ranks),
        algorithms.double_tree_all_reduce(ranks, pieces),
    ):
        walked = critical_path(schedule, size, (alpha, RATE))
        assert walked >= max(latency, bytes_floor) * (1 - 1e-9)


@given(ranks=st.integers(2, 40), pieces=st.integers(1, 8), alpha=st.floats(0, 10))
@settings(max_examples=40, deadline=None)
def test_a_double_tree_keeps_its_bound(ranks: int, pieces: int, alpha: float):
    walked = critical_path(algorithms.double_tree_all_reduce(ranks, pieces), SIZE, (alpha, RATE))
    bound = float(costs.double_tree_all_reduce(column(ranks), column(SIZE), alpha, RATE, pieces)[0])
    assert walked <= bound * (1 + 1e-9)


def test_trees_beat_rings_for_small_data_on_many_ranks():
    small = 1.0
    ring = critical_path(algorithms.ring_all_reduce(64), small, (ALPHA, RATE))
    tree = critical_path(algorithms.double_tree_all_reduce(64, 1), small, (ALPHA, RATE))
    assert tree < ring / 2


@given(ranks=st.integers(1, 16))
@settings(deadline=None, max_examples=16)
def test_a_ring_sends_no_byte_too_many(ranks: int):
    schedule = algorithms.ring_all_reduce(ranks)
    sent = np.bincount(schedule.source, weights=schedule.sent_bytes(ranks * 10), minlength=ranks)
    assert set(sent.tolist()) == {2.0 * (ranks - 1) * 10}


def test_the_better_half_is_never_worse_than_a_ring():
    ranks = np.array([2.0, 3.0, 8.0, 1000.0, 1024.0])
    size = np.full(5, 100.0)
    chosen = costs.best_half(ranks, size, 1.0, 10.0)
    assert (chosen <= costs.ring_half(ranks, size, 1.0, 10.0)).all()
    assert chosen[-1] == pytest.approx(math.log2(1024) + 1023 / 1024 * 10)
