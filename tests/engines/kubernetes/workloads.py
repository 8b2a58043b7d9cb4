"""Workloads of other controllers on a fake cluster: one of each kind, and questions about them."""

import contextlib
from collections.abc import AsyncIterator
from typing import Any

from tests.engines.kubernetes.fake_cluster import SPACE, FakeCluster
from tests.engines.kubernetes.stage import running
from tests.engines.kubernetes.workload_controllers import WorkloadControllers, serve_workloads

from weft.engines.kubernetes.api.api_client import ApiError
from weft.engines.kubernetes.api.resources import BATCH_JOBS, EVENTS, JOBS, Resource
from weft.engines.kubernetes.api.workload_kinds import CLUSTER_RUNTIMES, JOBSETS, KINDS, PYTORCH_JOBS, TRAIN_JOBS
from weft.engines.kubernetes.controller.workloads import stand_in_name
from weft.testing.kubelets import Kubelets

Object = dict[str, Any]


def template(gpus: int = 8, **spec: Any) -> Object:
    """Return a pod template."""
    resources = {"limits": {"nvidia.com/gpu": str(gpus)}} if gpus else {}
    container = {"name": "main", "image": "pytorch", "command": ["torchrun", "train.py"], "resources": resources}
    return {"metadata": {"labels": {"app": "train"}}, "spec": {"containers": [container], **spec}}


def batch_job(pods: int, gpus: int = 8, **spec: Any) -> Object:
    """Return what a Job of so many pods says."""
    return {"parallelism": pods, "completions": pods, "completionMode": "Indexed", "template": template(gpus), **spec}


def workload(kind: str, pods: int, gpus: int = 8, *, suspend: bool = True, **more: Any) -> Object:
    """Return the spec of a workload of a kind that needs so many pods together."""
    match kind:
        case "Job":
            return {**batch_job(pods, gpus), "suspend": suspend, **more}
        case "JobSet":
            # A leader without GPUs, and the pods over two Jobs where they can be.
            jobs = 2 if pods % 2 == 0 else 1
            groups = [
                {"name": "leader", "replicas": 1, "template": {"spec": batch_job(1, 0)}},
                {"name": "workers", "replicas": jobs, "template": {"spec": batch_job(pods // jobs, gpus)}},
            ]
            return {"suspend": suspend, "replicatedJobs": groups, "successPolicy": {"operator": "All"}, **more}
        case "TrainJob":
            trainer = {"numNodes": pods, "resourcesPerNode": {"limits": {"nvidia.com/gpu": str(gpus)}}}
            return {"suspend": suspend, "runtimeRef": {"name": "torch-distributed"}, "trainer": trainer, **more}
        case _:
            replicas = {"Master": {"replicas": 1, "restartPolicy": "OnFailure", "template": template(gpus)}}
            if pods > 1:
                replicas["Worker"] = {"replicas": pods - 1, "restartPolicy": "OnFailure", "template": template(gpus)}
            return {"runPolicy": {"suspend": suspend}, "pytorchReplicaSpecs": replicas, **more}


RUNTIME = {
    "mlPolicy": {"numNodes": 1, "torch": {}},
    "template": {"spec": {"replicatedJobs": [{
        "name": "node",
        "template": {"metadata": {"labels": {"trainer.kubeflow.org/trainjob-ancestor-step": "trainer"}},
                     "spec": {"template": template(0, tolerations=[{"key": "theirs", "operator": "Exists"}])}},
    }]}},
}  # fmt: skip


class WorkloadCluster(FakeCluster):
    """A fake cluster on which the controllers of other workloads run as well."""

    @contextlib.asynccontextmanager
    async def controllers(self) -> AsyncIterator[Kubelets]:
        """Play nodes and controllers beside the block."""
        async with self.nodes() as kubelets, self.installed():
            yield kubelets

    @contextlib.asynccontextmanager
    async def installed(self) -> AsyncIterator[None]:
        """Install the kinds and play their controllers beside the block."""
        serve_workloads(self.server)
        async with self.server.client("controllers") as client:
            await client.create(CLUSTER_RUNTIMES, {"metadata": {"name": "torch-distributed"}, "spec": RUNTIME})
            async with running(WorkloadControllers(client).run()):
                yield

    async def hand_in(self, kind: str, name: str, spec: Object, **labels: str) -> None:
        """Make a workload with the queue label."""
        marks = {"cluster.weft/queue": "team", **labels}
        body = {"metadata": {"name": name, "labels": marks}, "spec": spec}
        async with self.server.client("people") as client:
            try:
                await client.create(KINDS[kind].resource, body, SPACE)
            except ApiError as error:
                # An answer that was lost, and the same asked again.
                if not error.conflict:
                    raise

    async def edit(self, kind: str, name: str, **spec: Any) -> None:
        """Change what a workload says."""
        async with self.server.client("people") as client:
            await client.patch(KINDS[kind].resource, name, {"spec": spec}, SPACE)

    async def remove(self, kind: str, name: str) -> None:
        """Delete a workload."""
        async with self.server.client("people") as client:
            await client.delete(KINDS[kind].resource, name, SPACE)

    def work(self, kind: str, name: str) -> Object:
        """Return a workload as the server holds it."""
        return self.server.store.objects(KINDS[kind].resource)[f"{SPACE}/{name}"]

    def waits(self, kind: str, name: str) -> bool:
        """Return whether a workload is suspended."""
        return KINDS[kind].suspended(self.work(kind, name))

    def ended(self, kind: str, name: str) -> str:
        """Return how a workload has ended."""
        return KINDS[kind].ending(self.work(kind, name))[0]

    def stands(self, kind: str, name: str) -> Object:
        """Return the status of the job that stands for a workload."""
        job = self.server.store.objects(JOBS).get(f"{SPACE}/{stand_in_name(kind, name)}") or {}
        return job.get("status") or {}

    def gang(self, kind: str, name: str) -> list[Object]:
        """Return the pods of a workload that have GPUs."""
        return self.pods(stand_in_name(kind, name))

    def said(self, name: str, reason: str) -> list[str]:
        """Return the messages of events about a workload."""
        events = self.server.store.objects(EVENTS).values()
        return [one["message"] for one in events if one["involvedObject"]["name"] == name and one["reason"] == reason]


ALL: tuple[Resource, ...] = (BATCH_JOBS, JOBSETS, TRAIN_JOBS, PYTORCH_JOBS)
KIND_NAMES = tuple(one.kind for one in ALL)
