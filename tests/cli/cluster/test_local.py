"""The cluster's commands against a real daemon: up, submit, look, cancel, drain, kill, up again, down."""

import json
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from weft.cli.main import main
from weft.engines.local.client import LocalClient
from weft.engines.local.home import Home

pytestmark = pytest.mark.timeout(300)
PYTHON = sys.executable


class Cluster:
    """A daemon of four slots in a folder of its own."""

    def __init__(self, folder: Path, capture: pytest.CaptureFixture[str]) -> None:
        self.home, self._capture = folder, capture
        self.client = LocalClient(Home(folder))

    def run(self, *arguments: str, status: int = 0) -> str:
        self._capture.readouterr()
        assert main([*arguments]) == status
        said = self._capture.readouterr()
        return said.out if status == 0 else said.err

    def json(self, *arguments: str) -> Any:
        split = arguments.index("--") if "--" in arguments else len(arguments)
        return json.loads(self.run(*arguments[:split], "--json", *arguments[split:]))

    def wait(self, done: Callable[[], bool]) -> None:
        deadline = time.monotonic() + 60
        while not done():
            assert time.monotonic() < deadline
            time.sleep(0.05)

    def state(self, job: str) -> str:
        return self.client.get("v1", "jobs", job)["state"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Start one daemon for all tests of this file."""
    folder = tmp_path_factory.mktemp("cluster") / "home"
    assert main(["cluster", "up", "--nodes", "2", "--team", "research=1", "--home", str(folder)]) == 0
    yield folder
    assert main(["cluster", "down", "--jobs", "--home", str(folder)]) == 0


@pytest.fixture
def cluster(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Cluster:
    monkeypatch.setenv("WEFT_CLUSTER", str(folder))
    monkeypatch.chdir(tmp_path)
    return Cluster(folder, capsys)


def test_a_command_is_submitted_followed_explained_and_remembered(cluster: Cluster):
    Path("experiment.py").write_text("print('working'); open('left', 'w').write('x')\n")
    (job,) = cluster.json("submit", "--", PYTHON, "experiment.py")["jobs"]
    Path("experiment.py").write_text("raise SystemExit('changed after it was submitted')\n")
    assert cluster.run("logs", "-f", job["id"]) == "working\n"
    cluster.wait(lambda: cluster.state(job["id"]) == "done")
    assert not Path("left").exists(), "a job works in a copy"
    assert "it has ended" in cluster.run("why", job["id"])
    assert job["id"] in cluster.run("jobs", "--all")
    assert "started on slot-" in cluster.run("jobs", job["id"])
    assert cluster.json("jobs", job["id"])["history"][0]["text"] == "submitted"


def test_a_sweep_is_compared_best_first(cluster: Cluster):
    code = "import sys, json; print(json.dumps({'loss': float(sys.argv[1]) ** 2}))"
    out = cluster.run("submit", "--sweep", "x=3,1,2", "--wait", "--name", "sw", "--", PYTHON, "-c", code, "{x}")
    rows = [line.split()[:3] for line in out.splitlines() if " sw-" in line]
    assert [(loss, x, name.rpartition(".")[2]) for loss, x, name in rows] == [
        ("1", "1", "1"),
        ("4", "2", "2"),
        ("9", "3", "0"),
    ]


def test_a_killed_daemon_is_started_again_and_its_job_is_still_the_same(cluster: Cluster):
    go = Path("go").absolute()
    (job,) = cluster.json("submit", "--", "sh", "-c", f"echo $$; while [ ! -e {go} ]; do sleep 0.1; done; echo end")[
        "jobs"
    ]
    cluster.wait(lambda: cluster.state(job["id"]) == "running")
    process = cluster.client.process()
    assert process is not None
    os.kill(process.pid, signal.SIGKILL)
    cluster.wait(lambda: not process.alive())
    assert "does not answer" in cluster.run("jobs", status=1)
    assert "1 jobs running" in cluster.run("cluster", "up")
    go.touch()
    lines = cluster.run("logs", "-f", job["id"]).splitlines()
    assert len(lines) == 2
    assert lines[1] == "end"


def test_waiting_jobs_say_why_and_drained_nodes_get_nothing(cluster: Cluster):
    cluster.run("drain", "slot-1", "--reason", "odd")
    assert "draining" in cluster.run("nodes")
    assert "cannot be drained" in cluster.run("drain", "slot-1", status=2)
    (first,) = cluster.json("submit", "--", "sleep", "60")["jobs"]
    (second,) = cluster.json("submit", "--", "true")["jobs"]
    cluster.wait(lambda: bool(cluster.json("why", second["id"])["code"]))
    assert "is waiting" in cluster.run("why", second["id"])
    cluster.run("undrain", "slot-1")
    cluster.wait(lambda: cluster.state(second["id"]) == "done")
    assert "stopping" in cluster.run("cancel", first["id"])
    cluster.wait(lambda: cluster.state(first["id"]) == "cancelled")
    assert cluster.json("cluster", "status")["jobs"]["cancelled"] >= 1


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--nodes", "3", "--", "true"], "it needs 3 nodes"),
        (["--team", "nobody", "--", "true"], "there is no team 'nobody'; there are: default, research"),
        (["--priority", "-1", "--", "true"], "priority"),
        (["--name", "Illegal Name", "--", "true"], "name"),
        (["--time-limit", "soon", "--", "true"], "time_limit"),
        (["--after", "nothing-1", "--", "true"], "comes after 'nothing-1'"),
        (["--sweep", "lr", "--", "true"], "write KEY=A,B,C"),
        (["--env", "NO_SUCH_VARIABLE", "--", "true"], "there is no such variable"),
        (["--set", "steps=3", "--", "true"], "for trainings"),
        (["tiny-gpt"], "it needs 4 nodes"),
        (["no-such.toml"], "no-such.toml"),
        ([], "name a job file"),
    ],
)
def test_bad_requests_end_with_status_2_and_leave_nothing(cluster: Cluster, arguments: list[str], words: str):
    def made() -> tuple[Any, ...]:
        folders = [sorted((cluster.home / name).iterdir()) for name in ("snapshots", "jobs")]
        return (len(cluster.client.get("v1", "jobs")["jobs"]), *folders)

    before = made()
    Path("new.txt").write_text(words)
    assert words in cluster.run("submit", *arguments, status=2)
    assert made() == before


def test_the_token_is_closed_to_others_and_a_cluster_is_not_started_twice(cluster: Cluster):
    assert (cluster.home / "token").stat().st_mode & 0o077 == 0
    assert cluster.home.stat().st_mode & 0o077 == 0
    assert "is up already" in cluster.run("cluster", "up")
    assert "weft cluster down first" in cluster.run("cluster", "up", "--nodes", "8", status=2)


def test_without_a_cluster_commands_say_how_to_start_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setenv("WEFT_CLUSTER", str(tmp_path / "none"))
    assert main(["jobs"]) == 2
    assert "weft cluster up starts one" in capsys.readouterr().err
    assert main(["cluster", "up", "--team", "x=99"]) == 2
    assert main(["cluster", "up", "--nodes", "0"]) == 2
    assert main(["cluster", "down"]) == 0
