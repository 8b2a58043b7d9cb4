"""Why a job waits, when it will start, and what would make it sooner."""

from dataclasses import replace

from tests.cluster.worlds import nodes_of

from weft.cluster.plan import decide, plan
from weft.cluster.records.job import Gang, Job, JobState, Placement, Team
from weft.cluster.records.snapshot import Snapshot
from weft.cluster.scheduling.state import ClusterState
from weft.cluster.why import Why, why

MINUTE = 60_000
RUNS = Job(
    "runs", Gang(6, 4), 0, "training", "red", limit_ms=60 * MINUTE, state=JobState.RUNNING,
    placement=Placement(tuple(range(6)), 4), start_ms=0,
)  # fmt: skip
HEAD = Job("head", Gang(8, 4), 1, "training", "red", limit_ms=60 * MINUTE)
LATE = Job("late", Gang(2, 4), 2, "experiment", "blue", limit_ms=90 * MINUTE)
TEAMS = (Team("red", 32), Team("blue", 0))
HERE = Snapshot(nodes_of(8, 4, odd=False), (RUNS, HEAD, LATE), TEAMS)


def told(snapshot: Snapshot, name: str, now_ms: int = 10 * MINUTE) -> Why:
    found = why(snapshot, name, now_ms)
    assert found is not None
    return found


def settled(snapshot: Snapshot, now_ms: int = 10 * MINUTE) -> Snapshot:
    cluster = ClusterState(snapshot)
    decide(cluster, now_ms)
    return cluster.snapshot()


def test_the_head_is_told_when_enough_nodes_come_back():
    found = told(HERE, "head")
    assert (found.code, found.late_ms, found.holds) == ("nodes", 60 * MINUTE, ("runs",))
    # People declare about twice what they need.
    assert found.expected_ms == 30 * MINUTE
    assert "it needs 8 with 4 GPUs each, 2 are free" in found.text
    assert "2 nodes instead of 8" in found.sooner


def test_one_behind_it_is_told_for_whom_nodes_are_kept_and_what_would_help():
    found = told(settled(HERE), "late")
    assert (found.code, found.before, found.position) == ("kept", ("head",), 1)
    assert "would delay head" in found.text
    assert found.expected_ms is not None
    assert found.early_ms is not None
    assert found.late_ms is not None
    assert found.early_ms <= found.expected_ms <= found.late_ms
    assert any("at most 50 min" in each for each in found.sooner)


def test_what_is_said_to_help_does():
    shorter = replace(LATE, limit_ms=50 * MINUTE)
    actions = plan(replace(HERE, jobs=(RUNS, HEAD, shorter)), 10 * MINUTE)
    assert any(type(action).__name__ == "Bind" for action in actions)


def test_quotas_dependencies_and_running_jobs_have_their_own_words():
    poor = replace(LATE, id="poor", gang=Gang(1, 4), team="green")
    after = replace(LATE, id="after", after=("runs",))
    teams = (*TEAMS, Team("green", 0, 0))
    snapshot = replace(HERE, jobs=(RUNS, poor, after), teams=teams)
    assert "green has 0 of 0 GPUs" in told(snapshot, "poor").text
    assert told(snapshot, "poor").expected_ms is None
    assert (told(snapshot, "after").code, told(snapshot, "after").expected_ms) == ("dependency", 30 * MINUTE)
    assert told(snapshot, "runs").text == "it runs on 6 nodes"
    assert why(snapshot, "nobody", 0) is None
