"""What is kept for the head: how many nodes by when, or which nodes, and what a job that starts now would take of it.

Where the jobs before it declare their limits, the head is promised the time by which enough nodes have the GPUs that it
needs; a later job may start if it is over by then, or takes only what the head does not need then, node by node. Where
no such time is known, nodes are drained for it: those that lack the fewest GPUs get no new work that may outlast what
runs on them, and the longer it takes, the more of them. Pure; knows nothing of orders, quotas or priorities.
"""

from dataclasses import dataclass

import numpy as np

from weft.cluster.records.job import Job
from weft.cluster.scheduling.placement import Column, Flags
from weft.cluster.scheduling.pool import Pool
from weft.cluster.scheduling.topology import TopologyShape, shape_of

DRAINED_PARTS = 4
"""Beyond what a head needs, one part in this many of the nodes is drained for each typical run time that it waits."""


@dataclass(slots=True)
class Head:
    """The first job that does not fit, and what is kept for it."""

    at: int
    """Its position in the order."""
    job: Job
    start_ms: int
    """When enough GPUs on enough nodes, and enough power, are back; `FAR_MS` where nodes are drained for it."""
    keep: int
    """Nodes that must have its GPUs free by then, lane and spares included."""
    total: int
    """GPUs that must be free by then, the lane's included; 0 where only nodes count."""
    watts: int
    """By how much it raises the site's draw."""
    since_ms: int
    """Since when it is the head."""
    called: Column | None = None
    """GPUs of each node that are given back for it as soon as checkpoints are written: it starts then."""
    now_ms: int = 0
    closed: Flags | None = None
    """Nodes that are drained for it: nothing starts on them that may outlast what runs there."""
    named: Flags | None = None
    """The very nodes that are kept for it, where the topology must have a shape."""
    rest_ms: int = 0
    """How long jobs on those nodes are thought to go on."""


class KeptNodes:
    """What a head needs of each node at its start, and so what later jobs may take of it now."""

    def __init__(self, pool: Pool, head: Head) -> None:
        """Look at the pool as it is; a start changes it."""
        self.pool, self.head = pool, head
        gang = head.job.gang
        self._gpus = gang.gpus_per_node
        self._serves: Flags
        if head.closed is not None:
            self._serves, self._then, self.extra, self.slack = head.closed, pool.usable * 0, 0, None
            return
        self._then = pool.free_at(head.start_ms)
        if head.called is not None:
            self._then = pool.free_at(head.now_ms) + head.called
        self._serves = pool.able(self._gpus, degraded=head.job.takes_degraded) & (self._then >= self._gpus)
        if head.named is not None:
            self._serves &= head.named
        self.extra = int(np.count_nonzero(self._serves)) - head.keep
        """Nodes that the head does not need of those that could serve it."""
        self.slack = int(self._then.sum()) - head.total if head.total else None
        """GPUs beyond what the head and the lane need in all."""

    def takes(self, nodes: Column, gpus: int) -> Flags:
        """Return on which of `nodes` a job that has `gpus` GPUs at the head's start takes a node from it."""
        return self._serves[nodes] & (self._then[nodes] - gpus < self._gpus)

    def room(self, gpus: int, *, degraded: bool, shape: TopologyShape | None = None) -> int:
        """Return how many nodes a job with `gpus` GPUs on each could have now without taking one that is needed."""
        found = self.pool.candidates(gpus, degraded=degraded)
        if shape is not None:
            return shape.capacity(self.allowed(found, gpus))
        taking = int(np.count_nonzero(self.takes(found, gpus)))
        return len(found) - taking + max(0, min(self.extra, taking))

    def allowed(self, nodes: Column, gpus: int) -> Column:
        """Return those of `nodes` on which such a job may start, together."""
        taking = self.takes(nodes, gpus)
        if not taking.any():
            return nodes
        if self.extra <= 0:
            return nodes[~taking]
        # Those with the least to spare first: what is left serves others better.
        last = np.flatnonzero(taking)[np.argsort(self._then[nodes[taking]], kind="stable")][self.extra :]
        kept = np.ones(len(nodes), dtype=bool)
        kept[last] = False
        return nodes[kept]


def drained(pool: Pool, job: Job, count: int, horizon_ms: int) -> Flags:
    """Return `count` nodes to drain for a job: those back within the horizon, then those that lack the fewest GPUs."""
    gpus = job.gang.gpus_per_node
    able = np.flatnonzero(pool.able(gpus, degraded=job.takes_degraded))
    back_ms = np.minimum(pool.free_ms[gpus][able], horizon_ms)
    lacking = np.maximum(gpus - (pool.usable[able] - pool.taken[able]), 0)
    shape = shape_of(pool, job.gang)
    if shape is None:
        return flagged(pool, able[np.lexsort((able, lacking, back_ms))[:count]])
    return flagged(pool, shape.cheapest(able, np.where(back_ms < horizon_ms, 0, lacking), job.gang.fewest))


def flagged(pool: Pool, nodes: Column) -> Flags:
    """Return flags of `nodes`."""
    found = np.zeros(pool.count, dtype=bool)
    found[nodes] = True
    return found


def earliest(pool: Pool, job: Job, shape: TopologyShape) -> tuple[Flags, int]:
    """Return the nodes of the required shape that are all free first, and when; none where there are too few."""
    gpus = job.gang.gpus_per_node
    able = np.flatnonzero(pool.able(gpus, degraded=job.takes_degraded))
    back_ms = pool.free_ms[gpus][able]
    nodes = shape.cheapest(able, back_ms, job.gang.fewest, latest=True)
    return flagged(pool, nodes), int(pool.free_ms[gpus][nodes].max(initial=0))


def rest_ms(pool: Pool, closed: Flags, ages_ms: Column) -> int:
    """Return how long jobs on drained nodes are thought to go on: as long as jobs of their class have run."""
    there = int(np.bitwise_or.reduce(pool.classes[closed])) if closed.any() else 0
    return max((int(age) for bit, age in enumerate(ages_ms.tolist()) if there >> bit & 1), default=0)


def widened(keep: int, pool_nodes: int, waited_ms: int, typical_ms: int) -> int:
    """Return how many nodes are drained for a head that needs `keep` and has waited so long.

    Twice as many for each typical run time that has passed, but beyond those that it needs never more than a quarter
    of the pool for each: what is drained is idle in part.
    """
    turns = waited_ms // max(1, typical_ms)
    return max(keep, min(keep << min(30, turns), pool_nodes * turns // DRAINED_PARTS))
