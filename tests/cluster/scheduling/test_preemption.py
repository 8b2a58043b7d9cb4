"""Who leaves for whom, in which order, and how long it may take."""

from dataclasses import replace
from typing import Any

from tests.cluster.worlds import nodes_of

from weft.cluster.plan import decide, plan
from weft.cluster.records.actions import Action, Bind, Preempt, Resize, Stop
from weft.cluster.records.effects import stopped
from weft.cluster.records.job import Gang, Job, JobState, Placement, Team
from weft.cluster.records.snapshot import SchedulingPolicy, Snapshot
from weft.cluster.scheduling.state import ClusterState

HOUR = 3_600_000
NOW = 10 * HOUR
TEAMS = (Team("red", 16), Team("blue", 16))
RULES = SchedulingPolicy(patience_ms=0)


def running(name: str, nodes: tuple[int, ...], **changes: Any) -> Job:
    job = Job(
        name, Gang(len(nodes), 4), 0, "training", "red", limit_ms=100 * HOUR, state=JobState.RUNNING,
        placement=Placement(nodes, 4), start_ms=0,
    )  # fmt: skip
    return replace(job, **changes)


def asked(actions: tuple[Action, ...]) -> dict[str, Preempt]:
    return {action.job: action for action in actions if isinstance(action, Preempt) and action.stage == "ask"}


def here(*jobs: Job, policy: SchedulingPolicy = RULES) -> Snapshot:
    return Snapshot(nodes_of(8, 4, odd=False), jobs, TEAMS, policy=policy)


URGENT = Job("urgent", Gang(2, 4), NOW, "training", "red", 300, HOUR)


def test_the_one_with_the_freshest_checkpoint_leaves():
    jobs = [
        running(f"r{number}", (2 * number, 2 * number + 1), checkpoint_ms=NOW - (number + 1) * HOUR)
        for number in range(4)
    ]
    found = asked(plan(here(*jobs, URGENT), NOW))
    assert list(found) == ["r0"]
    assert found["r0"].cost_gpu_ms == 8 * HOUR
    assert found["r0"].by_ms == NOW + 60_000


def test_services_leave_last_and_nobody_before_its_minimum_run_time():
    service = running("service", (0, 1), kind="service", checkpoint_ms=NOW)
    young = running("young", (2, 3), start_ms=NOW - HOUR, min_run_ms=2 * HOUR)
    old = running("old", (4, 5))
    other = running("other", (6, 7), priority=300)
    assert list(asked(plan(here(service, young, old, other, URGENT), NOW))) == ["old"]


def test_a_gap_too_small_makes_nobody_leave():
    jobs = [running(f"r{number}", (2 * number, 2 * number + 1)) for number in range(4)]
    assert not asked(plan(here(*jobs, replace(URGENT, priority=150)), NOW))
    assert not asked(plan(here(*jobs, URGENT, policy=replace(RULES, preempt=False)), NOW))


def test_who_does_not_leave_is_evicted_after_its_grace_and_waits_again_behind():
    jobs = [running(f"r{number}", (2 * number, 2 * number + 1)) for number in range(4)]
    cluster = ClusterState(here(*jobs, URGENT))
    victim = next(iter(asked(decide(cluster, NOW))))
    assert not [action for action in decide(cluster, NOW + 59_000) if isinstance(action, Preempt | Bind)]
    evicted = [action for action in decide(cluster, NOW + 60_000) if isinstance(action, Preempt)]
    assert [(action.job, action.stage) for action in evicted] == [(victim, "evict")]
    cluster.put(stopped(cluster.jobs[victim], NOW + 61_000), NOW + 61_000)
    bound = [action.job for action in decide(cluster, NOW + 61_000) if isinstance(action, Bind)]
    assert bound == ["urgent"]
    assert cluster.jobs[victim].lost_gpu_ms == 8 * (NOW + 61_000)
    assert cluster.jobs[victim].preemptions == 1


def test_a_team_reclaims_its_quota_within_a_bounded_time_whatever_borrowers_were_promised():
    own = running("own", (0, 1, 2, 3))
    borrowed = running("borrowed", (4, 5, 6, 7), borrowed=True, min_run_ms=1000 * HOUR, grace_ms=50 * HOUR)
    claim = Job("claim", Gang(2, 4), NOW, "training", "blue", 100, HOUR)
    found = asked(plan(here(own, borrowed, claim), NOW))
    assert list(found) == ["borrowed"]
    assert found["borrowed"].reason == "reclaim"
    assert found["borrowed"].by_ms <= NOW + RULES.reclaim_ms


def test_nobody_reclaims_more_than_its_quota():
    own = running("own", (0, 1, 2, 3))
    borrowed = running("borrowed", (4, 5, 6, 7), borrowed=True)
    greedy = Job("greedy", Gang(5, 4), NOW, "training", "blue", 100, HOUR)
    assert not asked(plan(here(own, borrowed, greedy), NOW))


def test_an_elastic_gang_gives_nodes_back_instead_of_leaving():
    wide = replace(running("wide", tuple(range(8))), gang=Gang(8, 4, min_nodes=2, step=2))
    actions = plan(here(wide, URGENT), NOW)
    assert not asked(actions)
    assert [len(action.placement.nodes) for action in actions if isinstance(action, Resize)] == [6]
    assert [action.job for action in actions if isinstance(action, Bind)] == ["urgent"]


def test_a_job_past_its_limit_is_stopped_and_those_after_it_are_called_off():
    late = running("late", (0, 1), limit_ms=HOUR)
    after = Job("after", Gang(1, 4), 0, team="blue", after=("late",))
    cluster = ClusterState(here(late, after))
    stops = [action for action in decide(cluster, NOW) if isinstance(action, Stop)]
    assert [(stop.job, stop.reason) for stop in stops] == [("late", "limit")]
    cluster.put(stopped(cluster.jobs["late"], NOW), NOW)
    stops = [action for action in decide(cluster, NOW) if isinstance(action, Stop)]
    assert [(stop.job, stop.ending, stop.reason) for stop in stops] == [("after", "cancelled", "dependency")]
