"""What each action and each event makes of a record: nothing else of it changes."""

from dataclasses import fields, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weft.cluster.records import effects
from weft.cluster.records.actions import (
    Bind,
    Degrade,
    Drain,
    Move,
    Preempt,
    Quarantine,
    Replace,
    Resize,
    RunTest,
    Stop,
    Wait,
)
from weft.cluster.records.effects import (
    JobAction,
    NodeAction,
    checkpointed,
    ended,
    job_after,
    node_after,
    requeued,
    stopped,
    witnessed,
)
from weft.cluster.records.job import ENDED, HOLDING, Gang, Job, JobState, Placement
from weft.cluster.records.node import Node, NodeEvidence, NodeState

WAITING = Job("j", Gang(2, 4), 3, last_wait_code="nodes")
RUNNING = replace(WAITING, state=JobState.RUNNING, placement=Placement((4, 5), 4), start_ms=10, last_wait_code="")
NODE = Node(2, "n2", 4, evidence=(NodeEvidence("ecc", 1),), since_ms=1)


def changed(before: Job | Node, after: Job | Node) -> set[str]:
    return {each.name for each in fields(before) if getattr(before, each.name) != getattr(after, each.name)}


@pytest.mark.parametrize(
    ("job", "action", "names", "state"),
    [
        (WAITING, Bind("j", Placement((1, 2), 4)), {"state", "placement", "start_ms", "last_wait_code"}, "starting"),
        (WAITING, Bind("j", Placement((1, 2), 4), borrowed=True),
         {"state", "placement", "start_ms", "last_wait_code", "borrowed"}, "starting"),
        (RUNNING, Preempt("j", "ask", "priority", 99, "big"),
         {"state", "asked_ms", "asked_for", "leave_by_ms"}, "asked"),
        (RUNNING, Preempt("j", "evict", "grace", 99), {"state", "leave_by_ms", "ending"}, "stopping"),
        (RUNNING, Stop("j", "failed", "limit"), {"state", "ending"}, "stopping"),
        (WAITING, Stop("j", "cancelled", "dependency"), {"state", "ending"}, "cancelled"),
        (RUNNING, Replace("j", (4,), (7,)), {"placement"}, "running"),
        (RUNNING, Resize("j", Placement((4,), 4), "shrink"), {"placement"}, "running"),
        (WAITING, Wait("j", "quota", "text"), {"last_wait_code"}, "waiting"),
    ],
)  # fmt: skip
def test_an_action_changes_what_it_speaks_of_and_nothing_else(job: Job, action: JobAction, names: set[str], state: str):
    after = job_after(job, action, 50)
    assert changed(job, after) == names
    assert after.state == state


@given(st.permutations(range(6)), st.data())
def test_swapped_nodes_keep_their_ranks(nodes: list[int], data: st.DataObject):
    job = replace(RUNNING, gang=Gang(6, 4), placement=Placement(tuple(nodes), 4))
    lost = tuple(data.draw(st.lists(st.sampled_from(nodes), unique=True)))
    after = job_after(job, Replace("j", lost, tuple(node + 100 for node in lost)), 50)
    assert after.placement is not None
    assert [node % 100 for node in after.placement.nodes] == nodes
    assert {node - 100 for node in after.placement.nodes if node >= 100} == set(lost)


@pytest.mark.parametrize(
    ("action", "names", "state"),
    [
        (Quarantine(2, "sick"), {"state", "since_ms", "out_ms", "outs"}, NodeState.QUARANTINED),
        (Drain(2, "wanted"), {"state", "since_ms"}, NodeState.DRAINING),
        (Degrade(2, (1,), "xid"), {"bad_gpus", "evidence"}, NodeState.READY),
        (RunTest(2, "preflight"), set(), NodeState.READY),
        (RunTest(2, "idle", idle=True), {"idle_test_ms"}, NodeState.READY),
        (Move(2, NodeState.SUSPECT, "warned", ""), {"state", "since_ms"}, NodeState.SUSPECT),
        (Move(2, NodeState.REPAIRING, "failed", ""), {"state", "since_ms", "attempts"}, NodeState.REPAIRING),
        (Move(2, NodeState.READY, "cleared", ""), {"since_ms", "evidence"}, NodeState.READY),
    ],
)
def test_an_action_on_a_node_changes_what_it_speaks_of(action: NodeAction, names: set[str], state: NodeState):
    after = node_after(NODE, action, 50)
    assert changed(NODE, after) == names
    assert after.state is state


@pytest.mark.parametrize("state", [NodeState.PREFLIGHT, NodeState.VALIDATING])
def test_a_node_that_returns_after_a_test_was_tested_now(state: NodeState):
    after = node_after(replace(NODE, state=state, attempts=2), Move(2, NodeState.READY, "passed", ""), 50)
    assert (after.tested_ms, after.attempts, after.evidence) == (50, 0, ())


@given(st.lists(st.integers(0, 10**6), min_size=1, max_size=60))
def test_the_newest_times_out_of_service_are_kept(times: list[int]):
    node = NODE
    for at_ms in times:
        node = node_after(node, Quarantine(2, "sick"), at_ms)
    assert node.outs == tuple(times[-32:])
    assert node.out_ms == times[-1]


@given(st.lists(st.integers(0, 10**6), max_size=100), st.integers(1, 4))
def test_the_newest_reports_are_kept(times: list[int], each: int):
    node = replace(NODE, evidence=())
    reports = [NodeEvidence("ecc", at_ms) for at_ms in times]
    for at in range(0, len(reports), each):
        node = witnessed(node, *reports[at : at + each])
    assert node.evidence == tuple(reports[-64:])


holding = st.builds(
    lambda state, start, kept, every, nodes: replace(
        RUNNING, state=state, start_ms=start, gang=Gang(nodes, 4), placement=Placement(tuple(range(nodes)), 4),
        checkpoint_ms=None if kept is None else start + kept, checkpoint_every_ms=every, leave_by_ms=9, asked_for="big",
        borrowed=True, predicted_ms=7,
    ),
    st.sampled_from(sorted(HOLDING)), st.integers(0, 100), st.one_of(st.none(), st.integers(0, 100)),
    st.one_of(st.none(), st.integers(1, 50)), st.integers(1, 5),
)  # fmt: skip


@given(holding, st.integers(200, 400))
def test_a_job_that_waits_again_has_nothing_of_its_start_but_what_it_cost(job: Job, now_ms: int):
    after = requeued(job, now_ms)
    assert job.start_ms is not None
    assert changed(replace(WAITING, gang=job.gang, last_wait_code=""), after) <= {
        "ran_ms", "lost_gpu_ms", "preemptions", "queued_ms", "checkpoint_every_ms",
    }  # fmt: skip
    assert after.ran_ms == now_ms - job.start_ms
    assert 0 <= after.lost_gpu_ms <= job.gpus * after.ran_ms
    assert (after.submit_ms, after.queued_ms) == (job.submit_ms, now_ms)


@given(holding, st.sampled_from(sorted(ENDED)))
def test_a_job_that_has_ended_holds_nothing(job: Job, state: JobState):
    after = ended(job, state)
    assert (after.state, after.placement, after.leave_by_ms, after.asked_for, after.ending) == (
        state,
        None,
        None,
        "",
        "",
    )
    assert after.start_ms == job.start_ms


@given(holding, st.sampled_from(sorted(set(JobState) - ENDED)))
def test_an_end_is_an_end(job: Job, state: JobState):
    with pytest.raises(AssertionError, match="is not an end"):
        ended(job, state)


@pytest.mark.parametrize(
    ("ending", "state"), [("", "waiting"), ("requeue", "waiting"), ("failed", "failed"), ("cancelled", "cancelled")]
)
def test_a_job_that_was_stopped_becomes_what_it_was_stopped_for(ending: str, state: str):
    known = {"": RUNNING, "requeue": replace(RUNNING, ending="requeue"), "failed": replace(RUNNING, ending="failed"),
             "cancelled": replace(RUNNING, ending="cancelled")}  # fmt: skip
    assert stopped(known[ending], 60).state == state


@given(st.integers(10, 1000), st.integers(1, 60), st.integers(0, 500))
def test_work_is_safe_up_to_the_last_checkpoint_by_word_or_by_clock(now_ms: int, every_ms: int, kept_ms: int):
    by_clock = replace(RUNNING, checkpoint_every_ms=every_ms)
    assert 0 <= now_ms - by_clock.kept_ms(now_ms) < every_ms
    by_word = checkpointed(RUNNING, kept_ms)
    assert by_word.kept_ms(now_ms) == kept_ms
    assert checkpointed(by_clock, kept_ms).kept_ms(now_ms) == max(kept_ms, by_clock.kept_ms(now_ms))


def test_an_idle_node_that_passed_a_test_waits_for_the_next():
    assert (effects.tested(NODE, 9).tested_ms, effects.tested(replace(NODE, idle_test_ms=5), 9).idle_test_ms) == (
        9,
        None,
    )
