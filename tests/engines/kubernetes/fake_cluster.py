"""A whole cluster in one process and in virtual time: the fake API server, simulated kubelets and engines.

`play` runs a scenario: an hour of the cluster's life takes milliseconds, and the same seed gives the same life.
"""

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, cast

from tests.engines.kubernetes.stage import running

from weft.engines.kubernetes.api.api_client import ApiClient
from weft.engines.kubernetes.api.resources import JOB_LABEL, JOBS, NODES, PODS, RANK_LABEL, TEAMS
from weft.engines.kubernetes.controller.control_loop import KubernetesEngine
from weft.engines.kubernetes.controller.observed import CANCEL
from weft.engines.kubernetes.controller.settings import Settings
from weft.testing.api_server import FakeApiServer
from weft.testing.kubelets import Kubelets, SimulatedNodes
from weft.testing.virtual_time import run

POOL = "pool"
SPACE = "default"
GRACE_S = 20.0
"""After so long without a heartbeat the server says that a node is not ready."""


class FakeCluster:
    """A server with simulated nodes, a team and questions about what stands on it."""

    def __init__(self, nodes: int = 4, *, seed: int = 0, **more: Any) -> None:
        self.server = FakeApiServer(seed)
        self.fleet = SimulatedNodes(
            nodes, pool=POOL, prefix="n", **cast("Any", {"gpus": 8, "least_period_s": 5.0, **more})
        )
        self.wrong: list[str] = []

    def settings(self, **more: Any) -> Settings:
        """Return settings of an engine for this cluster."""
        return Settings(**cast("Any", {"pool": POOL, "heart_s": 1.0, "resync_s": 5.0, "test_s": 30.0, **more}))

    @contextlib.asynccontextmanager
    async def nodes(self) -> AsyncIterator[Kubelets]:
        """Play the nodes, and what watches them, beside the block."""
        async with self.server.client("kubelets") as client:
            kubelets = Kubelets(client, self.fleet)
            async with running(kubelets.run(), self.server.monitor_nodes(GRACE_S)):
                await kubelets.register()
                await self.team(client, "team", 1000)
                yield kubelets

    @contextlib.asynccontextmanager
    async def engine(self, agent: str = "engine", **more: Any) -> AsyncIterator[KubernetesEngine]:
        """Run an engine beside the block."""
        async with self.server.client(agent) as client:
            one = KubernetesEngine(client, self.settings(**more), self.server.now_ms)
            async with running(one.run()):
                yield one

    async def team(self, client: ApiClient, name: str, quota: int, most: int | None = None) -> None:
        """Set a team's quota."""
        spec = {"quota": quota, **({} if most is None else {"most": most})}
        await client.apply(
            TEAMS, {"apiVersion": TEAMS.api_version, "kind": TEAMS.kind, "metadata": {"name": name}, "spec": spec}
        )

    async def submit(self, name: str, nodes: int = 1, **more: Any) -> None:
        """Hand in a job."""
        spec = {"nodes": nodes, "command": ["true"], "team": "team", **more}
        body = {"apiVersion": JOBS.api_version, "kind": JOBS.kind, "metadata": {"name": name}, "spec": spec}
        async with self.server.client("people") as client:
            await client.create(JOBS, body, SPACE)

    async def cancel(self, name: str, by: str = "somebody") -> None:
        """Call a job off."""
        async with self.server.client("people") as client:
            await client.patch(JOBS, name, {"metadata": {"annotations": {CANCEL: by}}}, SPACE)

    async def change(self, name: str, **spec: Any) -> None:
        """Ask for something else."""
        async with self.server.client("people") as client:
            await client.patch(JOBS, name, {"spec": spec}, SPACE)

    def job(self, name: str) -> dict[str, Any]:
        """Return a job as the server holds it."""
        return self.server.store.objects(JOBS)[f"{SPACE}/{name}"]

    def status(self, name: str) -> dict[str, Any]:
        """Return a job's status."""
        return self.job(name).get("status") or {}

    def state(self, name: str) -> str:
        """Return a job's state."""
        return self.status(name).get("state", "")

    def pods(self, job: str | None = None) -> list[dict[str, Any]]:
        """Return the pods, of one job or of all."""
        every = self.server.store.objects(PODS).values()
        return [one for one in every if job is None or one["metadata"]["labels"].get(JOB_LABEL) == job]

    def on(self, job: str) -> list[str]:
        """Return the nodes of a job's pods, by rank."""
        pods = sorted(self.pods(job), key=lambda one: int(one["metadata"]["labels"][RANK_LABEL]))
        return [one["spec"]["nodeName"] for one in pods]

    def node(self, name: str) -> dict[str, Any]:
        """Return a node as the server holds it."""
        return self.server.store.objects(NODES)[name]

    async def say(self, pod: dict[str, Any], phase: str, code: int | None = None, reason: str = "") -> None:
        """Write a pod's phase, as its kubelet would."""
        state = (
            {}
            if code is None
            else {"containerStatuses": [{"name": "job", "state": {"terminated": {"exitCode": code}}}]}
        )
        async with self.server.client("kubelets") as client:
            body = {"status": {"phase": phase, **state, **({"reason": reason} if reason else {})}}
            await client.patch(PODS, pod["metadata"]["name"], body, SPACE, part="status")

    async def witness(self) -> None:
        """Look again and again, and remember what must never be seen."""
        while True:
            self.wrong += invariants(self)
            await asyncio.sleep(0.05)


def invariants(cluster: FakeCluster) -> list[str]:
    """Return what is wrong: a node that is given twice, a rank that runs twice."""
    held: Counter[str] = Counter()
    ranks: Counter[tuple[str, str]] = Counter()
    for pod in cluster.pods():
        over = (pod.get("status") or {}).get("phase") in ("Succeeded", "Failed")
        node = pod["spec"].get("nodeName")
        if node and not over:
            limits = pod["spec"]["containers"][0]["resources"]["limits"]
            held[node] += int(limits["nvidia.com/gpu"])
            labels = pod["metadata"]["labels"]
            if "deletionTimestamp" not in pod["metadata"]:
                ranks[labels[JOB_LABEL], labels[RANK_LABEL]] += 1
    wrong = [f"{node} holds {gpus} GPUs" for node, gpus in held.items() if gpus > cluster.fleet.gpus]
    return wrong + [f"rank {rank} of {job} runs {count} times" for (job, rank), count in ranks.items() if count > 1]


async def until(question: Callable[[], bool], patience_s: float = 900.0) -> None:
    """Wait, in the loop's time, until the answer is yes."""
    loop = asyncio.get_running_loop()
    end = loop.time() + patience_s
    while loop.time() < end:
        if question():
            return
        await asyncio.sleep(0.1)
    raise AssertionError(f"not so after {patience_s:.0f} s")


def play(scenario: Callable[[], Awaitable[Any]]) -> Any:
    """Run a scenario in virtual time."""

    async def main() -> Any:
        return await scenario()

    return run(main())
