"""The waiting jobs as columns, kept in the order in which they are considered.

Jobs of one priority and team wait in a line by submission; who had to leave, by when it came back. Lines are put behind
one another by priority, quota and the teams' fair share. A job that has waited too long stands before all lines. To put
a job in or take it out costs the same however many wait; the order is only joined, never sorted anew.
"""

from bisect import bisect_left, bisect_right, insort
from itertools import groupby

import numpy as np

from weft.cluster.records.job import Job
from weft.cluster.records.snapshot import FAR_MS, SchedulingPolicy
from weft.cluster.scheduling.fair_share import Shares
from weft.cluster.scheduling.placement import Column

_NOBODY: Column = np.zeros(0, dtype=np.int64)
_LINE = tuple[int, str, int]
COLUMNS = (
    "need", "gpus", "total", "watts", "team", "limit_ms", "array", "last_wait", "degraded", "fast", "minds_lane",
)  # fmt: skip
"""What is known of each waiting job: fewest nodes, GPUs on each, GPUs in all, rise of the site's draw, ..."""
LAST_WAIT = COLUMNS.index("last_wait")
_TOTAL, _TEAM = COLUMNS.index("total"), COLUMNS.index("team")


class Queue:
    """Columns over waiting jobs; one owner."""

    def __init__(self, policy: SchedulingPolicy, pool_nodes: int) -> None:
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

    def put(self, job: Job, team: int, array: int, watts: int, last_wait: int) -> None:
        """Let a job wait that raises each GPU's draw by `watts`."""
        row = self._row()
        self.ids[row] = job.id
        self.rows[job.id] = row
        limit_ms = FAR_MS if job.limit_ms is None else job.limit_ms
        need, gpus, fast = job.gang.fewest, job.gang.gpus_per_node, is_fast(job, self.policy)
        minds = not fast and need <= self.pool_nodes - self.policy.lane_nodes - self.policy.spare_nodes
        self.table[:, row] = (
            need, gpus, need * gpus, need * gpus * watts, team, limit_ms, array, last_wait, job.takes_degraded, fast,
            minds,
        )  # fmt: skip
        key = self._key(job, team)
        insort(self._lines.setdefault(key, []), (job.line_ms, job.id, row))
        self._joined.pop(key, None)

    def drop(self, job: Job, team: int) -> None:
        """Take a job out."""
        row = self.rows.pop(job.id)
        key = self._key(job, team)
        line = self._lines[key]
        del line[bisect_left(line, (job.line_ms, job.id, row))]
        if not line:
            del self._lines[key]
        self._joined.pop(key, None)
        self._unused.append(row)

    def order(self, now_ms: int, shares: Shares) -> tuple[Column, int]:
        """Return the rows in the order in which they are considered, and how many of them are aged.

        Within a priority, jobs that their team's quota covers go before those that would borrow, and teams that have
        used less for their quota before others: whoever may reclaim something stands before those who have it.
        """
        aged: list[_LINE] = []
        found: list[Column] = []
        until_ms = now_ms - self.policy.aged_ms
        ratios = shares.ratios() if self.policy.fair else [0.0] * len(shares.teams)
        ranked = sorted(self._lines, key=lambda key: (-key[0], ratios[key[1]], key[1]))
        for _, keys in groupby(ranked, key=lambda key: key[0]):
            lines: list[Column] = []
            for key in keys:
                line = self._lines[key]
                first = bisect_right(line, until_ms, key=lambda entry: entry[0]) if line[0][0] <= until_ms else 0
                aged += line[:first]
                lines.append(self._rows_of(key)[first:] if first else self._rows_of(key))
            rows = np.concatenate(lines) if len(lines) > 1 else lines[0]
            if self.policy.fair and self.policy.borrow:
                borrows = self.table[_TOTAL, rows] > (shares.quota - shares.held)[self.table[_TEAM, rows]]
                rows = np.concatenate([rows[~borrows], rows[borrows]])
            found.append(rows)
        aged.sort()
        begin = np.array([row for _, _, row in aged], dtype=np.int64) if aged else _NOBODY
        return (np.concatenate([begin, *found]) if found else begin), len(aged)

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


def is_fast(job: Job, policy: SchedulingPolicy) -> bool:
    """Return whether a job belongs to the fast lane, where there is one."""
    return policy.lane_nodes > 0 and is_quick(job, policy)


def is_quick(job: Job, policy: SchedulingPolicy) -> bool:
    """Return whether a job is one that fast lanes are for: a small experiment that declares a short limit."""
    return (
        job.kind == "experiment"
        and job.gang.nodes <= policy.lane_most_nodes
        and job.limit_ms is not None
        and job.limit_ms <= policy.lane_limit_ms
    )
