"""An open plan becomes one that the planner likes and the trainer can run."""

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.training.ranks import job_of

from weft.planning.legality import problems
from weft.training.parallel.auto_plan import automatic


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("auto-plan")


@settings(max_examples=40)
@given(ranks=st.integers(1, 12), sequences=st.integers(1, 12), micro=st.integers(1, 3))
def test_an_open_plan_can_always_be_run(folder: Path, ranks: int, sequences: int, micro: int):
    job = job_of(folder, batch={"sequences": sequences * micro, "micro": micro, "length": 32})
    plan = automatic(job, ranks)
    assert plan.ranks <= ranks
    assert problems(plan, job.model, job.batch) == []


def test_two_cores_are_both_used(folder: Path):
    job = job_of(folder, batch={"sequences": 8, "micro": 2, "length": 32})
    assert automatic(job, 2).ranks == 2
