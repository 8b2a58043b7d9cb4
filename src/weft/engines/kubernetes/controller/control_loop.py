"""The engine's loop: look, let `weft.cluster` decide, write the decision down, make the world so.

One pass is plain and quick: what has changed goes into the book, the book is asked, its answers go into the ledger. All
writing is done by `carrying` through `lanes`. A pass never waits for the server; a decision that could not be written
is taken back by what the server holds instead. The engine may be killed between any two writes.
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from weft.cluster.plan import decide
from weft.cluster.records.actions import (
    Action,
    Alarm,
    Bind,
    Degrade,
    Drain,
    Move,
    Preempt,
    Quarantine,
    Replace,
    Resize,
    RunTest,
    Stop,
    Wait,
)
from weft.cluster.records.effects import checkpointed, ended, witnessed
from weft.cluster.records.job import ENDED, HOLDING, Gang, Job, JobState, Placement, Team
from weft.cluster.records.snapshot import Snapshot
from weft.cluster.scheduling.state import ClusterState
from weft.engines.kubernetes.api.api_client import ApiClient
from weft.engines.kubernetes.api.crds import TopologyBody
from weft.engines.kubernetes.controller.cache import ClusterCache
from weft.engines.kubernetes.controller.claims import crowded, evicted, given_up, let_go
from weft.engines.kubernetes.controller.gangs import count_pods
from weft.engines.kubernetes.controller.lanes import Lanes
from weft.engines.kubernetes.controller.ledger import JobEntry, placed_by, restore
from weft.engines.kubernetes.controller.node_index import NodeIndex
from weft.engines.kubernetes.controller.node_tests import NodeTests
from weft.engines.kubernetes.controller.observed import ObservedJob, record_of
from weft.engines.kubernetes.controller.settings import Settings, system_ms
from weft.engines.kubernetes.controller.writer import ClusterWriter
from weft.engines.kubernetes.pod.reporting import PodReport

_LOG = logging.getLogger(__name__)
_LOST = 75
"""Exit status of a pod that has lost the others of its gang; see `inside`."""
_LEFT_BY_NODE = frozenset({"NodeLost", "NodeShutdown", "Shutdown", "Evicted", "Preempting", "UnexpectedAdmissionError"})
_LARGE = 1000


class KubernetesEngine:
    """Carries `weft.cluster`'s decisions out on a cluster."""

    def __init__(
        self, client: ApiClient, settings: Settings | None = None, now_ms: Callable[[], int] = system_ms
    ) -> None:
        """Prepare."""
        self.settings = settings or Settings()
        self.client = client
        self.world = ClusterCache(client, self.settings.pool, self.settings.namespace, self.settings.silence_s)
        self.lanes = Lanes(self.settings.width, self.settings.width // 4, self.settings.rate_per_s)
        self.roll = NodeIndex()
        self.entries: dict[str, JobEntry] = {}
        self.alarms: dict[str, str] = {}
        self.passes = 0
        self.decisions = 0
        self._now_ms = now_ms
        self.tests = NodeTests(self.settings.test_s)
        self._again: set[str] = set()
        self._resynced = 0.0
        self._live: set[str] = set()
        self._silent: set[str] = set()
        self._unfit: set[str] = set()
        self._reports: list[PodReport] = []
        self._ghosts: dict[str, Job] = {}
        self._carrier = ClusterWriter(
            client, self.lanes, self.world, self.touch, aggregator=self.settings.aggregator,
            teams_s=self.settings.teams_s,
        )  # fmt: skip
        self.book = ClusterState(Snapshot((), policy=self.settings.policy, power=self.settings.power))

    def touch(self, job_id: str) -> None:
        """Ask for a look at a job in the next pass."""
        self._again.add(job_id)
        self.world.wake.set()

    async def run(self) -> None:
        """Run until cancelled, or until the server refuses what the engine can not do without."""
        tasks = [asyncio.create_task(one.run()) for one in self.world.reflectors]
        tasks.append(asyncio.create_task(self.lanes.run()))
        main = asyncio.create_task(self._loop())
        try:
            done, _ = await asyncio.wait([*tasks, main], return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            for task in (*tasks, main):
                task.cancel()
            await asyncio.gather(*tasks, main, return_exceptions=True)

    async def look(self) -> None:
        """Fill the caches once and open the book on them, without deciding or writing anything."""
        tasks = [asyncio.create_task(one.run()) for one in self.world.reflectors]
        ready = asyncio.create_task(self.world.synced())
        try:
            done, _ = await asyncio.wait([*tasks, ready], return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            for task in (*tasks, ready):
                task.cancel()
            await asyncio.gather(*tasks, ready, return_exceptions=True)
        now_ms = self._now_ms()
        self._open()
        self._take_in_nodes(self.world.changed_nodes, now_ms)
        for name in self.world.teams.items:
            self._take_in_team(name, now_ms)
        for seen in self.world.jobs.items.values():
            if seen.body is not None:
                self._meet(seen, None, now_ms)

    async def _loop(self) -> None:
        await self.world.synced()
        self._open()
        while True:
            with contextlib.suppress(TimeoutError):
                # Not wait_for: in Python 3.11 it may swallow a cancellation that comes together with the event.
                async with asyncio.timeout(self.settings.heart_s):
                    await self.world.wake.wait()
                await asyncio.sleep(self.settings.pass_s)
            self.world.wake.clear()
            self.one_pass()

    def _open(self) -> None:
        """Open the book on what the caches hold."""
        for spec in self.world.topologies.items.values():
            body = TopologyBody.model_validate(spec)
            if body.pool == self.settings.pool:
                self.roll.topology = body
        for name in self.roll.sorted_names(self.world.nodes.items):
            self.roll.number(name)
        self.world.changed_nodes.update(self.world.nodes.items)
        self.world.changed_nodes.update(self.world.health.items.keys() & self.world.nodes.items.keys())
        self.world.changed_jobs.update(self.world.jobs.items)
        self.world.changed_jobs.update(self.world.pods_of)
        for seen in self.world.jobs.items.values():
            for name in seen.placed.nodes if seen.placed else ():
                self._know(name)

    def _know(self, name: str) -> int:
        if name not in self.roll.numbers:
            self.world.changed_nodes.add(name)
        return self.roll.number(name)

    def one_pass(self) -> None:
        """Take in what has changed, decide, and hand the answers over."""
        now_ms = self._now_ms()
        world = self.world
        jobs, nodes, teams = world.changed_jobs | self._again, world.changed_nodes, world.changed_teams
        world.changed_jobs, world.changed_nodes, world.changed_teams, self._again = set(), set(), set(), set()
        if time.monotonic() - self._resynced > self.settings.resync_s:
            self._resynced = time.monotonic()
            jobs |= self.entries.keys() | world.pods_of.keys()
        jobs |= self._live
        self._take_in_nodes(nodes | self._silent, now_ms)
        self._take_in_reports(now_ms)
        for name in teams:
            self._take_in_team(name, now_ms)
        for job_id in sorted(jobs):
            self._take_in_job(job_id, now_ms)
        for action in decide(self.book, now_ms):
            self.decisions += not isinstance(action, Wait)
            self._take_up(action, now_ms)
        given = given_up(self.entries[name] for name in self._live if name in self.entries)
        for job_id in sorted(jobs | self._live):
            entry = self.entries.get(job_id)
            if entry is not None:
                self._carrier.carry_on(entry, now_ms, given)
            if entry is None or (entry.durable and entry.record.state not in HOLDING):
                self._live.discard(job_id)
        self._carrier.show_teams(self.book, now_ms)
        self.passes += 1

    def _take_in_nodes(self, changed: set[str], now_ms: int) -> None:
        """Put changed nodes into the book; new ones need a new book."""
        nodes, health = self.world.nodes.items, self.world.health.items
        known = self.book.pool.count
        ours = self.roll.enrol(changed, nodes)
        for name in ours:
            (self._silent.discard if self._heard(name) else self._silent.add)(name)
        grown = len(self.roll.names) > known
        records = list(self.book.pool.nodes)
        for name in self.roll.names[known:] + [one for one in ours if self.roll.numbers[one] < known]:
            number = self.roll.numbers[name]
            before = records[number] if number < known else None
            record = self.roll.record(name, nodes.get(name), health.get(name), before, now_ms)
            if number >= known:
                records.append(record)
            elif record != before:
                records[number] = record
                if not grown:
                    self.book.put(record, now_ms)
        if grown:
            self.book = ClusterState(replace(self.book.snapshot(), nodes=tuple(records)))
            for entry in [self.entries[name] for name in sorted(self._unfit) if name in self.entries]:
                self._put(entry, now_ms)

    def _heard(self, name: str) -> bool:
        seen = self.world.nodes.items.get(name)
        return seen is not None and seen.ready

    def hear(self, report: PodReport) -> bool:
        """Take in what a pod reports; returns whether it belongs to a job that we know."""
        entry = self.entries.get(report.job)
        if entry is None or entry.seen.uid != report.uid or report.node not in self.roll.numbers:
            return False
        self._reports.append(report)
        self.touch(report.job)
        return True

    def _take_in_reports(self, now_ms: int) -> None:
        """Put what pods, tests and silence have shown into the book."""
        while self._reports:
            one = self._reports.pop(0)
            entry = self.entries.get(one.job)
            if entry is not None and one.checkpoint_ms is not None and entry.record.state is JobState.RUNNING:
                self._set(entry, checkpointed(entry.record, one.checkpoint_ms), now_ms)
            if one.seen:
                self.book.put(witnessed(self.book.pool.nodes[self.roll.numbers[one.node]], *one.seen), now_ms)
        pool = self.book.pool
        looked_at = {node.name: node for node in (pool.nodes[number] for number in sorted(pool.watched))}
        for name, report in list(self.tests.reports(self._heard, looked_at, now_ms)):
            node = witnessed(looked_at[name], report)
            self.book.put(node, now_ms)
            self._carrier.show_node(node, report.text)

    def _take_in_team(self, name: str, now_ms: int) -> None:
        seen = self.world.teams.items.get(name)
        if seen is not None and seen.body is not None:
            self.book.put(Team(name, seen.body.quota, seen.body.most), now_ms)
        elif name in self.book.shares.index:
            # A team that has gone keeps what runs and gets no more.
            self.book.put(Team(name, 0, 0), now_ms)

    def _take_in_job(self, job_id: str, now_ms: int) -> None:
        seen = self.world.jobs.items.get(job_id)
        entry = self.entries.get(job_id)
        if entry is not None and (seen is None or seen.uid != entry.seen.uid):
            del self.entries[job_id]
            self.book.drop(job_id, now_ms)
            self.book.ended.pop(job_id, None)
            self._unfit.discard(job_id)
            entry = None
        if seen is not None and seen.body is None:
            # What runs goes on as it was asked for before it was spoilt.
            if entry is None:
                self._carrier.refuse(seen, now_ms)
            seen = None if entry is None else entry.seen
        if seen is not None:
            entry = self._meet(seen, entry, now_ms)
            self._observe(entry, now_ms)
        self._haunt(job_id, entry, now_ms)

    def _meet(self, seen: ObservedJob, entry: JobEntry | None, now_ms: int) -> JobEntry:
        """Join what the server holds with what was decided."""
        if entry is None:
            for name in seen.placed.nodes if seen.placed else ():
                if self._know(name) >= self.book.pool.count:
                    self._take_in_nodes({name}, now_ms)
            entry = self._restore(seen, now_ms)
        elif not entry.writing and _newer(seen.version, entry.seen.version):
            if seen.record != entry.seen.record or seen.placed != entry.seen.placed:
                _LOG.warning("%s: somebody else has changed its status; theirs counts", seen.id)
                entry = self._restore(seen, now_ms)
            else:
                entry.seen = seen
                asked = _asked(entry.record, seen)
                if asked != entry.record:
                    self._set(entry, asked, now_ms)
        if seen.cancelled and entry.record.state not in ENDED and entry.record.ending != "cancelled":
            self._cancel(entry, seen.cancelled, now_ms)
        return entry

    def _restore(self, seen: ObservedJob, now_ms: int) -> JobEntry:
        """Take up a job as its status tells it, and what its pods have shown since."""
        entry = self.entries[seen.id] = restore(seen, self.roll.numbers)
        self._live.add(seen.id)
        after = None
        if entry.record.state in HOLDING:
            entry.standing = count_pods(seen.owner, entry.placed, self.world.pods_by_job(seen.id))
            after = let_go(entry.record, entry.standing, now_ms)
        self._set(entry, after or entry.record, now_ms)
        return entry

    def _put(self, entry: JobEntry, now_ms: int) -> None:
        """Tell the book of a job; one that no node is large enough for is kept out of it."""
        record = entry.record
        gpus, largest = record.gang.gpus_per_node, self.book.pool.largest
        if record.state is JobState.WAITING and gpus > largest:
            self.book.drop(record.id, now_ms)
            self._unfit.add(record.id)
            entry.why = f"it asks for {gpus} GPUs on a node; the largest has {largest}"
            return
        self._unfit.discard(record.id)
        self.book.drop(record.id, now_ms)
        if record.placement is not None:
            lost = crowded(self.book.pool, record.placement.nodes, record.placement.gpus_per_node)
            if lost:
                _LOG.warning("%s: %d of its nodes are another job's; it leaves", record.id, len(lost))
                entry.why = "others were on its nodes"
                record = entry.record = evicted(record, lost, now_ms)
        self.book.put(record, now_ms)

    def _set(self, entry: JobEntry, record: Job, now_ms: int) -> None:
        """Take a new record of a job as true; a job that holds nothing has no place."""
        entry.record = record
        self._live.add(entry.seen.id)
        if record.state not in HOLDING:
            entry.placed = None
        self._put(entry, now_ms)

    def _cancel(self, entry: JobEntry, by: str, now_ms: int) -> None:
        entry.why = f"called off by {by}"
        record = entry.record
        if record.holds:
            self._set(entry, replace(record, state=JobState.STOPPING, ending="cancelled", leave_by_ms=now_ms), now_ms)
        else:
            self._set(entry, ended(record, JobState.CANCELLED), now_ms)

    def _observe(self, entry: JobEntry, now_ms: int) -> None:
        """Say what a job's pods have come to; only of decisions that are written down."""
        if entry.writing or not entry.durable or entry.record.state in ENDED or self._too_soon(entry):
            return
        entry.looked_at = time.monotonic()
        record, pods = entry.record, self.world.pods_by_job(entry.seen.id)
        count = entry.standing = count_pods(entry.seen.owner, entry.placed, pods)
        seen = self.world.pods_of.get(entry.seen.id, {})
        for name in [name for name in entry.made if name in seen and seen[name].node]:
            del entry.made[name]
        after = let_go(record, count, now_ms)
        if after is not None:
            entry.why = "" if after.state is JobState.DONE else entry.why
            entry.standing = count if after.state is JobState.DONE else replace(count, bound=0, running=0)
            self._set(entry, after, now_ms)
            return
        match record.state:
            case JobState.STARTING | JobState.RUNNING if count.failed:
                self._failed(entry, now_ms)
            case JobState.STARTING if count.running + count.succeeded == count.wanted:
                self._set(entry, replace(record, state=JobState.RUNNING), now_ms)
            case JobState.RUNNING if len([pod for pod in pods if pod.owner == entry.seen.uid]) < count.wanted:
                entry.why = "a pod of it was taken away"
                self._leave(entry, "requeue", now_ms)
            case _:
                pass

    def _too_soon(self, entry: JobEntry) -> bool:
        """Say whether a large gang was looked at a moment ago: a look costs as much as it has pods."""
        wanted = len(entry.placed.nodes) if entry.placed else 0
        return wanted > _LARGE and time.monotonic() - entry.looked_at < wanted / 20_000

    def _leave(self, entry: JobEntry, ending: Any, now_ms: int) -> None:
        record = replace(entry.record, state=JobState.STOPPING, ending=ending, leave_by_ms=now_ms)
        self._set(entry, record, now_ms)

    def _failed(self, entry: JobEntry, now_ms: int) -> None:
        """Take up that a pod ended badly: its node's fault is not counted, its own only as often as it may fail."""
        # Those that only say that the others have gone are not the cause.
        first = min(entry.standing.failed, key=lambda pod: (pod.code == _LOST, pod.rank))
        seen = self.world.nodes.items.get(first.node)
        if first.code == _LOST or first.reason in _LEFT_BY_NODE or seen is None or not seen.ready or seen.sick:
            entry.why = f"node {first.node} was lost"
            self._leave(entry, "requeue", now_ms)
            return
        how = (
            f"rank {first.rank} ended with status {first.code}"
            if first.code is not None
            else f"rank {first.rank} failed"
        )
        entry.why = how
        body = entry.seen.body
        if body is not None and entry.restarts < body.restarts:
            entry.restarts += 1
            self._leave(entry, "requeue", now_ms)
        else:
            self._leave(entry, "failed", now_ms)

    def _haunt(self, job_id: str, entry: JobEntry | None, now_ms: int) -> None:
        """Pods whose job has gone still hold their nodes; they are shown to decisions until they have left."""
        ghost = f"{job_id}@gone"
        others = set(self.world.owners_of.get(job_id, ())) - ({entry.seen.uid} if entry else set())
        if not others and ghost not in self._ghosts:
            return
        pods = [pod for pod in self.world.pods_by_job(job_id) if entry is None or pod.owner != entry.seen.uid]
        nodes = sorted({self._know(pod.node) for pod in pods if pod.node and not pod.over})
        if nodes and max(nodes) >= self.book.pool.count:
            self._take_in_nodes({self.roll.names[number] for number in nodes}, now_ms)
        there = self.world.jobs.items.get(job_id)
        self._carrier.clear(job_id, [pod for pod in pods if there is None or pod.owner != there.uid])
        if not nodes:
            if ghost in self._ghosts:
                del self._ghosts[ghost]
                self.book.drop(ghost, now_ms)
            return
        each = max(pod.gpus for pod in pods)
        self.book.drop(ghost, now_ms)
        full = crowded(self.book.pool, nodes, each)
        nodes = [number for number in nodes if number not in full]
        placement = Placement(tuple(nodes), each)
        record = Job(ghost, Gang(len(nodes), each), now_ms, state=JobState.STOPPING, placement=placement,
                     start_ms=now_ms, ending="cancelled", leave_by_ms=now_ms)  # fmt: skip
        self._ghosts[ghost] = record
        self.book.put(record, now_ms)

    def _take_up(self, action: Action, now_ms: int) -> None:
        """Note what was decided; the book has taken it as done already."""
        if (job := getattr(action, "job", None)) is not None:
            self._live.add(job)
        match action:
            case Bind() | Replace() | Resize():
                entry = self.entries[action.job]
                # Whoever gets other nodes has to start on them, too.
                entry.record = replace(self.book.jobs[action.job], state=JobState.STARTING)
                entry.placed = placed_by(action, entry.record, entry, self.roll.names)
                self.book.put(entry.record, now_ms)
                entry.why, entry.expected_ms = "", None
                self._carrier.tell(entry.seen, "Placed", f"{len(entry.placed.nodes)} nodes ({_why(action)})")
            case Preempt() | Stop():
                self._take_up_leaving(action)
            case Wait():
                entry = self.entries[action.job]
                entry.record = self.book.jobs[action.job]
                entry.why, entry.expected_ms = action.text, action.expected_ms
            case RunTest():
                self.tests.begin(self.roll.names[action.node], action.program)
            case Quarantine() | Drain() | Move() | Degrade():
                self._carrier.show_node(self.book.pool.nodes[action.node], action.reason)
            case Alarm():
                self.alarms.pop(action.kind, None)
                if action.on:
                    self.alarms[action.kind] = action.text
                _LOG.warning("alarm %s %s: %s", action.kind, "on" if action.on else "off", action.text)
            case _:
                _LOG.debug("%s", action)

    def _take_up_leaving(self, action: Preempt | Stop) -> None:
        if action.job in self._ghosts:
            return
        entry = self.entries[action.job]
        after = self.book.jobs.get(action.job)
        if after is None:
            assert isinstance(action, Stop), "only a job that is stopped leaves the book"
            after = ended(entry.record, JobState(action.ending))
        entry.record = after
        if after.state in ENDED:
            entry.placed = None
        entry.why = action.reason
        self._carrier.tell(entry.seen, type(action).__name__, action.reason)


def _why(action: Bind | Replace | Resize) -> str:
    match action:
        case Bind():
            return action.why or "order"
        case Replace():
            return f"{len(action.lost)} replaced"
        case Resize():
            return action.reason


def _newer(version: str, than: str) -> bool:
    return not (version.isdigit() and than.isdigit()) or int(version) > int(than)


def _asked(record: Job, seen: ObservedJob) -> Job:
    """Return a record with what its owner asks for now, as far as that may change while it lives."""
    fresh = record_of(seen)
    return replace(record, priority=fresh.priority, limit_ms=fresh.limit_ms, team=fresh.team, after=fresh.after,
                   gang=fresh.gang if record.state not in HOLDING else record.gang)  # fmt: skip
