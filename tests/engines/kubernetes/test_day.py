"""A day of a cluster shows lane, quotas, preemption, spares, idle tests and the ramp of power, within a budget."""

import json
import statistics
import sys
import time

import pytest
from tests.engines.kubernetes.day import HOUR_S, Day, DayPlan, DaySeen
from tests.engines.kubernetes.fake_cluster import play

_PER_S = 4.0
"""What the engine may ask of the server in a second, on average, whatever the number of nodes."""


def figures(plan: DayPlan, seen: DaySeen, spent_s: float) -> dict[str, object]:
    small = sorted(wait for name, wait in seen.waits_s.items() if name.startswith("small"))
    return {
        "nodes": plan.nodes, "hours": plan.hours, "cpu_s": round(spent_s, 1), "jobs done": seen.done,
        "small waits s, median and 95th": (round(statistics.median(small)), round(small[int(0.95 * len(small))])),
        "urgent waited s": round(seen.waits_s.get("urgent", -1)), "preempted": len(seen.preempted),
        "borrowed looks": seen.borrowed, "out after s": [round(one, 1) for one in seen.out_after_s],
        "gangs that took a spare": len(seen.moved), "nodes returned": seen.returned,
        "idle nodes tested": seen.idle_tests, "ramp, of what is allowed": round(seen.ramp_most, 2),
        "requests per s": round(seen.requests.total() / (plan.hours * HOUR_S), 2), "requests": dict(seen.requests),
    }  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(
    "plan",
    [
        pytest.param(DayPlan(60, 3.0, seed=1, faults=2, small_per_hour=12, gangs_per_hour=8), id="afternoon"),
        pytest.param(DayPlan(200, 6.0, seed=1, faults=6), id="half a working day of 200 nodes"),
        pytest.param(DayPlan(1000, 24.0, seed=1, faults=24), marks=pytest.mark.long, id="a day of 1,000 nodes"),
    ],
)
def test_a_day_shows_every_rule_at_work_within_the_budget_of_requests(plan: DayPlan) -> None:
    began = time.process_time()
    seen: DaySeen = play(Day(plan).play)
    found = figures(plan, seen, time.process_time() - began)
    sys.stdout.write(json.dumps(found, indent=1) + "\n")
    assert seen.wrong == []
    small = [wait for name, wait in seen.waits_s.items() if name.startswith("small")]
    assert statistics.median(small) <= 120, "the lane keeps room for small jobs"
    assert seen.borrowed > 0, "a team had what the other did not need"
    assert seen.over_most == 0, "and never more than it may"
    assert seen.preempted, "others left for the urgent job"
    assert 0 <= seen.waits_s["urgent"] <= 3600
    assert seen.out_after_s, "GPUs died"
    assert max(seen.out_after_s) < 30
    assert seen.moved, "a gang took a spare in place of a node that was taken out"
    assert seen.returned > 0, "repaired and tested, nodes came back"
    assert seen.idle_tests > 0
    assert seen.ramp_most <= 1.1, "power rises no faster than it may"
    assert seen.requests.total() <= _PER_S * plan.hours * HOUR_S, found
