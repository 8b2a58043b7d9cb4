"""Elastic gangs: more nodes for those that run below their wish, while nobody else waits for any.

Starting narrow is `passes`' business, giving nodes back `preemption`'s. Pure.
"""

import numpy as np

from weft.cluster.records.actions import Resize
from weft.cluster.records.job import Job, JobState, Placement
from weft.cluster.scheduling.power_budget import site_left_w
from weft.cluster.scheduling.rules import Placing
from weft.cluster.scheduling.state import ClusterState


def growth(cluster: ClusterState, now_ms: int) -> list[Resize]:
    """Return the gangs that grow, the narrowest for its wish first; the state takes every action as carried out."""
    if not cluster.narrow or len(cluster.queue):
        return []
    found: list[Resize] = []
    jobs = (cluster.jobs[name] for name in sorted(cluster.narrow))
    for job in sorted((job for job in jobs if job.state is JobState.RUNNING), key=_width):
        action = _grown(cluster, job)
        if action is not None:
            cluster.take_up(action, now_ms)
            found.append(action)
    return found


def _width(job: Job) -> float:
    return len(job.placement.nodes) / job.gang.nodes if job.placement else 1.0


def _grown(cluster: ClusterState, job: Job) -> Resize | None:
    assert job.placement is not None
    gang, pool, policy = job.gang, cluster.pool, cluster.policy
    have = len(job.placement.nodes)
    free = pool.candidates(gang.gpus_per_node, degraded=job.takes_degraded)
    free = free[(pool.taken[free] == 0) & (pool.usable[free] == gang.gpus_per_node)]
    lane = -(-max(0, cluster.lane_gpus - cluster.lane_used) // max(1, pool.largest))
    team = cluster.shares.index[job.team]
    affordable = int(cluster.shares.most[team] - cluster.shares.held[team]) // gang.gpus_per_node
    node_rise_w = gang.gpus_per_node * cluster.rise_w(job)
    left_w = site_left_w(cluster.power, policy, cluster.draw_w)
    powered = left_w // node_rise_w if node_rise_w else gang.nodes
    room = min(gang.nodes - have, len(free) - lane - policy.spare_nodes, affordable, powered)
    more = room // gang.step * gang.step
    if more <= 0 or job.placement.devices or gang.within or gang.apart:
        return None
    nodes = np.concatenate([cluster.nodes_of[job.id], cluster.rules.place(Placing(free, more), pool)])
    return Resize(job.id, Placement(tuple(pool.ranked(nodes).tolist()), gang.gpus_per_node), "grow")
