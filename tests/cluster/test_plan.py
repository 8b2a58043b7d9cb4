"""What holds of every pass, over random workloads, failures and clocks."""

from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.cluster.worlds import Life, clusters, nodes_of

from weft.campaign.replay import Habits, TraceReplay
from weft.campaign.trace import TraceJob
from weft.cluster.plan import plan
from weft.cluster.records.actions import Bind, Reserve, Wait
from weft.cluster.records.job import Gang, Job, Team
from weft.cluster.records.snapshot import SchedulingPolicy, Snapshot
from weft.cluster.records.wait_reasons import Reason

STRICT = SchedulingPolicy(fair=False, priorities=False, preempt=False, aged_ms=10**12)


def lived(snapshot: Snapshot, data: st.DataObject, turns: int) -> None:
    life = Life(snapshot)
    for _ in range(data.draw(st.integers(1, turns))):
        for _ in range(data.draw(st.integers(1, 4))):
            life.act(data.draw)
        life.decide()


@settings(max_examples=15, deadline=None)
@given(clusters(), st.data())
def test_whatever_happens_gangs_are_whole_limits_are_kept_and_the_book_agrees_with_plan(
    snapshot: Snapshot, data: st.DataObject
):
    lived(snapshot, data, 8)


@pytest.mark.slow
@settings(max_examples=300, deadline=None)
@given(clusters(), st.data())
def test_the_same_over_longer_lives(snapshot: Snapshot, data: st.DataObject):
    lived(snapshot, data, 30)


@st.composite
def traces(draw: st.DrawFn, nodes: int, gpus: int) -> list[TraceJob]:
    lines: list[TraceJob] = []
    submit_ms = 0
    for _ in range(draw(st.integers(1, 25))):
        submit_ms += draw(st.integers(0, 50))
        limit_ms = draw(st.integers(1, 200))
        lines.append(
            TraceJob(
                submit_ms, draw(st.integers(1, limit_ms)), limit_ms, draw(st.integers(1, nodes)),
                draw(st.integers(1, gpus)), draw(st.sampled_from(("red", "blue"))),
                draw(st.sampled_from([0, 100, 300])), draw(st.sampled_from(("training", "experiment"))),
            )
        )  # fmt: skip
    return lines


def a_replay(lines: list[TraceJob], policy: SchedulingPolicy, nodes: int, gpus: int) -> TraceReplay:
    snapshot = Snapshot(
        nodes_of(nodes, gpus, odd=False), teams=tuple(Team(name, nodes * gpus // 2) for name in ("red", "blue")),
        policy=policy,
    )  # fmt: skip
    habits = Habits(checkpoint_ms=40, write_ms=5, grace_ms=10, min_run_ms=10, restore_ms=3)
    return TraceReplay(snapshot, lines, habits, pass_ms=1)


@settings(max_examples=60, deadline=None)
@given(st.data(), st.integers(1, 8), st.integers(1, 4), st.integers(0, 2))
def test_the_head_starts_when_it_was_promised_or_before_whatever_is_backfilled(
    data: st.DataObject, nodes: int, gpus: int, lane: int
):
    lines = data.draw(traces(nodes, gpus))
    world = a_replay(lines, replace(STRICT, lane_nodes=lane, lane_limit_ms=50), nodes, gpus)
    promised: dict[str, int] = {}
    before: Counter[str] = Counter()
    for action in world.actions():
        if isinstance(action, Reserve):
            promised.setdefault(action.job, action.at_ms)
        elif isinstance(action, Bind):
            # A pass comes a millisecond after the end that it waits for, at the latest: once for the head, and once
            # for each small job before it, where they take turns.
            assert world.now_ms <= promised.get(action.job, world.now_ms) + 1 + before[action.job]
            if action.why == "order":
                before.update(promised)
    assert all(record.state == "done" for record in world.measures.records.values())


@settings(max_examples=40, deadline=None)
@given(st.data(), st.integers(1, 6), st.integers(1, 4), st.booleans())
def test_everybody_gets_a_turn_and_every_wait_has_its_reason(data: st.DataObject, nodes: int, gpus: int, fair: bool):
    policy = SchedulingPolicy(
        fair=fair, aged_ms=500, lane_nodes=1, lane_limit_ms=50, reclaim_ms=30, grace_most_ms=20, patience_ms=20
    )
    measured = a_replay(data.draw(traces(nodes, gpus)), policy, nodes, gpus).run()
    assert all(record.state in {"done", "failed"} for record in measured.records.values())
    assert measured.unexplained_ms() == 0


def test_a_stream_of_urgent_jobs_does_not_starve_a_gang_for_longer_than_its_ageing():
    stream = [TraceJob(at, 90, 100, 1, 4, "red", 500, "experiment") for at in range(0, 6000, 20)]
    gang = TraceJob(5, 50, 100, 6, 4, "blue", 0, "training")
    policy = SchedulingPolicy(aged_ms=1000, preempt=False)
    world = a_replay(sorted([*stream, gang], key=lambda line: line.submit_ms), policy, 6, 4)
    records = world.run().records.values()
    waited = next(record.wait_ms for record in records if record.nodes == 6)
    assert waited is not None
    assert 900 <= waited <= 1000 + 100 + 10


def test_an_elastic_gang_that_is_backfilled_starts_narrow():
    nodes = nodes_of(8, 4, odd=False)
    jobs = (
        Job("a", Gang(4, 4), 0, limit_ms=1000),
        Job("b", Gang(6, 4), 1, limit_ms=1000),
        Job("c", Gang(4, 4, min_nodes=2), 2, limit_ms=5000),
    )
    bound = [action for action in plan(Snapshot(nodes, jobs, (Team("default", 32),)), 10) if isinstance(action, Bind)]
    assert {action.job: len(action.placement.nodes) for action in bound} == {"a": 4, "c": 2}


def test_a_job_with_more_gpus_on_a_node_than_any_node_has_waits_and_holds_nobody_up():
    nodes = nodes_of(4, 4, odd=False)
    jobs = (Job("vast", Gang(1, 8), 0, limit_ms=1000), Job("plain", Gang(2, 4), 1, limit_ms=1000))
    actions = plan(Snapshot(nodes, jobs, (Team("default", 16),)), 10)
    assert [action.job for action in actions if isinstance(action, Bind)] == ["plain"]
    assert [(action.job, action.code) for action in actions if isinstance(action, Wait)] == [("vast", Reason.SIZE.code)]
