"""Clocks: manual ones move when told, none goes back."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weft.core.clock import ManualClock, SystemClock
from weft.core.units import Picoseconds, transfer_ps


@given(spans=st.lists(st.integers(0, 10**15), max_size=20))
def test_a_manual_clock_is_the_sum_of_its_steps(spans: list[int]):
    clock = ManualClock()
    for span in spans:
        clock.advance(Picoseconds(span))
    assert clock.now() == sum(spans)


def test_no_clock_goes_back():
    with pytest.raises(ValueError, match="go back"):
        ManualClock().advance(Picoseconds(-1))
    system = SystemClock()
    assert 0 <= system.now() <= system.now()


@given(size=st.integers(0, 10**12), rate=st.integers(1, 10**13))
def test_a_transfer_never_ends_before_its_last_bit(size: int, rate: int):
    span = transfer_ps(size, rate)
    assert span * rate >= size * 8 * 10**12 > (span - 1) * rate - 1


def test_one_frame_at_100g():
    assert transfer_ps(4262, 100 * 10**9) == 340_960
