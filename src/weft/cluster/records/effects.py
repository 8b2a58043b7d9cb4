"""What an action changes: the records that follow from carrying it out.

Every engine and every simulated world uses these, so that a job that was bound looks the same everywhere. Pure: a
record and an action in, the new record out. A job that must go is `stopping` and holds its nodes until whoever
carries it out has seen its last process end; then `stopped` says what becomes of it.
"""

from collections.abc import Sequence
from dataclasses import replace

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
from weft.cluster.records.job import ENDED, Job, JobState
from weft.cluster.records.node import Node, NodeEvidence, NodeState

JobAction = Bind | Preempt | Stop | Replace | Resize | Wait
NodeAction = Quarantine | Drain | Degrade | Move | RunTest

IN_SERVICE = frozenset({NodeState.READY, NodeState.SUSPECT})
"""States in which a node may hold work."""
_OUTS_KEPT = 32
_IDLE_TEST = "test:idle"
_REPORTS_KEPT = 64


def job_after(job: Job, action: JobAction, now_ms: int) -> Job:  # noqa: PLR0911 - one for each action
    """Return the job as it is once `action` has been taken up."""
    match action:
        case Bind():
            return replace(
                job, state=JobState.STARTING, placement=action.placement, start_ms=now_ms, last_wait_code="",
                borrowed=action.borrowed, let_past=action.let_past,
            )  # fmt: skip
        case Preempt(stage="ask"):
            return replace(
                job, state=JobState.ASKED, asked_ms=now_ms, asked_for=action.for_job, leave_by_ms=action.by_ms
            )
        case Preempt():
            return replace(job, state=JobState.STOPPING, leave_by_ms=action.by_ms, ending="requeue")
        case Stop():
            state = JobState.STOPPING if job.holds else JobState(action.ending)
            return replace(job, state=state, ending=action.ending)
        case Replace():
            assert job.placement is not None, "only a job that runs has nodes to swap"
            swap = dict(zip(action.lost, action.spares, strict=True))
            # `map` asks for each node without a step of Python: gangs have tens of thousands.
            nodes = tuple(map(swap.get, job.placement.nodes, job.placement.nodes))
            return replace(job, placement=replace(job.placement, nodes=nodes))
        case Resize():
            return replace(job, placement=action.placement)
        case Wait():
            return replace(job, last_wait_code=action.code)


def node_after(node: Node, action: NodeAction, now_ms: int) -> Node:  # noqa: PLR0911 - one for each action
    """Return the node as it is once `action` has been carried out."""
    match action:
        case Quarantine():
            outs = (*node.outs, now_ms)[-_OUTS_KEPT:]
            return replace(node, state=NodeState.QUARANTINED, since_ms=now_ms, out_ms=now_ms, outs=outs)
        case Drain():
            return replace(node, state=NodeState.DRAINING, since_ms=now_ms)
        case Degrade():
            return replace(node, bad_gpus=tuple(sorted({*node.bad_gpus, *action.gpus})), evidence=())
        case RunTest():
            return replace(node, idle_test_ms=now_ms) if action.idle else node
        case Move(state=NodeState.READY):
            tested_ms = node.tested_ms if node.state in IN_SERVICE else now_ms
            return replace(node, state=action.state, since_ms=now_ms, evidence=(), attempts=0, tested_ms=tested_ms)
        case Move(state=NodeState.REPAIRING):
            return replace(node, state=action.state, since_ms=now_ms, attempts=node.attempts + 1)
        case Move():
            return replace(node, state=action.state, since_ms=now_ms)


def stopped(job: Job, now_ms: int) -> Job:
    """Return a job whose last process has gone after it was asked or made to leave."""
    return ended(job, JobState(job.ending)) if job.ending in ("failed", "cancelled") else requeued(job, now_ms)


def requeued(job: Job, now_ms: int) -> Job:
    """Return a job that had to leave its nodes and waits again; what no checkpoint kept is written down."""
    assert job.start_ms is not None, "only a job that was started can lose its nodes"
    return replace(
        job, state=JobState.WAITING, placement=None, start_ms=None, checkpoint_ms=None, asked_ms=None, asked_for="",
        leave_by_ms=None, ending="", borrowed=False, let_past=False, predicted_ms=None,
        ran_ms=job.ran_ms + now_ms - job.start_ms,
        lost_gpu_ms=job.lost_gpu_ms + job.gpus * (now_ms - job.kept_ms(now_ms)), preemptions=job.preemptions + 1,
        last_wait_code="", queued_ms=now_ms,
    )  # fmt: skip


def ended(job: Job, state: JobState) -> Job:
    """Return a job that holds nothing any more."""
    assert state in ENDED, f"{state} is not an end"
    return replace(job, state=state, placement=None, asked_ms=None, asked_for="", leave_by_ms=None, ending="")


def checkpointed(job: Job, at_ms: int) -> Job:
    """Return a job whose newest checkpoint is complete."""
    return replace(job, checkpoint_ms=at_ms)


def witnessed(node: Node, *seen: NodeEvidence) -> Node:
    """Return a node of which something more was seen; the newest reports are kept."""
    return replace(node, evidence=(*node.evidence, *seen)[-_REPORTS_KEPT:])


def tested(node: Node, at_ms: int) -> Node:
    """Return an idle node that has passed a test."""
    return replace(node, tested_ms=at_ms, idle_test_ms=None)


def after_reports(node: Node, seen: Sequence[NodeEvidence], at_ms: int) -> Node:
    """Return a node of which reports have come; a passed test of an idle node is no evidence against it."""
    passed = [one for one in seen if one.check == _IDLE_TEST and one.severity == "note"]
    others = [one for one in seen if one not in passed]
    after = witnessed(node, *others) if others else node
    return tested(after, at_ms) if passed else after
