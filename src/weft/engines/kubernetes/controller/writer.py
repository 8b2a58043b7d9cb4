"""Carries out what a pass wants written: status, pods, taints and events, each at most once at a time.

Every piece goes through `lanes` and reports back by touching its job, so that the next pass looks again. Nothing here
decides.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from http import HTTPStatus
from typing import Any

from weft.cluster.records.job import JobState
from weft.cluster.records.node import Node, NodeState
from weft.core.errors import LimitReachedError, WeftError
from weft.engines.health.outbox import WebhookOutbox
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
from weft.engines.kubernetes.controller.controller_state import (
    ClearPod,
    ControllerState,
    MarkNode,
    MovePod,
    RefuseJob,
    SendTicket,
    TellEvent,
    Write,
    WriteStatus,
    WriteTeam,
)
from weft.engines.kubernetes.controller.gangs import Make, Remove
from weft.engines.kubernetes.controller.lanes import Lanes
from weft.engines.kubernetes.controller.ledger import JobEntry
from weft.engines.kubernetes.controller.node_index import durable_part
from weft.engines.kubernetes.controller.observed import Owner, observe_job, timestamp
from weft.engines.kubernetes.controller.pod_template import PodContext, pod
from weft.engines.kubernetes.controller.workload_gangs import PlacePod, Prepare, Release, Suspend
from weft.engines.kubernetes.controller.workload_writer import WorkloadWriter
from weft.engines.kubernetes.controller.workloads import RefuseWorkload, WorkloadWrite

_LOG = logging.getLogger(__name__)
_AGAIN_S = 0.1
_TRIES = 20
_BUDGET_S = 5.0
_LONGEST_S = 30.0
_INVALID = (HTTPStatus.BAD_REQUEST, HTTPStatus.UNPROCESSABLE_ENTITY)
_OUT = frozenset(NodeState) - {NodeState.READY, NodeState.SUSPECT}


class ClusterWriter:
    """Writes to the API server through `lanes`."""

    def __init__(
        self, client: ApiClient, lanes: Lanes, cache: ClusterCache, state: ControllerState, *,
        touch: Callable[[str], None], now_ms: Callable[[], int],
    ) -> None:  # fmt: skip
        """Write with `client`; call `touch` with the job that something was done for."""
        self._client, self._lanes, self._cache, self._state = client, lanes, cache, state
        self._touch, self._now_ms = touch, now_ms
        self._events = 0
        self.made = self.removed = 0
        self.tickets: WebhookOutbox | None = None
        """Where tickets go, where somebody wants them."""
        self._workloads = WorkloadWriter(client, lambda: cache.workloads.view, self._protect, now_ms)

    def perform(self, write: Write) -> None:
        """Put a write at the end of its line; those of one line are done one after the other."""
        match write:
            case WriteStatus():
                self._lanes.put(f"{write.entry.seen.id}#status", lambda: self._status(write))
            case MovePod():
                self._lanes.put(write.entry.seen.id, self._mover(write))
            case ClearPod():
                self._lanes.put(write.job_id, lambda: self._clear(write))
            case RefuseJob():
                self._lanes.put(f"{write.seen.id}#status", lambda: self._refuse(write))
            case MarkNode():
                self._lanes.put(f"node/{write.node.name}", lambda: self._node(write.node, write.reason))
            case WriteTeam():
                self._lanes.put(f"team/{write.name}", lambda: self._team(write))
            case SendTicket():
                self._ticket(write.document)
            case TellEvent():
                seen = write.seen
                self._event(JOBS, (seen.name, seen.uid, seen.namespace), write.reason, write.message)
            case _:
                self._lanes.put(f"{write.id}#workload", lambda: self._adopt(write))

    def _ticket(self, document: dict[str, Any]) -> None:
        _LOG.warning("ticket %s: %s: %s", document["id"], document["finding"], document["action"])
        if self.tickets is not None:
            self.tickets.put(document)

    async def _adopt(self, write: WorkloadWrite) -> None:
        """Write something about a workload that is not placed; what was said of it once is not said again."""
        done = False
        try:
            await self._workloads.perform(write)
            done = True
        finally:
            if not (done and isinstance(write, RefuseWorkload)):
                self._state.adopting.discard(write.key)
            self._touch(write.id)

    async def _status(self, write: WriteStatus) -> None:
        """Write down what was decided, if nobody else has written meanwhile."""
        entry = write.entry
        seen = entry.seen
        try:
            body = {"metadata": {"resourceVersion": seen.version}, "status": write.changed}
            entry.seen = observe_job(await self._client.patch(JOBS, seen.name, body, seen.namespace, part="status"))
            entry.saved = write.record
            if entry.placed == entry.seen.placed:
                # One object from here on, so that to compare a large gang's place costs nothing.
                entry.placed = entry.seen.placed
        except ApiError as error:
            # Somebody was quicker, or it has gone: the watch brings what stands there now.
            if not (error.conflict or error.missing):
                _back_off(entry)
                raise
            await asyncio.sleep(_AGAIN_S)
        except WeftError:
            _back_off(entry)
            raise
        finally:
            entry.writing = False
            self._touch(seen.id)

    def _mover(self, write: MovePod) -> Callable[[], Awaitable[None]]:
        entry, step = write.entry, write.step
        placed, state = entry.placed, entry.record.state

        async def work() -> None:
            try:
                # What was true when this was put into its line may have changed since.
                if entry.placed != placed or entry.record.state is not state or not entry.durable:
                    return
                if isinstance(step, Make):
                    await self._make(entry, step)
                elif isinstance(step, Remove):
                    await self._remove(entry, step, write.at_ms)
                else:
                    await self._step(entry, step)
                entry.failures = 0
            except WeftError:
                _back_off(entry)
                raise
            finally:
                entry.busy.discard(step.pod)
                if not entry.busy:
                    self._touch(entry.seen.id)

        return work

    async def _step(self, entry: JobEntry, step: PlacePod | Prepare | Release | Suspend) -> None:
        try:
            await self._workloads.step(entry, step)
        except ApiError as error:
            if error.status not in _INVALID:
                raise
            entry.rejected = error.message
        if isinstance(step, PlacePod):
            self.made += 1
            entry.made[step.pod] = asyncio.get_running_loop().time()

    async def _make(self, entry: JobEntry, step: Make) -> None:
        seen, placed, nodes = entry.seen, entry.placed, self._cache.nodes.items
        assert placed is not None, "pods are made for a placement"
        assert seen.body is not None, "pods are made for a job that can be read"
        if step.node not in nodes:
            # The server would take a pod for a node that does not exist.
            return
        if step.place == 0 and len(placed.nodes) > 1:
            await self._protect(seen.owner)
        addresses = {name: node.address for name in (placed.nodes[0],) if (node := nodes.get(name))}
        settings = self._state.settings
        context = PodContext(addresses, settings.aggregator, settings.image)
        try:
            await self._client.create(PODS, pod(seen.owner, seen.body, placed, step.place, context), seen.namespace)
        except ApiError as error:
            if error.conflict:
                return
            if error.status in _INVALID:
                # The pod itself is wrong, and will be the next time: its job fails with the server's words.
                entry.rejected = error.message
                return
            raise
        self.made += 1
        entry.made[step.pod] = asyncio.get_running_loop().time()

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

    async def _clear(self, write: ClearPod) -> None:
        one = write.pod
        try:
            grace_s = 0 if write.at_once else None
            await self._client.delete(PODS, one.name, one.namespace, uid=one.uid, grace_s=grace_s)
        finally:
            self._state.clearing.discard(one.uid)
            self._touch(write.job_id)

    async def _refuse(self, write: RefuseJob) -> None:
        seen = write.seen
        await self._client.patch(JOBS, seen.name, {"status": write.status}, seen.namespace, part="status")

    async def _node(self, node: Node, reason: str) -> None:
        """Write down where a node stands in its life, then mark the node itself."""
        meta = {"apiVersion": HEALTH.api_version, "kind": HEALTH.kind, "metadata": {"name": node.name}}
        await self._client.apply(HEALTH, {**meta, "spec": {}})
        status = {"state": str(node.state), "since": timestamp(node.since_ms), "reason": reason,
                  "record": durable_part(node)}  # fmt: skip
        await self._client.apply(HEALTH, {**meta, "status": status}, part="status")
        await self._mark(node)
        self._event(NODES, (node.name, "", "default"), str(node.state).capitalize(), reason)

    async def _mark(self, node: Node) -> None:
        """Put our taint on a node that is out, or take it off; other people's taints stay."""
        for _ in range(_TRIES):
            there = self._cache.nodes.items.get(node.name)
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

    async def _team(self, write: WriteTeam) -> None:
        await self._client.patch(TEAMS, write.name, {"status": write.status}, part="status")

    def _event(self, resource: Resource, about: tuple[str, str, str], reason: str, message: str) -> None:
        """Write an event about an object, given by its name, uid and namespace."""
        self._events += 1
        now_ms = self._now_ms()
        at, (name, uid, namespace) = timestamp(now_ms), about
        subject = {"apiVersion": resource.api_version, "kind": resource.kind, "name": name, "uid": uid,
                   **({"namespace": namespace} if resource.namespaced else {})}  # fmt: skip
        body = {
            "apiVersion": "v1", "kind": "Event", "type": "Normal", "count": 1,
            "metadata": {"name": f"{name}.{now_ms:x}.{self._events:x}", "namespace": namespace},
            "involvedObject": subject, "reason": reason, "message": message, "firstTimestamp": at, "lastTimestamp": at,
            "source": {"component": SCHEDULER}, "reportingComponent": SCHEDULER, "reportingInstance": SCHEDULER,
        }  # fmt: skip

        async def work() -> None:
            await self._client.create(EVENTS, body, namespace)

        self._lanes.put("events", work)


def _back_off(entry: JobEntry) -> None:
    """Wait longer and longer before anything is tried again for a job for which something fails."""
    entry.failures += 1
    entry.again_at = asyncio.get_running_loop().time() + min(_LONGEST_S, _AGAIN_S * 2**entry.failures)
