"""Which rule blocks each job that a pass did not start, by what, and what would change it.

Hard reasons (quota, dependencies, size) are found while a pass tries its rules. What is left is a question of room: too
few GPUs, GPUs on the wrong nodes, GPUs that are kept for somebody, nodes out of service. It changes with every job that
ends, so it is looked at when a job first waits and then once a minute. Pure; decides nothing.
"""

import heapq
from dataclasses import dataclass

import numpy as np

from weft.cluster.records.actions import Wait
from weft.cluster.records.node import NodeState
from weft.cluster.records.snapshot import FAR_MS, MINUTE_MS
from weft.cluster.records.wait_reasons import REMEDIES, ROOM, TEXTS, Reason
from weft.cluster.scheduling import power_budget
from weft.cluster.scheduling.placement import Column, Flags
from weft.cluster.scheduling.reservation import Head
from weft.cluster.scheduling.state import ClusterState
from weft.cluster.scheduling.topology import places

_NAMED = 3
"""How many of those before it, or in its way, a reason to wait names."""
_IS_ROOM = np.array([reason in ROOM for reason in sorted(Reason)])


@dataclass(slots=True)
class Considered:
    """The jobs of a pass in their order, as columns, and what it has found of them."""

    rows: Column
    reasons: Column
    """The reason of each as far as rules have found one; `BEHIND` for those that lack room."""
    last_wait: Column
    need: Column
    gpus: Column
    total: Column
    watts: Column
    degraded: Column
    minds_lane: Column
    fits: Flags
    """Who would fit into what is free, the head apart."""
    misshapen: Flags
    """Who would, if the topology did not have to have a shape."""
    fast: Flags
    lane: int
    """GPUs that are still kept for the fast lane."""
    head: Head | None


def explain(cluster: ClusterState, found: Considered, now_ms: int) -> list[Wait]:
    """Return the new reason of those whose reason has changed."""
    head, reasons = found.head, found.reasons
    if head is not None:
        ahead = np.flatnonzero(found.fast[: head.at] & (reasons[: head.at] == Reason.BEHIND))
        reasons[ahead] = Reason.LANE
    _sort_out(cluster, found, now_ms)
    changed = np.flatnonzero(reasons != found.last_wait).tolist()
    if not changed:
        return []
    ids = cluster.queue.ids
    first = np.flatnonzero(reasons != Reason.NONE)[:_NAMED].tolist()
    actions: list[Wait] = []
    for at in changed:
        reason = Reason(int(reasons[at]))
        expected_ms = head.start_ms if head is not None and at == head.at and head.start_ms < FAR_MS else None
        ahead = tuple(ids[found.rows[each]] for each in first if each < at)
        blockers = _blockers(cluster, found, at, reason)
        actions.append(
            Wait(ids[found.rows[at]], reason.code, _text(cluster, found, at, reason), expected_ms, ahead, blockers,
                 REMEDIES.get(reason, ""))
        )  # fmt: skip
    return actions


def _sort_out(cluster: ClusterState, found: Considered, now_ms: int) -> None:
    """Find out what kind of room each job lacks."""
    lacking = found.reasons == Reason.BEHIND
    if cluster.planned_ms is not None and now_ms // MINUTE_MS == cluster.planned_ms // MINUTE_MS:
        informed = lacking & _IS_ROOM[found.last_wait]
        found.reasons[informed] = found.last_wait[informed]
        lacking &= ~informed
    at = np.flatnonzero(lacking)
    if not len(at):
        return
    pool, policy = cluster.pool, cluster.policy
    need, gpus, total = found.need[at], found.gpus[at], found.total[at]
    free = pool.available(gpus, found.degraded[at])
    out = _out_of_service(cluster)[np.minimum(gpus, pool.largest)]
    watts_left = power_budget.site_left_w(cluster.power, policy, cluster.draw_w) if cluster.scarce_w else FAR_MS
    kept = policy.spare_nodes + found.lane // max(1, pool.largest) * found.minds_lane[at]
    kept = pool.kept_of(kept, need, gpus, found.degraded[at])
    reserved = (free - kept < need) | ((found.minds_lane[at] > 0) & (total > pool.free_gpus - found.lane))
    fitting = Reason.KEPT if policy.backfill else Reason.ORDER
    found.reasons[at] = np.select(
        [found.fits[at], (free >= need) & reserved, (free >= need) & (found.watts[at] > watts_left),
         found.misshapen[at], total <= pool.free_gpus, free + out >= need],
        [fitting, Reason.RESERVE, Reason.POWER, Reason.TOPOLOGY, Reason.FRAGMENTS, Reason.HEALTH], Reason.GPUS,
    )  # fmt: skip


def _out_of_service(cluster: ClusterState) -> Column:
    """Return how many nodes are out of service that have at least so many GPUs, by number of GPUs."""
    pool = cluster.pool
    counts = np.zeros(pool.largest + 2, dtype=np.int64)
    for number in pool.watched:
        node = pool.nodes[number]
        if node.state is not NodeState.RETIRED and not pool.usable[number]:
            counts[node.gpus] += 1
    return np.cumsum(counts[::-1])[::-1]


def _blockers(cluster: ClusterState, found: Considered, at: int, reason: Reason) -> tuple[str, ...]:
    """Return who is in a job's way: the head, those that it comes after, or those whose end it waits for."""
    if reason in (Reason.KEPT, Reason.ORDER) and found.head is not None:
        return (found.head.job.id,)
    if reason is Reason.NODES and found.head is not None:
        running = cluster.running
        last = np.flatnonzero(running.mask("live") & (running.column("back_ms") == found.head.start_ms))
        # By name: the order of the rows is that in which jobs came, which a restored state does not know.
        return tuple(heapq.nsmallest(_NAMED, (running.ids[row] for row in last.tolist())))
    if reason in (Reason.GPUS, Reason.FRAGMENTS, Reason.HEALTH, Reason.BEHIND) and found.head is not None:
        return (found.head.job.id,) if found.head.at < at else ()
    return ()


def _text(cluster: ClusterState, found: Considered, at: int, reason: Reason) -> str:
    """Return the rule in words, with its numbers."""
    text, pool = TEXTS[reason], cluster.pool
    head = found.head.job.id if found.head is not None else ""
    need, gpus = int(found.need[at]), int(found.gpus[at])
    free = int(pool.available(gpus, int(found.degraded[at])))
    match reason:
        case Reason.KEPT:
            return f"backfilling it would delay {head}"
        case Reason.ORDER:
            return f"{head} is before it, and this policy has no backfill"
        case Reason.GPUS:
            return f"{text}: it needs {need * gpus:,}, {pool.free_gpus:,} are free"
        case Reason.FRAGMENTS:
            return f"{text}: it needs {need:,} nodes with {gpus:,} free, there are {free:,}"
        case Reason.NODES | Reason.HEALTH | Reason.SIZE | Reason.TOPOLOGY:
            where = places(cluster.jobs[cluster.queue.ids[found.rows[at]]].gang)
            return f"{text}: it needs {need:,}{where} with {gpus:,} GPUs each, {free:,} are free"
        case _:
            return text
