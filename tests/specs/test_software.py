"""Habits of software: presets, keys that win over them, and refusals; what they say reaches the planner by files."""

from pathlib import Path

import pytest

from weft.core.errors import SpecError
from weft.planning.cost_model.machine import machine_of
from weft.planning.cost_model.plans import Workload, dimensions_of, software_of, written_plan
from weft.planning.cost_model.step import step_times
from weft.planning.legality import problems
from weft.specs import load_job, load_site
from weft.specs.job import ModelSpec, PlanSpec
from weft.specs.software import PRESETS, SoftwareSpec

JOB = """extends = "llama3-405b"
name = "own"

[software]
preset = "nemo-2025"
precision = "fp8"
jitter = 0.0
"""


@pytest.mark.parametrize("name", sorted(PRESETS))
def test_a_preset_alone_is_the_preset(name: str):
    found = SoftwareSpec.model_validate({"preset": name}).resolved()
    assert found.model_copy(update={"preset": None}) == PRESETS[name]


@pytest.mark.parametrize("name", sorted(PRESETS))
@pytest.mark.parametrize("written", [{"flash": True}, {"flash": False}, {"gradient_bytes": 4}, {"jitter": 0.5}])
def test_what_is_written_wins_even_where_it_is_the_default(name: str, written: dict[str, float]):
    found = SoftwareSpec.model_validate({"preset": name, **written}).resolved()
    assert found.model_dump(exclude={"preset"}) == {**PRESETS[name].model_dump(exclude={"preset"}), **written}


def test_a_job_file_says_all_that_the_planner_assumes(tmp_path: Path):
    (tmp_path / "job.toml").write_text(JOB)
    found = software_of(load_job(str(tmp_path / "job.toml")), load_site("h100-400g-16k"))
    assert (found.precision, found.jitter, found.gradient_bytes, found.fold) == ("fp8", 0.0, 2, True)
    assert found.quantised


def test_a_precision_that_is_asked_for_wins_over_the_file(tmp_path: Path):
    (tmp_path / "job.toml").write_text(JOB)
    assert software_of(load_job(str(tmp_path / "job.toml")), load_site("h100-400g-16k"), "bf16").precision == "bf16"


def test_without_a_table_the_habits_are_those_of_our_own_trainer():
    found = software_of(load_job("tiny-gpt"), load_site("laptop"))
    assert found == SoftwareSpec(precision="fp32")


@pytest.mark.parametrize(
    ("line", "said"), [("gradient_bytes = 3", "write 2 or 4"), ('preset = "megatron-1999"', "megatron-2021")]
)
def test_habits_that_nobody_has_are_refused_with_what_would_do(tmp_path: Path, line: str, said: str):
    (tmp_path / "job.toml").write_text(f'extends = "llama3-405b"\nname = "own"\n\n[software]\n{line}\n')
    with pytest.raises(SpecError, match=said):
        load_job(str(tmp_path / "job.toml"))


RUN = """extends = "llama3-405b"
name = "racks"

[batch]
sequences = 252
micro = 1
length = 8192

[software]
preset = "nemo-2025"

[plan]
dp = 4
tp = 8
pp = 9
cp = 2
zero = 1
schedule = "interleaved"
chunks = 7
"""


def test_a_published_run_is_said_by_a_file_alone(tmp_path: Path):
    # 17.50 s on 576 H100 (NVIDIA dgxc-benchmarking v25.03).
    (tmp_path / "job.toml").write_text(RUN)
    job, site = load_job(str(tmp_path / "job.toml")), load_site("h100-400g-16k")
    assert job.plan != "auto"
    work = Workload(dimensions_of(job.model), job.batch.sequences, job.batch.length)
    found = step_times(work, written_plan(job, job.plan), machine_of(site), software_of(job, site))
    assert float(found.step_s[0]) == pytest.approx(17.5, rel=0.06)


@pytest.mark.parametrize(
    ("written", "said"),
    [
        ({"zero": 1}, "plan.zero"),
        ({"pp": 4, "schedule": "interleaved", "chunks": 7}, "plan.chunks"),
        ({"tp": 4, "ep": 4}, "does not divide dp"),
    ],
)
def test_plans_for_other_software_are_refused_by_our_trainer(written: dict[str, int], said: str):
    job = load_job("gpt3-175b")
    found = problems(PlanSpec.model_validate(written), job.model, job.batch)
    assert any(said in each for each in found)


@pytest.mark.parametrize(
    ("table", "said"),
    [
        ({"planned": "nemotron"}, "nemotron"),
        ({"gated": False, "experts": {"count": 4, "top_k": 2, "ffn": 64}}, "experts without gates"),
        ({"parallel": True}, "model.parallel"),
        ({"mtp": 1}, "model.mtp"),
        ({"window": 64}, "model.window"),
        ({"experts": {"count": 4, "top_k": 2, "ffn": 64, "nodes": 2}}, "experts.nodes"),
    ],
)
def test_models_for_other_software_are_refused_by_our_trainer(table: dict[str, object], said: str):
    job = load_job("tiny-gpt")
    model = ModelSpec.model_validate({**job.model.as_written(), **table})
    assert any(said in each for each in problems(PlanSpec(), model, job.batch))
    assert not any(said in each for each in problems(PlanSpec(), job.model, job.batch))
