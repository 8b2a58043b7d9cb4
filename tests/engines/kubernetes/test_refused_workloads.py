"""What weft cannot honour of a workload is said once, in an event, and the workload waits."""

import asyncio
from typing import Any

import pytest
from tests.engines.kubernetes.fake_cluster import SPACE, play, until
from tests.engines.kubernetes.workload_controllers import serve_workloads
from tests.engines.kubernetes.workloads import KIND_NAMES, WorkloadCluster, batch_job, template, workload

from weft.engines.kubernetes.api.resources import JOBS
from weft.engines.kubernetes.api.workload_kinds import JOBSETS, KINDS, WorkloadKind
from weft.engines.kubernetes.controller.workloads import stand_in_name

_MIXED = {"replicatedJobs": [
    {"name": "a", "replicas": 1, "template": {"spec": batch_job(1, 8)}},
    {"name": "b", "replicas": 1, "template": {"spec": batch_job(1, 4)}},
]}  # fmt: skip


def _pinned(**spec: Any) -> dict[str, Any]:
    return {**workload("Job", 1), "template": template(8, **spec)}


@pytest.mark.parametrize(
    ("kind", "spec", "labels", "words"),
    [
        ("Job", workload("Job", 1, gpus=0), {}, "none of its pods asks for nvidia.com/gpu"),
        ("JobSet", {"suspend": True, **_MIXED}, {}, "ask for 4 and 8 GPUs"),
        ("Job", _pinned(nodeSelector={"zone": "a"}), {}, "nodeSelector"),
        ("Job", _pinned(affinity={"podAffinity": {}}), {}, "affinity"),
        ("Job", workload("Job", 1, managedBy="kueue.x-k8s.io/multikueue"), {}, "managedBy"),
        ("JobSet", workload("JobSet", 2), {"kueue.x-k8s.io/queue-name": "q"}, "kueue.x-k8s.io/queue-name"),
        ("JobSet", workload("JobSet", 2), {"cluster.weft/priority": "high"}, "cluster.weft/priority"),
        ("JobSet", workload("JobSet", 2), {"cluster.weft/kind": "pipeline"}, "cluster.weft/kind"),
        ("TrainJob", workload("TrainJob", 2, runtimeRef={"name": "nowhere"}), {}, "no runtime nowhere"),
        ("PyTorchJob", workload("PyTorchJob", 2, elasticPolicy={"metrics": [{}]}), {}, "elasticPolicy.metrics"),
    ],
)
def test_it_is_said_once_and_nothing_starts(kind: str, spec: Any, labels: dict[str, str], words: str) -> None:
    async def life() -> None:
        cluster = WorkloadCluster(2)
        async with cluster.controllers():
            for _ in range(2):
                async with cluster.engine():
                    if not cluster.server.store.objects(KINDS[kind].resource):
                        await cluster.hand_in(kind, "one", spec, **labels)
                    await asyncio.sleep(40)
            (said,) = cluster.said("one", "NotQueued")
            assert words in said
            assert cluster.waits(kind, "one")
            assert not cluster.server.store.objects(JOBS)

    play(life)


@pytest.mark.parametrize("kind", KIND_NAMES)
def test_one_that_is_not_suspended_and_refused_is_suspended(kind: str) -> None:
    async def life() -> None:
        cluster = WorkloadCluster(2)
        async with cluster.controllers(), cluster.engine():
            await cluster.hand_in(kind, "one", workload(kind, 2, suspend=False), **{"cluster.weft/priority": "x"})
            await until(lambda: cluster.waits(kind, "one"))
            assert len(cluster.said("one", "NotQueued")) == 1

    play(life)


def test_a_server_without_gates_queues_none() -> None:
    async def life() -> None:
        cluster = WorkloadCluster(2)
        cluster.server.release = (1, 26)
        async with cluster.controllers(), cluster.engine():
            await cluster.hand_in("Job", "one", workload("Job", 2))
            await asyncio.sleep(30)
            (said,) = cluster.said("one", "NotQueued")
            assert "1.27" in said

    play(life)


def test_a_version_that_is_not_known_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    newer = JOBSETS.__class__(JOBSETS.group, "v1beta1", JOBSETS.plural, JOBSETS.kind)
    known = KINDS["JobSet"]
    served = WorkloadKind(newer, known.suspend, known.succeeded, known.pods, known.groups)

    async def life() -> None:
        cluster = WorkloadCluster(2)
        async with cluster.nodes():
            serve_workloads(cluster.server, newer)
            with monkeypatch.context() as patched:
                patched.setitem(KINDS, "JobSet", served)
                await cluster.hand_in("JobSet", "one", workload("JobSet", 2))
            async with cluster.engine():
                await asyncio.sleep(30)
            (said,) = cluster.said("one", "NotQueued")
            assert said == "JobSet v1beta1 is not known; weft reads v1alpha2"

    play(life)


def test_kinds_that_are_installed_later_are_found() -> None:
    async def life() -> None:
        cluster = WorkloadCluster(2, start_s=0.5)
        async with cluster.nodes(), cluster.engine() as engine:
            await asyncio.sleep(5)
            assert "JobSet" not in engine.cache.workloads.view.kinds
            async with cluster.installed():
                await cluster.hand_in("JobSet", "one", workload("JobSet", 2))
                await until(lambda: cluster.stands("JobSet", "one").get("state") == "running")

    play(life)


@pytest.mark.parametrize("kind", KIND_NAMES)
def test_one_that_is_edited_while_it_waits_asks_for_what_it_says_now(kind: str) -> None:
    async def life() -> None:
        cluster = WorkloadCluster(2, start_s=0.5)
        async with cluster.controllers(), cluster.engine():
            await cluster.hand_in(kind, "one", workload(kind, 8))
            await until(lambda: cluster.stands(kind, "one").get("state") == "waiting")
            if kind in ("TrainJob", "JobSet"):
                # Their sizes are immutable; people hand in another one of the same name.
                await cluster.remove(kind, "one")
                await cluster.hand_in(kind, "one", workload(kind, 2))
            else:
                await cluster.edit(kind, "one", **workload(kind, 2))
            await until(lambda: cluster.stands(kind, "one").get("state") == "running")
            assert len(cluster.gang(kind, "one")) == 2

    play(life)


def test_a_job_in_the_way_is_left_alone() -> None:
    async def life() -> None:
        cluster = WorkloadCluster(2)
        async with cluster.controllers(), cluster.engine():
            await cluster.submit("job-one", 4)
            await cluster.hand_in("Job", "one", workload("Job", 1))
            await asyncio.sleep(30)
            assert cluster.job("job-one")["spec"]["nodes"] == 4
            (said,) = cluster.said("one", "NotQueued")
            assert "in its way" in said

    play(life)


def test_what_somebody_starts_by_hand_waits_again() -> None:
    async def life() -> None:
        cluster = WorkloadCluster(2)
        async with cluster.controllers(), cluster.engine():
            await cluster.hand_in("Job", "one", workload("Job", 4))
            await until(lambda: cluster.stands("Job", "one").get("state") == "waiting")
            await cluster.edit("Job", "one", suspend=False)
            await until(lambda: cluster.waits("Job", "one"))
            assert f"{SPACE}/{stand_in_name('Job', 'one')}" in cluster.server.store.objects(JOBS)

    play(life)
