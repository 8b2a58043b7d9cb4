"""The planner against published runs: the bars of the verification program, and the shape of its data."""

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

PROGRAM = Path(__file__).parents[2] / "verification" / "published_runs.py"


@pytest.fixture(scope="module")
def program() -> ModuleType:
    spec = importlib.util.spec_from_file_location("published_runs", PROGRAM)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["published_runs"] = module
    spec.loader.exec_module(module)
    return module


def test_constants_of_the_catalogue_are_within_five_percent_on_average(program: ModuleType):
    errors = [abs(run.error()) for run in program.runs()]
    assert len(errors) == 59
    assert np.mean(errors) <= 0.05
    assert max(errors) <= 0.15


def test_published_runs_fit_into_their_memory(program: ModuleType):
    for run in program.runs():
        needed = float(program.memory_of(run.work, run.plan, run.practice).total[0])
        assert needed <= run.machine().memory_bytes, run.name


def test_sizes_are_those_that_the_names_say(program: ModuleType):
    sizes = {run.name: run.work.model.total_parameters / 1e9 for run in program.runs()}
    assert sizes["1.7B"] == pytest.approx(1.7, rel=0.04)
    assert sizes["1008B"] == pytest.approx(1008, rel=0.01)
    assert sizes["405B 576"] == pytest.approx(405.9, rel=0.01)
    assert sizes["70B 64"] == pytest.approx(70.6, rel=0.01)


def test_derived_step_times_are_those_of_the_paper(program: ModuleType):
    seconds = {run.name: run.step_s for run in program.runs()}
    assert seconds["1.7B"] == pytest.approx(3.528, abs=0.001)
    assert seconds["1008B"] == pytest.approx(102.63, abs=0.01)


def test_our_own_compiled_steps_on_one_gpu_are_within_ten_percent(program: ModuleType):
    compiled = [run for run in program.own_runs() if "eager" not in run.name]
    assert len(compiled) == 2
    assert all(abs(run.error()) <= program.OWN_BAR for run in compiled)


@pytest.mark.slow
def test_models_left_out_of_the_fit_are_still_predicted(program: ModuleType):
    rows = program.runs()
    by_paper: dict[str, list[float]] = {}
    for family, (_, errors) in program.left_out(rows).items():
        own = next(row for row in rows if row.family == family)
        assert np.max(np.abs(errors)) <= program.WORST_BAR, family
        by_paper.setdefault(own.paper, []).extend(errors)
    for paper, errors in by_paper.items():
        assert np.mean(np.abs(errors)) <= program.MEAN_BAR, paper
