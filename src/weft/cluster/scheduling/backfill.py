"""One pass over the queue: who starts, who is promised what, and why everybody else waits.

Jobs are considered in order. Until one does not fit, each starts. The first that does not fit is the head: it is
promised the time at which enough nodes have its GPUs free by what running jobs have declared. Later jobs start before
it only where that cannot delay it: they end before the promise, or use GPUs that it will not need (Lifka's EASY
backfill, by GPUs of each node). Where no such time is known, nodes are drained for it (`reservation`). A job of the
fast lane is the head only where it is aged or may make those behind it leave: a stream of them must not hold gangs up,
but what is cleared for one must not go back to those that left.
"""

from collections.abc import Sequence

import numpy as np

from weft.cluster.records.actions import Action, Bind, Preempt, Reserve, Resize, Wait
from weft.cluster.records.job import Job, Placement
from weft.cluster.records.snapshot import FAR_MS, Reservation
from weft.cluster.records.wait_reasons import REMEDIES, Reason
from weft.cluster.scheduling import power_budget
from weft.cluster.scheduling.explanation import Considered, explain
from weft.cluster.scheduling.placement import Column, Flags
from weft.cluster.scheduling.preemption import Want, behind, called_back, give_way, horizon_ms, make_room
from weft.cluster.scheduling.queue import LAST_WAIT
from weft.cluster.scheduling.reservation import Head, KeptNodes, drained, earliest, rest_ms, widened
from weft.cluster.scheduling.rules import Placing
from weft.cluster.scheduling.state import ClusterState
from weft.cluster.scheduling.team_caps import held_soon
from weft.cluster.scheduling.waiting_jobs import WaitingJobs

_SAFELY = 3
"""How many times as long as jobs of its class have run on average a job may run that declares nothing.

At 2, streams of jobs that all last equally long refill what is drained, as the mean is low after many have started at
once; at 4 they do not, but jobs of generated traces without limits wait half as long again as at 3."""


class SchedulingCycle(WaitingJobs):
    """The queue's part of a pass."""

    def __init__(self, cluster: ClusterState, now_ms: int, depth: int | None = None) -> None:
        """Look at all that wait, or at the first of them."""
        super().__init__(cluster, now_ms, depth)
        self.called: Column | None = None
        """GPUs of each node that come free once those have written checkpoints who give way to the head."""
        self.head: Head | None = None
        self.kept: KeptNodes | None = None
        self.tried: set[int] = set()
        self.actions: list[Action] = []

    def run(self) -> list[Action]:
        """Consider everybody and return what is to be done."""
        while (at := self._next()) is not None:
            self._start(at)
        self._promise()
        self._explain()
        return self.actions

    def beyond_waits(self) -> list[Wait]:
        """Return the reason of jobs that were not looked at and have none yet."""
        table, ids = self.cluster.queue.table, self.cluster.queue.ids
        new = self.beyond[table[LAST_WAIT, self.beyond] == Reason.NONE].tolist() if len(self.beyond) else ()
        head = self.head.job.id if self.head is not None else ""
        text = f"{head} is before it, and this policy has no backfill"
        return [Wait(ids[row], Reason.ORDER.code, text, None, (head,), (head,), REMEDIES[Reason.ORDER]) for row in new]

    def _next(self) -> int | None:
        """Return the position of the next job that may start now."""
        while True:
            if not self.waiting:
                return None
            if self.stale:
                self._look()
                self.kept = None
            if self.head is not None:
                at = _first(self.fits & self._harmless(self.head))
                if at is None and self._reclaim_beside(self.head):
                    continue
                return at
            blocked = self.allowed & ~self.fits
            heads = blocked & ~self.fast
            heads[: self.aged] = blocked[: self.aged]
            other = _first(heads)
            barrier = self._urgent_small(blocked, other)
            at = _first(self.fits)
            asked = self._make_room_in_team(at)
            if not asked and at is not None and (barrier is None or at < barrier):
                return at
            if asked or self._make_room_for_lane(blocked, other):
                continue
            if barrier is None:
                return None
            self._block(barrier)

    def _block(self, at: int) -> None:
        """Make the job at a position the head, or pass over it where it cannot be served at all."""
        job, cluster, pool = self._job(at), self.cluster, self.cluster.pool
        # The whole lane is kept: its jobs that run now may be over by then, without emptying a node that they share.
        lane = cluster.lane_gpus * int(self.minds_lane[at])
        total = int(self.total[at]) + lane if lane else 0
        back = pool.back(job.gang.gpus_per_node, degraded=job.takes_degraded)
        keep = self._with_lane(at, lane)
        shape = self._shape(at)
        named, free_ms = earliest(pool, job, shape) if shape is not None else (None, 0)
        if keep > len(back) or (named is not None and not named.any()):
            self._pass_over(at, Reason.SIZE)
            return
        start_ms = max(free_ms, self._earliest_ms(back, keep, total))
        if start_ms > self.now_ms and self._call_back(at):
            return
        soon_ms = self.now_ms + horizon_ms(cluster)
        if self.policy.preempt and start_ms > soon_ms and at not in self.tried:
            self.tried.add(at)
            if self._ask(at, keep, soon_ms, total):
                return
        power_ms = self._power_ms(int(self.watts[at]))
        if power_ms >= FAR_MS and not len(cluster.running):
            self._pass_over(at, Reason.POWER)
            return
        # Small jobs that are before it take their nodes first, beside it where there is room and before it where not.
        small = np.flatnonzero(self.allowed[:at] & self.fast[:at])
        ahead = int(self.need[small].sum())
        if ahead and named is None and keep + ahead <= len(back):
            keep += ahead
            start_ms = self._earliest_ms(back, keep, total)
        elif ahead:
            start_ms = max(self.now_ms, start_ms) + int(self.limit_ms[small].sum())
        self._pass_over(at, Reason.POWER if power_ms > max(start_ms, self.now_ms) else Reason.NODES)
        old = cluster.reservation
        since_ms = old.since_ms if old is not None and old.job == job.id else self.now_ms
        begin_ms = min(FAR_MS, max(self.now_ms, start_ms, power_ms))
        self.head = Head(at, job, begin_ms, keep, total, int(self.watts[at]), since_ms)
        self.head.called, self.head.now_ms, self.head.named = self.called, self.now_ms, named
        if start_ms >= FAR_MS:
            wide = widened(keep, len(back), self.now_ms - since_ms, cluster.running.typical_ms(self.now_ms))
            self.head.closed = drained(pool, job, wide, self.now_ms + self.policy.assumed_ms)
            self.ages_ms = cluster.running.ages_by_class(self.now_ms)
            self.head.rest_ms = rest_ms(pool, self.head.closed, self.ages_ms)

    def _earliest_ms(self, back: Column, keep: int, total: int) -> int:
        """Return when `keep` nodes of those that come back at `back` are there, and `total` GPUs in all."""
        running, old = self.cluster.running, self.cluster.reservation
        guess_ms = old.at_ms if old is not None else self.now_ms
        start_ms = running.earliest_ms(back, keep, guess_ms)
        if not total or start_ms >= FAR_MS or int(self.cluster.pool.free_at(start_ms).sum()) >= total:
            return start_ms
        return running.first_end_ms(lambda at_ms: int(self.cluster.pool.free_at(at_ms).sum()) >= total, start_ms)

    def _power_ms(self, watts: int) -> int:
        """Return when the site's budget allows `watts` more, by what running jobs declare."""
        lacking = watts - power_budget.site_left_w(self.cluster.power, self.policy, self.cluster.draw_w)
        if lacking <= 0 or not self.cluster.scarce_w:
            return self.now_ms
        back_ms, drawn = self.cluster.running.drawn_w()
        return power_budget.earliest_ms(back_ms, drawn, lacking)

    def _reclaim_beside(self, head: Head) -> bool:
        """Let the first job that its quota covers ask for nodes beside those that are drained for the head."""
        if not self.turn or head.closed is None or not (self.policy.preempt and self.policy.fair):
            return False
        shares = self.cluster.shares
        covered = self.allowed & (self.total <= (shares.quota - shares.held)[self.team])
        covered[: head.at + 1] = False
        at = _first(covered)
        if at is None or at in self.tried:
            return False
        self.tried.add(at)
        return self._ask(at, int(self.need[at]), self.now_ms + horizon_ms(self.cluster), closed=head.closed)

    def _call_back(self, at: int) -> bool:
        """Make those leave that were let past the job at a position, if it could start without them."""
        running, job = self.cluster.running, self._job(at)
        if not (self.policy.give_way and running.let_past):
            return False
        soon_ms, self.called = called_back(self.cluster, job, self.now_ms)
        quick = running.mask("fast") & (self.minds_lane[at] > 0)
        lent = quick & running.mask("let_past") & ~running.mask("leaving")
        # What jobs of the lane give back is the lane's again: they leave only where the head has use for it then, too.
        return bool(lent.any() and self._call(at, soon_ms, lent)) or self._call(at, soon_ms, lent & False)

    def _call(self, at: int, soon_ms: int, staying: Flags) -> bool:
        """Make those leave that were let past the job at a position, some apart, if that is enough for it."""
        cluster, pool, job = self.cluster, self.cluster.pool, self._job(at)
        running, gpus = cluster.running, job.gang.gpus_per_node
        going = running.mask("fast") & (running.mask("leaving") | running.mask("let_past")) & ~staying
        held = (running.column("nodes") * running.column("gpus"))[going]
        lane = max(0, cluster.lane_gpus - cluster.lane_used + int(held.sum())) * int(self.minds_lane[at])
        keep = self._with_lane(at, lane)
        lent = pool.lent
        for row in np.flatnonzero(staying).tolist():
            lent = lent.copy() if lent is pool.lent else lent
            lent[cluster.nodes_of[running.ids[row]]] -= running.column("gpus")[row]
        without = pool.able(gpus, degraded=job.takes_degraded) & (pool.free_at(soon_ms) + lent >= gpus)
        shape = self._shape(at)
        if (np.count_nonzero(without) if shape is None else shape.capacity(np.flatnonzero(without))) < keep:
            return False
        first = self._in_quota(at) or (cluster.queue.firm and cluster.queue.promised == job.id)
        want = Want(job, keep, first, soon_ms, int(self.total[at]) + lane if lane else 0)
        return self._asked(give_way(cluster, want, self.now_ms, staying))

    def _ask(
        self, at: int, wanted: int, soon_ms: int, total: int = 0, *, closed: Flags | None = None, own: int = 0
    ) -> bool:
        """Ask others to leave for the job at a position, so that it gets its nodes soon; return whether anybody was."""
        job = self._job(at)
        patient_ms = job.submit_ms + self.policy.patience_ms
        if self.now_ms < patient_ms:
            self.cluster.wake_by(patient_ms)
            return False
        want = Want(job, wanted, self._in_quota(at), soon_ms, total, closed, own)
        return self._asked(make_room(self.cluster, want, self.now_ms))

    def _asked(self, asked: Sequence[Preempt | Resize]) -> bool:
        """Take it that others were asked to leave; return whether anybody was."""
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
        wanted = self._with_kept(at, int(self.need[alike].sum()), self.policy.spare_nodes)
        return self._ask(at, wanted, self.now_ms + horizon_ms(self.cluster))

    def _make_room_in_team(self, until: int | None) -> bool:
        """Ask less urgent jobs of a team that has all it may have to leave for one of it that stands before `until`."""
        if not self.policy.preempt:
            return False
        shares = self.cluster.shares
        barred = self.left & self.over & ~self.allowed & (self.total <= shares.most[self.team])
        over = np.flatnonzero(barred[:until])
        for at in over[np.unique(self.team[over], return_index=True)[1]].tolist():
            if at in self.tried:
                continue
            self.tried.add(at)
            lane, team, total = self._lane() * int(self.minds_lane[at]), int(self.team[at]), int(self.total[at])
            own = total - int(shares.most[team] - held_soon(self.cluster)[team])
            soon_ms, all_gpus = self.now_ms + horizon_ms(self.cluster), total + lane if lane else 0
            if self._ask(at, self._with_lane(at, lane), soon_ms, all_gpus, own=own):
                return True
        return False

    def _urgent_small(self, blocked: Flags, barrier: int | None) -> int | None:
        """Return who is to be the head: the barrier, or a blocked small job for which others may be asked to leave.

        That is one whose priority stands above by the gap, or that its quota covers where others would borrow. Where
        nobody else is blocked, those count that would start: they could refill what others leave for it.
        """
        at = _first((blocked & self.fast)[:barrier])
        if at is None or not self.policy.preempt:
            return barrier
        below = self.priority <= self.priority[at] - self.policy.preempt_gap
        if self.policy.fair and self._in_quota(at):
            shares = self.cluster.shares
            below |= (self.team != self.team[at]) & (shares.held[self.team] + self.total > shares.quota[self.team])
        if barrier is not None:
            return at if below[barrier] else barrier
        return at if (self.fits & below).any() else None

    def _harmless(self, head: Head) -> Flags:
        """Return who can start without delaying the head; those before it need not mind a promise."""
        before = np.arange(len(self.rows)) < head.at
        if not self.policy.backfill:
            return before
        short = self._short(head) | (before & (head.closed is None))
        harmless = short.copy()
        for at in self._one_of_each(self.fits & ~short):
            gpus, degraded = int(self.gpus[at]), self.degraded[at] > 0
            room = self._keeping(head).room(gpus, degraded=degraded, shape=self._shape(at))
            harmless |= self._alike(at) & ~short & (self.need <= room)
        slack = self._keeping(head).slack if head.total else None
        if slack is not None:
            harmless &= short | (self.total <= slack + self._lane() * self.fast)
        if self.cluster.scarce_w:
            harmless &= short | (self.watts <= self._power_at(head.start_ms) - head.watts)
        harmless |= self._lent(head)
        return harmless & (before | self._leaves_rights(head))

    def _lent(self, head: Head) -> Flags:
        """Return who may have what is drained for the head, as it would leave again once that could start."""
        found = np.zeros(len(self.rows), dtype=bool)
        if head.closed is None or self.called is not None or not self.policy.give_way:
            return found
        shares = self.cluster.shares
        found[head.at + 1 :] = True
        borrows = shares.held[self.team] + self.total > shares.quota[self.team]
        want = Want(head.job, 0, self._in_quota(head.at) or self._own(head.job), 0)
        return found & behind(self.cluster, want, (self.priority, self.team, self.submit_ms, borrows))

    def _leaves_rights(self, head: Head) -> Flags:
        """Return who leaves to the head what its team and its array may have: a later one could use it up."""
        shares, team = self.cluster.shares, self.team[head.at]
        left = int(shares.most[team] - shares.held[team]) - int(self.total[head.at])
        beside = (self.team != team) | (self.total <= left)
        array = self.array[head.at]
        if array and self.cluster.array_running[array] + 1 >= self.cluster.array_most[array]:
            beside &= self.array != array
        return beside

    def _short(self, head: Head) -> Flags:
        """Return who is over by the time that the head was promised, or is thought to be well before a drain is."""
        if self.called is not None:
            return np.zeros(len(self.rows), dtype=bool)
        if head.closed is not None:
            return np.minimum(self.limit_ms, _SAFELY * self.ages_ms[self.size_class]) <= head.rest_ms
        return self.limit_ms <= head.start_ms - self.now_ms

    def _keeping(self, head: Head) -> KeptNodes:
        """Return what the head needs of each node, as the pool is now."""
        if self.kept is None:
            self.kept = KeptNodes(self.cluster.pool, head)
        return self.kept

    def _power_at(self, at_ms: int) -> int:
        """Return how many watts more the site may draw at `at_ms`, by what running jobs declare."""
        back_ms, drawn = self.cluster.running.drawn_w()
        left_w = power_budget.site_left_w(self.cluster.power, self.policy, self.cluster.draw_w)
        return left_w + int(drawn[back_ms <= at_ms].sum())

    def _start(self, at: int) -> None:
        """Place the job at a position and take it as started."""
        cluster, job = self.cluster, self._job(at)
        gang, pool = job.gang, cluster.pool
        found, shape = pool.candidates(gang.gpus_per_node, degraded=job.takes_degraded), self._shape(at)
        head = self.head
        if head is not None and not self._short(head)[at] and (at > head.at or head.closed is not None):
            kept = self._keeping(head).allowed(found, gang.gpus_per_node)
            few = (len(kept) if shape is None else shape.capacity(kept)) < gang.fewest
            found = found if few and self._lent(head)[at] else kept
        node_rise_w = gang.gpus_per_node * cluster.rise_w(job)
        if self.policy.power:
            found = power_budget.within(found, pool.rack, cluster.rack_w, cluster.power.rack_w, node_rise_w)
            found = power_budget.within(found, pool.feeder, cluster.feeder_w, cluster.power.feeder_w, node_rise_w)
        most = len(found) if shape is None else shape.capacity(found)
        if most < gang.fewest:
            self._pass_over(at, Reason.POWER)
            return
        count = self._width(job, at, most) if gang.elastic else gang.nodes
        if shape is not None:
            found = shape.cheapest(found, pool.usable[found] - pool.taken[found], count)
        ranked = pool.ranked(cluster.rules.place(Placing(found, count, spread=job.kind == "service"), pool))
        ranked = ranked if shape is None else shape.in_slices(ranked)
        whole = bool((pool.usable[ranked] == gang.gpus_per_node).all())
        devices = () if whole else pool.devices(ranked.tolist(), gang.gpus_per_node)
        team = int(self.team[at])
        held, quota = int(cluster.shares.held[team]), int(cluster.shares.quota[team])
        borrowed = held + count * gang.gpus_per_node > quota
        if self.turn and job.id == cluster.queue.promised and count * gang.gpus_per_node <= quota:
            # It waited for its turn within its quota: what its team has above it is what began meanwhile.
            borrowed = False
        mine = (self.team[:at] == team) & self.left[:at] & (self.reasons[:at] == Reason.QUOTA)
        first = (head is None or at < head.at) and not mine.any()
        why = "order" if first else "lane" if self.fast[at] else "backfill"
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
        cluster, head = self.cluster, self.head
        if head is None:
            cluster.reservation = None
            return
        old = cluster.reservation
        at_ms = FAR_MS if head.closed is not None else head.start_ms
        same = old if old is not None and old.job == head.job.id else None
        if same is not None and same.at_ms == at_ms:
            return
        first_ms = same.promised_ms if same is not None and same.promised_ms < FAR_MS else at_ms
        cluster.reservation = Reservation(head.job.id, at_ms, first_ms, head.since_ms)
        if at_ms < FAR_MS:
            self.actions.append(Reserve(head.job.id, at_ms, head.keep))

    def _explain(self) -> None:
        """Give every job its reason to wait where that has changed."""
        considered = Considered(
            self.rows, self.reasons, self.last_wait, self.need, self.gpus, self.total, self.watts, self.degraded,
            self.minds_lane, self.fits, self.misshapen, self.fast, self._lane(), self.head,
        )  # fmt: skip
        self.actions += explain(self.cluster, considered, self.now_ms)


def _first(flags: Flags) -> int | None:
    """Return the position of the first true flag."""
    if not len(flags):
        return None
    at = int(flags.argmax())
    return at if flags[at] else None
