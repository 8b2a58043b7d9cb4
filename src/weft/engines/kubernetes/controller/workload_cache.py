"""The workloads with the queue label, of every kind that the server serves: kinds come and go with their projects.

Which kinds there are, and in which version, is asked now and then; each that is there is listed and watched as our own
kinds are. A kind that may not be read is left alone: its workloads are then not queued.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import aiohttp

from weft.core.errors import WeftError
from weft.engines.kubernetes.api.api_client import ApiClient, ApiError
from weft.engines.kubernetes.api.reflector import Reflector, WatchScope
from weft.engines.kubernetes.api.resources import QUEUE_LABEL, Resource
from weft.engines.kubernetes.api.workload_kinds import CLUSTER_RUNTIMES, KINDS, RUNTIMES, TRAIN_JOBS, WorkloadKind
from weft.engines.kubernetes.controller.workloads import ObservedWorkload, WorkloadsView, is_child, observe_workload

_LOG = logging.getLogger(__name__)
_LOOK_S = 60.0
_SOON_S = 5.0
_GATES_SINCE = (1, 27)


class WorkloadCache:
    """Keeps the workloads true, and says which job stands for one that has changed."""

    def __init__(self, client: ApiClient, scope: WatchScope, changed: Callable[[str], None]) -> None:
        """Look within `scope`; call `changed` with the name of a job whose workload has changed."""
        self._client, self._scope, self._note = client, scope, changed
        self._items: dict[str, ObservedWorkload] = {}
        self._runtimes: dict[str, Mapping[str, Any]] = {}
        self._gates = True
        self._tasks: dict[Resource, asyncio.Task[None]] = {}
        self._synced: dict[str, asyncio.Event] = {}

    @property
    def view(self) -> WorkloadsView:
        """Return what is seen now."""
        kinds = {kind for kind, synced in self._synced.items() if synced.is_set()}
        return WorkloadsView(self._items, kinds, self._runtimes, self._gates)

    async def run(self) -> None:
        """Look for kinds and follow them until cancelled."""
        try:
            while True:
                try:
                    await self._look()
                    wait_s = _LOOK_S
                except (WeftError, aiohttp.ClientError, TimeoutError, ConnectionError) as error:
                    _LOG.warning("kinds of workloads: %s", error)
                    wait_s = _SOON_S
                await asyncio.sleep(wait_s)
        finally:
            for task in self._tasks.values():
                task.cancel()
            await asyncio.gather(*self._tasks.values(), return_exceptions=True)

    async def _look(self) -> None:
        """Follow every kind that is served and not followed yet."""
        answered = await self._client.request("GET", "/version")
        numbers = [
            int("".join(filter(str.isdigit, str(answered.get(part) or "0"))) or 0) for part in ("major", "minor")
        ]
        self._gates = tuple(numbers) >= _GATES_SINCE
        served = {one["name"]: one for one in (await self._client.request("GET", "/apis")).get("groups") or ()}
        wanted: list[tuple[Resource, WorkloadKind | None]] = [(one.resource, one) for one in KINDS.values()]
        # Runtimes first: a TrainJob that is seen before its runtime would be refused.
        for resource, kind in [(RUNTIMES, None), (CLUSTER_RUNTIMES, None), *wanted]:
            group = served.get(resource.group)
            task = self._tasks.get(resource)
            if group is not None and (task is None or task.done()):
                versions = [one["version"] for one in group["versions"]]
                strange = "" if resource.version in versions else versions[0]
                reflector = self._reflector(resource, kind, strange)
                self._tasks[resource] = asyncio.create_task(self._follow(resource, reflector))
                if kind is None:
                    await asyncio.wait([self._tasks[resource], asyncio.create_task(reflector.synced.wait())],
                                       timeout=_SOON_S, return_when=asyncio.FIRST_COMPLETED)  # fmt: skip

    def _reflector(self, resource: Resource, kind: WorkloadKind | None, strange: str) -> Reflector[Any]:
        at = replace(resource, version=strange or resource.version)
        if kind is None:
            return Reflector(self._client, at, _observe_runtime, self._runtime_changed, self._scope)
        queued = replace(self._scope, labels=QUEUE_LABEL)
        found = Reflector(self._client, at, partial(observe_workload, kind, strange=strange), self._changed, queued)
        self._synced[resource.kind] = found.synced
        return found

    async def _follow(self, resource: Resource, reflector: Reflector[Any]) -> None:
        try:
            await reflector.run()
        except ApiError as error:
            _LOG.warning("%s are not followed: %s", resource.plural, error)
        finally:
            self._synced.pop(resource.kind, None)

    def _changed(self, old: ObservedWorkload | None, new: ObservedWorkload | None) -> None:
        some = new or old
        assert some is not None
        if new is None or is_child(new.item):
            self._items.pop(some.id, None)
        else:
            self._items[new.id] = new
        self._note(some.id)

    def _runtime_changed(self, old: Any, new: Any) -> None:
        meta, spec = new or old
        name = "/".join(part for part in (meta.get("namespace"), meta["name"]) if part)
        if new is None:
            self._runtimes.pop(name, None)
        else:
            self._runtimes[name] = spec
        for one in self._items.values():
            if one.kind.resource == TRAIN_JOBS:
                self._note(one.id)


def _observe_runtime(item: Mapping[str, Any]) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
    return item["metadata"], item.get("spec") or {}
