"""Intervals of start times hold what they are to hold, and follow what comes true."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.cluster.worlds import nodes_of

from weft.campaign.replay import TraceReplay
from weft.campaign.trace import generated
from weft.cluster.forecast import COVERED, StartCalibration, expected_end_ms, expected_starts
from weft.cluster.plan import decide
from weft.cluster.records.job import Gang, Job, JobState, Placement, Team
from weft.cluster.records.snapshot import Snapshot
from weft.cluster.scheduling.state import ClusterState
from weft.core.seeds import Seed

HOUR = 3_600_000


@given(st.integers(0, 10**9), st.integers(0, 10**9), st.integers(1, 4096), st.integers(1, 4096))
def test_an_interval_begins_no_earlier_than_now_and_before_it_ends(now: int, wait: int, gpus: int, pool: int):
    early, late = StartCalibration().interval_ms(now, now + wait, gpus, pool)
    assert now <= early <= late


@pytest.mark.parametrize(("shift", "spread"), [(0.0, 0.5), (2.0, 1.0), (-3.0, 2.0)])
def test_bounds_follow_starts_until_eight_in_ten_are_inside(shift: float, spread: float):
    draw = np.random.default_rng(7)
    calibration = StartCalibration()
    inside: list[bool] = []
    for ratio in np.exp(draw.normal(shift, spread, 4000)):
        waited = round(HOUR * 10 * ratio)
        early, late = calibration.interval_ms(0, HOUR * 10, 8, 512)
        inside.append(early <= waited <= late)
        calibration.started(waited, HOUR * 10, 8, 512)
    assert abs(np.mean(inside[1000:]) - COVERED) < 0.03


def test_jobs_are_thought_to_start_as_those_before_them_end():
    running = Job("runs", Gang(2, 4), 0, limit_ms=4 * HOUR, state=JobState.RUNNING, placement=Placement((0, 1), 4),
                  start_ms=0)  # fmt: skip
    waiting = tuple(Job(f"w{at}", Gang(2, 4), 1 + at, limit_ms=2 * HOUR) for at in range(3))
    cluster = ClusterState(Snapshot(nodes_of(2, 4, odd=False), (running, *waiting), (Team("default", 8),)))
    decide(cluster, HOUR)
    # Half of a limit is used.
    assert expected_end_ms(cluster, "runs", HOUR) == 2 * HOUR
    assert expected_starts(cluster, HOUR) == {"w0": 2 * HOUR, "w1": 3 * HOUR, "w2": 4 * HOUR}
    assert expected_end_ms(cluster, "w0", HOUR) is None


def test_intervals_hold_on_traces_that_did_not_calibrate_them():
    teams = tuple(Team(f"team-{number}", 64) for number in range(4))
    inside = told = 0
    for seed, load in ((21, 1.1), (22, 1.0), (23, 0.9)):
        lines = generated(400, 32, 8, Seed(seed), load=load)
        world = TraceReplay(Snapshot(nodes_of(32, 8, odd=False), teams=teams), lines, calibration=StartCalibration())
        world.run()
        assert world.starts is not None
        inside += world.starts.inside
        told += world.starts.inside + world.starts.early + world.starts.late
    assert told > 200
    assert 0.7 <= inside / told <= 0.9
