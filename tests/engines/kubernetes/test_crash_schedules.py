"""Whole lives from a seed: urgent jobs evict others, engines die after any write, and their logs replay as decided."""

import asyncio
import random
from pathlib import Path
from typing import Any

import pytest
from tests.engines.kubernetes.fake_cluster import FakeCluster, play, until
from tests.engines.kubernetes.stage import running

from weft.cluster.log import replayed
from weft.cluster.records.snapshot import SchedulingPolicy
from weft.testing.api_server import Crash

_POLICY = SchedulingPolicy(patience_ms=0)
_LIVES = 4


async def _life(seed: int, logs: Path | None = None) -> tuple[int, int]:
    """Play one life; returns how many engines died and how many jobs had to leave."""
    chance = random.Random(seed)
    cluster = FakeCluster(4, seed=seed, start_s=0.5, run_s=chance.choice((5.0, 20.0)))
    names: list[str] = []
    died = 0

    async def submissions() -> None:
        for number in range(chance.randrange(3, 8)):
            more: dict[str, Any] = {"priority": 500} if number and chance.random() < 0.5 else {"priority": 0}
            if chance.random() < 0.5:
                more["gpusPerNode"] = chance.choice((1, 4, 8))
            await cluster.submit(f"j{number}", chance.randrange(1, 5), grace="2s", **more)
            names.append(f"j{number}")
            await asyncio.sleep(chance.choice((0.0, 0.3, 3.0, 9.0)))

    async with cluster.nodes(), running(cluster.witness()):
        task = asyncio.ensure_future(submissions())
        for number in range(_LIVES):
            agent = f"engine{number}"
            crash = Crash(agent, chance.randrange(1, 40))
            if number < _LIVES - 1:
                cluster.server.crash = crash
            decisions = None if logs is None else logs / str(seed) / agent
            async with cluster.engine(agent, policy=_POLICY, decisions=decisions):
                if number < _LIVES - 1:
                    reached = asyncio.create_task(crash.reached.wait())
                    await asyncio.wait([reached], timeout=60)
                    died += reached.done()
                    reached.cancel()
                else:
                    await task
                    await until(lambda: all(cluster.state(name) == "done" for name in names))
    assert not cluster.wrong
    left = sum(cluster.status(name)["record"].get("preemptions", 0) for name in names)
    return died, left


@pytest.mark.parametrize("seed", range(4))
def test_a_schedule_of_crashes_with_preemption_is_survived(seed: int) -> None:
    play(lambda: _life(seed))


@pytest.mark.slow
@pytest.mark.parametrize("part", range(2))
def test_a_hundred_schedules_are_survived_and_some_engines_die_and_some_jobs_leave(part: int) -> None:
    found = [play(lambda: _life(seed)) for seed in range(100 * part, 100 * part + 100)]  # noqa: B023 - played at once
    assert sum(died for died, _ in found) > 50
    assert sum(left for _, left in found) > 20


@pytest.mark.parametrize("seed", [11, 12])
def test_every_decision_of_the_controller_is_made_again_by_its_log(seed: int, tmp_path: Path) -> None:
    play(lambda: _life(seed, tmp_path))
    files = sorted(tmp_path.rglob("*.jsonl"))
    lines = [line for file in files for line in file.read_text().splitlines()]
    assert sum(line.count('"do"') for line in lines) > 10
    assert list(replayed(lines)) == []
