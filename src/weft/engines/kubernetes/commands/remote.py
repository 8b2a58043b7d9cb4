"""A cluster of Kubernetes for the commands that speak to one: the same questions and answers as the local engine's.

It reads and writes objects and nothing more; the engine in the cluster does the rest. Why a job waits is asked of the
engine, by the job itself: nobody has to see the jobs of others for it.
"""

import asyncio
import base64
import gzip
import hashlib
import os
import uuid
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, TypeVar

from weft.core.errors import FailedError, UsageError
from weft.core.specfile import validate
from weft.engines.kubernetes.api.access import Access
from weft.engines.kubernetes.api.api_client import ApiClient, ApiError, explaining
from weft.engines.kubernetes.api.crds import JobBody
from weft.engines.kubernetes.api.resources import CONFIG_MAPS, JOB_LABEL, JOBS, NODES, PODS, RANK_LABEL
from weft.engines.kubernetes.api.workload_kinds import KINDS
from weft.engines.kubernetes.commands.object_views import detail, job_view, node_view
from weft.engines.kubernetes.commands.submission import body_of, fitting_name
from weft.engines.kubernetes.controller.control_loop import KubernetesEngine
from weft.engines.kubernetes.controller.observed import CANCEL, WHY, ObservedJob, observe_job
from weft.engines.kubernetes.controller.settings import Settings, system_ms
from weft.engines.kubernetes.controller.workloads import stand_in_name

_MOST_FOLDER = 900 * 1024
_KEY = "cluster.weft/key"
_ENDED = ("done", "failed", "cancelled", "refused")
_TRIES = 1000
_LOOK_S = 1.0
_ANSWER_S, _ANSWER_TRIES = 0.25, 40
"""How often, and for how long, the controller's answer is looked for: ten seconds."""
T = TypeVar("T")


class Remote:
    """A way to one cluster and one namespace of it."""

    def __init__(
        self, access: Access, *, image: str | None = None, volumes: tuple[str, ...] = (), pool: str = "weft"
    ) -> None:  # fmt: skip
        """Speak to the server of `access`; `pool` names the nodes that are ours."""
        self._pool = pool
        self._access = access
        self._image, self._volumes = image, volumes
        self._folder: dict[str, str] | None = None

    def _run(self, work: Callable[[ApiClient], Coroutine[Any, Any, T]]) -> T:
        async def main() -> T:
            async with explaining(), ApiClient(self._access, tries=4) as client:
                return await work(client)

        return asyncio.run(main())

    @property
    def _space(self) -> str:
        return self._access.namespace

    def get(self, *path: str, **query: Any) -> Any:
        """Ask for something."""
        match path:
            case ("v1", "jobs"):
                return self._run(lambda client: self._jobs(client, ended=query.get("state") == "all"))
            case ("v1", "jobs", name):
                return self._run(lambda client: self._job(client, name))
            case ("v1", "jobs", name, "log"):
                return self._run(lambda client: self._log(client, name, query))
            case ("v1", "jobs", name, "why"):
                return self._run(lambda client: self._why(client, name))
            case ("v1", "nodes"):
                return {"nodes": self._run(self._nodes)}
            case ("v1", "status"):
                return {"now_ms": system_ms()}
            case ("v1", "arrays", name):
                raise UsageError(f"there is no sweep {name!r} on {self._access.context}")
            case _:
                raise AssertionError(f"no command asks for {'/'.join(path)}")

    def post(self, *path: str, body: Mapping[str, Any] | None = None) -> Any:
        """Ask for a change."""
        match path:
            case ("v1", "check"):
                return self._checked(body or {})
            case ("v1", "jobs", name, "cancel"):
                return self._run(lambda client: self._cancel(client, name))
            case ("v1", "nodes", name, "drain" | "undrain" as verb):
                return self._run(lambda client: self._drain(client, name, out=verb == "drain"))
            case _:
                raise AssertionError(f"no command asks for {'/'.join(path)}")

    def upload(self, packed: bytes) -> str:
        """Keep a working folder in the cluster and return its digest."""
        archive = gzip.compress(packed, mtime=0)
        if len(archive) > _MOST_FOLDER:
            raise UsageError(
                f"the working folder is {len(archive) >> 10} KiB when packed, and a cluster keeps at most"
                f" {_MOST_FOLDER >> 10}; ignore data with .gitignore, or give --image and --no-snapshot"
            )
        digest = hashlib.sha256(archive).hexdigest()
        name = f"weft-folder-{digest[:16]}"
        held = {"folder.tar.gz": base64.b64encode(archive).decode()}
        body = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "immutable": True,
                "binaryData": held}  # fmt: skip
        self._run(lambda client: client.apply(CONFIG_MAPS, body, self._space))
        self._folder = {"configMap": name, "digest": digest[:32]}
        return digest

    def _checked(self, table: Mapping[str, Any]) -> JobBody:
        body = body_of(table, self._image, self._volumes, self._folder)
        return validate(body, JobBody, "the submission")

    def submit(self, submission: Mapping[str, Any]) -> list[dict[str, Any]]:
        """Make the job; asked twice with the same key it is made once."""
        self._checked(submission)
        return [self._run(lambda client: self._submit(client, submission))]

    async def _submit(self, client: ApiClient, submission: Mapping[str, Any]) -> dict[str, Any]:
        spec = body_of(submission, self._image, self._volumes, self._folder)
        name = fitting_name(str(submission.get("name") or (submission.get("job") or {}).get("name") or "job"))
        key = str(submission.get("key") or "")
        for number in range(1, _TRIES):
            meta = {"name": f"{name}-{number}", "annotations": {_KEY: key}}
            body = {"apiVersion": JOBS.api_version, "kind": JOBS.kind, "metadata": meta, "spec": spec}
            try:
                return job_view(observe_job(await client.create(JOBS, body, self._space)))
            except ApiError as error:
                if not error.conflict:
                    raise
            there = await client.find(JOBS, meta["name"], self._space)
            if there is not None and (there["metadata"].get("annotations") or {}).get(_KEY) == key:
                return job_view(observe_job(there))
        raise FailedError(f"there are {_TRIES - 1:,} jobs called {name}; give another --name")

    async def _jobs(self, client: ApiClient, *, ended: bool) -> dict[str, Any]:
        found = [observe_job(one) for one in await client.list(JOBS, self._space)]
        found.sort(key=lambda one: (-one.submit_ms, one.name))
        views = [job_view(one) for one in found]
        return {"jobs": [one for one in views if ended or one["state"] not in _ENDED]}

    async def _seen(self, client: ApiClient, name: str) -> ObservedJob:
        # A workload of another controller is known by the job that stands for it.
        for one in (name, *(stand_in_name(kind, name) for kind in KINDS)):
            if (there := await client.find(JOBS, one, self._space)) is not None:
                return observe_job(there)
        raise UsageError(f"there is no job {name!r} in namespace {self._space} of {self._access.context}")

    async def _job(self, client: ApiClient, name: str) -> dict[str, Any]:
        return detail(await self._seen(client, name))

    async def _cancel(self, client: ApiClient, name: str) -> dict[str, Any]:
        name = (await self._seen(client, name)).name
        by = os.environ.get("USER", "somebody")
        answer = await client.patch(JOBS, name, {"metadata": {"annotations": {CANCEL: by}}}, self._space)
        return {"jobs": [job_view(observe_job(answer))]}

    async def _drain(self, client: ApiClient, name: str, *, out: bool) -> dict[str, Any]:
        if await client.find(NODES, name) is None:
            raise UsageError(f"there is no node {name!r} in {self._access.context}; weft nodes lists them")
        await client.patch(NODES, name, {"spec": {"unschedulable": True if out else None}})
        return {"name": name, "state": "cordoned" if out else "given back"}

    async def _log(self, client: ApiClient, name: str, query: Mapping[str, Any]) -> dict[str, Any]:
        seen = await self._seen(client, name)
        name = seen.name
        rank, offset = query.get("rank", 0), int(query.get("offset") or 0)
        pods = await client.list(PODS, self._space, labels=f"{JOB_LABEL}={name},{RANK_LABEL}={rank}")
        open_ = seen.status.get("state") not in _ENDED
        attempt = int(seen.status.get("attempt") or 0)
        text = ""
        if pods:
            newest = max(pods, key=lambda one: one["metadata"]["creationTimestamp"])
            text = await _log_of(client, self._space, newest["metadata"]["name"])
        new = text.encode()[offset:]
        if not new and open_ and query.get("wait"):
            await asyncio.sleep(_LOOK_S)
        return {"text": new.decode(errors="replace"), "next": offset + len(new), "attempt": attempt,
                "newest_attempt": attempt, "more": open_}  # fmt: skip

    async def _looked_at(self, client: ApiClient) -> KubernetesEngine:
        # Nodes and their health are everybody's to see; of jobs and pods those of the own namespace.
        engine = KubernetesEngine(client, Settings(pool=self._pool, namespace=self._space))
        await engine.look()
        return engine

    async def _why(self, client: ApiClient, name: str) -> dict[str, Any]:
        seen = await self._seen(client, name)
        state = str(seen.status.get("state") or "waiting")
        text = str(seen.status.get("why") or ("the engine has not looked at it yet" if not seen.status else ""))
        answer: dict[str, Any] = {
            "job": name, "state": state, "code": "", "text": text, "position": 0, "before": [], "holds": [],
            "expected_ms": None, "early_ms": None, "late_ms": None, "sooner": [], "now_ms": system_ms(),
        }  # fmt: skip
        if state == "waiting" and (found := await self._answer(client, seen.name)) is not None:
            answer |= {key: found[key] for key in answer if key in found and key not in ("job", "state")}
        return answer

    async def _answer(self, client: ApiClient, name: str) -> Mapping[str, Any] | None:
        """Ask the controller by an annotation and return what it writes into the status; nothing if it is silent."""
        question = uuid.uuid4().hex[:12]
        await client.patch(JOBS, name, {"metadata": {"annotations": {WHY: question}}}, self._space)
        for _ in range(_ANSWER_TRIES):
            held = (await self._seen(client, name)).status.get("explained") or {}
            if held.get("question") == question:
                return held.get("answer")
            await asyncio.sleep(_ANSWER_S)
        return None

    async def _nodes(self, client: ApiClient) -> list[dict[str, Any]]:
        engine = await self._looked_at(client)
        return [node_view(engine.cluster, node) for node in engine.cluster.pool.nodes]


async def _log_of(client: ApiClient, namespace: str, pod: str) -> str:
    try:
        return await client.text(PODS.path(namespace, pod, "log"))
    except ApiError as error:
        raise FailedError(f"the log of pod {pod} cannot be read: {error.message}") from None
