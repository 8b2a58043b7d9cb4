"""A disk that is full or fails for a while costs time and nothing else: no job is lost, and none fails for it."""

import errno
import random
import sqlite3
import time
from pathlib import Path
from typing import Any

import pytest
from tests.engines.local.conftest import new_home, submission
from tests.engines.local.disk_faults import DiskFaults

from weft.cluster.records.job import ENDED, JobState
from weft.engines.local import supervised_loop
from weft.engines.local.engine import LocalEngine
from weft.engines.local.home import Home
from weft.engines.local.supervised_loop import EngineLoop, disk_trouble

NUMBERS = (errno.ENOSPC, errno.EIO)


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return new_home(tmp_path / "cluster", nodes=3)


def turn(loop: EngineLoop, engine: LocalEngine, names: list[str], within_s: float) -> None:
    """Turn the loop until jobs have ended; like the daemon, but with shorter pauses."""
    deadline = time.monotonic() + within_s
    while any(engine.find(name).job.state not in ENDED for name in names):
        assert time.monotonic() < deadline, (loop.health(), [engine.find(name).job for name in names])
        time.sleep(min(loop.turn(), 0.02))


def submitted(engine: LocalEngine, loop: EngineLoop, die: random.Random, key: str) -> str:
    """Submit as a client does that repeats itself until it is told that its job is taken."""
    while True:
        try:
            script = f"echo out; sleep {die.choice((0, 0, 0.05))}"
            return engine.submit(submission("sh", "-c", script, key=key))[0].job.id
        except (OSError, sqlite3.Error) as error:
            loop.stumble(error)
            loop.turn()


def survive(home: Home, monkeypatch: pytest.MonkeyPatch, seeds: range) -> None:
    engine = LocalEngine(home)
    loop = EngineLoop(engine, home)
    hit = 0
    for seed in seeds:
        die = random.Random(seed)
        with monkeypatch.context() as patch:
            faults = DiskFaults(patch, die.choice(NUMBERS))
            engine.reopen()
            faults.fail(die.randrange(1, 60), die.choice((1, 1, 2, 5)))
            names = [submitted(engine, loop, die, f"seeded-{seed:04d}-{number}") for number in range(2)]
            turn(loop, engine, names, within_s=10.0)
            hit += faults.failed > 0
        engine.reopen()
        for name in names:
            entry = engine.find(name)
            assert (entry.job.state, entry.attempt) == (JobState.DONE, 1), (seed, entry)
            assert engine.attempts.log(name, 1, 0, 0, 100)[0] == "out\n"
    assert len(engine.memory.store.newest(10_000)) == 2 * len(seeds)
    assert hit > len(seeds) / 2
    engine.close()


def test_a_few_failures_of_the_disk_lose_no_job_and_fail_none(home: Home, monkeypatch: pytest.MonkeyPatch):
    survive(home, monkeypatch, range(5))


@pytest.mark.slow
@pytest.mark.parametrize("first", range(100, 200, 25))
def test_a_hundred_failures_of_the_disk_lose_no_job_and_fail_none(
    home: Home, monkeypatch: pytest.MonkeyPatch, first: int
):
    survive(home, monkeypatch, range(first, first + 25))


@pytest.mark.parametrize("number", NUMBERS)
def test_a_loop_goes_on_however_long_the_disk_failed(home: Home, monkeypatch: pytest.MonkeyPatch, number: int):
    engine = LocalEngine(home)
    loop = EngineLoop(engine, home)
    name = engine.submit(submission("true"))[0].job.id
    faults = DiskFaults(monkeypatch, number)
    engine.reopen()
    faults.full = True
    pauses = [loop.turn() for _ in range(50)]
    assert min(pauses) > 0
    assert max(pauses) < 10
    assert loop.health()["state"] == "stumbling"
    assert "disk" in loop.health()["last_error"]["text"]
    with pytest.raises(Exception, match=r".") as refused:
        engine.submit(submission("true", key="refused-one"))
    assert disk_trouble(refused.value) is not None
    faults.full = False
    turn(loop, engine, [name], within_s=10.0)
    assert loop.health()["state"] == "ok"
    assert engine.memory.store.with_key("refused-one") == []
    assert [entry.job.state for entry in engine.memory.store.newest(9)] == [JobState.DONE]
    engine.close()


def test_any_other_error_is_survived_too(home: Home, monkeypatch: pytest.MonkeyPatch):
    engine = LocalEngine(home)
    loop = EngineLoop(engine, home)
    name = engine.submit(submission("true"))[0].job.id
    with monkeypatch.context() as patch:
        patch.setattr(engine, "tick", lambda: 1 // 0)
        assert loop.turn() > 0
        assert loop.health()["last_error"]["text"].startswith("ZeroDivisionError")
    turn(loop, engine, [name], within_s=10.0)
    engine.close()


def test_health_tells_when_the_loop_has_not_come_round(home: Home):
    now: list[float] = [0.0]
    engine = LocalEngine(home)
    loop = EngineLoop(engine, home, clock=lambda: now[0])
    loop.turn()
    now[0] = supervised_loop._STALLED_S - 1
    assert loop.health()["state"] == "ok"
    now[0] = supervised_loop._STALLED_S + 1
    health: dict[str, Any] = loop.health()
    assert (health["state"], health["turned_s_ago"]) == ("stalled", supervised_loop._STALLED_S + 1)
    loop.turn()
    assert loop.health()["state"] == "ok"
    assert 0 < health["disk_free_bytes"] <= health["disk_total_bytes"]
    engine.close()
