"""The jobs that hold nodes as columns: what each would lose, draw and give back.

Kept by a `ClusterState`; asked by preemption, power and forecasts, which look at all running jobs at once.
"""

from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Callable
from typing import Literal, get_args

import numpy as np
import numpy.typing as npt

from weft.cluster.records.job import KINDS, Job, JobState
from weft.cluster.records.snapshot import FAR_MS
from weft.cluster.scheduling.placement import Column

Field = Literal[
    "live", "priority", "team", "nodes", "gpus", "start_ms", "kept_ms", "every_ms", "min_run_ms", "grace_ms", "service",
    "borrowed", "leaving", "watts", "back_ms", "shrinks", "fast", "size_class",
    "let_past", "submit_ms",
]  # fmt: skip
_FIELDS: tuple[Field, ...] = get_args(Field)

_BRIEF_MS = 600_000
"""The shortest typical run time that is believed, in milliseconds."""
_DOUBLINGS = 20
SIZE_CLASSES = _DOUBLINGS * len(KINDS)
"""Classes of jobs that run about as long as each other: by kind and by doublings of their GPUs."""
_AT = {name: at for at, name in enumerate(_FIELDS)}
_BACK = _AT["back_ms"]


class RunningJobs:
    """Columns over jobs that hold nodes; one owner."""

    def __init__(self) -> None:
        """Begin empty."""
        self.rows: dict[str, int] = {}
        self.ids: list[str] = []
        self._unused: list[int] = []
        self._table = np.zeros((len(_FIELDS), 64), dtype=np.int64)
        self._ends_ms: list[int] = []
        self.by_priority: Counter[int] = Counter()
        """Jobs of each priority."""
        self.borrowers = 0
        """Jobs that started above their team's quota."""
        self.let_past = 0
        """Jobs that started before one that stood before them."""

    def __len__(self) -> int:
        """Return how many jobs hold nodes."""
        return len(self.rows)

    def column(self, name: Field) -> Column:
        """Return one column; rows that are not in use hold 0."""
        return self._table[_AT[name], : len(self.ids)]

    def put(self, job: Job, team: int, watts: int, *, fast: bool) -> None:
        """Take in a job that holds nodes."""
        assert job.placement is not None
        assert job.start_ms is not None
        row = self._unused.pop() if self._unused else len(self.ids)
        if row == len(self.ids):
            self.ids.append("")
            if row == self._table.shape[1]:
                self._table = np.concatenate([self._table, np.zeros_like(self._table)], axis=1)
        self.ids[row] = job.id
        self.rows[job.id] = row
        insort(self._ends_ms, back_ms(job))
        self.by_priority[job.priority] += 1
        self.borrowers += job.borrowed
        self.let_past += job.let_past
        kept_ms = job.start_ms if job.checkpoint_ms is None else job.checkpoint_ms
        nodes = len(job.placement.nodes)
        shrinks = nodes - job.gang.fewest if job.gang.elastic and not job.gang.slice_nodes else 0
        self._table[:, row] = (
            1, job.priority, team, nodes, job.placement.gpus_per_node, job.start_ms, kept_ms,
            job.checkpoint_every_ms or FAR_MS, job.min_run_ms, job.grace_ms, job.kind == "service", job.borrowed,
            job.state in (JobState.ASKED, JobState.STOPPING), watts, back_ms(job), shrinks, fast,
            size_class(job), job.let_past, job.submit_ms,
        )  # fmt: skip

    def drop(self, job_id: str) -> None:
        """Take a job out."""
        row = self.rows.pop(job_id)
        del self._ends_ms[bisect_left(self._ends_ms, self._table[_BACK, row])]
        priority = int(self._table[_AT["priority"], row])
        self.by_priority[priority] -= 1
        if not self.by_priority[priority]:
            del self.by_priority[priority]
        self.borrowers -= int(self._table[_AT["borrowed"], row])
        self.let_past -= int(self._table[_AT["let_past"], row])
        self._table[:, row] = 0
        self._unused.append(row)

    def earliest_ms(self, back_ms: Column, nodes: int, guess_ms: int) -> int:
        """Return the first of the jobs' ends by which `nodes` of the nodes that come back at `back_ms` are empty.

        A search over ends: with few distinct ends among many nodes it is quicker than ordering the nodes, and the
        answer of the pass before is usually right again.
        """

        def empty(end_ms: int) -> int:
            return int(np.count_nonzero(back_ms <= end_ms))

        if empty(0) >= nodes:
            return 0
        ends = self._ends_ms
        low, high = 0, len(ends)
        near = bisect_left(ends, guess_ms)
        if near < high:
            if empty(ends[near]) < nodes:
                low = near
            elif near and empty(ends[near - 1]) < nodes:
                return ends[near]
            else:
                high = near
        return ends[bisect_left(ends, nodes, low, high, key=empty)]

    def first_end_ms(self, enough: Callable[[int], bool], from_ms: int) -> int:
        """Return the first of the jobs' ends, from `from_ms` on, by which there is enough; `FAR_MS` for none."""
        ends = self._ends_ms
        at = bisect_left(ends, True, bisect_left(ends, from_ms), key=enough)
        return ends[at] if at < len(ends) else FAR_MS

    def leaving(self) -> list[str]:
        """Return the jobs that were asked or made to leave."""
        return [self.ids[row] for row in np.flatnonzero(self.column("leaving")).tolist()]

    def typical_ms(self, now_ms: int) -> int:
        """Return how long jobs without a limit have run on average: as long, on average, as they will go on."""
        unlimited = self.mask("live") & (self.column("back_ms") >= FAR_MS)
        ages_ms = now_ms - self.column("start_ms")[unlimited]
        return max(_BRIEF_MS, int(ages_ms.mean())) if len(ages_ms) else _BRIEF_MS

    def ages_by_class(self, now_ms: int) -> Column:
        """Return how long the running jobs of each size class have run on average; of all where there is none."""
        live = np.flatnonzero(self.mask("live"))
        if not len(live):
            return np.full(SIZE_CLASSES, _BRIEF_MS, dtype=np.int64)
        ages_ms = now_ms - self.column("start_ms")[live]
        classes = self.column("size_class")[live]
        counts = np.bincount(classes, minlength=SIZE_CLASSES)
        sums = np.bincount(classes, weights=ages_ms, minlength=SIZE_CLASSES)
        means = np.where(counts > 0, sums / np.maximum(counts, 1), ages_ms.mean())
        return np.maximum(means, _BRIEF_MS).astype(np.int64)

    def lost_gpu_ms(self, now_ms: int) -> Column:
        """Return what each job would lose if it had to leave now: GPU-milliseconds since its last checkpoint."""
        start = self.column("start_ms")
        clock = now_ms - (now_ms - start) % np.maximum(self.column("every_ms"), 1)
        kept = np.where(
            self.column("every_ms") < FAR_MS, np.maximum(self.column("kept_ms"), clock), self.column("kept_ms")
        )
        return self.column("nodes") * self.column("gpus") * (now_ms - kept) * self.column("live")

    def drawn_w(self) -> tuple[Column, Column]:
        """Return when each job gives its nodes back at the latest, and by how much the site's draw falls then."""
        return self.column("back_ms"), self.column("watts") * self.column("nodes") * self.column("gpus")

    def mask(self, name: Field) -> npt.NDArray[np.bool_]:
        """Return a column of yes and no."""
        return self.column(name) > 0


def size_class(job: Job) -> int:
    """Return the class of a job among those that run about as long."""
    doublings = (job.gang.nodes * job.gang.gpus_per_node).bit_length() - 1
    return KINDS.index(job.kind) * _DOUBLINGS + min(doublings, _DOUBLINGS - 1)


def back_ms(job: Job) -> int:
    """Return when a job's nodes come back at the latest, by what is declared."""
    assert job.start_ms is not None, "only a job that was started gives nodes back"
    declared = FAR_MS if job.limit_ms is None else job.start_ms + job.limit_ms
    return declared if job.leave_by_ms is None else min(declared, job.leave_by_ms)
