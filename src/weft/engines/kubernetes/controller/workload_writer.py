"""Carries out what a pass wants written for workloads of other controllers. Nothing here decides.

Every write is guarded by a version or a uid, or does the same when it is done twice: the next pass may ask for it again
before the watch has shown it.
"""

import hashlib
from collections.abc import Awaitable, Callable
from typing import Any

from weft.engines.kubernetes.api.api_client import ApiClient, ApiError
from weft.engines.kubernetes.api.resources import EVENTS, GATE, HOST_LABEL, JOBS, PODS, RANK_LABEL, SCHEDULER
from weft.engines.kubernetes.api.workload_kinds import is_prepared, prepared
from weft.engines.kubernetes.controller.ledger import JobEntry
from weft.engines.kubernetes.controller.observed import Owner, timestamp
from weft.engines.kubernetes.controller.workload_gangs import PlacePod, Prepare, Release, Suspend
from weft.engines.kubernetes.controller.workloads import (
    DropStandIn,
    HoldWorkload,
    MakeStandIn,
    ObservedWorkload,
    RefuseWorkload,
    WorkloadsView,
    WorkloadWrite,
    shape_of,
)

_DIGITS = 16
_OVER = ("Succeeded", "Failed")


class WorkloadWriter:
    """Writes workloads, their pods and the jobs that stand for them."""

    def __init__(
        self, client: ApiClient, view: Callable[[], WorkloadsView], protect: Callable[[Owner], Awaitable[None]],
        now_ms: Callable[[], int],
    ) -> None:  # fmt: skip
        """Write with `client`; `protect` keeps others from evicting a part of a gang."""
        self._client, self._view, self._protect, self._now_ms = client, view, protect, now_ms

    async def perform(self, write: WorkloadWrite) -> None:
        """Write one thing; who was quicker is right."""
        try:
            match write:
                case MakeStandIn():
                    await self._stand_in(write)
                case DropStandIn():
                    seen = write.seen
                    await self._client.delete(JOBS, seen.name, seen.namespace, uid=seen.uid)
                case HoldWorkload():
                    await self._suspend(write.workload, suspended=True)
                case RefuseWorkload():
                    await self._tell(write.workload, "NotQueued", write.message)
        except ApiError as error:
            if not (error.conflict or error.missing):
                raise

    async def _stand_in(self, write: MakeStandIn) -> None:
        body, meta = write.body, write.body["metadata"]
        if write.uid:
            change = {"metadata": {"uid": write.uid}, "spec": body["spec"]}
            await self._client.patch(JOBS, meta["name"], change, meta["namespace"])
        else:
            await self._client.create(JOBS, body, meta["namespace"])

    async def step(self, entry: JobEntry, step: PlacePod | Prepare | Release | Suspend) -> None:
        """Take one step towards what was decided for a workload; who was quicker is right."""
        try:
            match step:
                case PlacePod():
                    await self._place(entry, step)
                case Prepare():
                    await self._prepare(entry, step)
                case Release():
                    await self._suspend(step.workload, suspended=False)
                    nodes = len(entry.placed.nodes) if entry.placed is not None else 0
                    await self._tell(step.workload, "Placed", f"{nodes} nodes, placement {step.workload.mark}")
                case Suspend():
                    await self._suspend(step.workload, suspended=True)
        except ApiError as error:
            if not (error.conflict or error.missing):
                raise

    async def _place(self, entry: JobEntry, step: PlacePod) -> None:
        meta = {"uid": step.pod, "labels": {RANK_LABEL: str(step.place)}}
        gates = [{"name": one} for one in step.gates]
        spec = {"schedulingGates": gates, "nodeSelector": {HOST_LABEL: step.node}}
        await self._client.patch(PODS, step.name, {"metadata": meta, "spec": spec}, entry.seen.namespace)

    async def _prepare(self, entry: JobEntry, step: Prepare) -> None:
        workload = step.workload
        item, resource = dict(workload.item), workload.kind.resource
        # Pods that were made before weft saw the workload bear none of its labels.
        there = await self._client.list(PODS, workload.namespace, labels=f"{workload.kind.pods}={workload.name}")
        if any((one.get("status") or {}).get("phase") not in _OVER for one in there):
            return
        shape = shape_of(workload, self._view())
        if shape.nodes > 1:
            await self._protect(entry.seen.owner)
        if workload.started:
            # The template of a batch Job can be changed as long as it does not say when it was started.
            body: dict[str, Any] = {
                "metadata": {"resourceVersion": workload.version},
                "status": {"startTime": None},
            }
            item = await self._client.patch(resource, workload.name, body, workload.namespace, part="status")
        mark = prepared(item, shape, step.mark)
        written = await self._client.patch(resource, workload.name, mark, workload.namespace)
        if not is_prepared(written):
            entry.rejected = f"this server drops the field that keeps the pods of a {resource.kind} waiting ({GATE})"

    async def _suspend(self, workload: ObservedWorkload, *, suspended: bool) -> None:
        meta = {"resourceVersion": workload.version}
        body = {"metadata": meta, **workload.kind.hold(suspended=suspended)}
        await self._client.patch(workload.kind.resource, workload.name, body, workload.namespace)

    async def _tell(self, workload: ObservedWorkload, reason: str, message: str) -> None:
        """Write an event about a workload; its name follows from what it says, so that it is written once."""
        resource = workload.kind.resource
        said = hashlib.sha256(f"{workload.uid} {reason} {message}".encode()).hexdigest()[:_DIGITS]
        at = timestamp(self._now_ms())
        about = {"apiVersion": workload.item.get("apiVersion") or resource.api_version, "kind": resource.kind,
                 "name": workload.name, "namespace": workload.namespace, "uid": workload.uid}  # fmt: skip
        body = {
            "apiVersion": "v1", "kind": "Event", "count": 1, "type": "Warning" if reason == "NotQueued" else "Normal",
            "metadata": {"name": f"{workload.name}.{said}", "namespace": workload.namespace},
            "involvedObject": about, "reason": reason, "message": message, "firstTimestamp": at, "lastTimestamp": at,
            "source": {"component": SCHEDULER}, "reportingComponent": SCHEDULER, "reportingInstance": SCHEDULER,
        }  # fmt: skip
        await self._client.create(EVENTS, body, workload.namespace)
