"""Ranks that are killed at any point of a step: the others go on, no step is repeated, and no bit is another."""

import json
import random
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import weft
from weft.core.toml import written
from weft.specs.faults import FaultsSpec
from weft.specs.job import JobSpec
from weft.training.run_dir import RunRecord

from .dying_loop import DEATHS, POINTS, loop, rich_loop

STEPS = 6
RANKS = 4
TIMED = ("exchange", "update", "backward")
SLOW = pytest.mark.slow


def _job(folder: Path, **recovery: Any) -> str:
    (folder / "corpus.txt").write_text("the quick brown fox jumps over the lazy dog; " * 60, encoding="utf-8")
    job = JobSpec.model_validate(
        {
            "name": "dying", "seed": 5, "steps": STEPS, "model": {"layers": 1, "width": 16, "heads": 2, "ffn": 32},
            "data": {"corpus": str(folder / "corpus.txt"), "held_out": 0.2},
            "batch": {"sequences": RANKS, "micro": 1, "length": 8}, "plan": {"dp": RANKS},
            "checkpoint": {"every": 2}, "evaluation": {"every": 2},
            "recovery": {"policy": "spare", "spares": 1, "snapshots": 3, "disk": 0, "in_step": True, **recovery},
        }
    )  # fmt: skip
    (folder / "job.toml").write_text(written(job.as_written()), encoding="utf-8")
    return str(folder / "job.toml")


def _run(
    folder: Path, *deaths: dict[str, Any], main: Callable[[str, str], Any] = loop, **recovery: Any
) -> dict[str, Any]:
    folder.mkdir(exist_ok=True)
    (folder / DEATHS).write_text(json.dumps(deaths))
    return weft.survive(main, _job(folder, **recovery), str(folder), faults=FaultsSpec())


def _record(folder: Path) -> RunRecord:
    return RunRecord(folder / "dying-1")


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("undisturbed")
    _run(folder)
    return folder


@pytest.fixture(scope="module")
def undisturbed_rich(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("undisturbed")
    _run(folder, main=rich_loop)
    return folder


def _death(seed: int, point: str) -> dict[str, Any]:
    draw = random.Random(f"{seed} {point}")
    # Not in the first steps, nor in the last: while ranks start or end, all of them are restarted.
    step = 3 if point == "evaluation" else draw.randrange(2, STEPS - 1)
    ms = draw.choice([0, 0.3, 1, 2, 4]) if point in TIMED else 0
    return {"point": point, "step": step, "rank": draw.randrange(RANKS), "ms": ms}


_TIMED = {"seconds", "energy_j", "rank_seconds", "rank_waits", "rank_input", "rank_batches"}
"""What a clock has a say in."""


def _same_run(folder: Path, other: Path) -> None:
    """Hold two runs against each other, line by line and bit by bit."""
    mine, theirs = _record(folder), _record(other)
    for lines in ((mine.steps(), theirs.steps()), (mine.evaluations(), theirs.evaluations())):
        found, expected = (
            [{key: value for key, value in line.items() if key not in _TIMED} for line in part] for part in lines
        )
        assert found == expected
    assert mine.checkpoints()[0][1].step == STEPS
    tensors = [record.checkpoints()[0][1].tensors for record in (mine, theirs)]
    assert {name: one.digest for name, one in tensors[0].items()} == {
        name: one.digest for name, one in tensors[1].items()
    }


def _check(folder: Path, undisturbed: Path, result: dict[str, Any], deaths: int) -> None:
    kills = [line for line in result["incidents"] if line["kind"] == "killed"]
    assert [line["restored_from"] for line in kills] == ["peers"] * deaths, kills
    assert [line["ranks_kept"] for line in kills] == [RANKS - 1] * deaths, kills
    assert [line["steps_repeated"] for line in kills] == [0] * deaths, kills
    _same_run(folder, undisturbed)


@pytest.mark.parametrize("point", ["backward", "exchange", "after the update"])
def test_a_rank_that_dies_inside_a_step_costs_no_step_and_no_bit(tmp_path: Path, undisturbed: Path, point: str):
    result = _run(tmp_path, _death(0, point))
    _check(tmp_path, undisturbed, result, 1)


@SLOW
@pytest.mark.timeout(900)
@pytest.mark.parametrize("point", POINTS)
@pytest.mark.parametrize("seed", range(1, 5))
def test_whatever_the_point_the_rank_and_the_step(tmp_path: Path, undisturbed: Path, point: str, seed: int):
    result = _run(tmp_path, _death(seed, point))
    _check(tmp_path, undisturbed, result, 1)


@SLOW
def test_one_rank_after_the_other_dies_and_each_is_replaced(tmp_path: Path, undisturbed: Path):
    deaths = [{"point": "exchange", "step": step, "rank": rank, "ms": 0} for step, rank in ((2, 2), (4, 0))]
    result = _run(tmp_path, *deaths)
    _check(tmp_path, undisturbed, result, 2)


@SLOW
def test_two_ranks_that_die_together_take_the_whole_restart_and_the_incident_says_so(tmp_path: Path, undisturbed: Path):
    deaths = [{"point": "forward", "step": 4, "rank": rank, "ms": 0} for rank in (1, 3)]
    result = _run(tmp_path, *deaths)
    (incident,) = [line for line in result["incidents"] if line["outcome"] == "recovered"]
    assert "was lost too" in incident["all_restarted_because"]
    assert incident["restored_from"] == "memory"
    _same_run(tmp_path, undisturbed)


@SLOW
@pytest.mark.timeout(900)
@pytest.mark.parametrize("point", POINTS)
@pytest.mark.parametrize("seed", range(5, 7))
def test_whatever_a_loop_keeps_and_draws(tmp_path: Path, undisturbed_rich: Path, point: str, seed: int):
    result = _run(tmp_path, _death(seed, point), main=rich_loop)
    _check(tmp_path, undisturbed_rich, result, 1)


@SLOW
@pytest.mark.parametrize(
    ("kind", "why"),
    [
        ({"buffers": "local"}, "no other replica holds"),
        ({"buffers": "synchronised"}, "is made once"),
        ({"notes": True}, "changes the model's buffers"),
    ],
)
def test_buffers_that_no_other_rank_could_give_take_the_whole_restart(tmp_path: Path, kind: dict[str, Any], why: str):
    main = partial(rich_loop, **kind)
    _run(tmp_path / "undisturbed", main=main)
    for point in ("exchange", "after the update"):
        result = _run(tmp_path / point, _death(1, point), main=main)
        (incident,) = [line for line in result["incidents"] if line["kind"] == "killed"]
        assert incident["ranks_kept"] == 0
        assert why in incident["all_restarted_because"]
        _same_run(tmp_path / point, tmp_path / "undisturbed")


def test_a_loop_of_ones_own_that_says_nothing_restarts_every_rank(tmp_path: Path, undisturbed: Path):
    result = _run(tmp_path, _death(0, "backward"), in_step=None)
    (incident,) = [line for line in result["incidents"] if line["kind"] == "killed"]
    assert "does not say recovery.in_step = true" in incident["all_restarted_because"]
    _same_run(tmp_path, undisturbed)


def test_a_job_that_asks_for_it_restarts_every_rank(tmp_path: Path, undisturbed: Path):
    result = _run(tmp_path, _death(0, "backward"), in_step=False)
    (incident,) = [line for line in result["incidents"] if line["kind"] == "killed"]
    assert incident["ranks_kept"] == 0
    assert incident["all_restarted_because"] == "the job says so: recovery.in_step = false"
    _same_run(tmp_path, undisturbed)
