"""Where gangs are put: the fewest switches, the tightest fit, and services apart."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from weft.cluster.scheduling.placement import apart, capped, compact, switches

T0 = np.repeat(np.arange(8), 8)
DOMAIN = np.repeat(np.arange(16), 4)
LEVELS = [T0, DOMAIN]


@given(st.sets(st.integers(0, 63), min_size=1), st.data())
def test_a_gang_gets_what_it_asks_for_on_as_few_switches_as_can_hold_it(free: set[int], data: st.DataObject):
    count = data.draw(st.integers(1, len(free)))
    candidates = np.array(sorted(free))
    chosen = compact(candidates, count, LEVELS)
    assert len(set(chosen.tolist())) == count
    assert set(chosen.tolist()) <= free
    sizes = np.sort(np.bincount(T0[candidates]))[::-1]
    fewest = int(np.searchsorted(np.cumsum(sizes), count)) + 1
    assert switches(chosen, T0) == fewest


def test_a_small_job_goes_where_little_is_left():
    candidates = np.array([0, 1, 2, 3, 4, 5, 6, 7, 9])
    assert compact(candidates, 1, LEVELS).tolist() == [9]


def test_a_job_of_a_domain_gets_a_whole_domain():
    candidates = np.array([0, 1, 2, 4, 5, 6, 7])
    assert compact(candidates, 4, LEVELS).tolist() == [4, 5, 6, 7]


def test_a_service_is_spread_over_switches():
    assert switches(apart(np.arange(64), 8, T0), T0) == 8
    assert switches(apart(np.arange(64), 5, T0), T0) == 5


def test_a_budget_by_rack_leaves_the_first_of_each():
    slots = np.array([1, 0, 8, 8, 8, 8, 8, 2])
    left = capped(np.arange(64), T0, slots)
    assert np.bincount(T0[left], minlength=8).tolist() == [1, 0, 8, 8, 8, 8, 8, 2]
