import math
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from weft.training.parallel.exact_sum import ReductionTree, grid_bits, grid_squares, largest, norm_from_grid, tree_sum

floats = st.floats(-1e6, 1e6, allow_nan=False, width=32)


def summed(values: dict[int, float], owners: dict[int, int], order: list[int]) -> float:
    """Sum as ranks do: each its own subtrees in the order given, then all of them at the root."""
    tree = ReductionTree(frozenset(values))
    joint: dict[tuple[int, int], float] = {}
    for rank in sorted(set(owners.values())):
        held: dict[tuple[int, int], float] = {}
        for position in order:
            if owners[position] == rank:
                tree.climb(held, position, values[position], lambda left, right: left + right)
        mine = frozenset(position for position in values if owners[position] == rank)
        assert tuple(sorted(held, key=lambda node: node[1] << node[0])) == tree.partials(mine)
        joint |= held
    return tree.total(joint, lambda left, right: left + right)


@given(st.data())
def test_the_sum_has_the_same_bits_for_every_division_among_ranks(data: Any):
    values = data.draw(st.dictionaries(st.integers(0, 40), floats, min_size=1, max_size=20))
    owners = {position: data.draw(st.integers(0, 3)) for position in values}
    order = data.draw(st.permutations(sorted(values)))
    alone = summed(values, dict.fromkeys(values, 0), sorted(values))
    assert summed(values, owners, order).hex() == alone.hex()


@given(st.lists(floats, min_size=1, max_size=40))
def test_the_tree_is_a_sum(values: list[float]):
    assert tree_sum(values) == pytest.approx(math.fsum(values), rel=1e-9, abs=1e-6)


def test_a_rank_with_an_aligned_run_sends_one_subtree():
    tree = ReductionTree(frozenset(range(8)))
    assert tree.partials(frozenset(range(4, 8))) == ((2, 1),)
    assert tree.partials(frozenset(range(8))) == ((3, 0),)
    assert tree.partials(frozenset(range(3, 6))) == ((0, 3), (1, 2))


@given(st.lists(floats, min_size=1, max_size=60), st.integers(1, 59), st.randoms(use_true_random=False))
def test_the_norm_does_not_depend_on_order_or_split(values: list[float], cut: int, chance: Any):
    whole = torch.tensor(values, dtype=torch.float32)
    shuffled = list(values)
    chance.shuffle(shuffled)
    parts = list(torch.tensor(shuffled, dtype=torch.float32).split(cut))
    top, bits = float(largest([whole])), grid_bits(len(values))
    assert float(largest(parts)) == top
    count = int(grid_squares([whole], top, bits))
    assert int(grid_squares(parts, top, bits)) == count
    assert norm_from_grid(count, top, bits) == pytest.approx(float(whole.double().norm()), rel=1e-6)


def test_a_gradient_that_is_not_finite_has_no_norm():
    top = float(largest([torch.tensor([1.0, math.nan])]))
    assert math.isinf(top)
    assert math.isnan(norm_from_grid(0, top, 50))


def test_a_zero_gradient_has_norm_zero():
    zero = [torch.zeros(3)]
    assert norm_from_grid(int(grid_squares(zero, float(largest(zero)), 50)), 0.0, 50) == 0


@given(st.lists(st.tuples(floats, floats), min_size=1, max_size=20))
def test_the_norm_sees_both_parts_of_complex_numbers(values: list[tuple[float, float]]):
    pairs = torch.tensor(values, dtype=torch.float32)
    whole = torch.view_as_complex(pairs)
    top, bits = float(largest([whole])), grid_bits(len(values))
    assert top == float(largest([pairs]))
    count = int(grid_squares([whole], top, bits))
    assert norm_from_grid(count, top, bits) == pytest.approx(float(pairs.double().norm()), rel=1e-6)
