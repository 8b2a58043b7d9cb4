"""Other programs on the processors are counted, ours are not."""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weft.engines.supervisor.cpu_contention import Ticks, others_share, ticks


@given(whole=st.integers(1, 10**6), shares=st.tuples(st.floats(0, 0.5), st.floats(0, 0.5)))
def test_what_is_neither_idle_nor_ours_is_others(whole: int, shares: tuple[float, float]):
    idle, ours = (int(share * whole) for share in shares)
    found = others_share([Ticks(5, 3, 2), Ticks(5 + whole, 3 + idle, 2 + ours)])
    assert found == pytest.approx((whole - idle - ours) / whole)


def test_counters_that_lag_behind_make_nobody_negative():
    assert others_share([Ticks(0, 0, 0), Ticks(100, 40, 61)]) == 0


@pytest.mark.parametrize("marks", [[], [Ticks(1, 1, 0)], [Ticks(1, 1, 0), Ticks(1, 1, 0)]])
def test_without_two_moments_nobody_is_assumed(marks: list[Ticks]):
    assert others_share(marks) == 0


def test_our_own_work_is_seen_as_ours():
    before = ticks()
    if before is None:
        pytest.skip("this system has no such counters")
    end = time.process_time() + 0.2
    while time.process_time() < end:
        pass
    after = ticks()
    assert after is not None
    assert after.ours - before.ours >= 10
    assert after.all > before.all
