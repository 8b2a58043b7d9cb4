"""Jobs, JobSets, TrainJobs and PyTorchJobs with the queue label: gated, queued, placed and started whole."""

import asyncio
from collections import Counter

import pytest
from tests.engines.kubernetes.fake_cluster import play, until
from tests.engines.kubernetes.stage import running
from tests.engines.kubernetes.workloads import KIND_NAMES, WorkloadCluster, workload

from weft.cluster.records.snapshot import SchedulingPolicy

IMPATIENT = SchedulingPolicy(patience_ms=0)
pytestmark = pytest.mark.parametrize("kind", KIND_NAMES)


def test_a_workload_waits_then_runs_whole_and_ends(kind: str) -> None:
    async def life() -> None:
        cluster = WorkloadCluster(4, start_s=0.5, run_s=20.0)
        async with cluster.controllers(), running(cluster.witness()):
            await cluster.hand_in(kind, "one", workload(kind, 4))
            await asyncio.sleep(10)
            assert not cluster.gang(kind, "one"), "nobody has started it"
            async with cluster.engine():
                await until(lambda: cluster.stands(kind, "one").get("state") == "running")
                nodes = [one["spec"]["nodeName"] for one in cluster.gang(kind, "one")]
                assert len(set(nodes)) == 4
                await until(lambda: cluster.ended(kind, "one") == "done")
                await until(lambda: cluster.stands(kind, "one").get("state") == "done")
        assert not cluster.wrong

    play(life)


def test_two_that_do_not_fit_together_run_one_after_the_other(kind: str) -> None:
    async def life() -> None:
        cluster = WorkloadCluster(4, start_s=0.5, run_s=20.0)
        async with cluster.controllers(), running(cluster.witness()), cluster.engine():
            # The second does not even say that it waits.
            await cluster.hand_in(kind, "one", workload(kind, 3))
            await cluster.hand_in(kind, "two", workload(kind, 3, suspend=False))
            await until(lambda: cluster.waits(kind, "two"))
            await until(lambda: cluster.stands(kind, "one").get("state") == "running")
            assert cluster.stands(kind, "two")["state"] == "waiting"
            assert cluster.stands(kind, "two")["why"]
            await until(lambda: cluster.ended(kind, "one") == cluster.ended(kind, "two") == "done")
        assert not cluster.wrong

    play(life)


def test_ranks_stand_in_the_order_of_the_gang(kind: str) -> None:
    async def life() -> None:
        cluster = WorkloadCluster(8, start_s=0.5)
        async with cluster.controllers(), cluster.engine():
            await cluster.hand_in(kind, "one", workload(kind, 6))
            await until(lambda: cluster.stands(kind, "one").get("state") == "running")
            pods = sorted(
                cluster.gang(kind, "one"), key=lambda one: int(one["metadata"]["labels"]["cluster.weft/rank"])
            )
            placed = cluster.stands(kind, "one")["placement"]["nodes"]
            assert [one["spec"]["nodeName"] for one in pods] == placed
            assert Counter(placed).most_common(1)[0][1] == 1

    play(life)


def test_a_lost_node_starts_it_again_whole(kind: str) -> None:
    async def life() -> None:
        cluster = WorkloadCluster(5, start_s=0.5, run_s=300.0)
        async with cluster.controllers() as kubelets, running(cluster.witness()), cluster.engine():
            await cluster.hand_in(kind, "one", workload(kind, 4))
            await until(lambda: cluster.stands(kind, "one").get("state") == "running")
            before = {one["metadata"]["uid"] for one in cluster.gang(kind, "one")}
            lost = cluster.gang(kind, "one")[0]["spec"]["nodeName"]
            kubelets.silence([lost])
            await until(lambda: cluster.stands(kind, "one").get("attempt") == 2)
            await until(lambda: cluster.stands(kind, "one").get("state") == "running")
            pods = cluster.gang(kind, "one")
            assert len(pods) == 4
            assert lost not in {one["spec"]["nodeName"] for one in pods}
            assert not before & {one["metadata"]["uid"] for one in pods}
            await until(lambda: cluster.ended(kind, "one") == "done")
        assert not cluster.wrong

    play(life)


def test_one_that_gives_way_waits_again_and_ends(kind: str) -> None:
    async def life() -> None:
        cluster = WorkloadCluster(4, start_s=0.5, run_s=200.0)
        async with cluster.controllers(), running(cluster.witness()), cluster.engine(policy=IMPATIENT):
            await cluster.hand_in(kind, "low", workload(kind, 4), **{"cluster.weft/priority": "0"})
            await until(lambda: cluster.stands(kind, "low").get("state") == "running")
            await cluster.submit("high", 4, priority=500)
            await until(lambda: cluster.state("high") == "done")
            await until(lambda: cluster.ended(kind, "low") == "done")
            assert cluster.stands(kind, "low")["attempt"] >= 2
        assert not cluster.wrong

    play(life)


def test_one_that_is_deleted_leaves_nothing(kind: str) -> None:
    async def life() -> None:
        cluster = WorkloadCluster(4, start_s=0.5)
        cluster.server.store.garbage_collector = True
        async with cluster.controllers(), running(cluster.witness()), cluster.engine():
            await cluster.hand_in(kind, "one", workload(kind, 4))
            await cluster.hand_in(kind, "two", workload(kind, 4))
            await until(lambda: cluster.stands(kind, "one").get("state") == "running")
            await cluster.remove(kind, "two")
            await until(lambda: not cluster.stands(kind, "two"))
            await cluster.remove(kind, "one")
            await until(lambda: not cluster.stands(kind, "one") and not cluster.gang(kind, "one"))
            await cluster.hand_in(kind, "one", workload(kind, 2))
            await until(lambda: cluster.stands(kind, "one").get("state") == "running")
        assert not cluster.wrong

    play(life)


def test_one_that_its_controller_gives_up_is_failed(kind: str) -> None:
    async def life() -> None:
        cluster = WorkloadCluster(4, start_s=0.5)
        never = {"JobSet": {"failurePolicy": {"maxRestarts": 0}}}
        async with cluster.controllers(), cluster.engine():
            spec = workload(kind, 2, **never.get(kind, {}))
            for replica in (spec.get("pytorchReplicaSpecs") or {}).values():
                replica["restartPolicy"] = "Never"
            if kind == "Job":
                spec["backoffLimit"] = 0
            await cluster.hand_in(kind, "one", spec)
            await until(lambda: cluster.stands(kind, "one").get("state") == "running")
            while not cluster.ended(kind, "one"):
                for pod in cluster.gang(kind, "one"):
                    await cluster.say(pod, "Failed", code=1)
                await asyncio.sleep(1)
            assert cluster.ended(kind, "one") == "failed"
            await until(lambda: cluster.stands(kind, "one").get("state") == "failed")
            await cluster.submit("next", 4)
            await until(lambda: cluster.state("next") == "running")

    play(life)
