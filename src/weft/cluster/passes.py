"""One pass over the queue: who starts, who is promised what, and why everybody else waits.

Jobs are considered in order. Until one does not fit, each starts. The first that does not fit is the head: it is
promised the time at which enough nodes come back by what running jobs have declared. Later jobs start before it only
where that can not delay it: they end before the promise, or use nodes that it will not need (Lifka's EASY backfill).
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from weft.cluster.actions import Action, Bind, Reserve, Wait
from weft.cluster.book import Book
from weft.cluster.jobs import Job, Placement
from weft.cluster.placement import Column, apart, compact
from weft.cluster.reasons import TEXTS, Reason
from weft.cluster.snapshot import FAR_MS, Reservation

Flags = npt.NDArray[np.bool_]
_NAMED = 3
"""How many of those before it a waiting job is told."""


@dataclass(slots=True)
class _Head:
    """The first job that does not fit."""

    at: int
    """Its position in the order."""
    job: Job
    """The job."""
    start_ms: int
    """When enough nodes are back."""
    keep: int
    """Nodes that must be empty by then."""


def queue_pass(book: Book, now_ms: int) -> list[Action]:
    """Consider every waiting job once; the book takes every start as carried out."""
    if not len(book.queue):
        book.reservation = None
        return []
    return _Turn(book, now_ms).run()


class _Turn:
    """The queue's part of a pass."""

    def __init__(self, book: Book, now_ms: int) -> None:
        self.book, self.now_ms, self.policy = book, now_ms, book.policy
        queue = book.queue
        self.rows, self.aged = queue.order(now_ms, book.shares.ratios())
        pick = {name: column[self.rows] for name, column in queue.columns.items()}
        self.need, self.gpus, self.team, self.limit_ms = pick["need"], pick["gpus"], pick["team"], pick["limit_ms"]
        self.array, self.told, self.degraded = pick["array"], pick["told"], pick["degraded"]
        self.fast = pick["fast"].astype(bool)
        self.total = self.need * self.gpus
        self.left = np.ones(len(self.rows), dtype=bool)
        self.reasons = np.full(len(self.rows), Reason.BEHIND, dtype=np.int64)
        self.head: _Head | None = None
        self.actions: list[Action] = []

    def run(self) -> list[Action]:
        """Consider everybody and return what is to be done."""
        while (at := self._next()) is not None:
            self._start(at)
        self._promise()
        self._explain()
        return self.actions

    def _next(self) -> int | None:
        """Return the position of the next job that may start now."""
        while True:
            allowed = self._allowed()
            fits = allowed & (self.need <= self._room())
            if self.head is not None:
                return _first(fits & self._harmless(self.head))
            blocked = allowed & ~fits
            blocked[self.aged :] &= ~self.fast[self.aged :]
            barrier = _first(blocked)
            at = _first(fits)
            if at is not None and (barrier is None or at < barrier):
                return at
            if barrier is None:
                return None
            self._block(barrier)

    def _allowed(self) -> Flags:
        """Return who is kept back by no rule but room; writes the reasons of the others down."""
        book = self.book
        over = self.total > (book.shares.most - book.shares.held)[self.team]
        crowded = book.array_running[self.array] >= book.array_most[self.array]
        self.reasons[self.left & over] = Reason.QUOTA
        self.reasons[self.left & crowded] = Reason.ARRAY
        return self.left & ~over & ~crowded

    def _room(self) -> Column:
        """Return how many nodes each job could have now."""
        free = self.book.pool.available()[self.degraded, self.gpus] - self.policy.spare_nodes
        return np.where(self.fast, free, free - self._lane_for(self.need))

    def _lane_for(self, need: Column) -> Column:
        """Return how many nodes others must leave to the fast lane; a gang that needs all of the pool need not."""
        lane = max(0, self.policy.lane_nodes - self.book.lane_used)
        most = self.book.pool.count - self.policy.lane_nodes - self.policy.spare_nodes
        return np.where(need > most, 0, lane)

    def _block(self, at: int) -> None:
        """Make the job at a position the head, or pass over it where nobody can say when it fits."""
        pool, job = self.book.pool, self._job(at)
        need = int(self.need[at])
        able = pool.able(job.gang.gpus_per_node, degraded=job.takes_degraded)
        back = pool.back_ms[able]
        lane = 0 if self.fast[at] else int(self._lane_for(self.need[at : at + 1])[0])
        keep = need + self.policy.spare_nodes + lane
        if keep > len(back):
            self.left[at] = False
            self.reasons[at] = Reason.SIZE
            return
        start_ms = max(self.now_ms, int(np.partition(back, keep - 1)[keep - 1]))
        self.left[at] = False
        self.reasons[at] = Reason.NODES
        self.head = _Head(at, job, start_ms, keep)

    def _harmless(self, head: _Head) -> Flags:
        """Return who can start without delaying the head."""
        if not self.policy.backfill:
            return np.zeros(len(self.rows), dtype=bool)
        pool = self.book.pool
        able = pool.able(head.job.gang.gpus_per_node, degraded=head.job.takes_degraded)
        extra = int(np.count_nonzero(able & (pool.back_ms <= head.start_ms))) - head.keep
        before_ms = min(head.start_ms, self.now_ms + self.policy.assumed_ms)
        return (self.limit_ms <= before_ms - self.now_ms) | (self.need <= extra)

    def _start(self, at: int) -> None:
        """Place the job at a position and take it as started."""
        book, job = self.book, self._job(at)
        gang = job.gang
        found = book.pool.candidates(gang.gpus_per_node, degraded=job.takes_degraded)
        count = self._width(job, int(self._room()[at]))
        nodes = (apart if job.kind == "service" else compact)(found, count, book.pool.levels)
        ranked = book.pool.ranked(nodes)
        whole = bool((book.pool.usable[ranked] == gang.gpus_per_node).all())
        devices = () if whole else book.pool.devices(ranked.tolist(), gang.gpus_per_node)
        number = book.shares.index[job.team]
        borrowed = bool(book.shares.held[number] + count * gang.gpus_per_node > book.shares.quota[number])
        why = "order" if self.head is None else "lane" if self.fast[at] else "backfill"
        placement = Placement(tuple(ranked.tolist()), gang.gpus_per_node, devices)
        action = Bind(job.id, placement, borrowed=borrowed, why=why)
        self.left[at] = False
        self.reasons[at] = Reason.NONE
        book.take_up(action, self.now_ms)
        self.actions.append(action)

    def _width(self, job: Job, room: int) -> int:
        """Return how many nodes a gang gets: all that it wants, or what an elastic one can use of the room."""
        gang = job.gang
        if not gang.elastic or room >= gang.nodes:
            return gang.nodes
        return gang.fewest + (room - gang.fewest) // gang.step * gang.step

    def _promise(self) -> None:
        """Say when the head starts, where that is news."""
        book = self.book
        if self.head is None or self.head.start_ms >= FAR_MS:
            book.reservation = None
            return
        job, start_ms = self.head.job, self.head.start_ms
        old = book.reservation
        if old is not None and (old.job, old.at_ms) == (job.id, start_ms):
            return
        first_ms = old.promised_ms if old is not None and old.job == job.id else start_ms
        book.reservation = Reservation(job.id, start_ms, first_ms)
        self.actions.append(Reserve(job.id, start_ms, self.head.keep))

    def _explain(self) -> None:
        """Tell every job whose reason to wait is another than it was told."""
        changed = np.flatnonzero((self.reasons != self.told) & (self.reasons != Reason.NONE))
        waiting = np.flatnonzero(self.reasons != Reason.NONE)[:_NAMED].tolist()
        for at in changed.tolist():
            reason = Reason(int(self.reasons[at]))
            name = self.book.queue.ids[self.rows[at]]
            expected_ms = self.head.start_ms if self.head is not None and at == self.head.at else None
            ahead = tuple(self.book.queue.ids[self.rows[each]] for each in waiting if each < at)
            self.actions.append(
                Wait(name, reason.code, TEXTS[reason], expected_ms if expected_ms != FAR_MS else None, ahead)
            )

    def _job(self, at: int) -> Job:
        return self.book.jobs[self.book.queue.ids[self.rows[at]]]


def held(book: Book) -> list[Action]:
    """Tell the jobs that stand in no line why."""
    return [
        Wait(name, reason.code, TEXTS[reason], None, book.jobs[name].after)
        for name, reason in sorted(book.held.items())
        if book.jobs[name].told != reason.code
    ]


def _first(flags: Flags) -> int | None:
    """Return the position of the first true flag."""
    at = int(np.argmax(flags)) if len(flags) else 0
    return at if len(flags) and flags[at] else None
