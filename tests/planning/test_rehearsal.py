"""The rehearsal: a complete page, with figures of simulations and runs beside the predicted ones."""

import json
from pathlib import Path

import pytest

from weft import api
from weft.cli.main import main
from weft.cli.planning.page.formats import shown
from weft.planning.rehearsal import rehearse
from weft.specs import load_job
from weft.training.metrics.step_line import StepLine
from weft.training.run_dir import RunDir, RunRecord
from weft.training.run_figures import run_figures


@pytest.fixture(scope="module")
def report():
    return api.plan("tiny-gpt", "laptop")


def test_figures_find_their_lines(report):
    lines = {line.key: line for line in rehearse(report, simulated={"step_s": 1.5}, measured={"mfu": 40.0, "x": 1.0})}
    assert lines["step_s"].simulated == 1.5
    assert lines["step_s"].measured is None
    assert lines["mfu"].measured == 40.0
    assert lines["mfu"].predicted == pytest.approx(100 * float(report.chosen.mfu[0]))


def test_the_page_speaks_of_everything(report):
    sections = {line.section for line in rehearse(report)}
    assert len(sections) == 5
    keys = {line.key for line in rehearse(report)}
    assert {"gpus", "plan", "step_s", "goodput", "power_swing_w", "carbon_kg", "gpu_cost", "run_high_s"} <= keys
    assert json.dumps([line.as_json() for line in rehearse(report)], allow_nan=False)


def finished(folder: Path) -> RunRecord:
    run = RunDir.start(folder, load_job("tiny-gpt"))
    for step in (1, 2, 3):
        seconds = {"compute": 0.1 * step, "idle": 0.1}
        run.step(StepLine(step, 1.0, 1.0, 1e-3, 2048, seconds))
    run.finish({"state": "finished", "tokens_per_s": 5000.0, "mfu": 0.25, "energy_j": 30.0})
    run.close()
    return RunRecord(run.folder)


def test_a_finished_run_fills_the_measured_column(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    record = finished(tmp_path)
    found = run_figures(record, record.job().steps)
    assert "run_s" not in run_figures(record, record.job().steps + 1)
    assert found["run_s"] > 0
    assert found["step_s"] == pytest.approx(0.3)
    assert found["mfu"] == 25.0
    assert found["energy_j_per_step"] == pytest.approx(10.0)
    assert main(["rehearse", "laptop", "tiny-gpt", "--no-simulate", "--folder", str(tmp_path), "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    measured = {line["key"]: line["measured"] for line in document["lines"]}
    assert measured["tokens_per_s"] == 5000.0
    assert document["run"] == "tiny-gpt-1"


def test_the_page_is_printed_and_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    page = tmp_path / "page.html"
    assert (
        main(["rehearse", "laptop", "tiny-gpt", "--no-simulate", "--folder", str(tmp_path), "--html", str(page)]) == 0
    )
    out = capsys.readouterr().out
    assert "verdict: fits" in out
    assert "what breaks" in out
    text = page.read_text()
    assert "<svg" in text
    assert "tiny-gpt on laptop" in text
    assert main(["rehearse", "laptop", "tiny-gpt", "--html", str(tmp_path / "page.pdf")]) == 2
    assert main(["rehearse", "laptop", "tiny-gpt", "--html", str(tmp_path / "no" / "page.html")]) == 2
    (tmp_path / ".other.html.part.html").mkdir()  # where the page stands until it is whole
    assert main(["rehearse", "laptop", "tiny-gpt", "--html", str(tmp_path / "other.html")]) == 1
    assert main(["rehearse", "nowhere", "tiny-gpt"]) == 2


def test_a_first_day_gives_the_last_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    arguments = ["rehearse", "h100-400g-16k", "llama3-405b", "--no-simulate", "--folder", str(tmp_path), "--start"]
    assert main([*arguments, "2027-01-31", "--json"]) == 0
    lines = json.loads(capsys.readouterr().out)["lines"]
    found = next(line["predicted"] for line in lines if line["key"] == "finish")
    assert found.startswith("2027-0")
    assert main([*arguments, "tomorrow"]) == 2
    assert "write a day" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (131072.0, "", "131,072"),
        (0.0025, "s", "2.5 ms"),
        (float("inf"), "s", "none expected"),
        (float("inf"), "%", "stops"),
        (2.5e6, "USD", "2.5 M USD"),
        (1234.5e9, "W", "1,230 GW"),
        ("words", "", "words"),
    ],
)
def test_figures_are_shown_with_their_units(value, unit: str, text: str):
    assert shown(value, unit) == text
