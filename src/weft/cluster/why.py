"""Why a job waits: which rule blocks it, who is before it, when it will start, and what would make it sooner.

Everything is answered from a state's columns after a pass, without another: the rule is the one that the pass found,
the time an estimate with an interval (`forecast`), and a remedy is named only where the rules say that it helps. An
engine asks about its own state (`answer`), somebody who has only a snapshot lets a pass be made first (`why`). Pure.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from weft.cluster.forecast import StartCalibration, expected_end_ms, expected_starts
from weft.cluster.plan import decide
from weft.cluster.records.actions import Action, Bind
from weft.cluster.records.job import Job, JobState
from weft.cluster.records.snapshot import FAR_MS, MINUTE_MS, Snapshot
from weft.cluster.records.wait_reasons import BY_CODE, REMEDIES, ROOM, TEXTS, Reason
from weft.cluster.scheduling.admission import HIGHEST_PRIORITY
from weft.cluster.scheduling.preemption import Want, horizon_ms, make_room
from weft.cluster.scheduling.reservation import Head, KeptNodes
from weft.cluster.scheduling.state import ClusterState
from weft.cluster.scheduling.topology import places

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
    """Running jobs with the most GPUs: who has what it waits for."""
    expected_ms: int | None
    """When it is thought to start as things are; none where unknown."""
    sooner: tuple[str, ...]
    """What would make it start sooner."""
    early_ms: int | None = None
    """It starts after this in nine of ten cases."""
    late_ms: int | None = None
    """It starts before this in nine of ten cases."""


def why(snapshot: Snapshot, job_id: str, now_ms: int) -> Why | None:
    """Return why a job does not run at `now_ms`; nothing where there is no such job."""
    if all(job.id != job_id for job in snapshot.jobs):
        return None
    # A reason is given once; here it is to be given again.
    cluster = ClusterState(_without_reasons(snapshot))
    if not cluster.jobs[job_id].holds and _bound(decide(cluster, now_ms), job_id):
        state = str(JobState.WAITING)
        return Why(job_id, state, "", "it starts with the next pass", 0, (), (), now_ms, (), now_ms, now_ms)
    return answer(cluster, job_id, now_ms)


def answer(
    cluster: ClusterState, job_id: str, now_ms: int, calibration: StartCalibration | None = None
) -> Why | None:  # fmt: skip
    """Return why a job of a state that a pass was made over does not run; nothing where there is no such job."""
    job = cluster.jobs.get(job_id)
    if job is None:
        return None
    if job.holds:
        text = f"it runs on {len(job.placement.nodes) if job.placement else 0} nodes"
        return Why(job.id, str(job.state), "", text, 0, (), (), job.start_ms, ())
    order, _ = cluster.rules.order(cluster.queue, cluster.shares, now_ms)
    row = cluster.queue.rows.get(job_id)
    position = int(np.flatnonzero(order == row)[0]) if row is not None else 0
    before = tuple(cluster.queue.ids[each] for each in order[: min(position, _NAMED)].tolist())
    reason = BY_CODE.get(job.last_wait_code, Reason.NONE)
    expected_ms, early_ms, late_ms = _when(cluster, job, reason, now_ms, calibration or StartCalibration())
    return Why(
        job.id, str(job.state), job.last_wait_code, _text(cluster, job, reason), position, before, _holders(cluster),
        expected_ms, tuple(_sooner(cluster, job, reason, now_ms)), early_ms, late_ms,
    )  # fmt: skip


def _holders(cluster: ClusterState) -> tuple[str, ...]:
    running = cluster.running
    gpus = running.column("nodes") * running.column("gpus")
    largest = np.lexsort((np.arange(len(gpus)), -gpus))[:_NAMED].tolist()
    return tuple(running.ids[row] for row in largest if gpus[row] > 0)


def _when(
    cluster: ClusterState, job: Job, reason: Reason, now_ms: int, calibration: StartCalibration
) -> tuple[int | None, int | None, int | None]:
    """Return when a job is thought to start, and between which times it is likely to."""
    if reason is Reason.DEPENDENCY:
        ends = [expected_end_ms(cluster, each, now_ms) for each in job.after if each in cluster.jobs]
        return (max(end for end in ends if end is not None) if ends and None not in ends else None), None, None
    if reason in (Reason.TEAM, Reason.QUOTA, Reason.ARRAY, Reason.SIZE):
        return None, None, None
    expected_ms = expected_starts(cluster, now_ms).get(job.id)
    if expected_ms is None:
        return None, None, None
    early_ms, late_ms = calibration.interval_ms(
        now_ms, expected_ms, job.gang.fewest * job.gang.gpus_per_node, int(cluster.pool.usable.sum())
    )
    promised = cluster.reservation
    if promised is not None and promised.job == job.id and promised.at_ms < FAR_MS:
        late_ms = min(late_ms, promised.at_ms)
        early_ms = min(early_ms, late_ms)
    return min(max(expected_ms, early_ms), late_ms), early_ms, late_ms


def _text(cluster: ClusterState, job: Job, reason: Reason) -> str:  # noqa: PLR0911 - one for each rule
    """Return the rule in words, with its numbers as they are now."""
    text, pool = TEXTS.get(reason, "the next pass looks at it"), cluster.pool
    need, gpus = job.gang.fewest, job.gang.gpus_per_node
    head = cluster.reservation.job if cluster.reservation is not None else "a job before it"
    match reason:
        case Reason.QUOTA:
            number = cluster.shares.index[job.team]
            held, most = int(cluster.shares.held[number]), int(cluster.shares.most[number])
            return f"{text}: {job.team} has {held:,} of {most:,} GPUs, it asks for {job.gpus:,}"
        case Reason.DEPENDENCY:
            open_ = [each for each in job.after if cluster.ended.get(each) is not JobState.DONE]
            return f"{text}: {', '.join(open_)}"
        case Reason.KEPT:
            return f"backfilling it would delay {head}"
        case Reason.ORDER:
            return f"{head} is before it, and this policy has no backfill"
        case Reason.GPUS:
            return f"{text}: it needs {need * gpus:,}, {pool.free_gpus:,} are free"
        case Reason.NODES | Reason.SIZE | Reason.FRAGMENTS | Reason.HEALTH | Reason.TOPOLOGY:
            free = int(pool.available(gpus, int(job.takes_degraded)))
            return f"{text}: it needs {need:,}{places(job.gang)} with {gpus:,} GPUs each, {free:,} are free"
        case _:
            return text


def _sooner(cluster: ClusterState, job: Job, reason: Reason, now_ms: int) -> Iterator[str]:
    """Return what its owner could change that would let it start now, or make others leave for it."""
    if reason not in ROOM | {Reason.NODES, Reason.POWER, Reason.LANE}:
        if reason in REMEDIES:
            yield REMEDIES[reason]
        return
    tried = list(_tried(cluster, job, reason, now_ms))
    yield from tried or [REMEDIES[reason]]


def _tried(cluster: ClusterState, job: Job, reason: Reason, now_ms: int) -> Iterator[str]:
    """Return what the rules say would help a job that lacks room."""
    head = cluster.reservation
    if reason is Reason.KEPT and head is not None and head.at_ms < FAR_MS and _free(cluster, job) >= job.gang.fewest:
        minutes = (head.at_ms - now_ms) // MINUTE_MS
        if minutes > 0 and (job.limit_ms is None or job.limit_ms > minutes * MINUTE_MS):
            yield f"a time limit of at most {minutes} min: it would be over before {head.job} starts"
    fewer = min(_free_beside_head(cluster, job), job.gang.fewest - 1)
    if fewer > 0:
        yield f"{fewer:,} nodes instead of {job.gang.fewest:,}"
    if cluster.policy.priorities and job.priority < HIGHEST_PRIORITY:
        want = Want(replace(job, priority=HIGHEST_PRIORITY), job.gang.fewest, False, now_ms + horizon_ms(cluster))
        leaving = make_room(cluster, want, now_ms) if cluster.policy.preempt else []
        if leaving:
            yield (f"a priority of {HIGHEST_PRIORITY} instead of {job.priority}; "
                   f"{len(leaving)} jobs would be asked to leave for it")  # fmt: skip
        elif _free(cluster, job) >= job.gang.fewest:
            yield f"a priority of {HIGHEST_PRIORITY} instead of {job.priority}"


def _free(cluster: ClusterState, job: Job) -> int:
    lane = max(0, cluster.lane_gpus - cluster.lane_used) // max(1, cluster.pool.largest)
    pool, gpus, degraded = cluster.pool, job.gang.gpus_per_node, int(job.takes_degraded)
    kept = pool.kept_of(cluster.policy.spare_nodes + lane, job.gang.fewest, gpus, degraded)
    return int(pool.available(gpus, degraded) - kept)


def _free_beside_head(cluster: ClusterState, job: Job) -> int:
    """Return how many nodes a job could have now without delaying the one that is promised a start."""
    free, promised = _free(cluster, job), cluster.reservation
    if promised is None or promised.job == job.id or promised.job not in cluster.jobs:
        return free
    if (
        job.limit_ms is not None
        and promised.at_ms < FAR_MS
        and job.limit_ms <= promised.at_ms - (cluster.planned_ms or 0)
    ):
        return free
    if promised.at_ms >= FAR_MS:
        return 0
    first = cluster.jobs[promised.job]
    head = Head(0, first, promised.at_ms, first.gang.fewest + cluster.policy.spare_nodes, 0, 0, 0)
    return min(free, KeptNodes(cluster.pool, head).room(job.gang.gpus_per_node, degraded=job.takes_degraded))


def _bound(actions: tuple[Action, ...], job_id: str) -> bool:
    return any(isinstance(action, Bind) and action.job == job_id for action in actions)


def _without_reasons(snapshot: Snapshot) -> Snapshot:
    return replace(
        snapshot, jobs=tuple(replace(job, last_wait_code="") if job.last_wait_code else job for job in snapshot.jobs)
    )
