"""What tests against a real API server share: a theatre with its own names, and questions about what stands on it."""

import asyncio
import contextlib
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from typing import Any, cast

from weft.engines.kubernetes.api.api_client import ApiClient, ApiError
from weft.engines.kubernetes.api.resources import JOB_LABEL, JOBS, NAMESPACES, PODS, TEAMS
from weft.engines.kubernetes.controller.control_loop import KubernetesEngine
from weft.engines.kubernetes.controller.settings import Settings
from weft.testing.control_plane import ControlPlane, User
from weft.testing.kubelets import Kubelets, SimulatedNodes

GRACE_S = 15
"""After so long without a heartbeat Kubernetes itself says that a node is not ready."""
CONTROLLER = User("system:serviceaccount:weft-system:weft-engine")
NOBODY = User("nobody")
BARE: list[tuple[int, str]] = []
"""How a command ended on the server before it knew our kinds."""
Question = Callable[[], Awaitable[bool]]


@dataclass(frozen=True)
class Theatre:
    """Names that no other test uses."""

    plane: ControlPlane
    name: str

    @contextlib.asynccontextmanager
    async def open(self, gpus: int = 1000) -> AsyncIterator[ApiClient]:
        """Make the namespace and the team, and give an administrator's client."""
        async with ApiClient(self.plane.access()) as client:
            await client.apply(NAMESPACES, {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": self.name}})
            await self.team(client, self.name, gpus)
            yield client

    async def team(self, client: ApiClient, name: str, quota: int, most: int | None = None) -> None:
        """Set a team's quota."""
        spec = {"quota": quota, **({} if most is None else {"most": most})}
        body = {"apiVersion": TEAMS.api_version, "kind": TEAMS.kind, "metadata": {"name": name}, "spec": spec}
        await client.apply(TEAMS, body)

    def stage(self, nodes: int, **more: Any) -> SimulatedNodes:
        """Return nodes of this theatre's pool."""
        return SimulatedNodes(
            nodes, pool=self.name, prefix=self.name, **cast("Any", {"gpus": 8, "least_period_s": 3.0, **more})
        )

    def settings(self, **more: Any) -> Settings:
        """Return settings of an engine for this theatre."""
        return Settings(pool=self.name, namespace=self.name, **cast("Any", {"heart_s": 0.5, "resync_s": 1.0, **more}))

    def job(self, name: str, nodes: int, **more: Any) -> dict[str, Any]:
        """Return a WeftJob."""
        spec = {"nodes": nodes, "command": ["true"], "team": self.name, **more}
        return {"apiVersion": JOBS.api_version, "kind": JOBS.kind, "metadata": {"name": name}, "spec": spec}

    async def submit(self, client: ApiClient, name: str, nodes: int, **more: Any) -> None:
        """Hand in a job."""
        await client.create(JOBS, self.job(name, nodes, **more), self.name)

    async def states(self, client: ApiClient) -> dict[str, str]:
        """Return the state of every job."""
        jobs = await client.list(JOBS, self.name)
        return {one["metadata"]["name"]: (one.get("status") or {}).get("state", "") for one in jobs}

    async def most_bound(self, client: ApiClient) -> int:
        """Return how often ranks may have been bound: once, and again for each time that their job gave way."""
        jobs = await client.list(JOBS, self.name)
        return sum(
            int(one["spec"]["nodes"])
            * (1 + int(((one.get("status") or {}).get("record") or {}).get("preemptions") or 0))
            for one in jobs
        )

    async def bound(self, client: ApiClient) -> Counter[str]:
        """Return how many pods of each job are bound."""
        pods = await client.list(PODS, self.name)
        return Counter(one["metadata"]["labels"][JOB_LABEL] for one in pods if one["spec"].get("nodeName"))

    async def status(self, client: ApiClient, name: str) -> dict[str, Any]:
        """Return a job's status."""
        return (await client.get(JOBS, name, self.name)).get("status") or {}


@contextlib.asynccontextmanager
async def running(*works: Any) -> AsyncIterator[None]:
    """Run coroutines beside the block; one that fails fails the block."""
    tasks = [asyncio.create_task(work) for work in works]
    main = asyncio.current_task()
    assert main is not None

    def failed(task: asyncio.Task[Any]) -> None:
        if not task.cancelled() and task.exception() is not None:
            main.cancel()

    for task in tasks:
        task.add_done_callback(failed)
    try:
        yield
    except asyncio.CancelledError:
        for task in tasks:
            if task.done() and not task.cancelled():
                task.result()
        raise
    finally:
        for task in tasks:
            task.remove_done_callback(failed)
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


@contextlib.asynccontextmanager
async def playing(theatre: Theatre, stage: SimulatedNodes) -> AsyncIterator[Kubelets]:
    """Play nodes beside the block."""
    async with ApiClient(theatre.plane.access(), agent="actor") as client:
        actor = Kubelets(client, stage)
        async with running(actor.run()):
            await actor.register()
            yield actor


@contextlib.asynccontextmanager
async def engine(theatre: Theatre, settings: Settings | None = None, **more: Any) -> AsyncIterator[KubernetesEngine]:
    """Run an engine beside the block."""
    async with ApiClient(theatre.plane.access(), agent="engine", **more) as client:
        one = KubernetesEngine(client, settings or theatre.settings())
        async with running(one.run()):
            yield one


async def until(question: Question, patience_s: float = 120.0) -> None:
    """Wait until the answer is yes."""
    deadline = time.monotonic() + patience_s
    while time.monotonic() < deadline:
        with contextlib.suppress(ApiError):
            if await question():
                return
        await asyncio.sleep(0.1)
    raise AssertionError(f"not so after {patience_s:.0f} s: {getattr(question, '__name__', question)}")
