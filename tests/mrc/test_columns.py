"""Columns whose rows lie together are columns like any others."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from weft.mrc.columns import EV, PACKET, RECEIVER, together

kinds = st.sampled_from((EV, PACKET, np.dtype(np.int64), np.dtype(np.int16)))
shapes = st.lists(st.integers(1, 5), max_size=2)


@given(st.integers(1, 6), st.lists(st.tuples(shapes, kinds), min_size=1, max_size=5))
def test_columns_that_lie_together_are_zero_and_share_nothing(count: int, wanted: list[tuple[list[int], np.dtype]]):
    given_as = [np.ones((count, *shape), kind) for shape, kind in wanted]
    made = together(*given_as)
    assert [(each.shape, each.dtype) for each in made] == [(each.shape, each.dtype) for each in given_as]
    assert not any(each.copy().view(np.uint8).any() for each in made)
    for number, each in enumerate(made):
        each[...] = np.frombuffer(bytes([number + 1]) * each.dtype.itemsize, each.dtype)[0]
    for number, each in enumerate(made):
        assert set(each.copy().view(np.uint8).flat) == {number + 1}


def test_the_rows_of_one_queue_pair_lie_behind_each_other_at_the_beginning_of_lines():
    first, second = together(np.zeros(4, RECEIVER), np.zeros((4, 3), EV))
    assert second.ctypes.data - first.ctypes.data == RECEIVER.itemsize
    assert first.ctypes.data % 64 == 0
    assert first.strides[0] == second.strides[0] == 7 * 64, "six lines, and one more for an odd number"
