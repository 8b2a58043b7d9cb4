from itertools import combinations, pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weft.core.errors import UsageError
from weft.training.parallel.load_balance import assign, cut, reassign

costs = st.lists(st.floats(0.1, 10), min_size=1, max_size=8)


def best_cut(layers: list[float], stages: int) -> float:
    """Try every cut."""
    return min(
        max(sum(layers[a:b]) for a, b in pairwise((0, *inner, len(layers))))
        for inner in combinations(range(1, len(layers)), stages - 1)
    )


@given(costs, st.data())
def test_no_cut_has_a_quicker_slowest_stage(layers: list[float], data: st.DataObject):
    stages = data.draw(st.integers(1, len(layers)))
    runs = cut(layers, stages)
    assert [layer for run in runs for layer in run] == list(range(len(layers)))
    assert all(runs)
    assert max(sum(layers[layer] for layer in run) for run in runs) == pytest.approx(best_cut(layers, stages))


def test_a_dear_last_layer_gets_a_lighter_stage():
    assert cut([1, 1, 1, 1, 1, 3], 2) == (range(4), range(4, 6))


def test_more_stages_than_layers_is_an_error():
    with pytest.raises(UsageError, match="write 1 to 2"):
        cut([1, 1], 3)


@given(st.lists(st.floats(0.1, 10), min_size=1, max_size=4), st.integers(0, 8))
def test_micro_batches_go_where_they_end_earliest(speeds: list[float], more: int):
    count = len(speeds) + more
    runs = assign(speeds, count)
    assert [index for run in runs for index in run] == list(range(count))
    assert all(runs)
    ends = max(len(run) / speed for run, speed in zip(runs, speeds, strict=True))
    for inner in combinations(range(1, count), len(speeds) - 1):
        other = pairwise((0, *inner, count))
        assert ends <= max((b - a) / speed for (a, b), speed in zip(other, speeds, strict=True)) + 1e-9


def test_equal_replicas_get_equal_shares():
    assert assign([1.0, 1.0, 1.0], 8) == (range(3), range(3, 6), range(6, 8))


def test_fewer_micro_batches_than_replicas_is_an_error():
    with pytest.raises(UsageError, match="use at most 2"):
        assign([1.0, 1.0, 1.0], 2)


def test_work_moves_away_from_a_slow_replica():
    even = assign([1.0, 1.0], 8)
    assert [len(run) for run in reassign(even, [4.0, 12.0])] == [6, 2]


def test_small_differences_move_nothing():
    even = assign([1.0, 1.0], 8)
    assert reassign(even, [4.0, 4.4]) == even
    assert reassign(even, [0.0, 4.4]) == even
