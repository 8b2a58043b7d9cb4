"""Slurm's snapshots, in every shape, are answered as `cluster.decide` would decide about the same queue."""

import contextlib
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.campaign.advice.queues import BEGIN_S, Scene, Wish, scenes, slurm

from weft.campaign.advice.foreign_queue import ForeignQueue, UnreadableQueueError, advise, snapshot_for
from weft.campaign.advice.slurm_queue import slurm_queue
from weft.campaign.advice.what_if import changed
from weft.cluster.invariants import broken
from weft.cluster.plan import plan
from weft.cluster.records.actions import Bind
from weft.cluster.records.job import Gang, Job, JobState, Placement, Team
from weft.cluster.records.node import Node, NodeState
from weft.cluster.records.snapshot import FAR_MS, SchedulingPolicy, Snapshot
from weft.core.errors import UsageError


def direct(scene: Scene) -> Snapshot:
    """Return the scene in our own records, by no reader."""
    nodes = tuple(
        Node(at, f"gpu{at:03}", scene.gpus, state=NodeState.REPAIRING if at in scene.out else NodeState.READY)
        for at in range(scene.nodes)
    )
    next_gpu = [0] * scene.nodes
    jobs: list[Job] = []
    for wish in scene.jobs:
        placement = None
        if wish.places:
            devices = tuple(tuple(range(next_gpu[at], next_gpu[at] + wish.gpus)) for at in wish.places)
            for at in wish.places:
                next_gpu[at] += wish.gpus
            placement = Placement(wish.places, wish.gpus, () if wish.gpus == scene.gpus else devices)
        limit_ms = None if wish.limit_min is None else wish.limit_min * 60_000
        jobs.append(
            Job(str(wish.number), Gang(wish.nodes, wish.gpus), wish.submit_s * 1000, team="red",
                priority=wish.priority, limit_ms=limit_ms, placement=placement,
                state=JobState.RUNNING if placement else JobState.WAITING,
                start_ms=(BEGIN_S + 5000) * 1000 if placement else None)
        )  # fmt: skip
    policy = SchedulingPolicy(fair=False, preempt=False, aged_ms=FAR_MS // 4)
    return Snapshot(nodes, tuple(jobs), (Team("red", 0),), policy=policy)


@settings(max_examples=60, deadline=None)
@given(scenes(), st.booleans(), st.booleans())
def test_the_answer_is_what_would_be_decided_whatever_the_version(scene: Scene, plain: bool, grouped: bool):
    queue = slurm_queue(slurm(scene, plain=plain, grouped=grouped))
    starts = {each.job for each in plan(direct(scene), scene.now_s * 1000) if isinstance(each, Bind)}
    for wish in scene.jobs:
        if wish.places:
            continue
        found = advise(queue, str(wish.number)).why
        assert not broken(snapshot_for(queue, queue.job(str(wish.number))))
        assert (found.expected_ms == queue.now_ms and not found.code) == (found.job in starts)


@settings(max_examples=30, deadline=None)
@given(scenes(), st.data())
def test_more_nodes_fewer_jobs_and_priority_never_keep_a_job_from_starting(scene: Scene, data: st.DataObject):
    waiting = [str(wish.number) for wish in scene.jobs if not wish.places]
    running = [str(wish.number) for wish in scene.jobs if wish.places]
    if not waiting:
        return
    queue = slurm_queue(slurm(scene))
    name = data.draw(st.sampled_from(waiting))
    first = changed(queue, f"priority={name}:999")
    # Nobody is before it now, and so many empty nodes are enough for it.
    assert advise(changed(first, f"nodes=+{scene.nodes}"), name).why.code == ""
    for each in running:
        first = changed(first, f"cancel={each}")
    fits = scene.nodes - len(scene.out) >= next(wish.nodes for wish in scene.jobs if str(wish.number) == name)
    assert (advise(first, name).why.code == "") == fits


def one(**fields: Any) -> ForeignQueue:
    scene = Scene(2, 8, frozenset(), (Wish(7, 1, 8, 1, BEGIN_S, 60),))
    squeue, sinfo = slurm(scene)
    squeue["jobs"][0] |= fields
    return slurm_queue([sinfo, squeue])


def test_what_slurm_holds_it_for_is_said_and_no_start_is_promised():
    found = advise(one(state_reason="JobHeldUser"), "7").why
    assert (found.code, found.expected_ms) == ("held", None)
    assert "JobHeldUser" in found.text


@pytest.mark.parametrize(
    ("fields", "gpus", "model"),
    [({"tres_req_str": "cpu=8,gres/gpu:a100=4,gres/gpu=4"}, 4, "a100"),
     ({"tres_req_str": "", "tres_per_node": "gres:gpu:8"}, 8, ""),
     ({"tres_req_str": "", "tres_per_node": "gres/gpu:h100:2"}, 2, "h100"),
     ({"tres_req_str": "", "tres_per_job": "gres/gpu:6"}, 6, "")],
)  # fmt: skip
def test_gpus_are_read_from_wherever_slurm_writes_them(fields: dict[str, Any], gpus: int, model: str):
    job = one(**fields).job("7")
    assert (job.gpus * job.pieces, job.model) == (gpus, model)


def test_an_array_task_and_its_dependency_have_the_names_that_squeue_prints():
    job = one(array_job_id={"set": True, "infinite": False, "number": 5},
              array_task_id={"set": True, "infinite": False, "number": 2},
              dependency="afterok:12(unfulfilled),afterany:13_4(unfulfilled)").jobs[0]  # fmt: skip
    assert job.name == "5_2"
    assert job.after == ("12", "13_4")


@pytest.mark.parametrize(
    ("documents", "said"),
    [([{"nodes": []}], "squeue --json"), ([{"jobs": []}], "sinfo --json"), ([[]], "instead of an object"),
     ([{"jobs": 3}], "jobs is a number"), ([{"jobs": [{"job_id": 1}], "nodes": [{"name": "a", "gres": "gpu:1"}]}],
                                           "job_state")],
)  # fmt: skip
def test_what_is_no_snapshot_is_said_in_a_sentence(documents: list[Any], said: str):
    with pytest.raises(UnreadableQueueError, match=said):
        slurm_queue(documents)


@settings(max_examples=80, deadline=None)
@given(st.data())
def test_any_field_may_be_anything_and_the_answer_is_a_sentence(data: st.DataObject):
    squeue, sinfo = slurm(
        Scene(2, 8, frozenset(), (Wish(7, 1, 8, 1, BEGIN_S, 60, (0,)), Wish(8, 2, 8, 1, BEGIN_S, 60)))
    )
    odd = st.sampled_from([None, -1, 2**63 - 1, "x", [], {}, [{}], {"number": "x"}, True, "gpu[1-", "gres/gpu=99"])
    target = data.draw(st.sampled_from([squeue["jobs"][0], squeue["jobs"][1], sinfo["nodes"][0], squeue, sinfo]))
    target[data.draw(st.sampled_from(sorted(target)))] = data.draw(odd)
    with contextlib.suppress(UnreadableQueueError, UsageError):
        queue = slurm_queue([squeue, sinfo])
        for job in queue.jobs:
            assert advise(queue, job.name).why.text


@pytest.mark.parametrize("change", ["cancel", "cancel=", "priority=7", "nodes=-1", "nodes=x", "limit=7:soon", "up=1"])
def test_a_change_that_is_none_is_refused(change: str):
    with pytest.raises(UsageError, match="what-if"):
        changed(one(), change)
