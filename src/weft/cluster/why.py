"""Why a job waits: which rule blocks it, who is before it, when it will start, and what would make it sooner.

Every answer is found by asking `plan` itself: the rule is the one of a pass now; the time is the one at which a pass
would start it if running jobs ended when they say; each remedy was tried, and is named only where it helps. Pure.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

from weft.cluster.plan import decide
from weft.cluster.records.actions import Action, Bind, Preempt
from weft.cluster.records.effects import ended, stopped
from weft.cluster.records.job import Gang, Job, JobState
from weft.cluster.records.snapshot import FAR_MS, MINUTE_MS, Snapshot
from weft.cluster.records.wait_reasons import BY_CODE, TEXTS, Reason
from weft.cluster.scheduling.admission import HIGHEST_PRIORITY
from weft.cluster.scheduling.running_jobs import back_ms
from weft.cluster.scheduling.state import ClusterState

_STEPS_MOST = 2000
"""Ends of jobs that a forecast looks ahead."""
_NAMED = 5


@dataclass(frozen=True, slots=True)
class Why:
    """What there is to say about one job."""

    job: str
    state: str
    """Where it stands."""
    code: str
    """The rule that blocks it; empty where none does."""
    text: str
    """The same in words."""
    position: int
    """How many waiting jobs are considered before it."""
    before: tuple[str, ...]
    holds: tuple[str, ...]
    """Running jobs with the most nodes: who has what it waits for."""
    expected_ms: int | None
    """When it will start if running jobs end when they say and nothing new comes; none where unknown."""
    sooner: tuple[str, ...]
    """What would make it start now, each tried."""


def why(snapshot: Snapshot, job_id: str, now_ms: int) -> Why | None:
    """Return why a job does not run at `now_ms`; nothing where there is no such job."""
    job = next((job for job in snapshot.jobs if job.id == job_id), None)
    if job is None:
        return None
    if job.holds:
        text = f"it runs on {len(job.placement.nodes) if job.placement else 0} nodes"
        return Why(job.id, str(job.state), "", text, 0, (), (), job.start_ms, ())
    # A reason is given once; here it is to be given again.
    cluster = ClusterState(_without_reasons(snapshot))
    order, _ = cluster.rules.order(cluster.queue, cluster.shares, now_ms)
    names = [cluster.queue.ids[row] for row in order.tolist()]
    position = names.index(job.id) if job.id in names else 0
    actions = decide(cluster, now_ms)
    code = cluster.jobs[job.id].last_wait_code if job.id in cluster.jobs else ""
    if _bound(actions, job.id):
        return Why(job.id, str(job.state), "", "it starts with the next pass", position, (), (), now_ms, ())
    reason = BY_CODE.get(code, Reason.NONE)
    holders = sorted((each for each in cluster.jobs.values() if each.holds), key=lambda each: (-each.gpus, each.id))
    return Why(
        job.id, str(job.state), code, _text(cluster, job, reason), position, tuple(names[:position][:_NAMED]),
        tuple(each.id for each in holders[:_NAMED]), forecast_ms(snapshot, job.id, now_ms),
        tuple(_sooner(snapshot, job, reason, now_ms)),
    )  # fmt: skip


def forecast_ms(snapshot: Snapshot, job_id: str, now_ms: int) -> int | None:
    """Return when a job would start if running jobs ended when they say and nothing new came."""
    cluster = ClusterState(snapshot)
    for _ in range(_STEPS_MOST):
        if _bound(decide(cluster, now_ms), job_id):
            return now_ms
        holders = [cluster.jobs[name] for name in cluster.nodes_of]
        if job_id not in cluster.jobs or not holders:
            return None
        first = min(holders, key=lambda job: (_end_ms(job), job.id))
        if _end_ms(first) >= FAR_MS:
            return None
        now_ms = max(now_ms, _end_ms(first))
        leaves = first.state is JobState.STOPPING or (first.leave_by_ms is not None and first.leave_by_ms <= now_ms)
        cluster.put(stopped(first, now_ms) if leaves else ended(first, JobState.DONE), now_ms)
    return None


def _end_ms(job: Job) -> int:
    """Return when a job is thought to end: by its own forecast, but no later than it declared."""
    return back_ms(job) if job.predicted_ms is None else min(job.predicted_ms, back_ms(job))


def _text(cluster: ClusterState, job: Job, reason: Reason) -> str:
    """Return the rule in words, with its numbers."""
    text = TEXTS.get(reason, "no rule blocks it")
    if reason is Reason.QUOTA:
        number = cluster.shares.index[job.team]
        held, most = int(cluster.shares.held[number]), int(cluster.shares.most[number])
        return f"{text}: {job.team} has {held:,} of {most:,} GPUs, it asks for {job.gpus:,}"
    if reason is Reason.DEPENDENCY:
        open_ = [each for each in job.after if cluster.ended.get(each) is not JobState.DONE]
        return f"{text}: {', '.join(open_)}"
    if reason in (Reason.NODES, Reason.SIZE):
        free = int(cluster.pool.available(job.gang.gpus_per_node, int(job.takes_degraded)))
        return f"{text}: it needs {job.gang.fewest:,}, {free:,} are free"
    if reason is Reason.BEHIND and cluster.reservation is not None:
        return f"{text}: nodes are kept for {cluster.reservation.job}"
    return text


def _sooner(snapshot: Snapshot, job: Job, reason: Reason, now_ms: int) -> Iterator[str]:
    """Try what its owner could change, and say what helps."""
    if reason in (Reason.TEAM, Reason.DEPENDENCY, Reason.ARRAY):
        return
    at_ms = snapshot.reservation.at_ms if snapshot.reservation is not None else None
    if at_ms is not None and at_ms > now_ms and (job.limit_ms is None or job.limit_ms > at_ms - now_ms):
        shorter = replace(job, limit_ms=at_ms - now_ms)
        if _starts(snapshot, shorter, now_ms):
            minutes = (at_ms - now_ms) // MINUTE_MS
            yield f"a time limit of at most {minutes} min: it would be over before the head starts"
    nodes = job.gang.fewest // 2
    while nodes:
        if _starts(snapshot, replace(job, gang=Gang(nodes, job.gang.gpus_per_node)), now_ms):
            yield f"{nodes:,} nodes instead of {job.gang.fewest:,}"
            break
        nodes //= 2
    higher = max((each.priority for each in snapshot.jobs if each.id != job.id), default=0)
    for priority in sorted({min(HIGHEST_PRIORITY, higher + 1), HIGHEST_PRIORITY}):
        if priority <= job.priority:
            continue
        actions = _planned(snapshot, replace(job, priority=priority), now_ms)
        leaving = [each.job for each in actions if isinstance(each, Preempt) and each.for_job == job.id]
        if _bound(actions, job.id) or leaving:
            asked = f"; {len(leaving)} jobs would be asked to leave for it" if leaving else ""
            yield f"a priority of {priority} instead of {job.priority}{asked}"
            break


def _starts(snapshot: Snapshot, job: Job, now_ms: int) -> bool:
    return _bound(_planned(snapshot, job, now_ms), job.id)


def _planned(snapshot: Snapshot, job: Job, now_ms: int) -> tuple[Action, ...]:
    jobs = tuple(job if each.id == job.id else each for each in snapshot.jobs)
    return decide(ClusterState(replace(snapshot, jobs=jobs)), now_ms)


def _bound(actions: tuple[Action, ...], job_id: str) -> bool:
    return any(isinstance(action, Bind) and action.job == job_id for action in actions)


def _without_reasons(snapshot: Snapshot) -> Snapshot:
    return replace(
        snapshot, jobs=tuple(replace(job, last_wait_code="") if job.last_wait_code else job for job in snapshot.jobs)
    )
