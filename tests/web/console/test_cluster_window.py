"""The past of a cluster as its decision log tells it: who ran where, and what was drawn, by what is declared."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from weft.web.console.cluster_window import past_of

NODES, IDLE_W, RISE_W, MOST_W = 8, 50, 300, 20_000


def snapshot(**more: Any) -> dict[str, Any]:
    power = {"site_w": MOST_W, "ramp_w_per_s": 700, "node_idle_w": IDLE_W, "gpu_rise_w": RISE_W}
    return {"nodes": [{"name": f"n{number}", "number": number} for number in range(NODES)], "power": power, **more}


def job(name: str, nodes: list[int], gpus: int, watts: int | None, start_ms: int) -> dict[str, Any]:
    return {"id": name, "state": "running", "start_ms": start_ms, "watts_per_gpu": watts,
            "placement": {"nodes": nodes, "gpus_per_node": gpus}}  # fmt: skip


@st.composite
def lives(draw: st.DrawFn) -> tuple[list[dict[str, Any]], list[tuple[int, int]]]:
    """Starts and ends of jobs, and what is drawn after each."""
    running: dict[str, int] = {}
    entries: list[dict[str, Any]] = []
    # Before the first start nothing but idle nodes draws.
    drawn: list[tuple[int, int]] = []
    for number in range(draw(st.integers(0, 12))):
        at_ms = 1000 * (number + 1)
        if running and draw(st.booleans()):
            name = draw(st.sampled_from(sorted(running)))
            del running[name]
            change = {"drop": name, "at_ms": at_ms}
        else:
            name, gpus = f"job-{number}", draw(st.integers(1, 8))
            watts = draw(st.none() | st.integers(0, 1200))
            nodes = draw(st.lists(st.integers(0, NODES - 1), min_size=1, max_size=NODES, unique=True))
            running[name] = len(nodes) * gpus * (RISE_W if watts is None else watts)
            change = {"put": "job", "record": job(name, nodes, gpus, watts, at_ms), "at_ms": at_ms}
        entries.append({"at_ms": at_ms, "changes": [change], "actions": []})
        drawn += [] if drawn else [(at_ms, NODES * IDLE_W)]
        drawn.append((at_ms, NODES * IDLE_W + sum(running.values())))
    return entries, drawn


@given(lives())
def test_the_draw_is_what_runs_and_what_idles(life: tuple[list[dict[str, Any]], list[tuple[int, int]]]):
    entries, drawn = life
    power = past_of([{"snapshot": snapshot()}, *entries])["power"]
    assert power["draw"] == drawn
    assert power["now_w"] == (drawn[-1][1] if drawn else NODES * IDLE_W)
    assert (power["site_w"], power["ramp_w_per_s"]) == (MOST_W, 700)


def test_what_ran_when_the_log_begins_counts():
    past = past_of([{"snapshot": snapshot(jobs=[job("old", [0, 1], 8, None, 5)])}])
    assert past["power"]["now_w"] == NODES * IDLE_W + 16 * RISE_W
    assert [span["job"] for span in past["spans"]] == ["old"]


def test_a_cluster_without_budgets_has_no_limit():
    power = past_of([{"snapshot": {"nodes": []}}])["power"]
    assert power == {"site_w": None, "ramp_w_per_s": None, "now_w": 0, "draw": []}
