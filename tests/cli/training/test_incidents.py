import json
from pathlib import Path
from typing import Any

import pytest

from weft.cli.main import main

FAULTS = '[[faults]]\nkind = "kill"\nrank = 1\nstep = 3\n'
JOB = """
name = "tiny"
steps = 4
[model]
layers = 1
width = 16
heads = 2
ffn = 32
[data]
corpus = "CORPUS"
[batch]
sequences = 4
micro = 1
length = 8
[plan]
dp = 2
[recovery]
snapshots = 1
"""


@pytest.fixture
def job(tmp_path: Path) -> Path:
    corpus = tmp_path / "corpus.txt"
    corpus.write_text("the quick brown fox jumps over the lazy dog; " * 60)
    path = tmp_path / "job.toml"
    path.write_text(JOB.replace("CORPUS", str(corpus)))
    return path


def test_a_faults_file_breaks_a_run_and_its_incidents_can_be_read(
    tmp_path: Path, job: Path, capsys: pytest.CaptureFixture[str]
):
    faults = tmp_path / "faults.toml"
    faults.write_text(FAULTS)
    folder = str(tmp_path / "runs")
    assert main(["train", str(job), "--faults", str(faults), "--folder", folder, "--json"]) == 0
    result: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert [one["rank"] for one in result["recoveries"]] == [1]
    assert set(result["recoveries"][0]) == {"step", "cause", "rank", "seconds", "restored_from"}
    assert result["goodput"]["wall_s"] == pytest.approx(sum(result["goodput"]["seconds"].values()))
    assert main(["runs", "incidents", "tiny-1", "--folder", folder, "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown == {"run": "tiny-1", "incidents": result["incidents"], "provenance": result["provenance"]}
    assert main(["runs", "incidents", "tiny-1", "--folder", folder]) == 0
    assert "killed" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('[[faults]]\nkind = "kill"\nrank = 7\nstep = 1\n', "names rank 7, but the job has ranks 0 to 1"),
        ('[[faults]]\nkind = "kill"\nrank = 0\nstep = 5\n', "names step 5, but the job has steps 1 to 4"),
        ('[[faults]]\nkind = "kil"\n', "has 1 mistake"),
        ("faults = [\n", "faults.toml"),
    ],
)
def test_a_bad_faults_file_ends_with_status_2_before_anything_starts(
    tmp_path: Path, job: Path, text: str, message: str, capsys: pytest.CaptureFixture[str]
):
    faults = tmp_path / "faults.toml"
    faults.write_text(text)
    assert main(["train", str(job), "--faults", str(faults), "--folder", str(tmp_path / "runs")]) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "runs").exists()
