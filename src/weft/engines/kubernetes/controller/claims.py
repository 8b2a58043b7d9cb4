"""Whose nodes are whose while writes are in flight: what a crash, or a watch that lags, could make two jobs claim.

A job's place is written down in its own object, so two places are never written as one. Three rules keep them apart:
what a job's pods have already shown is taken as true before its old place is; nodes that a gang gives up are written as
given before somebody else's claim on them is; and no pod is made on a node whose GPUs an older pod still holds
(`reconcile`). Should two places overlap all the same, the one that is read later leaves. Pure.
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np

from weft.cluster.records.effects import ended, stopped
from weft.cluster.records.job import HOLDING, Job, JobState, Placement
from weft.cluster.scheduling.pool import Pool
from weft.engines.kubernetes.controller.gangs import PodCounts
from weft.engines.kubernetes.controller.ledger import JobEntry
from weft.engines.kubernetes.controller.observed import ObservedPod


def let_go(record: Job, count: PodCounts, now_ms: int) -> Job | None:
    """Return the record of a job whose pods show that it holds its nodes no more; nothing where it still does."""
    match record.state:
        case JobState.STARTING | JobState.RUNNING | JobState.ASKED if count.wanted and count.succeeded == count.wanted:
            return ended(record, JobState.DONE)
        case JobState.ASKED | JobState.STOPPING if not count.left:
            return stopped(record, now_ms)
        case _:
            return None


def given_up(entries: Iterable[JobEntry]) -> set[str]:
    """Return the nodes that gangs give up by decisions that are not written yet.

    Only gangs that take nothing new count: they wait for nobody, so that no two can wait for each other. A gang that
    has left all of its nodes does not count either: its pods show it.
    """
    found: set[str] = set()
    for entry in entries:
        placed, before = entry.placed, entry.seen.placed
        if placed is None or before is None or placed is before or entry.record.state not in HOLDING:
            continue
        given = set(before.nodes).difference(placed.nodes)
        if given and set(placed.nodes) <= set(before.nodes):
            found |= given
    return found


def crowded(pool: Pool, nodes: Sequence[int], gpus: int) -> set[int]:
    """Return those of `nodes` on which others hold so much that `gpus` more would be too many."""
    numbers = np.array(nodes, dtype=np.int64)
    shared = numbers[pool.taken[numbers] > 0].tolist()
    return {number for number in shared if pool.taken[number] + gpus > pool.nodes[number].gpus}


def evicted(record: Job, lost: set[int], now_ms: int) -> Job:
    """Return the record of a job that leaves because others are on the nodes `lost`; it holds only the rest."""
    held = record.placement
    assert held is not None, "only a job that holds nodes can be in somebody's way"
    kept = [place for place, number in enumerate(held.nodes) if number not in lost]
    devices = tuple(held.devices[place] for place in kept) if held.devices else ()
    rest = Placement(tuple(held.nodes[place] for place in kept), held.gpus_per_node, devices)
    ending = record.ending or "requeue"
    return replace(record, state=JobState.STOPPING, ending=ending, leave_by_ms=now_ms, placement=rest)


def full(on_node: Iterable[ObservedPod], name: str, gpus: int, room: int) -> bool:
    """Say whether other pods that have yet to leave a node of `room` GPUs hold what the pod `name` needs."""
    held = sum(one.gpus for one in on_node if not one.over and one.name != name)
    return held + gpus > room
