"""Runs as the console shows them: columns that lose no peak, prefixes of equal bits, and a tail that misses nothing."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from starlette.testclient import TestClient
from tests.web.console.conftest import incident, line, write_run

from weft.training.compare import equal_prefix
from weft.training.run_columns import MOST_POINTS, MOST_ROWS, columns_of
from weft.training.run_tail import RunTail
from weft.web.console.run_files import RunLibrary

SECONDS = st.floats(0, 1e3, allow_nan=False)


@given(
    st.lists(st.tuples(st.one_of(st.none(), st.floats(-5, 1e6, allow_nan=False)), SECONDS, SECONDS), max_size=60),
    st.integers(1, 20),
)
def test_bins_lose_no_peak_and_keep_the_sums(given_lines: list[tuple[float | None, float, float]], most: int):
    lines = [
        {**line(number), "loss": loss, "seconds": {"compute": one, "redo": other}}
        for number, (loss, one, other) in enumerate(given_lines, start=1)
    ]
    found = columns_of(lines, most)
    assert len(found["step"]) <= most
    assert found["step"] == sorted(found["step"])
    losses = [loss for loss, _, _ in given_lines]
    if losses:
        worst = None if None in losses else max(loss for loss in losses if loss is not None)
        assert worst in found["loss"]
    # All bins but the last are of one size.
    whole = len(lines) - len(lines) % found["every"]
    for place, kind in ((1, "compute"), (2, "redo")):
        kept = sum(found["seconds"].get(kind, [])[: whole // found["every"]]) * found["every"]
        assert kept == pytest.approx(sum(each[place] or 0.0 for each in given_lines[:whole]))


@given(st.integers(1, 700), st.integers(0, 699), st.integers(0, 39), st.integers(1, 40))
def test_a_slow_rank_and_a_lost_plane_are_in_the_strip_whatever_the_size(ranks: int, slow: int, late: int, steps: int):
    slow, late = slow % ranks, late % steps
    lines = [
        line(step + 1, rank_seconds=[9.0 if (rank, step) == (slow, late) else 1.0 for rank in range(ranks)],
             planes_out=[4 if (rank, step) == (slow, late) else 0 for rank in range(ranks)])
        for step in range(steps)
    ]  # fmt: skip
    found = columns_of(lines, 16)
    row = slow // found["ranks_per_row"]
    assert max(map(len, found["rank_seconds"])) <= MOST_ROWS
    assert [point for point, column in enumerate(found["rank_seconds"]) if column[row] == 9.0] == [
        late // found["every"]
    ]
    assert [point for point, column in enumerate(found["planes_out"]) if column[row] == 4] == [late // found["every"]]
    assert sum(value == 9.0 for column in found["rank_seconds"] for value in column if value is not None) == 1


@given(st.integers(0, 12), st.integers(0, 12), st.one_of(st.none(), st.integers(1, 12)))
def test_runs_are_equal_up_to_the_first_bit_that_differs(left: int, right: int, apart: int | None):
    one = [line(step) for step in range(1, left + 1)]
    other = [line(step, loss=-1.0) if step == apart else line(step) for step in range(1, right + 1)]
    found = equal_prefix(one, other)
    parts = apart is not None and apart <= min(left, right)
    assert found.step == (apart - 1 if parts and apart is not None else min(left, right))
    assert found.parts == parts


def test_a_weights_digest_decides_where_both_have_one():
    same = [line(1), line(2, weights_digest="a"), line(3)]
    other = [line(1, weights_digest="only here"), line(2, weights_digest="b"), line(3)]
    assert equal_prefix(same, same).weights == 1
    assert (equal_prefix(same, other).step, equal_prefix(same, other).parts) == (1, True)


EVENTS = st.lists(st.one_of(st.integers(1, 5), st.tuples(st.just("cut"), st.integers(0, 20)), st.just("look"),
                            st.just("half")), max_size=25)  # fmt: skip


@settings(deadline=None, max_examples=40)
@given(EVENTS)
def test_whoever_follows_a_run_knows_what_is_written(tmp_path_factory: Any, events: list[Any]):
    path = tmp_path_factory.mktemp("run") / "metrics.jsonl"
    tail, known, written, count = RunTail(path.parent), [], [], 0

    def look() -> None:
        news = tail.read()
        if news.reset:
            known.clear()
        known.extend(news.steps)

    for event in [*events, "look"]:
        if isinstance(event, int):
            for _ in range(event):
                count += 1
                written.append({"step": len(written) + 1, "take": count})
            path.write_text("".join(json.dumps(each) + "\n" for each in written))
        elif event == "half":
            # A line that is still being written is not read.
            path.write_text("".join(json.dumps(each) + "\n" for each in written) + '{"step":')
        elif event == "look":
            look()
        else:
            del written[int(event[1]) :]
            path.write_text("".join(json.dumps(each) + "\n" for each in written))
    assert known == written


def test_a_run_is_listed_and_shown(runs: Path, client: TestClient):
    run = write_run(runs, "tiny-gpt-2", 9)
    run.append("incidents.jsonl", incident(1, 4), {"no": "incident"})
    listed = {each["id"]: each for each in client.get("/api/runs").json()["runs"]}
    assert (listed["tiny-gpt-2"]["steps"], listed["tiny-gpt-2"]["incidents"]) == (9, 1)
    shown = client.get("/api/runs/tiny-gpt-1").json()
    assert shown["columns"]["step"] == list(range(1, 13))
    assert shown["equal"] == [{"id": "tiny-gpt-2", "run": "tiny-gpt-2", "step": 9, "weights": 0, "parts": False}]
    assert shown["gpu_seconds"]["compute"] == pytest.approx(4 * 12 * 0.1)
    assert client.get("/api/runs/nobody").status_code == 404
    found = client.get("/api/runs/tiny-gpt-1/predicted", params={"site": "laptop"}).json()
    assert sum(found["seconds"].values()) == pytest.approx(found["step_s"])
    assert client.get("/api/runs/tiny-gpt-1/predicted", params={"site": "nowhere"}).status_code == 400


def test_runs_of_several_folders_keep_apart(tmp_path: Path):
    for root in ("a", "b"):
        write_run(tmp_path / root, "tiny-gpt-1", 2)
    library = RunLibrary([tmp_path / "a", tmp_path / "b", tmp_path / "not there"])
    listed = library.listed()
    assert len({each["id"] for each in listed}) == 2
    assert {library.find(each["id"]).folder.parent.name for each in listed} == {"a", "b"}
    # A folder may be a run itself.
    assert [each["run"] for each in RunLibrary([tmp_path / "a" / "tiny-gpt-1"]).listed()] == ["tiny-gpt-1"]


def test_a_run_that_cannot_be_read_hides_no_other(runs: Path, client: TestClient):
    (runs / "broken-1").mkdir()
    (runs / "broken-1" / "job.toml").write_text("[model")
    listed = {each["id"]: each for each in client.get("/api/runs").json()["runs"]}
    assert listed["broken-1"]["state"] == "unreadable"
    assert listed["tiny-gpt-1"]["error"] is None
    assert client.get("/api/runs/broken-1").status_code == 400


def test_a_long_run_is_as_many_points_as_a_screen_has(runs: Path, client: TestClient):
    write_run(runs, "long-1", MOST_POINTS + 1)
    columns = client.get("/api/runs/long-1").json()["columns"]
    assert (columns["every"], len(columns["step"])) == (2, MOST_POINTS // 2 + 1)
