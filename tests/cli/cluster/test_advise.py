"""`weft why --from-slurm` and `--from-kueue`: what a person reads, what a program gets, and how nonsense is refused."""

import json
from pathlib import Path

import pytest
from tests.campaign.advice.queues import BEGIN_S, Scene, Wish, slurm
from tests.campaign.advice.test_kueue_queue import FULL, objects

from weft.cli.main import main

BUSY = Scene(2, 8, frozenset(), (Wish(1, 1, 8, 0, BEGIN_S, 600, (0,)), Wish(2, 2, 8, 5, BEGIN_S + 1, 60)))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name, document in zip(("squeue", "sinfo"), slurm(BUSY), strict=True):
        (tmp_path / f"{name}.json").write_text(json.dumps(document))
    return tmp_path


def test_a_slurm_job_is_explained_from_a_folder_and_changes_are_tried(folder: Path, capsys: pytest.CaptureFixture[str]):
    assert main(["why", "2", "--from-slurm", str(folder), "--what-if", "cancel=1", "--what-if", "priority=2:100"]) == 0
    out = capsys.readouterr().out
    assert "2 is waiting: it is next" in out
    assert "Slurm says: Priority" in out
    assert "with cancel=1 it starts at once" in out
    assert "with priority=2:100 it starts in about" in out


def test_a_kueue_job_is_answered_for_programs(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    path = tmp_path / "queue.json"
    path.write_text(json.dumps({"kind": "List", "items": objects(FULL, quota=8)}))
    assert main(["why", "ml/job-2", "--from-kueue", str(path), "--what-if", "quota=team:16", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["source"], found["code"]) == ("Kueue", "quota")
    assert [(each["change"], each["code"]) for each in found["what_if"]] == [("quota=team:16", "")]
    assert found["pool"] == {"nodes": 2, "gpus": 16, "free_gpus": 8}


@pytest.mark.parametrize(
    "content", ["", "{", "[]", "3", '{"jobs": 3}', '{"a": 1}', "\x00", '{"jobs": [], "nodes": []}']
)
@pytest.mark.parametrize("option", ["--from-slurm", "--from-kueue"])
def test_a_file_that_is_no_snapshot_is_one_sentence(
    content: str, option: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    path = tmp_path / "queue.json"
    path.write_text(content)
    assert main(["why", "1", option, str(path)]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert str(path) in err.replace("\n", "")
    assert "Traceback" not in err


@pytest.mark.parametrize(
    "more", [["--what-if", "cancel=9"], ["--what-if", "x"], ["--from-kueue", "x"], ["--what-if", "quota=a:1"]]
)
def test_a_change_that_cannot_be_is_refused(more: list[str], folder: Path, capsys: pytest.CaptureFixture[str]):
    assert main(["why", "2", "--from-slurm", str(folder), *more]) == 2
    assert capsys.readouterr().out == ""


def test_a_change_needs_a_snapshot(capsys: pytest.CaptureFixture[str]):
    assert main(["why", "2", "--what-if", "cancel=1"]) == 2
    assert "--from-slurm" in capsys.readouterr().err
