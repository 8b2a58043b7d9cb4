"""An API server that refuses, forgets, lags and falls silent: jobs end as they should all the same."""

import asyncio

import pytest
from tests.engines.kubernetes.fake_cluster import SPACE, FakeCluster, play, until
from tests.engines.kubernetes.stage import running

from weft.engines.kubernetes.api.api_client import ApiError
from weft.engines.kubernetes.api.resources import JOBS
from weft.testing.api_server import Trouble

_ALL = {
    "too many": Trouble(too_many=0.15),
    "failing": Trouble(failed=0.15),
    "lost answers": Trouble(lost=0.15),
    "conflicts": Trouble(conflict=0.2),
    "gone": Trouble(gone=0.4),
    "closed watches": Trouble(closed=0.6),
    "silent watches": Trouble(silent=0.5),
    "slow": Trouble(latency_s=2.0),
    "all of it": Trouble(0.05, 0.05, 0.05, 0.05, 0.2, 0.3, 0.2, 0.3),
}


@pytest.mark.parametrize("trouble", _ALL.values(), ids=_ALL)
def test_gangs_end_as_they_should_under_every_trouble(trouble: Trouble) -> None:
    async def life() -> None:
        cluster = FakeCluster(4, seed=5, start_s=1.0, run_s=30.0)
        async with cluster.nodes(), cluster.engine(silence_s=20.0), running(cluster.witness()):
            cluster.server.trouble = trouble
            for name, nodes in (("a", 3), ("b", 2), ("c", 4)):
                while True:
                    try:
                        await cluster.submit(name, nodes)
                    except ApiError as error:
                        if error.conflict and f"{SPACE}/{name}" not in cluster.server.store.objects(JOBS):
                            continue
                    break
            await until(lambda: all(cluster.state(name) == "done" for name in "abc"), 7200)
        assert not cluster.wrong

    play(life)


@pytest.mark.parametrize("kind", ["pods", "weftjobs", "nodes"])
def test_a_watch_that_says_nothing_is_opened_again(kind: str) -> None:
    async def life() -> None:
        cluster = FakeCluster(2, run_s=30.0)
        async with cluster.nodes(), cluster.engine(silence_s=40.0):
            await cluster.submit("before")
            await until(lambda: cluster.state("before") == "running")
            cluster.server.mute(kind)
            await cluster.submit("meanwhile")
            await asyncio.sleep(30)
            cluster.server.mute(kind, muted=False)
            await until(lambda: cluster.state("meanwhile") == "done")

    play(life)


def test_a_server_that_forgets_versions_is_listed_again() -> None:
    async def life() -> None:
        cluster = FakeCluster(2, run_s=30.0)
        async with cluster.nodes(), cluster.engine() as engine:
            await cluster.submit("job")
            await until(lambda: cluster.state("job") == "running")
            lists = [one.relists for one in engine.cache.reflectors]
            cluster.server.store.compact()
            cluster.server.mute("none")
            await until(lambda: sum(one.relists for one in engine.cache.reflectors) > sum(lists))
            await until(lambda: cluster.state("job") == "done")

    play(life)


@pytest.mark.parametrize("status", [500, 503, 429])
def test_a_status_that_cannot_be_written_is_tried_again_later(status: int) -> None:
    async def life() -> None:
        cluster = FakeCluster(1, run_s=30.0)
        async with cluster.nodes(), cluster.engine() as engine:
            fault = cluster.server.fail(status, "PATCH", "weftjobs/job/status", times=30)
            await cluster.submit("job")
            await until(lambda: cluster.state("job") == "done")
            assert fault.times == 0
            assert engine.lanes.failed > 0

    play(life)


def test_pods_that_cannot_be_made_are_tried_again_and_the_job_backs_off() -> None:
    async def life() -> None:
        cluster = FakeCluster(2, run_s=30.0)
        async with cluster.nodes(), cluster.engine():
            cluster.server.fail(500, "POST", "/pods", times=40)
            await cluster.submit("job", 2)
            await until(lambda: cluster.state("job") == "done")

    play(life)


def test_a_pod_whose_making_was_not_answered_is_not_made_twice() -> None:
    async def life() -> None:
        cluster = FakeCluster(2, run_s=30.0)
        async with cluster.nodes(), cluster.engine():
            cluster.server.fail(500, "POST", "/pods", times=2, done=True)
            await cluster.submit("job", 2)
            await until(lambda: cluster.state("job") == "running")
            assert len(cluster.pods("job")) == 2

    play(life)


def test_a_node_that_changes_while_it_is_marked_is_marked_all_the_same() -> None:
    async def life() -> None:
        cluster = FakeCluster(3)
        async with cluster.nodes() as kubelets, cluster.engine():
            cluster.server.fail(409, "PATCH", "/nodes/n-00002", times=3)
            kubelets.silence(["n-00002"])
            await until(
                lambda: any(t["key"].endswith("quarantined") for t in cluster.node("n-00002")["spec"]["taints"])
            )

    play(life)


@pytest.mark.parametrize("status", [401, 403])
def test_an_engine_that_may_not_list_ends(status: int) -> None:
    async def life() -> None:
        cluster = FakeCluster(1)
        async with cluster.nodes(), cluster.server.client() as client:
            cluster.server.fail(status, "GET", "/weftjobs", times=1000)
            with pytest.raises(ApiError) as caught:
                async with cluster.engine():
                    await asyncio.sleep(60)
            assert caught.value.status == status
            assert client.refused == []

    play(life)
