"""The engine dies after any of its writes, and the next one goes on: nothing is given twice, nothing is forgotten."""

import asyncio
import functools
from collections.abc import Awaitable, Callable

import pytest
from tests.engines.kubernetes.fake_cluster import FakeCluster, play, until
from tests.engines.kubernetes.stage import running

from weft.cluster.records.snapshot import SchedulingPolicy
from weft.engines.kubernetes.api.resources import JOBS
from weft.testing.api_server import Crash

Scene = Callable[[FakeCluster], Awaitable[None]]
_PARTS = 8
_POLICY = SchedulingPolicy(patience_ms=0)


async def _two_gangs(cluster: FakeCluster) -> None:
    await cluster.submit("first", 2)
    await cluster.submit("second", 2)
    await until(lambda: cluster.state("first") == cluster.state("second") == "done")


async def _preemption(cluster: FakeCluster) -> None:
    await cluster.submit("low", 4, priority=0, grace="5s")
    await until(lambda: bool(cluster.pods("low")))
    await cluster.submit("high", 4, priority=500)
    await until(lambda: cluster.state("low") == cluster.state("high") == "done")


async def _called_off(cluster: FakeCluster) -> None:
    await cluster.submit("gang", 3)
    await until(lambda: len(cluster.pods("gang")) > 0)
    await cluster.cancel("gang")
    await cluster.submit("next", 4)
    await until(lambda: cluster.state("gang") == "cancelled" and cluster.state("next") == "done")


async def _deleted(cluster: FakeCluster) -> None:
    cluster.server.store.garbage_collector = False
    await cluster.submit("gang", 3)
    await until(lambda: len(cluster.pods("gang")) > 0)
    async with cluster.server.client("people") as client:
        await client.delete(JOBS, "gang", "default")
    await cluster.submit("next", 4)
    await until(lambda: cluster.state("next") == "done" and not cluster.pods("gang"))


async def _crashing(scene: Scene, writes: int) -> int:
    """Play a scene with an engine that dies after `writes` writes and one that follows; returns the first's writes."""
    cluster = FakeCluster(4, start_s=0.5, run_s=20.0)
    crash = cluster.server.crash = Crash("first", writes)
    async with cluster.nodes(), cluster.server.client("first"), running(cluster.witness()):
        task = asyncio.ensure_future(scene(cluster))
        async with cluster.engine("first", policy=_POLICY):
            await asyncio.wait([task, asyncio.create_task(crash.reached.wait())], return_when="FIRST_COMPLETED")
        if not task.done():
            async with cluster.engine("second", policy=_POLICY):
                await task
    assert not cluster.wrong
    assert not task.exception()
    return crash.seen


@functools.cache
def _writes(scene: Scene) -> int:
    """Return how many writes a scene takes when nobody dies."""
    return play(lambda: _crashing(scene, 10_000))


@pytest.mark.parametrize("part", range(_PARTS))
@pytest.mark.parametrize("scene", [_two_gangs, _preemption, _called_off, _deleted])
def test_a_crash_after_any_write_is_survived(scene: Scene, part: int) -> None:
    assert _writes(scene) > _PARTS, "the scene writes"
    for writes in range(1 + part, _writes(scene) + 1, _PARTS):
        play(lambda: _crashing(scene, writes))  # noqa: B023 - it is played at once


@pytest.mark.parametrize("writes", [1, 3, 7])
def test_the_same_crash_gives_the_same_life(writes: int) -> None:
    async def life() -> list[str]:
        cluster = FakeCluster(3, run_s=10.0)
        cluster.server.crash = Crash("first", writes)
        async with cluster.nodes(), cluster.engine("first"):
            await cluster.submit("gang", 3)
            await cluster.server.crash.reached.wait()
            await asyncio.sleep(30)
        return [one for one in cluster.server.writes if "leases" not in one and "events" not in one]

    assert play(life) == play(life)
