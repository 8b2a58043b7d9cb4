from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from weft.core.errors import UsageError
from weft.training.checkpoint.nested_values import flatten, rebuild

LEAVES = (
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8)
    | st.lists(st.integers(-9, 9), max_size=3).map(lambda values: torch.tensor(values, dtype=torch.int32))
)  # fmt: skip
VALUES = st.recursive(
    LEAVES,
    lambda inner: (
        st.lists(inner, max_size=3) | st.lists(inner, max_size=3).map(tuple)
        | st.dictionaries(st.text(max_size=5) | st.integers(-5, 5), inner, max_size=3)
    ),
    max_leaves=8,
)  # fmt: skip


def same(one: Any, other: Any) -> bool:
    if isinstance(one, torch.Tensor):
        return isinstance(other, torch.Tensor) and one.dtype == other.dtype and torch.equal(one, other)
    if isinstance(one, dict):
        return isinstance(other, dict) and list(one) == list(other) and all(same(one[key], other[key]) for key in one)
    if type(one) in (list, tuple):
        return type(one) is type(other) and len(one) == len(other) and all(map(same, one, other))
    return type(one) is type(other) and one == other


@given(VALUES)
def test_every_value_comes_back_in_its_own_types(value: Any) -> None:
    parts = dict(flatten("name", value))
    assert all(isinstance(tensor, torch.Tensor) for tensor in parts.values())
    assert same(rebuild({name.removeprefix("name"): tensor for name, tensor in parts.items()}), value)


def test_a_growing_number_keeps_the_sizes_of_tensors() -> None:
    sizes = {tuple(tensor.shape) for count in (1, 10**30) for _, tensor in flatten("a", {"k": [count, "x"]})}
    assert len(sizes) == 1


@pytest.mark.parametrize("value", [object(), {1, 2}, [{"deep": object()}], {(1, 2): torch.zeros(1)}])
def test_what_has_no_exact_form_is_refused_by_its_name(value: Any) -> None:
    with pytest.raises(UsageError, match="seen"):
        dict(flatten("seen", value))
