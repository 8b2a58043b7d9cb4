"""One pass over the queue: who starts, who is promised what, and why everybody else waits.

Jobs are considered in order. Until one does not fit, each starts. The first that does not fit is the head: it is
promised the time at which enough nodes come back by what running jobs have declared. Later jobs start before it only
where that cannot delay it: they end before the promise, or use nodes that it will not need (Lifka's EASY backfill).
Jobs of the fast lane are never the head unless they are aged: a stream of them must not hold gangs up.
"""

from dataclasses import dataclass

import numpy as np

from weft.cluster.records.actions import Action, Bind, Reserve, Wait
from weft.cluster.records.job import Job, Placement
from weft.cluster.records.snapshot import FAR_MS, Reservation
from weft.cluster.records.wait_reasons import TEXTS, Reason
from weft.cluster.scheduling import power_budget
from weft.cluster.scheduling.placement import Column, Flags
from weft.cluster.scheduling.preemption import Want, horizon_ms, make_room
from weft.cluster.scheduling.rules import Placing
from weft.cluster.scheduling.state import ClusterState

_NAMED = 3
"""How many of those before it a reason to wait names."""


@dataclass(slots=True)
class _Head:
    """The first job that does not fit."""

    at: int
    """Its position in the order."""
    job: Job
    start_ms: int
    """When enough nodes, and enough power, are back."""
    keep: int
    """Nodes that must be empty by then."""
    watts: int
    """By how much it raises the site's draw."""


def queue_pass(cluster: ClusterState, now_ms: int) -> list[Action]:
    """Consider every waiting job once; the state takes every action as carried out."""
    if not len(cluster.queue):
        cluster.reservation = None
        return []
    return SchedulingCycle(cluster, now_ms).run()


def held(cluster: ClusterState) -> list[Action]:
    """Tell the jobs that stand in no line why."""
    return [
        Wait(name, reason.code, TEXTS[reason], None, cluster.jobs[name].after)
        for name, reason in sorted(cluster.held.items())
        if cluster.jobs[name].last_wait_code != reason.code
    ]


class SchedulingCycle:
    """The queue's part of a pass."""

    def __init__(self, cluster: ClusterState, now_ms: int) -> None:
        self.cluster, self.now_ms, self.policy = cluster, now_ms, cluster.policy
        queue = cluster.queue
        self.rows, self.aged = cluster.rules.order(queue, cluster.shares, now_ms)
        pick = queue.table[:, self.rows]
        self.need, self.gpus, self.total, self.watts, self.team, self.limit_ms, self.array = pick[:7]
        self.last_wait, self.degraded = pick[7:9]
        self.fast = pick[9] > 0
        self.left = np.ones(len(self.rows), dtype=bool)
        self.waiting = len(self.rows)
        self.reasons = np.full(len(self.rows), Reason.BEHIND, dtype=np.int64)
        self.minds_lane = pick[10]
        """Who must leave the lane's nodes free: all but the lane's own jobs and gangs that need the whole pool."""
        self.head: _Head | None = None
        self.stale = True
        self.allowed = self.fits = self.left
        self.tried: set[int] = set()
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
            if not self.waiting:
                return None
            if self.stale:
                self._look()
            if self.head is not None:
                return _first(self.fits & self._harmless(self.head))
            blocked = self.allowed & ~self.fits
            heads = blocked & ~self.fast
            heads[: self.aged] = blocked[: self.aged]
            barrier = _first(heads)
            at = _first(self.fits)
            if at is not None and (barrier is None or at < barrier):
                return at
            if self._make_room_for_lane(blocked, barrier):
                continue
            if barrier is None:
                return None
            self._block(barrier)

    def _look(self) -> None:
        """Find out who is kept back by no rule but room, and who fits into what is free now."""
        self.allowed = self._allowed().copy()
        self.fits = self.allowed & (self.need <= self._room())
        if self.cluster.scarce_w:
            self.fits &= self.watts <= power_budget.site_left_w(self.cluster.power, self.policy, self.cluster.draw_w)
        self.stale = False

    def _allowed(self) -> Flags:
        """Return who is kept back by no rule but room; writes the reasons of the others down."""
        cluster = self.cluster
        over = self.total > (cluster.shares.most - cluster.shares.held)[self.team]
        allowed = self.left
        if over.any():
            self.reasons[self.left & over] = Reason.QUOTA
            allowed = self.left & ~over
        if len(cluster.arrays):
            crowded = cluster.array_running[self.array] >= cluster.array_most[self.array]
            self.reasons[self.left & crowded] = Reason.ARRAY
            allowed = allowed & ~crowded
        return allowed

    def _room(self) -> Column:
        """Return how many nodes each job could have now."""
        free = self.cluster.pool.available(self.gpus, self.degraded) - self.policy.spare_nodes
        lane = self._lane()
        return free - lane * self.minds_lane if lane else free

    def _lane(self) -> int:
        """Return how many nodes are still kept for the fast lane."""
        return max(0, self.policy.lane_nodes - self.cluster.lane_used)

    def _back(self, job: Job) -> Column:
        """Return when each node that could serve a job is empty at the latest."""
        return self.cluster.pool.back(job.gang.gpus_per_node, degraded=job.takes_degraded)

    def _block(self, at: int) -> None:
        """Make the job at a position the head, or pass over it where it cannot be served at all."""
        job = self._job(at)
        # The whole lane is kept: its jobs that run now may be over by then, without emptying a node that they share.
        keep = int(self.need[at]) + self.policy.spare_nodes + self.policy.lane_nodes * int(self.minds_lane[at])
        back = self._back(job)
        if keep > len(back):
            self._pass_over(at, Reason.SIZE)
            return
        old = self.cluster.reservation
        start_ms = self.cluster.running.earliest_ms(back, keep, old.at_ms if old is not None else self.now_ms)
        soon_ms = self.now_ms + horizon_ms(self.cluster)
        if self.policy.preempt and start_ms > soon_ms and at not in self.tried:
            self.tried.add(at)
            if self._ask(at, keep - int(np.count_nonzero(back <= soon_ms))):
                return
        power_ms = self._power_ms(int(self.watts[at]))
        if power_ms >= FAR_MS and not len(self.cluster.running):
            self._pass_over(at, Reason.POWER)
            return
        # Small jobs that are before it take their nodes first, beside it where there is room and before it where not.
        small = np.flatnonzero(self.allowed[:at] & self.fast[:at])
        ahead = int(self.need[small].sum())
        if ahead and keep + ahead <= len(back):
            keep += ahead
            start_ms = self.cluster.running.earliest_ms(back, keep, start_ms)
        elif ahead:
            start_ms = max(self.now_ms, start_ms) + int(self.limit_ms[small].sum())
        self._pass_over(at, Reason.POWER if power_ms > max(start_ms, self.now_ms) else Reason.NODES)
        self.head = _Head(at, job, max(self.now_ms, start_ms, power_ms), keep, int(self.watts[at]))

    def _pass_over(self, at: int, reason: Reason) -> None:
        self.waiting -= int(self.left[at])
        self.left[at] = self.allowed[at] = self.fits[at] = False
        self.reasons[at] = reason

    def _power_ms(self, watts: int) -> int:
        """Return when the site's budget allows `watts` more, by what running jobs declare."""
        lacking = watts - power_budget.site_left_w(self.cluster.power, self.policy, self.cluster.draw_w)
        if lacking <= 0 or not self.cluster.scarce_w:
            return self.now_ms
        running = self.cluster.running
        drawn = running.column("watts") * running.column("nodes") * running.column("gpus")
        return power_budget.earliest_ms(running.column("back_ms"), drawn, lacking)

    def _ask(self, at: int, lacking: int) -> bool:
        """Ask others to leave for the job at a position; return whether anything was asked."""
        job = self._job(at)
        shares = self.cluster.shares
        team = int(self.team[at])
        in_quota = bool(shares.held[team] + self.total[at] <= shares.quota[team])
        if self.now_ms - job.submit_ms < self.policy.patience_ms:
            return False
        asked = make_room(self.cluster, Want(job, lacking, in_quota), self.now_ms)
        for action in asked:
            self.cluster.take_up(action, self.now_ms)
        self.stale = True
        self.actions += asked
        return bool(asked)

    def _make_room_for_lane(self, blocked: Flags, barrier: int | None) -> bool:
        """Ask others to leave for small jobs that are before the head; return whether anything was asked."""
        small = np.flatnonzero((blocked & self.fast)[:barrier])
        if not len(small) or not self.policy.preempt or int(small[0]) in self.tried:
            return False
        at = int(small[0])
        self.tried.add(at)
        alike = small[(self.team[small] == self.team[at]) & (self.gpus[small] == self.gpus[at])]
        coming = int(np.count_nonzero(self._back(self._job(at)) <= self.now_ms + horizon_ms(self.cluster)))
        lacking = int(self.need[alike].sum()) - coming
        return lacking > 0 and self._ask(at, lacking)

    def _harmless(self, head: _Head) -> Flags:
        """Return who can start without delaying the head; those before it need not mind it."""
        if not self.policy.backfill:
            return np.arange(len(self.rows)) < head.at
        extra = int(np.count_nonzero(self._back(head.job) <= head.start_ms)) - head.keep
        before_ms = min(head.start_ms, self.now_ms + self.policy.assumed_ms) - self.now_ms
        beside = self.need <= extra - self._lane() * self.minds_lane
        if self.cluster.scarce_w:
            beside &= self.watts <= self._power_at(head.start_ms) - head.watts
        harmless = (self.limit_ms <= before_ms) | beside
        harmless[: head.at] = True
        return harmless

    def _power_at(self, at_ms: int) -> int:
        """Return how many watts more the site may draw at `at_ms`, by what running jobs declare."""
        running = self.cluster.running
        drawn = running.column("watts") * running.column("nodes") * running.column("gpus")
        back = int(drawn[running.column("back_ms") <= at_ms].sum())
        return power_budget.site_left_w(self.cluster.power, self.policy, self.cluster.draw_w) + back

    def _start(self, at: int) -> None:
        """Place the job at a position and take it as started."""
        cluster, job = self.cluster, self._job(at)
        gang, pool = job.gang, cluster.pool
        found = pool.candidates(gang.gpus_per_node, degraded=job.takes_degraded)
        node_rise_w = gang.gpus_per_node * cluster.rise_w(job)
        if self.policy.power:
            found = power_budget.within(found, pool.rack, cluster.rack_w, cluster.power.rack_w, node_rise_w)
            found = power_budget.within(found, pool.feeder, cluster.feeder_w, cluster.power.feeder_w, node_rise_w)
        if len(found) < gang.fewest:
            self._pass_over(at, Reason.POWER)
            return
        count = self._width(job, at, len(found)) if gang.elastic else gang.nodes
        ranked = pool.ranked(cluster.rules.place(Placing(found, count, spread=job.kind == "service"), pool))
        whole = bool((pool.usable[ranked] == gang.gpus_per_node).all())
        devices = () if whole else pool.devices(ranked.tolist(), gang.gpus_per_node)
        team = int(self.team[at])
        borrowed = bool(cluster.shares.held[team] + count * gang.gpus_per_node > cluster.shares.quota[team])
        why = "order" if self.head is None or at < self.head.at else "lane" if self.fast[at] else "backfill"
        waves = cluster.ramp.rise(count, node_rise_w, self.now_ms)
        action = Bind(job.id, Placement(tuple(ranked.tolist()), gang.gpus_per_node, devices), waves, borrowed, why)
        self._pass_over(at, Reason.NONE)
        self.last_wait[at] = Reason.NONE
        cluster.take_up(action, self.now_ms)
        self.stale = True
        self.actions.append(action)

    def _width(self, job: Job, at: int, found: int) -> int:
        """Return how many nodes an elastic gang gets of those that it wants."""
        gang, shares = job.gang, self.cluster.shares
        room = min(found, int(self._room()[at]))
        if self.head is not None and at > self.head.at:
            # What it was let through with; wider, it could delay the head.
            return gang.fewest
        team = int(self.team[at])
        affordable = int(shares.most[team] - shares.held[team]) // gang.gpus_per_node
        node_rise_w = gang.gpus_per_node * self.cluster.rise_w(job)
        left_w = power_budget.site_left_w(self.cluster.power, self.policy, self.cluster.draw_w)
        powered = left_w // node_rise_w if node_rise_w else room
        most = min(room, affordable, powered, gang.nodes)
        return gang.fewest + (most - gang.fewest) // gang.step * gang.step

    def _promise(self) -> None:
        """Say when the head starts, where that is news."""
        cluster = self.cluster
        if self.head is None or self.head.start_ms >= FAR_MS:
            cluster.reservation = None
            return
        job, start_ms = self.head.job, self.head.start_ms
        old = cluster.reservation
        if old is not None and (old.job, old.at_ms) == (job.id, start_ms):
            return
        first_ms = old.promised_ms if old is not None and old.job == job.id else start_ms
        cluster.reservation = Reservation(job.id, start_ms, first_ms)
        self.actions.append(Reserve(job.id, start_ms, self.head.keep))

    def _explain(self) -> None:
        """Give every job its reason to wait where that has changed."""
        if self.head is not None:
            self.reasons[: self.head.at][self.reasons[: self.head.at] == Reason.BEHIND] = Reason.LANE
        changed = np.flatnonzero(self.reasons != self.last_wait).tolist()
        if not changed:
            return
        first = np.flatnonzero(self.reasons != Reason.NONE)[:_NAMED].tolist()
        for at in changed:
            reason = Reason(int(self.reasons[at]))
            name = self.cluster.queue.ids[self.rows[at]]
            expected_ms = None
            if self.head is not None and at == self.head.at and self.head.start_ms < FAR_MS:
                expected_ms = self.head.start_ms
            ahead = tuple(self.cluster.queue.ids[self.rows[each]] for each in first if each < at)
            self.actions.append(Wait(name, reason.code, TEXTS[reason], expected_ms, ahead))

    def _job(self, at: int) -> Job:
        return self.cluster.jobs[self.cluster.queue.ids[self.rows[at]]]


def _first(flags: Flags) -> int | None:
    """Return the position of the first true flag."""
    if not len(flags):
        return None
    at = int(flags.argmax())
    return at if flags[at] else None
