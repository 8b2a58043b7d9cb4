"""What becomes of jobs whose nodes are lost or must be emptied: swapped, narrowed, or sent back to the queue.

A training keeps running: spare nodes take the places of lost ones, or an elastic gang goes on without them. Anything
else starts again. Pure.
"""

import numpy as np

from weft.cluster.records.actions import Action, Preempt, Replace, Resize
from weft.cluster.records.job import Job, JobState, Placement
from weft.cluster.records.node import NodeState
from weft.cluster.scheduling.placement import Column
from weft.cluster.scheduling.rules import Placing
from weft.cluster.scheduling.state import ClusterState
from weft.cluster.scheduling.topology import shape_of, spares_for


def recover_gangs(cluster: ClusterState, now_ms: int) -> list[Action]:
    """Return what is done about jobs on lost nodes; the state takes each as carried out."""
    pool = cluster.pool
    if not pool.watched and not pool.broken:
        return []
    lost = set(np.flatnonzero(pool.lost & (pool.taken > 0)).tolist())
    hurt = pool.hurt()
    whole = {number for number, holders in hurt.items() if holders is None and _wants_all(cluster, number)}
    holders = {job for each in hurt.values() if each for job in each}
    lost |= whole
    found: list[Action] = []
    for name in sorted(
        _jobs_on(cluster, lost) | {job for job in holders if cluster.jobs[job].state is not JobState.STOPPING}
    ):
        action = _mended(cluster, cluster.jobs[name], lost, now_ms)
        cluster.take_up(action, now_ms)
        found.append(action)
    return found


def emptied(cluster: ClusterState, now_ms: int) -> list[Action]:
    """Return the jobs that are asked to leave nodes which have been draining for too long."""
    late = {
        number
        for number in cluster.pool.watched
        if cluster.pool.nodes[number].state is NodeState.DRAINING
        and now_ms - cluster.pool.nodes[number].since_ms >= cluster.policy.drain_ms
        and cluster.pool.taken[number]
    }
    found: list[Action] = []
    for name in sorted(_jobs_on(cluster, late)):
        job = cluster.jobs[name]
        if job.state in (JobState.STARTING, JobState.RUNNING):
            by_ms = now_ms + min(job.grace_ms, cluster.policy.grace_most_ms)
            action = Preempt(name, "ask", "drain", by_ms, cost_gpu_ms=job.gpus * (now_ms - job.kept_ms(now_ms)))
            cluster.take_up(action, now_ms)
            found.append(action)
    return found


def _wants_all(cluster: ClusterState, number: int) -> bool:
    """Return whether the jobs on a node hold more of its GPUs than still work."""
    return bool(cluster.pool.taken[number] > cluster.pool.nodes[number].usable_gpus)


def _jobs_on(cluster: ClusterState, nodes: set[int]) -> set[str]:
    """Return the jobs that hold any of `nodes` and are not stopping."""
    if not nodes:
        return set()
    there = np.zeros(cluster.pool.count, dtype=bool)
    there[list(nodes)] = True
    return {
        name
        for name, held in cluster.nodes_of.items()
        if there[held].any() and cluster.jobs[name].state is not JobState.STOPPING
    }


def _spares(cluster: ClusterState, job: Job, gone: Column, free: Column) -> Column:
    """Return which of the free nodes take the places of those that are gone; none where they cannot."""
    if (shape := shape_of(cluster.pool, job.gang)) is not None:
        return spares_for(shape, cluster.nodes_of[job.id], gone, free)
    return cluster.rules.place(Placing(free, len(gone)), cluster.pool) if len(free) >= len(gone) else free[:0]


def _mended(cluster: ClusterState, job: Job, lost: set[int], now_ms: int) -> Replace | Resize | Preempt:
    assert job.placement is not None
    held = cluster.nodes_of[job.id]
    gone = tuple(held[np.isin(held, list(lost))].tolist())
    rest = len(job.placement.nodes) - len(gone)
    if job.kind == "training" and not job.placement.devices:
        found = cluster.pool.candidates(job.placement.gpus_per_node, degraded=job.takes_degraded)
        whole = found[cluster.pool.usable[found] == job.placement.gpus_per_node]
        spares = _spares(cluster, job, np.array(gone, dtype=np.int64), whole)
        if len(spares):
            return Replace(job.id, gone, tuple(spares.tolist()))
        if job.gang.elastic and rest >= job.gang.fewest and not job.gang.slice_nodes:
            rest = job.gang.fewest + (rest - job.gang.fewest) // job.gang.step * job.gang.step
            nodes = tuple(node for node in job.placement.nodes if node not in lost)[:rest]
            return Resize(job.id, Placement(nodes, job.placement.gpus_per_node), "node")
    cost = job.gpus * (now_ms - job.kept_ms(now_ms))
    return Preempt(job.id, "evict", "node", now_ms, cost_gpu_ms=cost)
