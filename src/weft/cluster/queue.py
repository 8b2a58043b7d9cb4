"""The waiting jobs as columns, kept in the order in which they are considered.

Jobs of one priority and team wait in a line by submission; lines are put behind one another by priority and by the
teams' fair share. A job that has waited too long stands before all lines. Putting a job in or taking it out costs the
same however many wait; the order is only joined, never sorted anew.
"""

from bisect import bisect_left, bisect_right, insort
from collections.abc import Sequence

import numpy as np

from weft.cluster.jobs import Job
from weft.cluster.placement import Column
from weft.cluster.snapshot import FAR_MS, Policy

_NOBODY: Column = np.zeros(0, dtype=np.int64)
_LINE = tuple[int, str, int]
COLUMNS = (
    "need", "gpus", "total", "watts", "team", "limit_ms", "array", "told", "degraded", "fast", "minds_lane",
)  # fmt: skip
"""What is known of each waiting job: fewest nodes, GPUs on each, GPUs in all, rise of the site's draw, ..."""
TOLD = COLUMNS.index("told")


class Queue:
    """Columns over waiting jobs; one owner."""

    def __init__(self, policy: Policy, pool_nodes: int) -> None:
        """Begin empty, before a pool of so many nodes."""
        self.policy, self.pool_nodes = policy, pool_nodes
        self.ids: list[str] = []
        self.rows: dict[str, int] = {}
        self._unused: list[int] = []
        self._lines: dict[tuple[int, int], list[_LINE]] = {}
        self._joined: dict[tuple[int, int], Column] = {}
        self.table = np.zeros((len(COLUMNS), 64), dtype=np.int64)
        """One row for each of `COLUMNS`, one column for each job."""

    def __len__(self) -> int:
        """Return how many wait."""
        return len(self.rows)

    def put(self, job: Job, team: int, array: int, watts: int, told: int) -> None:
        """Let a job wait that raises each GPU's draw by `watts`."""
        row = self._row()
        self.ids[row] = job.id
        self.rows[job.id] = row
        limit_ms = FAR_MS if job.limit_ms is None else job.limit_ms
        need, gpus, fast = job.gang.fewest, job.gang.gpus_per_node, is_fast(job, self.policy)
        minds = not fast and need <= self.pool_nodes - self.policy.lane_nodes - self.policy.spare_nodes
        self.table[:, row] = (
            need, gpus, need * gpus, need * gpus * watts, team, limit_ms, array, told, job.takes_degraded, fast, minds,
        )  # fmt: skip
        key = self._key(job, team)
        insort(self._lines.setdefault(key, []), (job.submit_ms, job.id, row))
        self._joined.pop(key, None)

    def drop(self, job: Job, team: int) -> None:
        """Take a job out."""
        row = self.rows.pop(job.id)
        key = self._key(job, team)
        line = self._lines[key]
        del line[bisect_left(line, (job.submit_ms, job.id, row))]
        if not line:
            del self._lines[key]
        self._joined.pop(key, None)
        self._unused.append(row)

    def order(self, now_ms: int, share: Sequence[float]) -> tuple[Column, int]:
        """Return the rows in the order in which they are considered, and how many of them are aged."""
        aged: list[_LINE] = []
        rest: list[Column] = []
        until_ms = now_ms - self.policy.aged_ms
        ranked = sorted(self._lines, key=lambda key: (-key[0], share[key[1]] if self.policy.fair else 0.0, key[1]))
        for key in ranked:
            line = self._lines[key]
            first = bisect_right(line, until_ms, key=lambda entry: entry[0]) if line[0][0] <= until_ms else 0
            aged += line[:first]
            rest.append(self._rows_of(key)[first:])
        aged.sort()
        begin = np.array([row for _, _, row in aged], dtype=np.int64) if aged else _NOBODY
        return (np.concatenate([begin, *rest]) if rest else begin), len(aged)

    def _rows_of(self, key: tuple[int, int]) -> Column:
        if key not in self._joined:
            self._joined[key] = np.array([row for _, _, row in self._lines[key]], dtype=np.int64)
        return self._joined[key]

    def _key(self, job: Job, team: int) -> tuple[int, int]:
        return (job.priority if self.policy.priorities else 0, team if self.policy.fair else 0)

    def _row(self) -> int:
        if self._unused:
            return self._unused.pop()
        row = len(self.ids)
        self.ids.append("")
        if row == self.table.shape[1]:
            self.table = np.concatenate([self.table, self.table], axis=1)
        return row


def is_fast(job: Job, policy: Policy) -> bool:
    """Return whether a job belongs to the fast lane: a small experiment that declares a short limit."""
    return (
        job.kind == "experiment"
        and job.gang.nodes <= policy.lane_most_nodes
        and job.limit_ms is not None
        and job.limit_ms <= policy.lane_limit_ms
    )
