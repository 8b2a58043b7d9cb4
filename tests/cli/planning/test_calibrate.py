"""`weft calibrate`: a log in, a comparison and a site file out, and one sentence for what cannot be read."""

import gzip
import json
from pathlib import Path

import pytest

from weft.cli.main import main

JOB = """extends = "gpt3-175b"
name = "own"

[batch]
sequences = 64

[software]
preset = "nemo-2025"

[plan]
dp = 2
tp = 8
pp = 8
zero = 1
"""


@pytest.fixture
def job(tmp_path: Path) -> str:
    (tmp_path / "job.toml").write_text(JOB)
    (tmp_path / "run.log").write_text("\n".join(f"iteration {n} train_step_timing in s: 9.5" for n in range(20)))
    return str(tmp_path / "job.toml")


def test_a_log_calibrates_a_site_that_plans_as_the_run_was(
    job: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    log, site = str(tmp_path / "run.log"), tmp_path / "mine.toml"
    assert main(["calibrate", log, "--job", job, "--site", "h100-400g-16k", "--out", str(site), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["source"], found["measured_s"]) == ("NeMo", 9.5)
    assert found["ratio"] == pytest.approx(9.5 / found["expected_s"])
    assert [each["gpus"] for each in found["forecasts"]] == [256, 512, 1024, 2048]
    assert main(["plan", job, "--site", str(site), "--json"]) == 0
    plan = json.loads(capsys.readouterr().out)["own_plan"]
    assert plan["step_s"] == pytest.approx(9.5, rel=1e-3)
    assert plan["step_low_s"] < 9.5 < plan["step_high_s"]


def test_the_comparison_is_printed_part_by_part(job: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    assert main(["calibrate", str(tmp_path / "run.log"), "--job", job, "--site", "h100-400g-16k"]) == 0
    said = capsys.readouterr().out
    assert "steps by NeMo" in said
    assert "90 % interval" in said


@pytest.mark.parametrize(("name", "said"), [("no.log", "there is no file"), ("job.toml", "holds no step times")])
def test_a_log_that_says_nothing_is_refused(
    job: str, tmp_path: Path, name: str, said: str, capsys: pytest.CaptureFixture[str]
):
    assert main(["calibrate", str(tmp_path / name), "--job", job, "--site", "h100-400g-16k"]) == 2
    assert said in capsys.readouterr().err.replace("\n", " ")


def test_a_packed_log_is_read_and_a_broken_one_is_refused(job: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    packed = gzip.compress((tmp_path / "run.log").read_bytes())
    for name, content, status in (("run.gz", packed, 0), ("cut.gz", packed[:-9], 2), ("no.gz", packed[:3] + b"x", 2)):
        (tmp_path / name).write_bytes(content)
        assert main(["calibrate", str(tmp_path / name), "--job", job, "--site", "h100-400g-16k", "--json"]) == status
        said = capsys.readouterr()
        assert json.loads(said.out)["measured_s"] == 9.5 if status == 0 else "cannot be read" in said.err
