"""Habits of software: presets, keys that win over them, and refusals; what they say reaches the planner by files."""

from pathlib import Path

import pytest

from weft.core.errors import SpecError
from weft.planning.cost_model.plans import software_of
from weft.specs import load_job, load_site
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
