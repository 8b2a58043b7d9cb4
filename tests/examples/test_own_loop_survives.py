import difflib
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"
SURVIVES = EXAMPLES / "own_loop_survives.py"


def code(path: Path) -> list[str]:
    """Return the lines of a program below its docstring."""
    return path.read_text().split('"""', 2)[2].splitlines()


def test_survival_costs_five_lines():
    changed = [
        line
        for line in difflib.ndiff(code(EXAMPLES / "own_loop.py"), code(SURVIVES))
        if line.startswith("+ ") and line.strip("+ ")
    ]
    assert len(changed) <= 5


@pytest.mark.slow
def test_the_example_survives_a_kill_with_the_same_bits(tmp_path: Path):
    job = tmp_path / "job.toml"
    job.write_text('extends = "own-loop"\nsteps = 120\n[recovery]\nsnapshots = 1\n[checkpoint]\nevery = 0\n')
    outputs = [run(job, tmp_path / name, kill=name == "disturbed") for name in ("calm", "disturbed")]
    digests = [re.search(r"'weights_digest': '(\w+)'", output) for output in outputs]
    assert digests[0] is not None
    assert digests[1] is not None
    assert digests[0][1] == digests[1][1]
    assert "survived" not in outputs[0]
    assert outputs[1].count("survived: ") == 1


@pytest.mark.slow
def test_nothing_is_left_running_when_the_supervisor_itself_is_killed(tmp_path: Path):
    job = tmp_path / "job.toml"
    job.write_text('extends = "own-loop"\nsteps = 100000\n')
    process = started(job, tmp_path / "runs")
    until_it_steps(process, tmp_path / "runs")
    below = descendants(process.pid)
    assert len(below) >= 5
    process.kill()
    process.communicate()
    deadline = time.monotonic() + 60
    while any(Path(f"/proc/{pid}").exists() for pid in below):
        assert time.monotonic() < deadline, "processes outlived their supervisor"
        time.sleep(0.1)


def started(job: Path, folder: Path) -> "subprocess.Popen[str]":
    command = [sys.executable, str(SURVIVES), str(job), str(folder)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def until_it_steps(process: "subprocess.Popen[str]", folder: Path) -> None:
    metrics = folder / "own-loop-1" / "metrics.jsonl"
    while process.poll() is None and (not metrics.exists() or metrics.read_text().count("\n") < 5):
        time.sleep(0.01)


def descendants(pid: int) -> list[int]:
    return [int(path.name) for path in Path("/proc").iterdir() if path.name.isdigit() and pid in ancestors(path)]


def run(job: Path, folder: Path, *, kill: bool) -> str:
    process = started(job, folder)
    if kill:
        until_it_steps(process, folder)
        os.kill(a_rank_of(process.pid), signal.SIGKILL)
    output, _ = process.communicate(timeout=100)
    assert process.returncode == 0
    return output


def a_rank_of(pid: int) -> int:
    """Return a process that trains: a spare, a keeper and the fork server have as many threads, and compute nothing."""
    before = {one: ticks(one) for one in descendants(pid)}
    time.sleep(0.3)
    return max(before, key=lambda one: ticks(one) - before[one])


def ticks(pid: int) -> int:
    """Return for how long a process has computed."""
    try:
        fields = (Path("/proc") / str(pid) / "stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0
    return int(fields[11]) + int(fields[12])


def ancestors(path: Path) -> list[int]:
    found: list[int] = []
    try:
        while True:
            parent = int((path / "stat").read_text().rpartition(")")[2].split()[1])
            if parent <= 1:
                return found
            found.append(parent)
            path = Path("/proc") / str(parent)
    except OSError:
        return found
