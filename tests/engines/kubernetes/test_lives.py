"""Whole lives of jobs and gangs on the fake API server, with simulated kubelets and in virtual time."""

import asyncio
from typing import Any

import pytest
from tests.engines.kubernetes.fake_cluster import POOL, SPACE, FakeCluster, play, until

from weft.cluster.records.snapshot import SchedulingPolicy
from weft.engines.kubernetes.api.resources import (
    BUDGETS,
    EVENTS,
    JOBS,
    NODES,
    PODS,
)


@pytest.mark.parametrize("nodes", [1, 2, 5])
def test_a_gang_is_placed_runs_and_is_done(nodes: int) -> None:
    async def life() -> None:
        cluster = FakeCluster(5, start_s=1.0, run_s=60.0)
        async with cluster.nodes(), cluster.engine():
            await cluster.submit("gang", nodes)
            await until(lambda: cluster.state("gang") == "running")
            assert len(set(cluster.on("gang"))) == nodes
            await until(lambda: cluster.status("gang")["running"] == nodes)
            await until(lambda: cluster.state("gang") == "done")
        kinds = {one["type"]: one["status"] for one in cluster.status("gang")["conditions"]}
        assert kinds == {"Accepted": "True", "Placed": "False", "Running": "False", "Finished": "True"}
        assert cluster.status("gang")["attempt"] == 1

    play(life)


def test_a_status_is_written_before_the_first_pod_is_made() -> None:
    async def life() -> None:
        cluster = FakeCluster(3)
        async with cluster.nodes(), cluster.engine():
            await cluster.submit("gang", 3)
            await until(lambda: cluster.state("gang") == "running")
        mine = [one for one in cluster.server.writes if "weftjobs/gang/status" in one or one.endswith("/pods")]
        assert mine[0].startswith("PATCH"), "the placement comes first"
        assert mine[1:4] == [f"POST /api/v1/namespaces/{SPACE}/pods"] * 3

    play(life)


def test_a_gang_of_several_pods_has_a_budget_that_goes_with_it() -> None:
    async def life() -> None:
        cluster = FakeCluster(2)
        async with cluster.nodes(), cluster.engine():
            await cluster.submit("gang", 2)
            await until(lambda: cluster.state("gang") == "running")
            budgets = cluster.server.store.objects(BUDGETS)
            assert [one["spec"]["maxUnavailable"] for one in budgets.values()] == [0]
            async with cluster.server.client() as client:
                await client.delete(JOBS, "gang", SPACE)
            await until(lambda: not cluster.pods() and not budgets)

    play(life)


def test_jobs_wait_for_room_and_say_why() -> None:
    async def life() -> None:
        cluster = FakeCluster(2, run_s=30.0)
        async with cluster.nodes(), cluster.engine():
            await cluster.submit("first", 2)
            await until(lambda: cluster.state("first") == "running")
            await cluster.submit("second", 2)
            await until(lambda: cluster.state("second") == "waiting")
            assert cluster.status("second")["why"]
            await until(lambda: cluster.state("second") == "done")

    play(life)


def test_a_job_starts_only_after_those_that_it_names() -> None:
    async def life() -> None:
        cluster = FakeCluster(2, run_s=20.0)
        async with cluster.nodes(), cluster.engine():
            await cluster.submit("later", after=["sooner"])
            await cluster.submit("sooner")
            await until(lambda: cluster.state("sooner") == "running")
            assert cluster.state("later") in ("", "waiting")
            await until(lambda: cluster.state("later") == "done")

    play(life)


def test_a_job_that_no_node_is_large_enough_for_waits_until_one_is() -> None:
    async def life() -> None:
        cluster = FakeCluster(1)
        async with cluster.nodes() as kubelets, cluster.engine():
            await cluster.submit("large", gpusPerNode=16)
            await until(lambda: "largest has 8" in cluster.status("large").get("why", ""))
            body = {**cluster.node("n-00000"), "metadata": {"name": "big", "labels": {"cluster.weft/pool": POOL}}}
            body["status"] = {**body["status"], "allocatable": {"nvidia.com/gpu": "16"}}
            kubelets.names.add("big")
            async with cluster.server.client() as client:
                await client.create(NODES, body)
            await until(lambda: cluster.state("large") == "running")
            assert cluster.on("large") == ["big"]

    play(life)


@pytest.mark.parametrize("when", ["waiting", "running"])
def test_a_job_that_is_called_off_leaves_nothing(when: str) -> None:
    async def life() -> None:
        cluster = FakeCluster(2)
        async with cluster.nodes(), cluster.engine():
            if when == "waiting":
                await cluster.submit("other", 2)
                await until(lambda: cluster.state("other") == "running")
            await cluster.submit("job", 2)
            await until(lambda: cluster.state("job") == when)
            await cluster.cancel("job", "ada")
            await until(lambda: cluster.state("job") == "cancelled")
            assert cluster.status("job")["why"] == "cancelled by ada"
            await until(lambda: not cluster.pods("job"))

    play(life)


def test_a_deleted_job_gives_its_nodes_to_the_next() -> None:
    async def life() -> None:
        cluster = FakeCluster(2)
        cluster.server.store.garbage_collector = False
        async with cluster.nodes(), cluster.engine() as engine:
            await cluster.submit("job", 2)
            await until(lambda: cluster.state("job") == "running")
            async with cluster.server.client() as client:
                await client.delete(JOBS, "job", SPACE)
            await cluster.submit("next", 2)
            await until(lambda: cluster.state("next") == "running")
            assert not cluster.pods("job")
            assert not engine.state.orphans

    play(life)


def test_a_job_that_comes_back_under_its_name_waits_for_the_pods_of_the_old_one() -> None:
    async def life() -> None:
        cluster = FakeCluster(1)
        cluster.server.store.garbage_collector = False
        async with cluster.nodes(), cluster.engine():
            await cluster.submit("job")
            await until(lambda: cluster.state("job") == "running")
            old = cluster.pods("job")[0]["metadata"]["uid"]
            async with cluster.server.client() as client:
                await client.delete(JOBS, "job", SPACE)
            await cluster.submit("job")
            await until(lambda: cluster.state("job") == "running")
            assert [one["metadata"]["uid"] for one in cluster.pods("job")] != [old]

    play(life)


@pytest.mark.parametrize("restarts", [0, 2])
def test_a_job_that_fails_is_started_again_as_often_as_it_may(restarts: int) -> None:
    async def life() -> None:
        cluster = FakeCluster(2)
        async with cluster.nodes(), cluster.engine():
            await cluster.submit("job", 2, restarts=restarts)
            for attempt in range(1, restarts + 2):
                await until(lambda: cluster.state("job") == "running")
                assert cluster.status("job")["attempt"] == attempt
                await cluster.say(cluster.pods("job")[1], "Failed", 3)
                await until(lambda: cluster.state("job") != "running")
            await until(lambda: cluster.state("job") == "failed")
            assert cluster.status("job")["why"].endswith("ended with status 3")
            assert cluster.status("job")["restarts"] == restarts

    play(life)


@pytest.mark.parametrize(
    ("code", "reason"), [(75, ""), (None, "Evicted"), (None, "NodeLost"), (137, "UnexpectedAdmissionError")]
)
def test_a_loss_that_is_the_nodes_fault_is_not_counted(code: int | None, reason: str) -> None:
    async def life() -> None:
        cluster = FakeCluster(2)
        async with cluster.nodes(), cluster.engine():
            await cluster.submit("job", 2)
            await until(lambda: cluster.state("job") == "running")
            await cluster.say(cluster.pods("job")[0], "Failed", code, reason)
            await until(lambda: cluster.status("job")["attempt"] == 2 and cluster.state("job") == "running")
            assert cluster.status("job")["restarts"] == 0

    play(life)


def test_a_pod_that_failed_without_a_status_is_named() -> None:
    async def life() -> None:
        cluster = FakeCluster(1)
        async with cluster.nodes(), cluster.engine():
            await cluster.submit("job")
            await until(lambda: cluster.state("job") == "running")
            await cluster.say(cluster.pods("job")[0], "Failed")
            await until(lambda: cluster.state("job") == "failed")
            assert cluster.status("job")["why"] == "rank 0 failed"

    play(life)


def test_a_pod_that_somebody_takes_away_costs_the_gang_a_start() -> None:
    async def life() -> None:
        cluster = FakeCluster(2)
        async with cluster.nodes(), cluster.engine():
            await cluster.submit("job", 2)
            await until(lambda: cluster.state("job") == "running")
            async with cluster.server.client() as client:
                await client.delete(PODS, cluster.pods("job")[0]["metadata"]["name"], SPACE, grace_s=0)
            await until(lambda: cluster.status("job")["attempt"] == 2 and cluster.state("job") == "running")

    play(life)


def test_a_preempted_job_comes_back_and_a_new_leader_can_read_it() -> None:
    """A preempted job's record has the time at which it came back into the queue."""

    async def life() -> None:
        cluster = FakeCluster(2)
        policy = SchedulingPolicy(patience_ms=0)
        async with cluster.nodes():
            async with cluster.engine(policy=policy):
                await cluster.submit("low", 2, priority=0, grace="5s")
                await until(lambda: cluster.state("low") == "running")
                await cluster.submit("high", 2, priority=500)
                await until(lambda: cluster.state("high") == "running")
                await until(lambda: cluster.state("low") == "waiting")
                assert cluster.status("low")["record"]["queued_ms"] > 0
                assert cluster.status("low")["record"]["preemptions"] == 1
            async with cluster.engine("next", policy=policy) as engine:
                await until(lambda: f"{SPACE}/low" in engine.entries)
                await cluster.cancel("high")
                await until(lambda: cluster.state("low") == "running")

    play(life)


def test_a_job_above_its_limit_is_stopped() -> None:
    async def life() -> None:
        cluster = FakeCluster(1)
        async with cluster.nodes(), cluster.engine():
            await cluster.submit("job", timeLimit="60s", grace="5s")
            await until(lambda: cluster.state("job") == "running")
            await until(lambda: cluster.state("job") in ("failed", "cancelled", "done"))
            assert not [one for one in cluster.pods("job") if one["status"]["phase"] == "Running"]

    play(life)


def test_a_job_that_cannot_be_read_is_refused_once_and_taken_when_mended() -> None:
    async def life() -> None:
        cluster = FakeCluster(1)
        async with cluster.nodes(), cluster.engine():
            await cluster.submit("job", nodes=1, minNodes=5)
            await until(lambda: cluster.state("job") == "refused")
            assert "minNodes = 5" in cluster.status("job")["why"]
            patches = cluster.server.requests["PATCH weftjobs"]
            await asyncio.sleep(60)
            assert cluster.server.requests["PATCH weftjobs"] == patches
            await cluster.change("job", minNodes=1)
            await until(lambda: cluster.state("job") == "running")

    play(life)


def test_a_running_job_that_is_spoilt_runs_on() -> None:
    async def life() -> None:
        cluster = FakeCluster(1)
        async with cluster.nodes(), cluster.engine():
            await cluster.submit("job")
            await until(lambda: cluster.state("job") == "running")
            await cluster.change("job", minNodes=7)
            await asyncio.sleep(30)
            assert cluster.state("job") == "running"

    play(life)


def test_a_changed_priority_counts_while_a_job_waits() -> None:
    async def life() -> None:
        cluster = FakeCluster(1, run_s=60.0)
        async with cluster.nodes(), cluster.engine():
            for name in ("first", "second", "third"):
                await cluster.submit(name)
                await asyncio.sleep(2)
            await cluster.change("third", priority=150)
            await until(lambda: cluster.state("first") == "done")
            await until(lambda: cluster.state("third") == "running")
            assert cluster.state("second") == "waiting"

    play(life)


def test_what_somebody_else_writes_into_a_status_counts() -> None:
    async def life() -> None:
        cluster = FakeCluster(2)
        async with cluster.nodes(), cluster.engine():
            await cluster.submit("job")
            await until(lambda: cluster.state("job") == "running")
            record = {**cluster.status("job")["record"], "state": "stopping", "ending": "failed"}
            async with cluster.server.client() as client:
                await client.patch(JOBS, "job", {"status": {"record": record}}, SPACE, part="status")
            await until(lambda: cluster.state("job") == "failed")

    play(life)


def test_an_elastic_gang_runs_on_fewer_nodes_and_grows() -> None:
    async def life() -> None:
        cluster = FakeCluster(4)
        async with cluster.nodes(), cluster.engine():
            await cluster.submit("other", 2)
            await until(lambda: cluster.state("other") == "running")
            await cluster.submit("elastic", 4, minNodes=2)
            await until(lambda: cluster.state("elastic") == "running")
            assert len(cluster.on("elastic")) == 2
            await cluster.cancel("other")
            await until(lambda: len(cluster.on("elastic")) == 4 and cluster.state("elastic") == "running", 7200)

    play(life)


def test_events_tell_what_was_decided() -> None:
    async def life() -> None:
        cluster = FakeCluster(1, run_s=5.0)
        async with cluster.nodes(), cluster.engine():
            await cluster.submit("job")
            await until(lambda: cluster.state("job") == "done")
            await asyncio.sleep(1)
        events: list[dict[str, Any]] = list(cluster.server.store.objects(EVENTS).values())
        assert [one["reason"] for one in events] == ["Placed"]
        assert events[0]["involvedObject"]["name"] == "job"

    play(life)
