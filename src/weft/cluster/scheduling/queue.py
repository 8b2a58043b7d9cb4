"""The waiting jobs as columns, kept in the order in which they are considered.

Jobs of one priority and team wait in a line by submission, members of a sweep by their numbers; who had to leave comes
back to its old place. Lines are put behind one another by priority, quota and the teams' fair share. A job that has
waited too long since it last came into the queue stands before all lines. Who was promised a start keeps its place. To
put a job in or take it out costs the same however many wait; the order is only joined, never sorted anew.
"""

import re
from bisect import bisect_left, bisect_right
from itertools import groupby

import numpy as np

from weft.cluster.records.job import Gang, Job
from weft.cluster.records.snapshot import FAR_MS, SchedulingPolicy
from weft.cluster.scheduling.fair_share import Shares
from weft.cluster.scheduling.placement import Column, Flags
from weft.cluster.scheduling.running_jobs import size_class

_NOBODY: Column = np.zeros(0, dtype=np.int64)
_Name = tuple[str | int, ...]
_LINE = tuple[int, _Name, int]
_NUMBERS = re.compile(r"(\d+)")
COLUMNS = (
    "need", "gpus", "total", "watts", "team", "limit_ms", "array", "last_wait", "degraded", "fast", "minds_lane",
    "queued_ms", "priority", "size_class", "submit_ms", "shape",
)  # fmt: skip
"""What is known of each waiting job: fewest nodes, GPUs on each, GPUs in all, rise of the site's draw, ..."""
LAST_WAIT = COLUMNS.index("last_wait")
_TOTAL, _TEAM, _QUEUED = COLUMNS.index("total"), COLUMNS.index("team"), COLUMNS.index("queued_ms")
_SUBMIT = COLUMNS.index("submit_ms")


class Queue:
    """Columns over waiting jobs; one owner."""

    def __init__(self, policy: SchedulingPolicy, common_nodes: int, common_gpus: int = FAR_MS) -> None:
        """Begin empty, before a pool of so many nodes and GPUs that are not kept for anybody."""
        self.policy, self.common_nodes, self.common_gpus = policy, common_nodes, common_gpus
        self.promised = ""
        """The job that was promised a start."""
        self.firm = False
        """Whether nodes are drained for it and its quota holds it, so that covered jobs do not go before it either."""
        self.ids: list[str] = []
        self.rows: dict[str, int] = {}
        self._unused: list[int] = []
        self._lines: dict[tuple[int, int], list[_LINE]] = {}
        self._joined: dict[tuple[int, int], Column] = {}
        self.shapes: list[Gang] = [Gang()]
        """One gang of each shape that the topology is required to have; the first requires none."""
        self.table = np.zeros((len(COLUMNS), 64), dtype=np.int64)
        """One row for each of `COLUMNS`, one column for each job."""

    def __len__(self) -> int:
        """Return how many wait."""
        return len(self.rows)

    def column(self, name: str) -> Column:
        """Return one of `COLUMNS`."""
        return self.table[COLUMNS.index(name)]

    def put(self, job: Job, team: int, array: int, watts: int, last_wait: int) -> None:
        """Let a job wait that raises each GPU's draw by `watts`."""
        row = self._row()
        self.ids[row] = job.id
        self.rows[job.id] = row
        limit_ms = FAR_MS if job.limit_ms is None else job.limit_ms
        need, gpus, fast = job.gang.fewest, job.gang.gpus_per_node, is_fast(job, self.policy)
        minds = not fast and need <= self.common_nodes and need * gpus <= self.common_gpus
        self.table[:, row] = (
            need, gpus, need * gpus, need * gpus * watts, team, limit_ms, array, last_wait, job.takes_degraded, fast,
            minds, job.submit_ms if job.queued_ms is None else job.queued_ms, job.priority,
            size_class(job), job.submit_ms, self._shape(job),
        )  # fmt: skip
        key = self._key(job, team)
        line = self._lines.setdefault(key, [])
        entry = (job.submit_ms, by_number(job.id), row)
        at = bisect_left(line, entry)
        line.insert(at, entry)
        self._joined[key] = np.insert(self._joined.get(key, _NOBODY), at, row)

    def drop(self, job: Job, team: int) -> None:
        """Take a job out."""
        row = self.rows.pop(job.id)
        key = self._key(job, team)
        line = self._lines[key]
        at = bisect_left(line, (job.submit_ms, by_number(job.id), row))
        del line[at]
        self._joined[key] = np.delete(self._joined[key], at)
        if not line:
            del self._lines[key], self._joined[key]
        self._unused.append(row)

    def order(self, now_ms: int, shares: Shares, promised: str = "") -> tuple[Column, int]:
        """Return the rows in the order in which they are considered, and how many of them are aged.

        Within a priority, jobs that their team's quota covers go before those that would borrow, and teams that have
        used less for their quota before others: whoever may reclaim something stands before those who have it. A quota
        covers a team's jobs in their order, so that its small jobs do not overtake its gangs for ever. The job
        that was `promised` a start goes before all but those of a higher priority, and those that quota covers where
        it is not: a promise that the order takes back would be none. A `firm` one goes before the covered, too:
        a stream of them would refill what is drained for it.
        """
        aged: list[Column] = []
        found: list[Column] = []
        mine = self.rows.get(promised)
        blockers = 0
        until_ms = now_ms - self.policy.aged_ms
        ratios = shares.ratios() if self.policy.fair else [0.0] * len(shares.teams)
        ranked = sorted(self._lines, key=lambda key: (-key[0], ratios[key[1]], key[1]))
        for _, keys in groupby(ranked, key=lambda key: key[0]):
            lines: list[Column] = []
            for key in keys:
                rows = self._joined[key]
                line = self._lines[key]
                if line[0][0] <= until_ms:
                    first = bisect_right(line, until_ms, key=lambda entry: entry[0])
                    old = self.table[_QUEUED, rows[:first]] <= until_ms
                    aged.append(rows[:first][old])
                    rows = np.concatenate([rows[:first][~old], rows[first:]])
                lines.append(rows)
            covered = 0
            if self.policy.fair and self.policy.borrow:
                counts = [self._covered(rows, shares) for rows in lines]
                lines = [*(rows[inside] for rows, inside in zip(lines, counts, strict=True)),
                         *(rows[~inside] for rows, inside in zip(lines, counts, strict=True))]  # fmt: skip
                covered = sum(int(np.count_nonzero(inside)) for inside in counts)
            rows = np.concatenate(lines) if len(lines) > 1 else lines[0]
            if mine is not None and (at := np.flatnonzero(rows == mine)).size:
                blockers = sum(len(each) for each in found)
                blockers += covered if at[0] >= covered and not self.firm else 0
            found.append(rows)
        begin = np.concatenate(aged) if aged else _NOBODY
        if len(aged) > 1:
            # Lines are sorted already; between them the earlier submission counts.
            begin = begin[np.argsort(self.table[_SUBMIT, begin], kind="stable")]
        order = np.concatenate([begin, *found]) if found else begin
        if mine is None:
            return order, len(begin)
        return self._promised_first(order, len(begin), mine, blockers)

    def _covered(self, rows: Column, shares: Shares) -> Flags:
        """Return which jobs of one team's line its quota covers; one that is larger than all of it counts for none."""
        if not len(rows):
            return np.zeros(0, dtype=bool)
        team = int(self.table[_TEAM, rows[0]])
        totals = self.table[_TOTAL, rows]
        left = shares.quota[team] - shares.held[team]
        if left <= 0:
            return np.zeros(len(rows), dtype=bool)
        fits = totals <= shares.quota[team]
        return fits & (np.cumsum(totals * fits) <= left)

    @staticmethod
    def _promised_first(order: Column, aged: int, mine: int, blockers: int) -> tuple[Column, int]:
        """Move the promised job before those that have no right to its place."""
        at = int(np.flatnonzero(order == mine)[0])
        place = 0 if at < aged or not blockers else aged + blockers
        if place < at:
            order = np.concatenate([order[:place], [mine], order[place:at], order[at + 1 :]])
        return order, aged + (place == 0 and at >= aged)

    def _key(self, job: Job, team: int) -> tuple[int, int]:
        return (job.priority if self.policy.priorities else 0, team if self.policy.fair else 0)

    def _shape(self, job: Job) -> int:
        """Return the number of the shape that a job requires; 0 for none."""
        gang = Gang(within=job.gang.within, slice_nodes=job.gang.slice_nodes, apart=job.gang.apart)
        if gang not in self.shapes:
            self.shapes.append(gang)
        return self.shapes.index(gang)

    def _row(self) -> int:
        if self._unused:
            return self._unused.pop()
        row = len(self.ids)
        self.ids.append("")
        if row == self.table.shape[1]:
            self.table = np.concatenate([self.table, self.table], axis=1)
        return row


def by_number(name: str) -> _Name:
    """Return a name as text and numbers: member 2 of a sweep comes before member 10."""
    return tuple(int(part) if at % 2 else part for at, part in enumerate(_NUMBERS.split(name)))


def is_fast(job: Job, policy: SchedulingPolicy) -> bool:
    """Return whether a job belongs to the fast lane, where there is one."""
    return (policy.lane_nodes > 0 or policy.lane_share > 0) and is_quick(job, policy)


def is_quick(job: Job, policy: SchedulingPolicy) -> bool:
    """Return whether a job is one that fast lanes are for: a small experiment that declares a short limit."""
    return (
        job.kind == "experiment"
        and job.gang.nodes <= policy.lane_most_nodes
        and job.limit_ms is not None
        and job.limit_ms <= policy.lane_limit_ms
    )
