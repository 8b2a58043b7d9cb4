import json
from pathlib import Path

import pytest

from weft.cli.main import main
from weft.cli.training.runs import sparkline
from weft.specs import load_job
from weft.training.metrics.step_line import StepLine
from weft.training.run_dir import RunDir

JOB = load_job("tiny-gpt")


def made(root: Path, *, shift: float = 0.0, steps: int = 4, finished: bool = True) -> str:
    with RunDir.start(root, JOB) as run:
        for step in range(1, steps + 1):
            loss = 4.0 / step + (shift if step >= 3 else 0.0)
            run.step(StepLine(step, loss, 1.0, 1e-3, 100, {"compute": 0.75, "exposed_communication": 0.25}))
        run.evaluation(2, {"held_out_loss": 2.25})
        if finished:
            run.session({"begins_at": 0})
            run.session({"ends_at": steps, "seconds": {"compute": 3.0, "exposed_communication": 1.0, "idle": 1.0}})
            run.finish(
                {
                    "energy_j": 1500.0,
                    "energy": {"joules": 1500.0, "measured": False, "parts": []},
                    "mfu": 0.25,
                    "tokens_per_s": 80.0,
                }
            )
        return run.folder.name


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path / "runs"


def test_bare_runs_lists_them(runs: Path, capsys: pytest.CaptureFixture[str]):
    made(runs)
    made(runs, steps=2, finished=False)
    assert main(["runs"]) == 0
    text = capsys.readouterr().out
    assert "tiny-gpt-1" in text
    assert "finished" in text
    assert "2 of 60" in text
    assert "interrupted" in text
    assert main(["runs", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert [(row["run"], row["state"], row["steps"]) for row in rows] == [
        ("tiny-gpt-1", "finished", 4),
        ("tiny-gpt-2", "interrupted", 2),
    ]
    assert rows[0]["final_loss"] == 1.0
    assert rows[1]["tokens_per_s"] == 100.0


def test_a_run_being_written_is_running(runs: Path, capsys: pytest.CaptureFixture[str]):
    with RunDir.start(runs, JOB):
        assert main(["runs", "--json"]) == 0
    row = json.loads(capsys.readouterr().out)[0]
    assert (row["state"], row["steps"], row["final_loss"], row["tokens_per_s"]) == ("running", 0, None, None)


def test_show_tells_where_the_time_went(runs: Path, capsys: pytest.CaptureFixture[str]):
    name = made(runs)
    assert main(["runs", "show", name]) == 0
    text = capsys.readouterr().out
    for words in ("exposed communication", "5.000", "100.0%", "MFU 25.0%", "1.5 kJ partly estimated", "2.25"):
        assert words in text, words
    assert main(["runs", "show", name, "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert sum(report["seconds"].values()) == report["wall_s"] == 5.0
    assert report["eval"] == [{"step": 2, "held_out_loss": 2.25}]
    assert report["energy_j"] == 1500.0


def test_show_of_a_run_that_has_hardly_begun(runs: Path, capsys: pytest.CaptureFixture[str]):
    RunDir.start(runs, JOB).close()
    assert main(["runs", "show", "tiny-gpt-1", "--plot", "loss.svg"]) == 0
    assert "0 of 60 steps" in capsys.readouterr().out
    assert Path("loss.svg").stat().st_size > 1000


def test_show_draws_a_picture(runs: Path):
    name = made(runs)
    assert main(["runs", "show", name, "--plot", "loss.svg"]) == 0
    first = Path("loss.svg").read_bytes()
    assert b"</svg>" in first
    assert main(["runs", "show", name, "--plot", "again.svg"]) == 0
    assert Path("again.svg").read_bytes() == first


def test_equal_runs_compare_with_status_0(runs: Path, capsys: pytest.CaptureFixture[str]):
    assert main(["runs", "compare", made(runs), made(runs)]) == 0
    assert "equal bit for bit: 4 steps" in capsys.readouterr().out


def test_different_runs_compare_with_status_1(runs: Path, capsys: pytest.CaptureFixture[str]):
    names = [made(runs), made(runs, shift=1e-12)]
    assert main(["runs", "compare", *names]) == 1
    assert "differ first at step 3: loss" in capsys.readouterr().err
    assert main(["runs", "compare", *names, "--json"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert (found["equal"], found["step"], found["differs"]) == (False, 3, "loss")


def test_a_shorter_run_differs(runs: Path, capsys: pytest.CaptureFixture[str]):
    assert main(["runs", "compare", made(runs), made(runs, steps=3)]) == 1
    assert "step 4 is only in tiny-gpt-1" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["runs", "--folder", "nowhere"], "there is no folder nowhere"),
        (["runs", "show", "tiny-gpt-7"], "did you mean 'tiny-gpt-1'?"),
        (["runs", "compare", "tiny-gpt-1", "zzz"], "there is no run called 'zzz'"),
        (["runs", "show", "runs/none"], "is not a run folder"),
        (["runs", "show"], "RUN"),
        (["runs", "shown", "tiny-gpt-1"], "shown"),
        (["runs", "show", "tiny-gpt-1", "--plot", "a.gif"], "write a name that ends in .svg or .png"),
    ],
)
def test_wrong_questions_get_status_2(runs: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], words: str):
    made(runs)
    assert main(arguments) == 2
    assert words in capsys.readouterr().err


def test_sparklines_fall_with_the_loss_and_leave_gaps():
    assert sparkline([3.0, 2.0, 1.0]) == "█▅▁"
    assert sparkline([1.0, float("nan"), float("inf")]) == "▁  "
    assert sparkline([1.0] * 500, width=10) == "▁" * 10
    assert sparkline([]) == ""
