"""Engines killed by SIGKILL at seeded points while jobs churn: none is lost or starts twice, the adopted finish."""

import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from tests.engines.local.conftest import drive, new_home

from weft.cluster.records.job import JobState
from weft.engines.local.engine import LocalEngine

ROOT = Path(__file__).parents[3]


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1])
def test_a_hundred_kills_lose_no_job_and_start_none_twice(tmp_path: Path, seed: int):
    judge(tmp_path, 100, seed)


def test_a_few_kills_lose_no_job_and_start_none_twice(tmp_path: Path):
    judge(tmp_path, 4, 7)


def judge(folder: Path, lives: int, seed: int) -> None:
    home = new_home(folder / "cluster", nodes=4)
    (folder / "marks").mkdir()
    program = [sys.executable, "-m", "tests.engines.local.churn", str(folder), str(lives), str(seed)]
    done = subprocess.run(program, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    engine = LocalEngine(home)
    adopted = [entry.job.id for entry in engine.entries if entry.job.holds]
    drive(engine, lambda: not list(engine.entries))
    ends = {entry.job.id: entry for entry in engine.memory.store.newest(10_000)}
    engine.close()
    acknowledged = dict(line.split() for line in (folder / "acknowledged").read_text().splitlines())
    # Every job that anybody was told of is there, once for its key, and has ended.
    assert set(acknowledged.values()) <= set(ends)
    keys = Counter(entry.key for entry in ends.values())
    assert keys.most_common(1)[0][1] == 1
    assert {entry.job.state for entry in ends.values()} <= {JobState.DONE, JobState.CANCELLED}
    done_once = [entry for entry in ends.values() if entry.job.state is JobState.DONE]
    assert len(done_once) >= len(ends) // 2
    for entry in ends.values():
        marks = folder / "marks" / entry.job.id
        starts = len(marks.read_text().split()) if marks.exists() else 0
        # A job that was let past a blocked one and gave way to it begins again, and only such a one does.
        assert starts <= entry.job.gang.nodes * (1 + entry.job.preemptions), entry
        assert entry.job.state is JobState.CANCELLED or starts >= entry.job.gang.nodes, entry
    for name in adopted:
        assert ends[name].attempt == 1 + ends[name].job.preemptions
        assert ends[name].job.state is JobState.DONE
