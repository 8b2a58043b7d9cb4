"""A cluster's folder, and an engine in this process that can be killed between any two steps."""

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from weft.cluster.records.job import ENDED, Team
from weft.cluster.records.snapshot import SchedulingPolicy
from weft.engines.local.engine import LocalEngine
from weft.engines.local.home import Home
from weft.engines.local.site_state import SiteState
from weft.engines.local.store import StoredJob
from weft.specs.submission import SubmissionSpec


def new_home(
    folder: Path, nodes: int = 2, gpus: int = 1, teams: tuple[Team, ...] = (), policy: SchedulingPolicy | None = None
) -> Home:
    home = Home(folder)
    home.make()
    memory = SiteState(home)
    memory.configure(nodes, gpus, teams, policy or SchedulingPolicy())
    memory.store.close()
    return home


def submission(*command: str, **more: Any) -> SubmissionSpec:
    return SubmissionSpec.model_validate({"command": command, **more})


def drive(engine: LocalEngine, done: Callable[[], bool], patience_s: float = 60.0) -> None:
    """Run the engine's loop until something is true."""
    deadline = time.monotonic() + patience_s
    while not done():
        assert time.monotonic() < deadline, [(entry.job.id, entry.job.state) for entry in engine.entries]
        if not engine.tick():
            time.sleep(0.01)


def finish(engine: LocalEngine, *names: str) -> list[StoredJob]:
    """Run the engine's loop until jobs have ended, and return them."""
    drive(engine, lambda: all(engine.find(name).job.state in ENDED for name in names))
    return [engine.find(name) for name in names]


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return new_home(tmp_path / "cluster")


@pytest.fixture
def engine(home: Home) -> Iterator[LocalEngine]:
    engine = LocalEngine(home)
    yield engine
    for entry in list(engine.entries):
        engine.cancel(entry.job.id)
    drive(engine, lambda: not list(engine.entries))
    engine.close()
