import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.training.ranks import job_of

from weft.cli.main import INTERRUPTED, main
from weft.cli.training.train import changed, check_memory
from weft.core.errors import SpecError, UsageError
from weft.core.toml import written
from weft.specs import load_job


def job_file(folder: Path, **changes: Any) -> str:
    path = folder / "job.toml"
    path.write_text(written(job_of(folder, **changes).as_written()))
    return str(path)


def test_a_finished_run_is_one_json_document(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    status = main(["train", job_file(tmp_path), "--set", "steps=2", "--folder", str(tmp_path / "runs"), "--json"])
    result = json.loads(capsys.readouterr().out)
    assert status == 0
    assert result["run"] == "toy-1"
    assert result["steps"] == 2
    assert set(result) >= {"final_loss", "weights_digest", "mfu", "tokens_per_s", "seconds", "energy_j", "eval"}


def test_people_get_lines_and_a_table_of_seconds(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    assert main(["train", job_file(tmp_path, steps=1), "--folder", str(tmp_path / "runs")]) == 0
    shown = capsys.readouterr().out
    assert "step 1 of 1  loss " in shown
    assert "wall time" in shown
    assert "toy-1: finished after 1 steps" in shown


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["tiny-gpd"], "did you mean 'tiny-gpt'?"),
        (["tiny-gpt", "--set", "plan.pp=9"], "write pp = 4 or less"),
        (["tiny-gpt", "--set", "plan.dp=3", "--set", "plan.tp=3"], "the nearest that does is"),
        (["tiny-gpt", "--set", "model.layer=3"], "did you mean 'layers'?"),
        (["tiny-gpt", "--set", "steps"], "write KEY=VALUE"),
        (["tiny-gpt", "--set", "data.corpus=/nowhere/at/all"], "/nowhere/at/all"),
    ],
)
def test_a_wrong_request_is_told_what_would_be_right(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
):
    assert main(["train", *arguments, "--folder", str(tmp_path / "runs")]) == 2
    assert message in capsys.readouterr().err
    assert not list(tmp_path.glob("runs/tiny-gpt*"))


def test_an_empty_corpus_is_a_wrong_request(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    (tmp_path / "empty").mkdir()
    file = job_file(tmp_path, data={"corpus": str(tmp_path / "empty")})
    assert main(["train", file, "--folder", str(tmp_path / "runs")]) == 2
    assert "empty" in capsys.readouterr().err


def test_a_run_folder_of_another_job_is_a_wrong_request(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    asked = ["train", job_file(tmp_path, steps=1), "--folder", str(tmp_path / "runs")]
    assert main(asked) == 0
    assert main([*asked, "--resume", "--set", "seed=3"]) == 2
    assert "another job: seed is 0 there and 3 here" in capsys.readouterr().err


def test_every_mistake_of_set_is_named(tmp_path: Path):
    with pytest.raises(SpecError) as caught:
        changed(job_of(tmp_path), ("steps=0", "batch.micro=3", "plan.precision=fp8"), "toy")
    assert len(caught.value.mistakes) == 3


def test_words_need_no_quotes_in_set(tmp_path: Path):
    job = changed(job_of(tmp_path), ("plan.precision=bf16", "optimizer.clip=0.5", "plan.exact=false"), "toy")
    assert job.plan != "auto"
    assert job.plan.precision == "bf16"
    assert job.plan.exact is False
    assert job.optimizer.clip == 0.5


@pytest.mark.slow
def test_ctrl_c_saves_and_ends_and_resume_goes_on(tmp_path: Path):
    asked = [
        sys.executable, "-c", "from weft.cli.main import run; run()",
        "train", job_file(tmp_path, steps=2000), "--set", "plan.dp=2", "--folder", str(tmp_path / "runs"),
    ]  # fmt: skip
    metrics = tmp_path / "runs" / "toy-1" / "metrics.jsonl"
    with subprocess.Popen(asked, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        while not metrics.exists() or len(metrics.read_text().splitlines()) < 3:
            assert process.poll() is None, process.communicate()
        os.kill(process.pid, signal.SIGINT)
        out, err = process.communicate()
    done = json.loads((tmp_path / "runs" / "toy-1" / "result.json").read_text())["steps"]
    assert process.returncode == INTERRUPTED, err
    assert f"interrupted after {done:,} steps" in out
    assert "--resume" in out
    ended = subprocess.run(
        [*asked, "--resume", "--set", f"steps={done + 2}", "--json"], capture_output=True, check=False
    )
    assert json.loads(ended.stdout)["steps"] == done + 2


def test_a_model_larger_than_the_machine_is_refused_before_anything_starts():
    with pytest.raises(UsageError, match=r"weights of job 'gpt-1t' take .* weft rehearse"):
        check_memory(load_job("gpt-1t"), 64 << 30)
    check_memory(load_job("tiny-gpt"), 1 << 30)
