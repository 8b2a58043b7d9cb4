"""The waiting jobs of one pass as columns, in their order: who may start but for room, and who fits.

What a scheduling cycle knows before it decides; it changes as the cycle's actions are taken up. Pure.
"""

import numpy as np

from weft.cluster.records.job import Job
from weft.cluster.records.snapshot import FAR_MS
from weft.cluster.records.wait_reasons import Reason
from weft.cluster.scheduling import power_budget
from weft.cluster.scheduling.placement import Column, Flags
from weft.cluster.scheduling.state import ClusterState
from weft.cluster.scheduling.team_caps import crowding, held_soon
from weft.cluster.scheduling.topology import TopologyShape, shape_of


class WaitingJobs:
    """Those who wait, as a pass looks at them; one owner."""

    def __init__(self, cluster: ClusterState, now_ms: int, depth: int | None = None) -> None:
        self.cluster, self.now_ms, self.policy = cluster, now_ms, cluster.policy
        queue = cluster.queue
        queue.promised, queue.firm, self.turn = "", False, False
        """Whether nodes are drained for the promised job, which its team's quota could hold."""
        if cluster.reservation is not None:
            queue.promised = cluster.reservation.job
            job = cluster.jobs.get(queue.promised)
            own = self._own(job)
            # A team that is above its quota has no turn before as large a job that another's quota covers. Before
            # smaller ones it has: a stream of them would refill what is drained.
            self.turn = own and cluster.reservation.at_ms >= FAR_MS and not self._yields(job)
            # Who gave way to it must not go before it now.
            due = cluster.reservation.at_ms <= now_ms + self.policy.grace_most_ms
            queue.firm = self.turn or (own and due and self.policy.give_way)
        rows, self.aged = cluster.rules.order(queue, cluster.shares, now_ms)
        self.rows = rows[:depth]
        self.beyond = rows[len(self.rows) :]
        """Waiting jobs that this cycle does not look at."""
        pick = queue.table[:, self.rows]
        self.need, self.gpus, self.total, self.watts, self.team, self.limit_ms, self.array = pick[:7]
        self.last_wait, self.degraded = pick[7:9]
        self.fast = pick[9] > 0
        self.left = np.ones(len(self.rows), dtype=bool)
        self.waiting = len(self.rows)
        self.reasons = np.full(len(self.rows), Reason.BEHIND, dtype=np.int64)
        self.priority = pick[12]
        self.size_class, self.submit_ms, self.shape = pick[13], pick[14], pick[15]
        self.ages_ms = self.total
        self.minds_lane = pick[10]
        """Who must leave the lane's nodes free: all but the lane's own jobs and gangs that need the whole pool."""
        self.stale = True
        self.allowed = self.fits = self.over = self.misshapen = self.left

    def _look(self) -> None:
        """Find out who is kept back by no rule but room, and who fits into what is free now."""
        self.allowed = self._allowed().copy()
        self.fits = self.allowed & ~self.over & (self.need <= self._room())
        self.misshapen = self._misshapen() if self.shape.any() else self.left & False
        self.fits &= ~self.misshapen
        lane = self._lane()
        if lane:
            self.fits &= (self.minds_lane == 0) | (self.total <= self.cluster.pool.free_gpus - lane)
        if self.cluster.scarce_w:
            self.fits &= self.watts <= power_budget.site_left_w(self.cluster.power, self.policy, self.cluster.draw_w)
        self.stale = False

    def _allowed(self) -> Flags:
        """Return who is kept back by no rule but room; writes the reasons of the others down."""
        cluster = self.cluster
        shares, allowed = cluster.shares, self.left
        self.over = self.total > (shares.most - shares.held)[self.team]
        if len(cluster.arrays):
            crowded = cluster.array_running[self.array] >= cluster.array_most[self.array]
            self.reasons[self.left & crowded] = Reason.ARRAY
            allowed = allowed & ~crowded
        if (allowed & self.over).any():
            # Who lacks only what others of its team are about to leave can be the head.
            lasting = allowed & (self.total > (shares.most - held_soon(cluster))[self.team])
            jobs = (self.team, self.total, self.limit_ms)
            barred = lasting | crowding(cluster, lasting & (self.total <= shares.most[self.team]), jobs, self.now_ms)
            self.reasons[allowed & barred] = Reason.QUOTA
            allowed = allowed & ~barred
        return allowed

    def _room(self) -> Column:
        """Return how many nodes each job could have now."""
        pool = self.cluster.pool
        free = pool.available(self.gpus, self.degraded)
        kept = self.policy.spare_nodes + self._lane() // max(1, pool.largest) * self.minds_lane
        if not np.any(kept):
            return free
        return free - pool.kept_of(kept, self.need, self.gpus, self.degraded)

    def _misshapen(self) -> Flags:
        """Return who would fit if the topology did not have to have a shape."""
        found = np.zeros(len(self.rows), dtype=bool)
        shaped = self.fits & (self.shape > 0)
        for at in self._one_of_each(shaped):
            gpus, degraded = int(self.gpus[at]), int(self.degraded[at])
            free = self.cluster.pool.candidates(gpus, degraded=degraded > 0)
            shape = self._shape(at)
            found |= shaped & self._alike(at) & (self.need > (len(free) if shape is None else shape.capacity(free)))
        return found

    def _shape(self, at: int) -> TopologyShape | None:
        """Return what the job at a position requires of the topology."""
        return shape_of(self.cluster.pool, self.cluster.queue.shapes[self.shape[at]]) if self.shape[at] else None

    def _alike(self, at: int) -> Flags:
        """Return who asks for the same kind of nodes as the job at a position."""
        same = (self.gpus == self.gpus[at]) & (self.degraded == self.degraded[at])
        return same & (self.shape == self.shape[at])

    def _lane(self) -> int:
        """Return how many GPUs are still kept for the fast lane."""
        return max(0, self.cluster.lane_gpus - self.cluster.lane_used)

    def _with_kept(self, at: int, need: int, kept: int) -> int:
        """Return how many nodes must be free for `need` of them to be given to a job, others being kept."""
        gpus, degraded = int(self.gpus[at]), int(self.degraded[at])
        return need + int(self.cluster.pool.kept_of(kept, need, gpus, degraded))

    def _with_lane(self, at: int, lane: int) -> int:
        """Return how many nodes must be free for a job to have its own, spares and the lane's GPUs being kept."""
        kept = self.policy.spare_nodes + lane // max(1, self.cluster.pool.largest)
        return self._with_kept(at, int(self.need[at]), kept)

    def _one_of_each(self, flags: Flags) -> list[int]:
        """Return a position for each kind of node that the flagged jobs ask for."""
        chosen = np.flatnonzero(flags)
        kinds = (self.shape[chosen] * (self.cluster.pool.largest + 2) + self.gpus[chosen]) * 2 + self.degraded[chosen]
        return chosen[np.unique(kinds, return_index=True)[1]].tolist()

    def _job(self, at: int) -> Job:
        return self.cluster.jobs[self.cluster.queue.ids[self.rows[at]]]

    def _own(self, job: Job | None) -> bool:
        """Return whether a waiting job is one that its team's quota could hold."""
        if job is None or job.team not in self.cluster.shares.index:
            return False
        quota = int(self.cluster.shares.quota[self.cluster.shares.index[job.team]])
        return job.gang.fewest * job.gang.gpus_per_node <= quota

    def _yields(self, job: Job | None) -> bool:
        """Return whether a job's team is above its quota without it, and a quota covers as large a job of another."""
        shares, queue = self.cluster.shares, self.cluster.queue
        if job is None or not (shares.held > shares.quota)[team := shares.index[job.team]]:
            return False
        rows = np.fromiter(queue.rows.values(), dtype=np.int64)
        teams, totals = queue.column("team")[rows], queue.column("total")[rows]
        covered = (teams != team) & (shares.held[teams] + totals <= shares.quota[teams])
        return bool((covered & (totals >= job.gang.fewest * job.gang.gpus_per_node)).any())

    def _in_quota(self, at: int) -> bool:
        """Return whether the job at a position is within its team's quota."""
        shares, team = self.cluster.shares, int(self.team[at])
        # Those of its team that stand before it are covered first: rights follow the order.
        ahead = self.left[:at] & (self.team[:at] == team) & (self.priority[:at] == self.priority[at])
        ahead &= self.total[:at] <= shares.quota[team]
        asks = int(self.total[:at][ahead].sum()) + int(self.total[at])
        return bool(shares.held[team] + asks <= shares.quota[team])

    def _pass_over(self, at: int, reason: Reason) -> None:
        self.waiting -= int(self.left[at])
        self.left[at] = self.allowed[at] = self.fits[at] = False
        self.reasons[at] = reason
