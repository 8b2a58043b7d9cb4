"""Elastic gangs: more nodes for those that run below their wish, while nobody else waits for any.

Starting narrow is `passes`' business, giving nodes back `preemption`'s. Pure.
"""

import numpy as np

from weft.cluster.records.actions import Resize
from weft.cluster.records.job import Job, JobState, Placement
from weft.cluster.scheduling.placement import compact
from weft.cluster.scheduling.power_budget import site_left_w
from weft.cluster.scheduling.state import ClusterState


def growth(book: ClusterState, now_ms: int) -> list[Resize]:
    """Return the gangs that grow, the narrowest for its wish first; the book takes every action as carried out."""
    if not book.narrow or len(book.queue):
        return []
    found: list[Resize] = []
    jobs = (book.jobs[name] for name in sorted(book.narrow))
    for job in sorted((job for job in jobs if job.state is JobState.RUNNING), key=_width):
        action = _grown(book, job)
        if action is not None:
            book.take_up(action, now_ms)
            found.append(action)
    return found


def _width(job: Job) -> float:
    return len(job.placement.nodes) / job.gang.nodes if job.placement else 1.0


def _grown(book: ClusterState, job: Job) -> Resize | None:
    assert job.placement is not None
    gang, pool, policy = job.gang, book.pool, book.policy
    have = len(job.placement.nodes)
    free = pool.candidates(gang.gpus_per_node, degraded=job.takes_degraded)
    free = free[(pool.taken[free] == 0) & (pool.usable[free] == gang.gpus_per_node)]
    lane = max(0, policy.lane_nodes - book.lane_used)
    team = book.shares.index[job.team]
    affordable = int(book.shares.most[team] - book.shares.held[team]) // gang.gpus_per_node
    node_rise_w = gang.gpus_per_node * book.rise_w(job)
    left_w = site_left_w(book.power, policy, book.draw_w)
    powered = left_w // node_rise_w if node_rise_w else gang.nodes
    room = min(gang.nodes - have, len(free) - lane - policy.spare_nodes, affordable, powered)
    more = room // gang.step * gang.step
    if more <= 0 or job.placement.devices:
        return None
    nodes = np.concatenate([book.nodes_of[job.id], compact(free, more, pool.levels)])
    return Resize(job.id, Placement(tuple(pool.ranked(nodes).tolist()), gang.gpus_per_node), "grow")
