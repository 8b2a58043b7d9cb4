"""Who leaves for whom: the cheapest jobs by what they would lose, asked first and made to go after a grace.

Two rights make others leave. Priority: a blocked job whose priority is higher by a gap. Quota: a blocked job within its
team's quota reclaims what other teams have borrowed for jobs of no higher priority, within a bounded time. Who may make
another leave also stands before it in the queue, so that nobody leaves in vain. Nobody leaves before its minimum run
time, except that a borrower's is bounded by the reclaim time; services leave last. An elastic gang gives nodes back
instead of leaving where that is enough. Pure.
"""

from dataclasses import dataclass, replace

import numpy as np

from weft.cluster.records.actions import Preempt, Resize, Stop
from weft.cluster.records.job import Job, JobState
from weft.cluster.scheduling.placement import Column, Flags
from weft.cluster.scheduling.state import ClusterState


@dataclass(frozen=True, slots=True)
class Want:
    """What a blocked job still lacks."""

    job: Job
    nodes: int
    """Nodes that it lacks, what is already on its way not counted."""
    in_quota: bool
    """Whether its team is within its quota with it."""


def horizon_ms(cluster: ClusterState) -> int:
    """Return how soon nodes must come back for nobody to be asked to leave."""
    return max(cluster.policy.grace_most_ms, cluster.policy.reclaim_ms)


def make_room(cluster: ClusterState, want: Want, now_ms: int) -> list[Preempt | Resize]:
    """Return who is asked to leave, or to shrink, for a blocked job; nothing where they would not be enough."""
    running, policy = cluster.running, cluster.policy
    lowest = min(running.by_priority, default=want.job.priority)
    if lowest > want.job.priority - policy.preempt_gap and not (want.in_quota and running.borrowers):
        return []
    by_priority = running.column("priority") <= want.job.priority - policy.preempt_gap
    team = cluster.shares.index[want.job.team]
    over = (cluster.shares.held > cluster.shares.quota)[running.column("team")]
    by_quota = running.mask("borrowed") & over & (running.column("team") != team) & want.in_quota
    by_quota &= running.column("priority") <= want.job.priority
    settled = now_ms - running.column("start_ms") >= running.column("min_run_ms")
    free = running.mask("live") & ~running.mask("leaving") & (running.column("gpus") >= want.job.gang.gpus_per_node)
    able = free & ((by_priority & settled) | by_quota)
    if int((running.column("nodes") * able).sum()) < want.nodes:
        return []
    shrunk = _shrink(cluster, np.flatnonzero(able & (running.column("shrinks") > 0)), want.nodes)
    if shrunk:
        return shrunk
    chosen = _cheapest(cluster, able, by_priority & settled, want.nodes, now_ms)
    lost = running.lost_gpu_ms(now_ms)
    found: list[Preempt | Resize] = []
    for row in chosen:
        job = cluster.jobs[running.ids[row]]
        reason = "priority" if by_priority[row] and settled[row] else "reclaim"
        by_ms = leave_by_ms(cluster, job, reason, now_ms)
        found.append(Preempt(job.id, "ask", reason, by_ms, want.job.id, int(lost[row])))
    return found


def leave_by_ms(cluster: ClusterState, job: Job, reason: str, now_ms: int) -> int:
    """Return when a job that is asked now must be gone."""
    assert job.start_ms is not None
    grace_ms = min(job.grace_ms, cluster.policy.grace_most_ms)
    if reason != "reclaim":
        return now_ms + grace_ms
    return min(now_ms + cluster.policy.reclaim_ms, max(now_ms, job.start_ms + job.min_run_ms) + grace_ms)


def overdue(cluster: ClusterState, now_ms: int) -> list[Preempt | Stop]:
    """Return the jobs whose time is over: past their limit for good, past their grace to wait again."""
    found: list[Preempt | Stop] = []
    for job in cluster.overdue(now_ms):
        assert job.start_ms is not None
        if job.limit_ms is not None and job.start_ms + job.limit_ms <= now_ms:
            found.append(Stop(job.id, "failed", "limit"))
        else:
            found.append(Preempt(job.id, "evict", "grace", now_ms, job.asked_for))
    return found


def orphans(cluster: ClusterState) -> list[Stop]:
    """Return the jobs that come after one that did not end well: they are cancelled."""
    bad = (JobState.FAILED, JobState.CANCELLED)
    return [
        Stop(name, "cancelled", "dependency")
        for name in sorted(cluster.held)
        if any(cluster.ended.get(each) in bad for each in cluster.jobs[name].after)
    ]


def _shrink(cluster: ClusterState, rows: Column, wanted: int) -> list[Preempt | Resize]:
    """Return elastic gangs that give back enough between them, the widest first; nothing where that is not enough."""
    room = cluster.running.column("shrinks")[rows]
    if int(room.sum()) < wanted:
        return []
    found: list[Preempt | Resize] = []
    for row in rows[np.argsort(-room, kind="stable")].tolist():
        if wanted <= 0:
            break
        job = cluster.jobs[cluster.running.ids[row]]
        assert job.placement is not None
        most = len(job.placement.nodes) - job.gang.fewest
        given = min(most, -(-wanted // job.gang.step) * job.gang.step)
        wanted -= given
        keep = len(job.placement.nodes) - given
        placement = replace(job.placement, nodes=job.placement.nodes[:keep], devices=job.placement.devices[:keep])
        found.append(Resize(job.id, placement, "shrink"))
    return found


def _cheapest(cluster: ClusterState, able: Flags, by_priority: Flags, wanted: int, now_ms: int) -> list[int]:
    """Return rows of jobs that free `wanted` nodes between them, the cheapest for each node first."""
    running = cluster.running
    rows = np.flatnonzero(able)
    nodes = running.column("nodes")
    for_each = running.lost_gpu_ms(now_ms)[rows] / np.maximum(nodes[rows], 1)
    order = rows[np.lexsort((rows, for_each, running.column("service")[rows]))]
    # Borrowers leave only while their team is above its quota.
    spare = (cluster.shares.held - cluster.shares.quota).tolist()
    chosen: list[int] = []
    freed = 0
    for row in order.tolist():
        if freed >= wanted:
            break
        team = int(running.column("team")[row])
        if not by_priority[row]:
            if spare[team] <= 0:
                continue
            spare[team] -= int(nodes[row] * running.column("gpus")[row])
        chosen.append(row)
        freed += int(nodes[row])
    if freed < wanted:
        return []
    for row in sorted(chosen, key=lambda row: -int(nodes[row])):
        # What turned out not to be needed stays.
        if freed - int(nodes[row]) >= wanted:
            chosen.remove(row)
            freed -= int(nodes[row])
    return chosen
