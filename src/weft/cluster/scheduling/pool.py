"""The nodes as columns: who is in service, what is free, and when what is taken comes back.

The fast form of `Snapshot.nodes` inside a `ClusterState`. A job takes GPUs of nodes and gives them back; every question
of a pass is answered from columns. What is free is known by time: `free_ms` holds, for each node and each number of
GPUs, when so many are free on it by what its jobs declare. Knows nothing of queues, teams or rules.
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

from weft.cluster.records.node import Node, NodeState
from weft.cluster.scheduling.placement import Column, Flags

LOST = frozenset(
    {NodeState.QUARANTINED, NodeState.TESTING, NodeState.REPAIRING, NodeState.VALIDATING, NodeState.RETIRED}
)
"""States in which no job may stay on a node."""


class Hold(NamedTuple):
    """What a job has of each of its nodes."""

    gpus: int
    back_ms: int
    """When it gives them back at the latest."""
    devices: Sequence[tuple[int, ...]] = ()
    """Numbers of its GPUs on each node; empty where it has whole nodes."""
    size_class: int = 0
    """The class of jobs that run about as long (`running_jobs.size_class`)."""
    let_past: bool = False
    """Whether the job gives them back once a job that it was let past could start without it."""


class Pool:
    """Columns over nodes; one owner."""

    def __init__(self, nodes: Sequence[Node]) -> None:
        """Build the columns; every node is empty."""
        count = len(nodes)
        self.nodes = list(nodes)
        self.domain, self.rack, self.t0, self.pod, self.feeder = (
            np.array([getattr(node.place, name) for node in nodes], dtype=np.int64)
            for name in ("domain", "rack", "t0", "pod", "feeder")
        )
        self.levels = [column for column in (self.pod, self.t0, self.domain) if len(np.unique(column)) > 1]
        self.by_place: Column = np.lexsort((np.arange(count), self.domain, self.t0, self.pod))
        self._rank = np.empty(count, dtype=np.int64)
        self._rank[self.by_place] = np.arange(count)
        self.largest = max((node.gpus for node in nodes), default=0)
        self.usable = np.zeros(count, dtype=np.int64)
        """GPUs of the node that a job can have when it is empty; 0 where it takes no work."""
        self.taken = np.zeros(count, dtype=np.int64)
        """GPUs that jobs hold, whatever the node's state."""
        self.lent = np.zeros(count, dtype=np.int64)
        """GPUs of those that jobs hold which were let past others."""
        self.degraded = np.zeros(count, dtype=bool)
        self.free_ms = np.zeros((self.largest + 1, count), dtype=np.int64)
        """When at least k GPUs (the row) are free on each node at the latest, by what its jobs declare; 0 for now.

        Rows above a node's usable GPUs mean nothing: ask `back` or `free_at`."""
        self.classes = np.zeros(count, dtype=np.int64)
        """Which classes of jobs (`running_jobs.size_class`) hold GPUs of each node, as bits."""
        self._whole_ms = np.zeros(count, dtype=np.int64)
        """When the job that has all of a node gives it back."""
        self._above = np.arange(self.largest + 1)
        self.histogram = np.zeros((2, self.largest + 1), dtype=np.int64)
        """Nodes by how many GPUs are free on them: the healthy ones, and all."""
        self._available: Column | None = None
        self._in_service: Column | None = None
        self._then: tuple[int, Column] | None = None
        self._whole = 0
        """Nodes that are in service with all that the largest has."""
        self.lost = np.zeros(count, dtype=bool)
        """Nodes on which no job may stay."""
        self.out_ms, self.tested_ms, self.idle_test_ms = (np.full(count, -1, dtype=np.int64) for _ in range(3))
        """When each was last taken out by health, last passed a test, and last began one while idle; -1 for never."""
        self.broken: set[int] = set()
        """Nodes of which some GPUs are not to be used."""
        self.watched: set[int] = set()
        """Nodes of which something is to be decided: not ready, or with reports."""
        self.parts: dict[int, dict[str, tuple[int, ...]]] = {}
        """Devices that are taken on nodes that jobs share, by job."""
        self.members: dict[int, dict[str, tuple[int, int, int]]] = {}
        """When each job that has a part of a node gives it back, how many GPUs, and its class as a bit."""
        for node in nodes:
            self.update(node)

    def update(self, node: Node) -> None:
        """Take in a node's new record."""
        number = node.number
        self._in_service = None
        self._count(number, -1)
        self._whole -= bool(self.usable[number] == self.largest and not self.degraded[number])
        self.nodes[number] = node
        self.usable[number] = node.usable_gpus if node.state is NodeState.READY and node.override != "out" else 0
        self.degraded[number] = node.degraded
        self._whole += bool(self.usable[number] == self.largest and not node.degraded)
        self.lost[number] = node.state in LOST
        for column, value in (
            (self.out_ms, node.out_ms), (self.tested_ms, node.tested_ms), (self.idle_test_ms, node.idle_test_ms),
        ):  # fmt: skip
            column[number] = -1 if value is None else value
        self._profile(number)
        (self.broken.add if node.bad_gpus else self.broken.discard)(number)
        if node.state is NodeState.READY and not node.evidence:
            self.watched.discard(number)
        else:
            self.watched.add(number)
        self._count(number, 1)

    @property
    def count(self) -> int:
        """Return the number of nodes."""
        return len(self.nodes)

    def available(self, gpus: Column | int, degraded: Column | int) -> Column:
        """Return how many nodes have at least `gpus` GPUs free, of the healthy ones (0) or of all (1)."""
        if self._available is None:
            # One column more than GPUs on the largest node: nobody has that many.
            self._available = np.zeros((2, self.largest + 2), dtype=np.int64)
            self._available[:, :-1] = np.cumsum(self.histogram[:, ::-1], axis=1)[:, ::-1]
        return self._available[degraded, np.minimum(gpus, self.largest + 1)]

    def in_service(self, gpus: Column | int, degraded: Column | int) -> Column:
        """Return how many nodes could give `gpus` GPUs, were they empty, of the healthy ones (0) or of all (1)."""
        if self._in_service is None:
            counts = np.zeros((2, self.largest + 2), dtype=np.int64)
            for row, usable in enumerate((self.usable[~self.degraded], self.usable)):
                counts[row, :-1] = np.bincount(usable, minlength=self.largest + 1)[::-1].cumsum()[::-1]
            self._in_service = counts
        return self._in_service[degraded, np.minimum(gpus, self.largest + 1)]

    def kept_of(self, kept: Column | int, need: Column | int, gpus: Column | int, degraded: Column | int) -> Column:
        """Return how many of `kept` nodes (spares, the lane's) a gang of `need` nodes leaves free of those for it.

        Where nodes differ, few may be large enough for it, and it may need all of them: spares are others then.
        """
        there = self.in_service(gpus, degraded)
        few = there < self.in_service(1, 1)
        return np.where(few, np.minimum(kept, np.maximum(there - need, 0)), kept)

    def able(self, gpus: int, *, degraded: bool) -> Flags:
        """Return which nodes could give `gpus` GPUs, were they empty."""
        able = self.usable >= gpus
        return able if degraded else able & ~self.degraded

    def back(self, gpus: int, *, degraded: bool) -> Column:
        """Return when each node that could give `gpus` GPUs, were it empty, has so many free at the latest."""
        if self._whole == self.count and gpus <= self.largest:
            return self.free_ms[gpus]
        return self.free_ms[min(gpus, self.largest)][self.able(gpus, degraded=degraded)]

    def free_at(self, at_ms: int) -> Column:
        """Return how many GPUs are free on each node at `at_ms`, by what its jobs declare."""
        if self._then is None or self._then[0] != at_ms:
            self._then = (at_ms, np.minimum(self.usable, np.count_nonzero(self.free_ms[1:] <= at_ms, axis=0)))
        return self._then[1]

    @property
    def free_gpus(self) -> int:
        """Return how many GPUs are free now on nodes that take work."""
        return int(self.histogram[1] @ self._above)

    def candidates(self, gpus: int, *, degraded: bool) -> Column:
        """Return the nodes that have `gpus` GPUs free now, in the order of the topology."""
        fits = self.usable - self.taken >= gpus
        if not degraded:
            fits &= ~self.degraded
        return self.by_place[fits[self.by_place]]

    def ranked(self, nodes: Column) -> Column:
        """Return `nodes` in rank order: along the topology."""
        return nodes[np.argsort(self._rank[nodes], kind="stable")]

    def take(self, job: str, nodes: Column, hold: Hold) -> None:
        """Give GPUs of each of `nodes` to a job."""
        gpus, back_ms, devices, size_class, let_past = hold
        if let_past:
            self.lent[nodes] += gpus
        self.classes[nodes] |= 1 << size_class
        alone = not devices and bool((self.taken[nodes] == 0).all())
        self._shift(nodes, gpus)
        for number, each in zip(nodes.tolist(), devices, strict=False):
            self.parts.setdefault(number, {})[job] = each
        if alone:
            # A job without device numbers has whole nodes: nobody else comes to them.
            self._whole_ms[nodes] = back_ms
            spare = self.usable[nodes] - gpus
            for row in range(1, self.largest + 1):
                self.free_ms[row, nodes] = np.where(spare >= row, 0, back_ms)
            return
        for number in nodes.tolist():
            self.members.setdefault(number, {})[job] = (back_ms, gpus, 1 << size_class)
            self._profile(number)

    def give(self, job: str, nodes: Column, gpus: int, *, shared: bool, let_past: bool = False) -> None:
        """Take back what a job had."""
        if let_past:
            self.lent[nodes] -= gpus
        self._shift(nodes, -gpus)
        self._whole_ms[nodes] = 0
        self.free_ms[:, nodes] = 0
        self.classes[nodes] = 0
        for number in nodes.tolist() if self.members or shared else ():
            if shared:
                del self.parts[number][job]
            parts = self.members.get(number, {})
            parts.pop(job, None)
            if not parts:
                self.members.pop(number, None)
            for _, _, bit in parts.values():
                self.classes[number] |= bit
            if self.taken[number]:
                self._profile(number)

    def _profile(self, number: int) -> None:
        """Reckon anew when GPUs of a node come free."""
        taken, members = int(self.taken[number]), self.members.get(number)
        if not members:
            # One job has it whole, or none has any of it: one moment for all that is not free now.
            self.free_ms[:, number] = 0
            free = max(0, int(self.usable[number]) - taken)
            if taken and self.usable[number]:
                self.free_ms[free + 1 :, number] = self._whole_ms[number]
            return
        parts = sorted(members.values())
        whole = taken - sum(gpus for _, gpus, _ in parts)
        if whole > 0:
            parts = sorted([*parts, (int(self._whole_ms[number]), whole, 0)])
        free = max(0, int(self.usable[number]) - taken)
        times = [0] * (free + 1)
        short = max(0, taken - int(self.usable[number]))
        for back_ms, gpus, _ in parts:
            # GPUs that are held beyond what is usable (some broke) come back to nobody.
            given = max(0, gpus - short)
            short = max(0, short - gpus)
            times += [back_ms] * given
        times += [times[-1]] * (self.largest + 1 - len(times))
        self.free_ms[:, number] = times[: self.largest + 1]

    def hurt(self) -> dict[int, set[str] | None]:
        """Return the nodes on which a job holds a broken GPU, with those jobs; none for the one that has it whole."""
        found: dict[int, set[str] | None] = {}
        for number in self.broken:
            bad = set(self.nodes[number].bad_gpus)
            shared = self.parts.get(number)
            if shared:
                holders = {job for job, each in shared.items() if bad.intersection(each)}
                if holders:
                    found[number] = holders
            elif self.taken[number]:
                found[number] = None
        return found

    def devices(self, nodes: Iterable[int], gpus: int) -> tuple[tuple[int, ...], ...]:
        """Return numbers of GPUs that are free on each of `nodes`."""
        found: list[tuple[int, ...]] = []
        for number in nodes:
            node = self.nodes[number]
            busy = {device for each in self.parts.get(number, {}).values() for device in each}.union(node.bad_gpus)
            found.append(tuple(device for device in range(node.gpus) if device not in busy)[:gpus])
        return tuple(found)

    def _count(self, number: int, sign: int) -> None:
        self._available = self._then = None
        if self.usable[number] > 0:
            free = max(0, int(self.usable[number] - self.taken[number]))
            self.histogram[1, free] += sign
            self.histogram[0, free] += 0 if self.degraded[number] else sign

    def _shift(self, nodes: Column, gpus: int) -> None:
        if len(nodes) == 1:
            number = int(nodes[0])
            self._count(number, -1)
            self.taken[number] += gpus
            self._count(number, 1)
            return
        self._available = self._then = None
        if self._whole == self.count:
            free = self.largest - self.taken[nodes]
            change = np.bincount(free - gpus, minlength=self.largest + 1) - np.bincount(
                free, minlength=self.largest + 1
            )
            self.taken[nodes] += gpus
            self.histogram += change
            return
        known = nodes[self.usable[nodes] > 0]
        healthy = known[~self.degraded[known]]
        self._tally(known, healthy, -1)
        self.taken[nodes] += gpus
        self._tally(known, healthy, 1)

    def _tally(self, known: Column, healthy: Column, sign: int) -> None:
        for row, nodes in enumerate((healthy, known)):
            free = np.maximum(self.usable[nodes] - self.taken[nodes], 0)
            self.histogram[row] += sign * np.bincount(free, minlength=self.largest + 1)
