import runpy
from pathlib import Path
from typing import Any

import pytest

from weft.training.launch.rank_place import Reporter
from weft.training.launch.ranks import Ranks
from weft.training.run_dir import RunRecord

EXAMPLE = Path(__file__).parents[2] / "examples" / "own_loop.py"


def loop(reporter: Reporter, job: str, folder: str) -> dict[str, Any]:
    """Run the example as one rank."""
    del reporter
    return runpy.run_path(str(EXAMPLE))["main"](job, folder)


def run(folder: Path, ranks: int, steps: int) -> dict[str, Any]:
    job = folder / "job.toml"
    job.write_text(f'extends = "own-loop"\nsteps = {steps}\n[optimizer]\nschedule = "constant"\n')
    return Ranks("tests.examples.test_own_loop:loop", ranks, {"job": str(job), "folder": str(folder)}).run()[0]


def test_the_example_is_short():
    assert len(EXAMPLE.read_text().splitlines()) < 40


@pytest.mark.slow
def test_a_loop_of_ones_own_resumes_exactly_on_other_ranks_and_accounts_for_its_time(tmp_path: Path):
    for name in ("whole", "cut"):
        (tmp_path / name).mkdir()
    whole = run(tmp_path / "whole", 1, 6)
    run(tmp_path / "cut", 2, 3)
    resumed = run(tmp_path / "cut", 3, 6)
    assert resumed["weights_digest"] == whole["weights_digest"]
    assert resumed["run"] == "own-loop-1"
    lines = [RunRecord(tmp_path / name / "own-loop-1").steps() for name in ("whole", "cut")]
    assert [line["loss_bits"] for line in lines[0]] == [line["loss_bits"] for line in lines[1]]
    assert resumed["seconds"]["compute"] > 0
