"""The controller dies between any two writes for workloads of others: nothing is lost, nothing given twice."""

import asyncio
import functools
import random
from typing import Any

import pytest
from tests.engines.kubernetes.fake_cluster import play, until
from tests.engines.kubernetes.stage import running
from tests.engines.kubernetes.workloads import KIND_NAMES, WorkloadCluster, workload

from weft.cluster.records.snapshot import SchedulingPolicy
from weft.testing.api_server import Crash, Trouble

_POLICY = SchedulingPolicy(patience_ms=0)
_PARTS = 6


async def _scene(cluster: WorkloadCluster, kind: str) -> None:
    """Play one that waits unsuspended, one that gives way to another, and both to their ends."""
    await cluster.hand_in(kind, "low", workload(kind, 3, suspend=False), **{"cluster.weft/priority": "0"})
    await until(lambda: cluster.stands(kind, "low").get("state") in ("starting", "running"))
    await cluster.hand_in(kind, "high", workload(kind, 2), **{"cluster.weft/priority": "500"})
    await until(lambda: cluster.ended(kind, "low") == cluster.ended(kind, "high") == "done")
    await until(lambda: cluster.stands(kind, "low")["state"] == cluster.stands(kind, "high")["state"] == "done")


async def _crashing(kind: str, writes: int) -> int:
    cluster = WorkloadCluster(3, start_s=0.5, run_s=15.0)
    crash = cluster.server.crash = Crash("first", writes)
    async with cluster.controllers(), running(cluster.witness()):
        task = asyncio.ensure_future(_scene(cluster, kind))
        async with cluster.engine("first", policy=_POLICY):
            await asyncio.wait([task, asyncio.create_task(crash.reached.wait())], return_when="FIRST_COMPLETED")
        if not task.done():
            async with cluster.engine("second", policy=_POLICY):
                await task
    assert not cluster.wrong
    assert not task.exception()
    # What was said before the crash is not said again.
    for name in ("low", "high"):
        said = cluster.said(name, "Placed")
        assert len(said) == len(set(said))
    return crash.seen


@functools.cache
def _writes(kind: str) -> int:
    return play(lambda: _crashing(kind, 10_000))


@pytest.mark.parametrize("kind", KIND_NAMES)
def test_a_crash_after_some_writes_is_survived(kind: str) -> None:
    total = _writes(kind)
    assert total > 2 * _PARTS, "the scene writes"
    for writes in random.Random(kind).sample(range(1, total + 1), 4):
        play(lambda: _crashing(kind, writes))  # noqa: B023 - it is played at once


@pytest.mark.slow
@pytest.mark.parametrize("part", range(_PARTS))
@pytest.mark.parametrize("kind", KIND_NAMES)
def test_a_crash_after_any_write_is_survived(kind: str, part: int) -> None:
    for writes in range(1 + part, _writes(kind) + 1, _PARTS):
        play(lambda: _crashing(kind, writes))  # noqa: B023 - it is played at once


async def _life(seed: int) -> None:
    """Play a drawn life: workloads of all kinds and sizes, faults of the server, a lost node, controllers that die."""
    chance = random.Random(seed)
    cluster = WorkloadCluster(6, seed=seed, start_s=0.5, run_s=chance.choice((5.0, 40.0)))
    names: list[tuple[str, str]] = []

    async def submissions() -> None:
        for number in range(chance.randrange(2, 6)):
            kind, gpus = chance.choice(KIND_NAMES), chance.choice((8, 8, 4))
            more: dict[str, Any] = {"suspend": chance.random() < 0.5}
            marks = {"cluster.weft/priority": str(chance.choice((0, 100, 500)))}
            await cluster.hand_in(kind, f"w{number}", workload(kind, chance.randrange(1, 5), gpus, **more), **marks)
            names.append((kind, f"w{number}"))
            await asyncio.sleep(chance.choice((0.0, 2.0, 15.0)))

    async with cluster.controllers() as kubelets, running(cluster.witness()):
        task = asyncio.ensure_future(submissions())
        for number in range(2):
            crash = cluster.server.crash = Crash(f"engine{number}", chance.randrange(1, 60))
            cluster.server.trouble = Trouble(too_many=0.02, failed=0.02, lost=0.02, closed=0.1)
            async with cluster.engine(f"engine{number}", policy=_POLICY):
                reached = asyncio.create_task(crash.reached.wait())
                await asyncio.wait([reached], timeout=40)
                reached.cancel()
        cluster.server.trouble = Trouble()
        if chance.random() < 0.5:
            kubelets.silence(["n-00000"])
        async with cluster.engine("last", policy=_POLICY):
            await task
            await until(lambda: all(cluster.stands(*one).get("state") in ("done", "failed") for one in names), 3600.0)
            assert all(cluster.ended(*one) for one in names)
    assert not cluster.wrong


@pytest.mark.parametrize("seed", range(2))
def test_a_drawn_life_ends_well(seed: int) -> None:
    play(lambda: _life(seed))


@pytest.mark.slow
@pytest.mark.parametrize("part", range(4))
def test_forty_drawn_lives_end_well(part: int) -> None:
    for seed in range(100 + 10 * part, 110 + 10 * part):
        play(lambda: _life(seed))  # noqa: B023 - it is played at once
