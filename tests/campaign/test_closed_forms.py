"""Campaigns agree with the closed forms that the planner uses, within 2 %, wherever these apply."""

import math
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.campaign.small_fleets import QUIET, run

from weft.campaign.outcome import outcome_of
from weft.planning.run.goodput import daly_share, goodput_of, spares_for
from weft.specs import load_site

_SETTINGS = settings(max_examples=3, deadline=None, suppress_health_check=list(HealthCheck))


@given(
    st.floats(0.5, 20), st.floats(0.02, 0.5), st.floats(0.0, 0.1), st.floats(0.0, 0.5), st.integers(0, 1000)
)  # fmt: skip
@_SETTINGS
def test_efficiency_is_dalys(mttf_h: float, interval: float, write: float, restart: float, seed: int):
    interval_s, write_s, restart_s = (max(1, round(share * mttf_h * 3600)) for share in (interval, write, restart))
    gang = {
        "name": "one", "restart": f"{restart_s} s",
        "checkpoint": {"interval": f"{interval_s} s", "write": f"{write_s} s"},
    }  # fmt: skip
    table = {
        "nodes": 2, "spares": 0, "gangs": [gang], "software": {"rate": f"{round(1e9 / mttf_h)} FIT"},
        "duration": f"{round(mttf_h * 10_000)} h",
    }  # fmt: skip
    done = run(QUIET, table, seed=seed)
    expected = daly_share(mttf_h * 3600, restart_s + 30, write_s, interval_s)
    assert outcome_of(done)["gangs"][0]["ettr"] == pytest.approx(expected, rel=0.02)


def _without_tests(table: dict[str, Any]) -> dict[str, Any]:
    """Return a scenario whose repairs take exactly what is written."""
    repair = {"spread": 0, "failed": 0, "elusive": 0, "reset": "1 s", "retest": "1 s"}
    return {"repair": repair, "spares": 0, **table}


@given(st.floats(100, 400), st.floats(2, 6), st.integers(0, 1000))
@_SETTINGS
def test_efficiency_with_repair_is_dalys_and_the_wait(mttf_h: float, repair_h: float, seed: int):
    gang = {"name": "one", "restart": "600 s", "checkpoint": {"interval": "2 h", "write": "120 s"}}
    nodes = 4
    host = {"rate": f"{round(1e9 / mttf_h / nodes)} FIT", "soft": 0, "repair": f"{round(repair_h * 3600)} s"}
    table = {"nodes": nodes, "gangs": [gang], "components": {"host": host}, "duration": f"{round(mttf_h * 700)} h"}
    done = run(QUIET, _without_tests(table), seed=seed)
    # While it waits nothing of it works; failures of nodes that stand by meanwhile are rare here.
    up_h = 2 / math.expm1((2 + 1 / 30) / mttf_h)
    restart_h = (600 + 30) / 3600
    cycle_h = mttf_h * math.exp(restart_h / mttf_h) + repair_h
    assert outcome_of(done)["gangs"][0]["ettr"] == pytest.approx(up_h / cycle_h, rel=0.02)


@given(st.floats(2, 12), st.floats(0, 1), st.integers(0, 1000))
@_SETTINGS
def test_nodes_out_of_service_are_as_many_as_the_spare_pool_formula_says(mean: float, spread: float, seed: int):
    nodes, repair_h = 512, 24
    rate = mean / (nodes - mean) / repair_h
    host = {"rate": f"{round(1e9 * rate)} FIT", "soft": 0, "repair": f"{repair_h} h"}
    table = {
        "nodes": nodes, "spares": 0, "gangs": [{"name": "one", "gpus": 8}], "components": {"host": host},
        "duration": f"{round(30_000 / mean)} h",
    }  # fmt: skip
    done = run(QUIET, _without_tests(table), {"repair": {"spread": spread}}, seed=seed)
    found = outcome_of(done)["repair"]
    # How many failed is chance; how long they were out, given that, is what the formula is about.
    failed = done.nodes.events["out: host"]
    by_chance = failed * repair_h * 3.6e6 / done.end_ms
    assert abs(failed - 30_000 / repair_h) < 4 * math.sqrt(30_000 / repair_h)
    assert found["out_mean"] == pytest.approx(by_chance, rel=0.02 + 0.1 * spread)
    for confidence in (0.5, 0.9, 0.99):
        spares = spares_for(found["out_mean"], confidence)
        enough = sum(span for units, span in done.nodes.out_ms.items() if units <= spares) / done.end_ms
        assert enough > confidence - 0.06


def test_the_planner_and_a_campaign_count_the_same_failures():
    site = load_site("h100-400g-16k")
    table = {
        "nodes": 1024, "spares": 16, "duration": "120 d", "alarms": {"rate": "0 FIT"}, "second": 0,
        "network": {"nic_flap": "0 FIT", "core_flap": "0 FIT"}, "repair": {"elusive": 0},
        "components": {name: {"rate": "0 FIT"} for name in ("rack", "shelf", "cooling", "cable", "switch")},
    }  # fmt: skip
    done = run(table)
    gang = outcome_of(done)["gangs"][0]
    planned = goodput_of(site, gang["gpus"], 8, write_s=1, step_s=10)
    absent = ("silent corruption", "switch")
    per_hour = sum(fault.per_hour for fault in planned.faults if fault.stops and fault.name not in absent)
    assert gang["interruptions"] / (120 * 24) == pytest.approx(per_hour, rel=0.08)
