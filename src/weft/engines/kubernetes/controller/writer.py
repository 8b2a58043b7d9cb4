"""Carries decisions out: the status first, then pods, taints and events, each at most once at a time.

What a pass hands over is compared with what the server is known to hold, and the difference is put into `lanes`. Every
piece reports back by touching its job, so that the next pass looks again. Nothing here decides.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Iterable, Set
from typing import Any

from weft.cluster.records.job import HOLDING, JobState
from weft.cluster.records.node import Node, NodeState
from weft.cluster.scheduling.state import ClusterState
from weft.core.errors import LimitReachedError, WeftError
from weft.engines.kubernetes.api.api_client import ApiClient, ApiError
from weft.engines.kubernetes.api.resources import (
    EVENTS,
    HEALTH,
    JOB_LABEL,
    JOBS,
    NODES,
    PODS,
    SCHEDULER,
    SICK_TAINT,
    STATE_LABEL,
    TEAMS,
    Resource,
)
from weft.engines.kubernetes.controller.cache import ClusterCache
from weft.engines.kubernetes.controller.claims import full
from weft.engines.kubernetes.controller.gangs import Make, Remove, Step, steps
from weft.engines.kubernetes.controller.lanes import Lanes
from weft.engines.kubernetes.controller.ledger import JobEntry, difference, refused, status_of
from weft.engines.kubernetes.controller.node_index import durable_part
from weft.engines.kubernetes.controller.observed import ObservedJob, ObservedPod, Owner, Placed, observe_job, timestamp
from weft.engines.kubernetes.controller.pod_template import PodContext, pod

_LOG = logging.getLogger(__name__)
_SHOW_S = 5.0
_AGAIN_S = 0.1
_TRIES = 20
_UNSEEN_S = 30.0
_BUDGET_S = 5.0
_LONGEST_S = 30.0
_LARGE = 1000
_OUT = frozenset(NodeState) - {NodeState.READY, NodeState.SUSPECT}


class ClusterWriter:
    """The engine's hands."""

    def __init__(
        self, client: ApiClient, lanes: Lanes, world: ClusterCache, touch: Callable[[str], None], *,
        aggregator: str = "", teams_s: float = 10.0,
    ) -> None:  # fmt: skip
        """Write through `lanes`; call `touch` with the job that something was done for."""
        self._teams_s = teams_s
        self._client, self._lanes, self._world, self._touch = client, lanes, world, touch
        self._aggregator = aggregator
        self._clearing: set[str] = set()
        self._refusing: dict[str, str] = {}
        self._teams_at = 0.0
        self._events = 0
        self.made = self.removed = 0

    def carry_on(self, entry: JobEntry, now_ms: int, given: Set[str] = frozenset()) -> None:
        """Do what is next for a job: write its status, or move its pods to where it says.

        Nodes in `given` are about to be given up by others; nobody's claim on them is written before that is.
        """
        if entry.writing or time.monotonic() < entry.again_at:
            return
        durable = entry.durable
        if not durable and entry.placed is not None and not given.isdisjoint(entry.placed.nodes):
            return
        if not durable or time.monotonic() - entry.shown_at > _SHOW_S:
            changed = difference(status_of(entry, now_ms), entry.seen)
            entry.shown_at = time.monotonic()
            if changed:
                self._write(entry, changed)
        if durable and not entry.writing and not self._too_soon(entry):
            self._move(entry, now_ms)

    def _too_soon(self, entry: JobEntry) -> bool:
        """Say whether the pods of a large gang were compared a moment ago: that costs as much as it has pods."""
        size = len(entry.placed.nodes) if entry.placed else 0
        if size > _LARGE and time.monotonic() - entry.moved_at < size / 20_000:
            return True
        entry.moved_at = time.monotonic()
        return False

    def _write(self, entry: JobEntry, changed: dict[str, Any]) -> None:
        """Write down what was decided, if nobody else has written meanwhile."""
        entry.writing = True
        entry.shown_at = time.monotonic()
        record = entry.record

        async def work() -> None:
            seen = entry.seen
            try:
                body = {"metadata": {"resourceVersion": seen.version}, "status": changed}
                entry.seen = observe_job(await self._client.patch(JOBS, seen.name, body, seen.namespace, part="status"))
                entry.saved = record
                if entry.placed == entry.seen.placed:
                    # One object from here on, so that to compare a large gang's place costs nothing.
                    entry.placed = entry.seen.placed
            except ApiError as error:
                # Somebody was quicker, or it has gone: the watch brings what stands there now.
                if not (error.conflict or error.missing):
                    raise
                await asyncio.sleep(_AGAIN_S)
            except WeftError:
                _back_off(entry)
                raise
            finally:
                entry.writing = False
                self._touch(seen.id)

        self._lanes.put(f"{entry.seen.id}#status", work)

    def _move(self, entry: JobEntry, now_ms: int) -> None:
        record, seen = entry.record, entry.seen
        silent = {name for name in self._nodes_of(entry) if not self._heard(name)}
        elapsed_ms = now_ms - record.start_ms if record.start_ms is not None else 0
        pods = self._world.pods_by_job(seen.id)
        unseen = time.monotonic() - _UNSEEN_S
        todo = steps(seen.owner, record.state, entry.placed, pods, silent, elapsed_ms=elapsed_ms)
        for step in todo:
            if step.pod in entry.busy or entry.made.get(step.pod, 0.0) > unseen or self._taken(entry, step):
                continue
            entry.busy.add(step.pod)
            self._lanes.put(seen.id, self._piece(entry, step, now_ms))

    def _taken(self, entry: JobEntry, step: Step) -> bool:
        """Say whether a pod has to wait for others that have not left its node yet."""
        if isinstance(step, Remove) or entry.placed is None:
            return False
        there, node = self._world.pods_on.get(step.node), self._world.nodes.items.get(step.node)
        if there is None or node is None:
            return False
        return full(there.values(), step.pod, entry.placed.gpus_per_node, node.gpus)

    def _nodes_of(self, entry: JobEntry) -> set[str]:
        return {pod.node for pod in self._world.pods_by_job(entry.seen.id) if pod.node}

    def _heard(self, name: str) -> bool:
        node = self._world.nodes.items.get(name)
        return node is not None and node.ready

    def _piece(self, entry: JobEntry, step: Step, now_ms: int) -> Any:
        placed, state = entry.placed, entry.record.state

        async def work() -> None:
            try:
                # What was true when this was put into its line may have changed since.
                if entry.placed != placed or entry.record.state is not state or not entry.durable:
                    return
                match step:
                    case Make():
                        await self._make(entry, step, placed)
                    case Remove():
                        await self._remove(entry, step, now_ms)
                entry.failures = 0
            except WeftError:
                _back_off(entry)
                raise
            finally:
                entry.busy.discard(step.pod)
                if not entry.busy:
                    self._touch(entry.seen.id)

        return work

    async def _make(self, entry: JobEntry, step: Make, placed: Placed | None) -> None:
        seen = entry.seen
        assert placed is not None, "pods are made for a placement"
        assert seen.body is not None, "pods are made for a job that can be read"
        if step.node not in self._world.nodes.items:
            # The server would take a pod for a node that does not exist.
            return
        if step.place == 0 and len(placed.nodes) > 1:
            await self._protect(seen.owner)
        addresses = {name: node.address for name in (placed.nodes[0],) if (node := self._world.nodes.items.get(name))}
        body = pod(seen.owner, seen.body, placed, step.place, PodContext(addresses, self._aggregator))
        try:
            await self._client.create(PODS, body, seen.namespace)
        except ApiError as error:
            if error.conflict:
                return
            raise
        self.made += 1
        entry.made[step.pod] = time.monotonic()

    async def _remove(self, entry: JobEntry, step: Remove, now_ms: int) -> None:
        record = entry.record
        grace_s: int | None = 0 if step.at_once else None
        if record.state is JobState.ASKED and record.leave_by_ms is not None and not step.at_once:
            grace_s = max(1, (record.leave_by_ms - now_ms) // 1000)
        if record.kind == "service" and record.ending != "cancelled" and not step.at_once:
            # A service yields under the budgets that its owner has set; a gang goes as a whole or not at all.
            wait_s = await self._client.evict(entry.seen.namespace, step.pod, step.uid, grace_s)
            await asyncio.sleep(min(wait_s or 0.0, _BUDGET_S))
            self.removed += wait_s is None
            return
        self.removed += await self._client.delete(PODS, step.pod, entry.seen.namespace, uid=step.uid, grace_s=grace_s)

    async def _protect(self, owner: Owner) -> None:
        """Keep others from evicting a part of a gang: what is lost of it is lost as a whole."""
        budgets = await self._client.budgets()
        reference = {"apiVersion": JOBS.api_version, "kind": JOBS.kind, "name": owner.job, "uid": owner.uid}
        body = {
            "apiVersion": budgets.api_version, "kind": budgets.kind,
            "metadata": {"name": owner.job, "namespace": owner.namespace, "ownerReferences": [reference]},
            "spec": {"maxUnavailable": 0, "selector": {"matchLabels": {JOB_LABEL: owner.job}}},
        }  # fmt: skip
        await self._client.apply(budgets, body, owner.namespace)

    def clear(self, job_id: str, pods: Iterable[ObservedPod]) -> None:
        """Remove pods whose job has gone."""
        for one in pods:
            if one.uid in self._clearing or (one.leaving and self._heard(one.node)):
                continue
            self._clearing.add(one.uid)
            self._lanes.put(job_id, self._clearance(job_id, one))

    def _clearance(self, job_id: str, one: ObservedPod) -> Any:
        async def work() -> None:
            try:
                # A pod that was never bound has no node to end it on; a silent node ends nothing either.
                grace_s = None if one.node and self._heard(one.node) else 0
                await self._client.delete(PODS, one.name, one.namespace, uid=one.uid, grace_s=grace_s)
            finally:
                self._clearing.discard(one.uid)
                self._touch(job_id)

        return work

    def refuse(self, seen: ObservedJob, now_ms: int) -> None:
        """Say in a job's status why it can not be read, once for each time that it is changed."""
        if seen.status.get("state") == "refused" and seen.status.get("why") == seen.problem:
            return
        if self._refusing.get(seen.uid) == seen.version:
            return
        self._refusing[seen.uid] = seen.version

        async def work() -> None:
            await self._client.patch(JOBS, seen.name, {"status": refused(seen, now_ms)}, seen.namespace, part="status")

        self._lanes.put(f"{seen.id}#status", work)

    def show_node(self, node: Node, reason: str) -> None:
        """Write down where a node stands in its life, then mark the node itself."""

        async def work() -> None:
            record = durable_part(node)
            meta = {"apiVersion": HEALTH.api_version, "kind": HEALTH.kind, "metadata": {"name": node.name}}
            await self._client.apply(HEALTH, {**meta, "spec": {}})
            status = {"state": str(node.state), "since": timestamp(node.since_ms), "reason": reason, "record": record}
            await self._client.apply(HEALTH, {**meta, "status": status}, part="status")
            await self._mark(node)
            self._event(NODES, node.name, "", "default", (str(node.state).capitalize(), reason))

        self._lanes.put(f"node/{node.name}", work)

    async def _mark(self, node: Node) -> None:
        """Put our taint on a node that is out, or take it off; other people's taints stay."""
        for _ in range(_TRIES):
            there = self._world.nodes.items.get(node.name)
            if there is None:
                return
            # The list of taints is replaced as a whole, so it must be the one that was seen.
            wanted = [one for one in there.taints if one[0] != SICK_TAINT]
            wanted += [(SICK_TAINT, str(node.state), "NoSchedule")] if node.state in _OUT else []
            taints = [
                {"key": key, "effect": effect, **({"value": value} if value else {})} for key, value, effect in wanted
            ]
            meta = {"resourceVersion": there.version, "labels": {STATE_LABEL: str(node.state)}}
            try:
                await self._client.patch(NODES, node.name, {"metadata": meta, "spec": {"taints": taints}})
            except ApiError as error:
                if error.missing:
                    return
                if not error.conflict:
                    raise
                await asyncio.sleep(_AGAIN_S)
            else:
                return
        raise LimitReachedError(f"node {node.name} changes faster than it can be marked; {_TRIES} tries were too few")

    def show_teams(self, book: ClusterState, now_ms: int) -> None:
        """Say now and then what each team holds, where that has changed."""
        del now_ms
        if time.monotonic() - self._teams_at < self._teams_s:
            return
        self._teams_at = time.monotonic()
        waiting: dict[str, int] = {}
        for job in book.jobs.values():
            if job.state not in HOLDING:
                waiting[job.team] = waiting.get(job.team, 0) + 1
        for name, seen in self._world.teams.items.items():
            if name not in book.shares.index:
                continue
            status = {"gpus": int(book.shares.held[book.shares.index[name]]), "waiting": waiting.get(name, 0)}
            if {key: seen.status.get(key) for key in status} != status:
                self._lanes.put(f"team/{name}", self._team(name, status))

    def _team(self, name: str, status: dict[str, int]) -> Any:
        async def work() -> None:
            await self._client.patch(TEAMS, name, {"status": status}, part="status")

        return work

    def tell(self, seen: ObservedJob, reason: str, message: str) -> None:
        """Write an event about a job."""
        self._event(JOBS, seen.name, seen.uid, seen.namespace, (reason, message))

    def _event(self, resource: Resource, name: str, uid: str, namespace: str, what: tuple[str, str]) -> None:
        self._events += 1
        at = timestamp(int(time.time() * 1000))
        reason, message = what
        about = {"apiVersion": resource.api_version, "kind": resource.kind, "name": name, "uid": uid,
                 **({"namespace": namespace} if resource.namespaced else {})}  # fmt: skip
        body = {
            "apiVersion": "v1", "kind": "Event", "type": "Normal", "count": 1,
            "metadata": {"name": f"{name}.{time.time_ns():x}.{self._events:x}", "namespace": namespace},
            "involvedObject": about, "reason": reason, "message": message, "firstTimestamp": at, "lastTimestamp": at,
            "source": {"component": SCHEDULER}, "reportingComponent": SCHEDULER, "reportingInstance": SCHEDULER,
        }  # fmt: skip

        async def work() -> None:
            await self._client.create(EVENTS, body, namespace)

        self._lanes.put("events", work)


def _back_off(entry: JobEntry) -> None:
    """Wait longer and longer before anything is tried again for a job for which something fails."""
    entry.failures += 1
    entry.again_at = time.monotonic() + min(_LONGEST_S, _AGAIN_S * 2**entry.failures)
