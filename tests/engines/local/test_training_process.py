"""Trainings under the local engine: a lost slot, a lost runner or a request to leave changes no bit."""

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.engines.local.conftest import drive, new_home

from weft.cluster.records.actions import Preempt
from weft.cluster.records.job import ENDED, JobState
from weft.engines.local import runner
from weft.engines.local.atomic_files import read_document
from weft.engines.local.engine import LocalEngine
from weft.engines.local.home import Home
from weft.engines.local.processes import Identity
from weft.engines.local.store import StoredJob
from weft.engines.local.views import job_detail
from weft.specs.submission import SubmissionSpec
from weft.training.run_dir import records

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

TEXT = "the quick brown fox jumps over the lazy dog, again and again and again; " * 40
STEPS = 120


class Ground:
    """A cluster of four slots and a tiny training for it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "corpus.txt").write_text(TEXT, encoding="utf-8")
        self.home: Home = new_home(folder / "cluster", nodes=4)
        self.engine = LocalEngine(self.home)

    def submit(self, dp: int = 2) -> StoredJob:
        job = {
            "name": "tiny", "seed": 3, "steps": STEPS,
            "model": {"layers": 1, "width": 16, "heads": 2, "ffn": 32},
            "data": {"corpus": str(self.folder / "corpus.txt"), "held_out": 0.2},
            "batch": {"sequences": 8, "micro": 1, "length": 8},
            "plan": {"dp": dp}, "checkpoint": {"every": 20},
            "recovery": {"policy": "spare", "spares": dp - 1, "snapshots": 1, "disk": 0},
        }  # fmt: skip
        (entry,) = self.engine.submit(SubmissionSpec.model_validate({"kind": "training", "job": job}))
        return entry

    def progress(self, entry: StoredJob) -> dict[str, Any]:
        return read_document(self.home.job(entry.job.id) / "progress.json") or {}

    def until(self, done: Callable[[], bool]) -> None:
        drive(self.engine, done, patience_s=300)

    def end(self, entry: StoredJob) -> StoredJob:
        self.until(lambda: self.engine.find(entry.job.id).job.state in ENDED)
        found = self.engine.find(entry.job.id)
        log, _ = self.engine.attempts.log(entry.job.id, found.attempt, 0, 0, 100_000)
        assert found.job.state is JobState.DONE, (found.text, log)
        return found


@pytest.fixture(scope="module")
def ground(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ground]:
    ground = Ground(tmp_path_factory.mktemp("ground"))
    yield ground
    for entry in list(ground.engine.entries):
        ground.engine.cancel(entry.job.id)
    ground.until(lambda: not list(ground.engine.entries))
    ground.engine.close()


@pytest.fixture(scope="module")
def undisturbed(ground: Ground) -> str:
    found = ground.end(ground.submit(dp=1))
    assert found.result is not None
    return found.result["weights_digest"]


def test_a_killed_slot_does_not_end_the_job_and_its_cost_is_in_the_ledger(ground: Ground, undisturbed: str):
    entry = ground.submit()
    ground.until(lambda: bool(ground.progress(entry).get("slots")))
    os.kill(ground.progress(entry)["slots"]["1"], signal.SIGKILL)
    found = ground.end(entry)
    assert found.result is not None
    assert found.attempt == 1
    assert found.result["weights_digest"] == undisturbed
    (incident,) = job_detail(ground.engine, found)["incidents"]
    assert (incident["kind"], incident["slot"], incident["outcome"]) == ("killed", 1, "recovered")
    assert incident["gpu_seconds_lost"] > 0
    (record,) = records(ground.home.job(entry.job.id) / "runs")
    assert [line["kind"] for line in record.incidents()] == ["killed"]
    history = [line["text"] for line in ground.engine.memory.store.history(entry.job.id)]
    assert any(text.startswith("killed after step") for text in history)
    assert "trainer" in [one.check for one in ground.engine.cluster.pool.nodes[1].evidence]


def test_a_killed_runner_costs_an_attempt_and_no_bit(ground: Ground, undisturbed: str):
    entry = ground.submit()
    ground.until(lambda: ground.progress(entry).get("checkpoint_ms") is not None)
    claim = read_document(ground.home.attempt(entry.job.id, 1) / runner.CLAIM)
    assert claim is not None
    Identity.from_plain(claim).signal(signal.SIGKILL)
    found = ground.end(entry)
    assert found.result is not None
    assert (found.attempt, found.lost) == (2, 1)
    assert found.result["weights_digest"] == undisturbed


def test_a_training_that_is_asked_to_leave_goes_on_later_from_its_checkpoint(ground: Ground, undisturbed: str):
    entry = ground.submit()
    ground.until(lambda: bool(ground.progress(entry).get("slots")))
    now = ground.engine.now()
    ground.engine.cluster.take_up(Preempt(entry.job.id, "ask", "priority", now + 60_000), now)
    ground.engine.find(entry.job.id).job = ground.engine.cluster.jobs[entry.job.id]
    found = ground.end(entry)
    assert found.result is not None
    assert (found.attempt, found.job.preemptions) == (2, 1)
    assert found.result["weights_digest"] == undisturbed
