"""The controller's loop: it keeps the caches true, runs `reconcile` on them, and hands its answers to the writer.

The shell around the pure part: all waiting, clocks and tasks are here. A pass never waits for the server; a decision
that could not be written is taken back by what the server holds instead.
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Iterable
from typing import Any

from weft.cluster.health.remedies import orders
from weft.cluster.records.effects import IN_SERVICE
from weft.cluster.scheduling.state import ClusterState
from weft.engines.decision_log import DecisionLog
from weft.engines.kubernetes.api.api_client import ApiClient
from weft.engines.kubernetes.controller.cache import ClusterCache
from weft.engines.kubernetes.controller.controller_state import ControllerState
from weft.engines.kubernetes.controller.lanes import Lanes
from weft.engines.kubernetes.controller.ledger import JobEntry
from weft.engines.kubernetes.controller.observed import PodReport
from weft.engines.kubernetes.controller.reconcile import load, reconcile
from weft.engines.kubernetes.controller.settings import Now, Settings, system_ms
from weft.engines.kubernetes.controller.writer import ClusterWriter
from weft.engines.policy_file import PolicyFile

_LOG = logging.getLogger(__name__)


class KubernetesEngine:
    """Carries `weft.cluster`'s decisions out on a cluster."""

    def __init__(
        self, client: ApiClient, settings: Settings | None = None, now_ms: Callable[[], int] = system_ms
    ) -> None:
        """Prepare."""
        self.settings = settings or Settings()
        self.client = client
        self.cache = ClusterCache(client, self.settings.pool, self.settings.namespace, self.settings.silence_s)
        self.lanes = Lanes(self.settings.width, self.settings.width // 4, self.settings.rate_per_s)
        self.state = ControllerState(self.settings)
        self.writer = ClusterWriter(client, self.lanes, self.cache, self.state, touch=self.touch, now_ms=now_ms)
        self._now_ms = now_ms
        self._policy = None if self.settings.policy_file is None else PolicyFile(self.settings.policy_file, _LOG.error)
        self._log = None if self.settings.decisions is None else DecisionLog(self.settings.decisions)
        self._touched: set[str] = set()
        self._reports: list[PodReport] = []

    @property
    def entries(self) -> dict[str, JobEntry]:
        """Return what was decided for each job."""
        return self.state.entries

    @property
    def cluster(self) -> ClusterState:
        """Return the scheduler's state."""
        return self.state.cluster

    def touch(self, job_id: str) -> None:
        """Ask for a look at a job in the next pass."""
        self._touched.add(job_id)
        self.cache.wake.set()

    def hear(self, report: PodReport) -> bool:
        """Take in what a pod reports; returns whether it belongs to a job that we know."""
        entry = self.entries.get(report.job)
        if entry is None or entry.seen.uid != report.uid or report.node not in self.state.node_index.numbers:
            return False
        self._reports.append(report)
        self.touch(report.job)
        return True

    def hear_agent(self, report: PodReport) -> bool:
        """Take in what a node's health agent reports; returns whether the node is of our pool."""
        if report.node not in self.state.node_index.numbers:
            return False
        self.state.tests.agents[report.node] = self._now().s
        if report.seen:
            self._reports.append(report)
            self.cache.wake.set()
        return True

    def orders(self, node: str) -> list[dict[str, Any]]:
        """Return what a node's agent is to do now: what its repair calls for, once the node is empty."""
        number = self.state.node_index.numbers.get(node)
        pool = self.state.cluster.pool
        if number is None or number >= pool.count:
            return []
        return [each.as_json() for each in orders(pool.nodes[number], empty=not pool.taken[number])]

    def is_out(self, node: str) -> bool:
        """Return whether a node is out of service, so that its agent may be ordered something soon."""
        number = self.state.node_index.numbers.get(node)
        pool = self.state.cluster.pool
        return number is not None and number < pool.count and pool.nodes[number].state not in IN_SERVICE

    async def run(self) -> None:
        """Run until cancelled, or until the server refuses what the engine cannot do without."""
        caches = [*self.cache.reflectors, self.cache.workloads]
        await first_of([*(one.run() for one in caches), self.lanes.run(), self._loop()])

    async def look(self) -> None:
        """Fill the caches once and load the state from them, without deciding or writing anything."""
        await asyncio.gather(*(one.fill() for one in self.cache.reflectors))
        load(self.cache.observation(set()), self.state, self._now())

    async def _loop(self) -> None:
        await self.cache.synced()
        while True:
            with contextlib.suppress(TimeoutError):
                # Not wait_for: in Python 3.11 it may swallow a cancellation that comes together with the event.
                async with asyncio.timeout(self.settings.heart_s):
                    await self.cache.wake.wait()
                await asyncio.sleep(self.settings.pass_s)
            self.cache.wake.clear()
            self.one_pass()

    def one_pass(self) -> None:
        """Reconcile once and hand what is to be written over."""
        if self._policy is not None and (spec := self._policy.changed()) is not None:
            self.state.take_policy(spec)
            _LOG.info("policy read: %s", spec.description or self._policy.path)
        touched, self._touched = self._touched, set()
        reports = tuple(self._reports)
        self._reports.clear()
        began = time.perf_counter()
        writes = reconcile(self.cache.observation(touched, reports), self.state, self._now())
        self.state.measures.passes.add(time.perf_counter() - began)
        for write in writes:
            self.writer.perform(write)
        lines = list(self.state.lines)
        self.state.lines.clear()
        log = self._log
        if log is not None and any([log.take(each, self._now_ms()) for each in lines]):  # noqa: C419 - all are written
            self.state.cluster.begin_log()

    def _now(self) -> Now:
        return Now(self._now_ms(), asyncio.get_running_loop().time())


async def first_of(works: Iterable[Any]) -> None:
    """Run coroutines together until the first of them ends or fails; the others are cancelled."""
    tasks = [asyncio.create_task(work) for work in works]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
