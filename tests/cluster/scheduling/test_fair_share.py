"""Use decays by half in a half-life, adds up while GPUs are held, and orders teams by use over quota."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weft.cluster.records.job import Team
from weft.cluster.records.snapshot import FAR_MS, SchedulingPolicy
from weft.cluster.scheduling.fair_share import Shares

HALF_MS = 1000
POLICY = SchedulingPolicy(half_life_ms=HALF_MS)


def shares(*teams: Team) -> Shares:
    return Shares(teams, POLICY)


@pytest.mark.parametrize("halves", [0, 1, 2, 5])
def test_use_counts_half_after_each_half_life(halves: int):
    found = shares(Team("red", 10, used_gpu_ms=800.0))
    found.advance(halves * HALF_MS)
    assert found.used_gpu_ms[0] == pytest.approx(800 / 2**halves)


@given(st.lists(st.tuples(st.integers(1, 500), st.integers(0, 8)), min_size=1, max_size=8))
def test_to_reckon_often_is_to_reckon_once(steps: list[tuple[int, int]]):
    often, once = shares(Team("red", 4)), shares(Team("red", 4))
    now_ms = 0
    for span_ms, gpus in steps:
        for each in (often, once):
            each.advance(now_ms)
            each.hold("red", gpus - int(each.held[0]))
        for part in range(1, 4):
            often.advance(now_ms + span_ms * part // 4)
        now_ms += span_ms
        often.advance(now_ms)
        once.advance(now_ms)
        assert often.used_gpu_ms[0] == pytest.approx(once.used_gpu_ms[0])


@given(st.integers(1, 64), st.integers(1, 10_000))
def test_what_is_held_for_ever_is_used_for_a_bounded_time(gpus: int, span_ms: int):
    found = shares(Team("red", 64))
    found.hold("red", gpus)
    found.advance(span_ms)
    most = gpus * HALF_MS / math.log(2)
    assert 0 < found.used_gpu_ms[0] <= most + 1e-9
    assert found.used_gpu_ms[0] <= gpus * span_ms * (1 + 1e-9)


def test_time_that_goes_back_changes_nothing():
    found = shares(Team("red", 4, used_gpu_ms=10.0, used_at_ms=500))
    found.advance(100)
    assert (found.at_ms, found.used_gpu_ms[0]) == (500, 10.0)


def test_teams_are_ordered_by_use_over_quota_and_who_has_no_quota_comes_last():
    found = shares(Team("red", 10, used_gpu_ms=100.0), Team("blue", 100, used_gpu_ms=100.0), Team("none", 0))
    assert found.ratios() == [10.0, 1.0, math.inf]


@pytest.mark.parametrize(
    ("most", "borrow", "may"), [(None, True, FAR_MS), (12, True, 12), (None, False, 8), (12, False, 8)]
)
def test_a_team_may_have_what_it_may_borrow(most: int | None, borrow: bool, may: int):
    found = Shares((Team("red", 8, most),), SchedulingPolicy(borrow=borrow))
    assert found.most[0] == may


def test_a_team_that_changes_keeps_what_it_holds_and_has_used():
    found = shares(Team("red", 8, used_gpu_ms=64.0))
    found.hold("red", 5)
    found.set(Team("red", 2, 3))
    assert (found.held[0], found.quota[0], found.most[0], found.used_gpu_ms[0]) == (5, 2, 3, 64.0)
    found.set(Team("new", 1))
    assert found.index == {"red": 0, "new": 1}


@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=4), st.integers(0, 5000))
def test_records_hold_everything_that_a_restart_needs(used: list[float], now_ms: int):
    found = shares(*(Team(f"t{at}", at + 1, used_gpu_ms=use) for at, use in enumerate(used)))
    found.advance(now_ms)
    again = Shares(found.records(), POLICY)
    assert again.used_gpu_ms.tolist() == pytest.approx(found.used_gpu_ms.tolist())
    assert again.at_ms == found.at_ms


@given(st.integers(1, 64), st.integers(1, 10_000))
def test_what_is_held_is_used_as_the_integral_of_the_decay_says(gpus: int, span_ms: int):
    found = shares(Team("red", 64))
    found.hold("red", gpus)
    found.advance(span_ms)
    steps = 2000
    summed = sum(gpus * 0.5 ** ((step + 0.5) * span_ms / steps / HALF_MS) for step in range(steps)) * span_ms / steps
    assert found.used_gpu_ms[0] == pytest.approx(summed, rel=1e-3)


@given(st.integers(0, 5000), st.integers(0, 5000))
def test_a_team_that_joins_brings_its_use_as_it_has_decayed_by_then(used_ms: int, later_ms: int):
    found = shares(Team("red", 4, used_at_ms=used_ms + later_ms))
    found.set(Team("blue", 4, used_gpu_ms=640.0, used_at_ms=used_ms))
    assert found.used_gpu_ms[1] == pytest.approx(640 * 0.5 ** (later_ms / HALF_MS))
