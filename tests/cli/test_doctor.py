"""`weft doctor` as people run it: the verdict first, a page, a trace, JSON, and a sentence for what cannot be read."""

import json
from pathlib import Path

import pytest
from verification.timed_jobs import TimedJob, timed_job

from weft.cli.main import main

pl = pytest.importorskip("polars")


@pytest.fixture
def table(tmp_path: Path) -> Path:
    rows = timed_job(TimedJob(1, 2, 2, 4, 6, "slow-rank", 0.002, 1.6, 1))
    path = tmp_path / "<b>ops.csv"
    pl.DataFrame({
        "rank": rows.rank, "stage": rows.stage, "dp_rank": rows.replica, "step": rows.step,
        "operation": [rows.names[index] for index in rows.name], "start": rows.start_s, "duration": rows.duration_s,
    }).write_csv(path)  # fmt: skip
    return path


def test_the_verdict_is_the_first_line(table: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", str(table)]) == 0
    assert capsys.readouterr().out.startswith("Rank 1 slows")


def test_json_says_the_same(table: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", str(table), "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["findings"][0]["ranks"] == [1]
    assert not document["healthy"]
    assert document["files"][0]["reader"] == "table of operations"


def test_page_and_trace_are_written_with_the_verdict_in_them(table: Path, tmp_path: Path) -> None:
    page, trace = tmp_path / "a.html", tmp_path / "a.json"
    assert main(["doctor", str(table), "--html", str(page), "--perfetto", str(trace)]) == 0
    text = page.read_text()
    assert "Rank 1 slows" in text
    assert "<svg" in text
    assert "<b>ops" not in text, "what a file is called is shown as text"
    events = json.loads(trace.read_text())["traceEvents"]
    assert {event["pid"] for event in events if event["ph"] == "X"} == {0, 1, 2, 3}
    assert [event["pid"] for event in events if event["ph"] == "i"] == [1]


def test_expected_is_set_beside_measured(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = tmp_path / "train.log"
    log.write_text("".join(
        f" iteration {step:8d}/ 100 | elapsed time per iteration (ms): 900000.0 | lm loss: 2.0E+00 |\n"
        for step in range(1, 9)
    ))  # fmt: skip
    assert main(["doctor", str(log), "--job", "gpt3-175b", "--site", "gb200-8x100g-131k", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    figures = document["figures"]["Megatron-LM"]
    assert figures["measured_over_expected"] == pytest.approx(900 / figures["expected_step_s"])
    assert 0 < figures["mfu"] < 1
    assert document["findings"][0]["cause"] == "slower-than-expected"


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ((), "name at least one"),
        (("/nowhere/at/all",), "there is no file"),
        (("{}", "--job", "tiny-gpt"), "go together"),
    ],
)
def test_wrong_use_costs_one_sentence(
    arguments: tuple[str, ...], says: str, table: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["doctor", *(word.format(table) for word in arguments)]) == 2
    assert says in capsys.readouterr().err


def test_files_of_no_known_kind_are_refused_with_their_names(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "a.txt").write_text("nothing\n")
    assert main(["doctor", str(tmp_path)]) == 2
    assert "a.txt" in capsys.readouterr().err
