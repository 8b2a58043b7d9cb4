"""Runs as files, and a console over them: in process, and as `weft ui` with a browser before it."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from weft.core.toml import written
from weft.specs import JobSpec, load_job
from weft.training.metrics.step_line import StepLine
from weft.web.console.access import cookie_name
from weft.web.console.application import ConsoleApplication

TOKEN = "T" * 32


def line(step: int, **more: Any) -> dict[str, Any]:
    """Return a step's line as a run writes it."""
    given: dict[str, Any] = {"loss": 5.0 / step, "grad_norm": 1.0, "learning_rate": 1e-3, "tokens": 2048,
             "seconds": {"compute": 0.1, "exposed_communication": 0.02}, **more}  # fmt: skip
    return StepLine(step, **given).as_json()


def incident(number: int, step: int, **more: Any) -> dict[str, Any]:
    return {
        "incident": number, "at": "2026-11-19T10:00:00+00:00", "kind": "killed", "seen": "rank 1 died", "step": step,
        "rank": 1, "action": "replaced", "restored_from": "memory", "seconds_lost": 1.0, "gpu_seconds_lost": 4.0,
        "steps_repeated": 2, "passed_over": [], **more,
    }  # fmt: skip


@dataclass
class WrittenRun:
    """A run folder that a test writes as a training would."""

    folder: Path

    def append(self, name: str, *lines: Mapping[str, Any]) -> None:
        with (self.folder / name).open("a") as stream:
            stream.writelines(json.dumps(each) + "\n" for each in lines)


def write_run(root: Path, name: str = "tiny-gpt-1", steps: int = 0, job: JobSpec | None = None) -> WrittenRun:
    """Make a run folder with some steps."""
    folder = root / name
    folder.mkdir(parents=True)
    spec = job or load_job("tiny-gpt")
    (folder / "job.toml").write_text(written(spec.as_written()) + "\n")
    (folder / "provenance.json").write_text('{"identity": "x"}')
    run = WrittenRun(folder)
    run.append("sessions.jsonl", {"begins_at": 0, "ranks": 4})
    run.append("metrics.jsonl", *(line(step) for step in range(1, steps + 1)))
    return run


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    root = tmp_path / "runs"
    write_run(root, "tiny-gpt-1", 12)
    return root


@pytest.fixture
def stranger(runs: Path) -> Iterator[TestClient]:
    """A client of a console who knows no token."""
    app = ConsoleApplication([runs]).application(TOKEN)
    with TestClient(app, base_url="http://127.0.0.1:8000", raise_server_exceptions=False) as client:
        yield client


@pytest.fixture
def client(stranger: TestClient) -> TestClient:
    """A client that has opened the URL."""
    stranger.cookies.set(cookie_name(TOKEN), TOKEN)
    return stranger


@pytest.fixture
def served(runs: Path) -> Iterator[str]:
    """`weft ui` as a process; its URL."""
    program = [sys.executable, "-m", "weft", "ui", str(runs)]
    child = subprocess.Popen(program, stdout=subprocess.PIPE, text=True, env={**os.environ, "NO_COLOR": "1"})
    assert child.stdout is not None
    found = re.search(r"http://\S+", child.stdout.readline())
    assert found is not None
    yield found[0]
    child.terminate()
    assert child.wait(20) in (0, -15)
    child.stdout.close()
