"""The cluster's state: a snapshot that is kept up to date instead of being built anew.

Engines and simulated worlds tell it what has changed (`put`, `drop`) and ask for a pass (`decide`). A pass takes its
own actions as carried out, so that the next one builds on them; what could not be carried out is put back as it is.
`plan(snapshot, now)` is one pass over a fresh state, and tests hold the two equal. Pure: no clock, no I/O; one owner.
"""

import heapq
from collections.abc import Iterable
from dataclasses import replace

import numpy as np

from weft.cluster.records.actions import Replace, Wait
from weft.cluster.records.effects import JobAction, NodeAction, job_after, node_after
from weft.cluster.records.job import ENDED, HOLDING, Job, JobState, Team
from weft.cluster.records.node import Node
from weft.cluster.records.snapshot import FAR_MS, Power, Reservation, Snapshot
from weft.cluster.records.wait_reasons import BY_CODE, Reason
from weft.cluster.scheduling.fair_share import Shares
from weft.cluster.scheduling.placement import Column
from weft.cluster.scheduling.pool import Hold, Pool
from weft.cluster.scheduling.power_budget import Ramp
from weft.cluster.scheduling.queue import LAST_WAIT, Queue, is_fast
from weft.cluster.scheduling.rules import rules_of
from weft.cluster.scheduling.running_jobs import RunningJobs, back_ms, size_class


class ClusterState:
    """The state of a cluster as columns, and the rules that change it; one owner, no clock."""

    def __init__(self, snapshot: Snapshot) -> None:
        """Open a state at `snapshot`."""
        assert all(node.number == at for at, node in enumerate(snapshot.nodes)), "node n stands at position n"
        self.policy = snapshot.policy
        self.rules = rules_of(self.policy.rules)
        self.power: Power = snapshot.power
        self.ramp = Ramp(snapshot.power, self.policy)
        self.pool = Pool(snapshot.nodes)
        self.shares = Shares(snapshot.teams, self.policy)
        gpus = sum(node.gpus for node in snapshot.nodes)
        self.lane_gpus = self.policy.lane_nodes * self.pool.largest + round(self.policy.lane_share * gpus)
        """GPUs that only jobs of the fast lane may take."""
        lane_nodes = -(-self.lane_gpus // max(1, self.pool.largest))
        common_nodes = self.pool.count - lane_nodes - self.policy.spare_nodes
        # A share of less than half a GPU is no lane: its jobs would wait for what nobody can free.
        lane = self.policy if self.lane_gpus else replace(self.policy, lane_share=0.0)
        self.queue = Queue(lane, common_nodes, gpus - self.lane_gpus)
        self.jobs: dict[str, Job] = {}
        """Every job that has not ended."""
        self.running = RunningJobs()
        self.nodes_of: dict[str, Column] = {}
        """Nodes of each job that holds some."""
        self.draw_w = self.pool.count * self.power.node_idle_w
        """What the site draws by what its jobs declare."""
        full_w = self.draw_w + sum(node.gpus for node in snapshot.nodes) * self.power.gpu_rise_w
        self.scarce_w = self.policy.power and self.power.site_w is not None and full_w > self.power.site_w
        """Whether the site's budget can bind at all: whether all GPUs together could break it."""
        self.rack_w, self.feeder_w = (
            np.bincount(groups) * self.power.node_idle_w for groups in (self.pool.rack, self.pool.feeder)
        )
        """What each rack and each feeder carries."""
        self._by_rack = (self.power.rack_w, self.power.feeder_w) != (None, None)
        self.resumed_ms = snapshot.resumed_ms
        self.braked_ms = snapshot.braked_ms
        self._deadlines: list[tuple[int, str]] = []
        self.ended: dict[str, JobState] = dict(snapshot.ended)
        self.reservation: Reservation | None = snapshot.reservation
        self.alarms: set[str] = set(snapshot.alarms)
        self.planned_ms = snapshot.planned_ms
        self.held: dict[str, Reason] = {}
        """Jobs that wait for others, or whose team is not known, and so stand in no line."""
        self.dependants: dict[str, set[str]] = {}
        self.arrays: dict[str, int] = {}
        self.array_running = np.zeros(1, dtype=np.int64)
        self.array_most = np.full(1, FAR_MS, dtype=np.int64)
        self.narrow: set[str] = set()
        """Elastic gangs that run on fewer nodes than they want."""
        self.lane_used = 0
        """GPUs that jobs of the fast lane hold."""
        self.wake_ms: int | None = None
        """When a pass must come: somebody's patience, or the minimum run time of others, is over then."""
        for job in snapshot.jobs:
            self.put(job, self.shares.at_ms)

    def put(self, record: Job | Node | Team, now_ms: int) -> None:
        """Take in a record that is new or has changed by `now_ms`."""
        match record:
            case Job():
                self.drop(record.id, now_ms)
                limit_ms = self.policy.limited(record.limit_ms)
                if limit_ms != record.limit_ms:
                    record = replace(record, limit_ms=limit_ms)
                if record.state in ENDED:
                    self._end(record)
                else:
                    self.jobs[record.id] = record
                    self._enter(record)
            case Node():
                self.pool.update(record)
            case Team():
                self.shares.set(record)
                self._retry([job for job, reason in self.held.items() if reason is Reason.TEAM])

    def drop(self, job_id: str, now_ms: int) -> None:
        """Forget a job that has not ended; nothing happens where there is none."""
        job = self.jobs.pop(job_id, None)
        if job is None:
            return
        self.shares.advance(now_ms)
        if job_id in self.nodes_of:
            self._vacate(job)
        elif job_id in self.held:
            del self.held[job_id]
            for each in job.after:
                self.dependants.get(each, set()).discard(job_id)
        else:
            self.queue.drop(job, self.shares.index[job.team])

    def forget_end(self, job_id: str) -> None:
        """Forget how a job ended: another of its name may come."""
        self.ended.pop(job_id, None)

    def snapshot(self) -> Snapshot:
        """Return the state as frozen records."""
        wanted = {each for job in self.jobs.values() for each in job.after}
        return Snapshot(
            nodes=tuple(self.pool.nodes),
            jobs=tuple(self.jobs[name] for name in sorted(self.jobs)),
            teams=self.shares.records(),
            power=self.ramp.record(self.power),
            policy=self.policy,
            ended={name: self.ended[name] for name in sorted(wanted) if name in self.ended},
            reservation=self.reservation,
            alarms=tuple(sorted(self.alarms)),
            planned_ms=self.planned_ms,
            resumed_ms=self.resumed_ms,
            braked_ms=self.braked_ms,
        )

    def take_up(self, action: JobAction, now_ms: int) -> None:
        """Change the job that `action` speaks of, as if it were carried out."""
        job = self.jobs[action.job]
        after = job_after(job, action, now_ms)
        if isinstance(action, Wait):
            self.jobs[job.id] = after
            if job.id in self.queue.rows:
                self.queue.table[LAST_WAIT, self.queue.rows[job.id]] = BY_CODE[action.code]
            return
        if isinstance(action, Replace) and not self._by_rack and after.placement and not after.placement.devices:
            self._swap(after, action, now_ms)
            return
        self.put(after, now_ms)

    def _swap(self, job: Job, action: Replace, now_ms: int) -> None:
        """Let spares take the places of lost nodes: of thousands of a gang only those few change."""
        assert job.placement is not None, "only a job that runs has nodes to swap"
        self.shares.advance(now_ms)
        self.jobs[job.id] = job
        self.nodes_of[job.id] = np.array(job.placement.nodes, dtype=np.int64)
        gpus = job.placement.gpus_per_node
        self.pool.give(job.id, np.array(action.lost, dtype=np.int64), gpus, shared=False)
        hold = Hold(gpus, back_ms(job), (), size_class(job))
        self.pool.take(job.id, np.array(action.spares, dtype=np.int64), hold)

    def take_up_node(self, action: NodeAction, now_ms: int) -> None:
        """Change the node that `action` speaks of, as if it were carried out."""
        self.pool.update(node_after(self.pool.nodes[action.node], action, now_ms))

    def overdue(self, now_ms: int) -> list[Job]:
        """Return the jobs that should have left by `now_ms` and are not stopping yet, the earliest first."""
        found: list[Job] = []
        seen: set[str] = set()
        while self._deadlines and self._deadlines[0][0] <= now_ms:
            _, name = heapq.heappop(self._deadlines)
            job = self.jobs.get(name)
            if job is None or name in seen or not job.holds or job.state is JobState.STOPPING:
                continue
            if back_ms(job) <= now_ms:
                seen.add(name)
                found.append(job)
        return found

    def due_ms(self) -> int | None:
        """Return when a pass must come though nothing has changed: the next limit, grace or patience that ends."""
        times = (self._next_deadline_ms(), self.wake_ms)
        return min((each for each in times if each is not None), default=None)

    def wake_by(self, at_ms: int) -> None:
        """Ask for a pass at `at_ms` at the latest."""
        self.wake_ms = at_ms if self.wake_ms is None else min(self.wake_ms, at_ms)

    def _next_deadline_ms(self) -> int | None:
        while self._deadlines:
            at_ms, name = self._deadlines[0]
            job = self.jobs.get(name)
            if job is not None and job.holds and job.state is not JobState.STOPPING and back_ms(job) == at_ms:
                return at_ms
            heapq.heappop(self._deadlines)
        return None

    def rise_w(self, job: Job) -> int:
        """Return by how much a GPU's draw rises when this job works on it."""
        return self.power.gpu_rise_w if job.watts_per_gpu is None else job.watts_per_gpu

    def _enter(self, job: Job) -> None:
        if job.watts_per_gpu is not None and job.watts_per_gpu > self.power.gpu_rise_w:
            self.scarce_w = self.policy.power and self.power.site_w is not None
        if job.state in HOLDING:
            self._occupy(job)
            return
        if job.team not in self.shares.index:
            self.held[job.id] = Reason.TEAM
        elif any(self.ended.get(each) is not JobState.DONE for each in job.after):
            self.held[job.id] = Reason.DEPENDENCY
            for each in job.after:
                self.dependants.setdefault(each, set()).add(job.id)
        else:
            last_wait = BY_CODE[job.last_wait_code] if job.last_wait_code else Reason.NONE
            self.queue.put(job, self.shares.index[job.team], self._array(job), self.rise_w(job), last_wait)

    def _occupy(self, job: Job) -> None:
        assert job.placement is not None, f"{job.id} holds nodes but has no placement"
        if job.team not in self.shares.index:
            self.shares.set(Team(job.team, 0, 0))
        nodes = np.array(job.placement.nodes, dtype=np.int64)
        self.nodes_of[job.id] = nodes
        until_ms = back_ms(job)
        hold = Hold(job.placement.gpus_per_node, until_ms, job.placement.devices, size_class(job), job.let_past)
        self.pool.take(job.id, nodes, hold)
        self.running.put(job, self.shares.index[job.team], self.rise_w(job), fast=is_fast(job, self.queue.policy))
        if job.gang.elastic and len(nodes) < job.gang.nodes:
            self.narrow.add(job.id)
        if until_ms < FAR_MS:
            heapq.heappush(self._deadlines, (until_ms, job.id))
        self._account(job, 1)

    def _vacate(self, job: Job) -> None:
        assert job.placement is not None
        nodes = self.nodes_of.pop(job.id)
        shared = bool(job.placement.devices)
        self.pool.give(job.id, nodes, job.placement.gpus_per_node, shared=shared, let_past=job.let_past)
        self.running.drop(job.id)
        self.narrow.discard(job.id)
        self._account(job, -1)

    def _account(self, job: Job, sign: int) -> None:
        self.shares.hold(job.team, sign * job.gpus)
        self.draw_w += sign * job.gpus * self.rise_w(job)
        if self._by_rack and job.placement is not None:
            nodes = np.array(job.placement.nodes, dtype=np.int64)
            node_w = sign * job.placement.gpus_per_node * self.rise_w(job)
            np.add.at(self.rack_w, self.pool.rack[nodes], node_w)
            np.add.at(self.feeder_w, self.pool.feeder[nodes], node_w)
        if is_fast(job, self.queue.policy):
            self.lane_used += sign * job.gpus
        if job.array_at_once:
            number = self._array(job)
            self.array_running[number] += sign

    def _array(self, job: Job) -> int:
        if not job.array_at_once:
            return 0
        if job.array not in self.arrays:
            self.arrays[job.array] = len(self.array_running)
            self.array_running = np.append(self.array_running, 0)
            self.array_most = np.append(self.array_most, job.array_at_once)
        return self.arrays[job.array]

    def _end(self, job: Job) -> None:
        self.ended[job.id] = job.state
        self._retry(self.dependants.pop(job.id, set()))

    def _retry(self, names: Iterable[str]) -> None:
        for name in sorted(names):
            job = self.jobs[name]
            self.held.pop(name, None)
            self._enter(job)
