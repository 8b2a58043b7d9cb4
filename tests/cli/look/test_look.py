"""`weft ui`, `top` and `export` from the command line: what is wrong is one sentence, what is written is a trace."""

import json
import socket
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.web.console.conftest import incident, line, write_run

from weft.cli.look.top import CLUSTER_HEAD, cluster_rows, fitted, run_rows
from weft.cli.main import main
from weft.training.run_trace import trace_of_run


def refused(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert main(list(words)) == 2
    said = capsys.readouterr().err
    assert said.startswith("error: ")
    assert len(said.strip().splitlines()) == 1, said
    return said


@pytest.mark.parametrize("command", ["ui", "top"])
def test_a_folder_that_is_not_there_is_one_sentence(command: str, capsys: pytest.CaptureFixture[str]):
    assert "nowhere" in refused(capsys, command, "nowhere")


def test_a_file_in_place_of_a_folder_is_one_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    (tmp_path / "file").write_text("")
    assert "is a file" in refused(capsys, "ui", str(tmp_path / "file"))


def test_a_port_in_use_is_one_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert f"port {port}" in refused(capsys, "ui", str(tmp_path), "--port", str(port))
    assert "65535" in refused(capsys, "ui", str(tmp_path), "--port", "99999")


def test_top_is_printed_once_without_a_terminal(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    write_run(tmp_path / "runs", "[red]tiny-1", 4)
    (tmp_path / "runs" / "broken-1").mkdir()
    (tmp_path / "runs" / "broken-1" / "job.toml").write_text("?")
    assert main(["top", str(tmp_path / "runs"), "--home", str(tmp_path / "home")]) == 0
    said = capsys.readouterr().out
    assert "[red]tiny-1" in said
    assert "4/60" in said
    assert "unreadable" in said
    assert "weft cluster up" in said
    assert not (tmp_path / "home").exists()


def test_rows_have_a_cell_for_every_column():
    assert cluster_rows({"up": False, "problem": "x"}) == [("-", "down", "-", "-", "x")]
    assert run_rows([]) == []


def checked(trace: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the slices of a trace that Perfetto can read: fields there, slices of a track one after the other."""
    json.dumps(trace, allow_nan=False)
    slices = [each for each in trace["traceEvents"] if each["ph"] == "X"]
    ends: dict[tuple[int, int], float] = {}
    for each in slices:
        assert each["dur"] >= 0
        track = each["pid"], each["tid"]
        assert each["ts"] >= ends.get(track, 0.0) - 1e-3, each
        ends[track] = each["ts"] + each["dur"]
    named = {(each["pid"], each["tid"]) for each in trace["traceEvents"] if each["name"] == "thread_name"}
    assert set(ends) <= named
    return slices


@settings(max_examples=50)
@given(
    st.lists(st.lists(st.floats(0, 100), max_size=4), max_size=20),
    st.lists(st.tuples(st.integers(0, 25), st.floats(0, 50)), max_size=5),
)
def test_a_runs_trace_holds_all_its_time(ranks: list[list[float]], broken: list[tuple[int, float]]):
    lines = [line(number, rank_seconds=seconds) for number, seconds in enumerate(ranks, start=1)]
    incidents = [incident(number, step, recovery_seconds=cost) for number, (step, cost) in enumerate(broken)]
    trace = trace_of_run("r", lines, incidents)
    json.dumps(trace, allow_nan=False)
    steps = [each for each in trace["traceEvents"] if each["ph"] == "X" and each["name"].startswith("step ")]
    assert len(steps) == len(lines)
    ends = max(
        (each["ts"] + each["dur"] for each in trace["traceEvents"] if each["ph"] == "X" and each["pid"] == 1), default=0
    )
    whole = sum(sum(each["seconds"].values()) for each in lines) + sum(cost for _, cost in broken)
    assert ends == pytest.approx(1e6 * whole)


def test_a_run_and_a_plan_are_exported(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    run = write_run(tmp_path, "tiny-gpt-1", 5)
    run.append("incidents.jsonl", incident(1, 3, detect_seconds=0.5, recovery_seconds=2.0))
    target = tmp_path / "trace.json"
    assert main(["export", "tiny-gpt-1", "--folder", str(tmp_path), "--perfetto", str(target)]) == 0
    assert len([each for each in checked(json.loads(target.read_text())) if each["name"].startswith("step")]) == 5
    for job, site in (("tiny-gpt", "laptop"), ("llama3-405b", "h100-400g-16k"), ("gpt3-175b", "gb200-4x200g-32k")):
        assert main(["export", job, "--site", site, "--perfetto", str(target)]) == 0
        assert checked(json.loads(target.read_text()))
    capsys.readouterr()
    assert "did you mean" in refused(
        capsys, "export", "tiny-gpt-9", "--folder", str(tmp_path), "--perfetto", str(target)
    )
    assert "ends in .json" in refused(capsys, "export", "tiny-gpt-1", "--perfetto", str(tmp_path / "trace.txt"))


@given(
    st.lists(
        st.tuples(*(st.text("ab-1", min_size=1, max_size=9) for _ in range(4)), st.text("why it \x1b", max_size=120)),
        max_size=5,
    ),
    st.sampled_from([80, 100, 120]),
)
def test_the_last_column_of_top_is_folded_and_loses_no_word(rows: list[tuple[str, ...]], width: int):
    shown = fitted(CLUSTER_HEAD, rows, width)
    columns = zip(CLUSTER_HEAD, *shown, strict=True)
    taken = sum(2 + max(len(part) for cell in column for part in cell.split("\n")) for column in columns)
    assert taken <= width
    for row, written in zip(shown, rows, strict=True):
        assert row[:-1] == written[:-1]
        assert row[-1].split() == written[-1].replace("\x1b", " ").split()
