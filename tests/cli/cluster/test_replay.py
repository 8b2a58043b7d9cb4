"""`weft cluster replay` and `generate`: what they print and write, and what they say to bad input."""

import csv
import json
from pathlib import Path

import pytest

from weft.campaign.trace import COLUMNS
from weft.cli.main import main

KEYS = {
    "policy", "jobs", "done", "over_limit", "makespan_s", "utilisation",
    "utilisation_makespan", "allocation_while_waiting", "stranded_while_waiting", "start_interval", "rules",
    "wait_s", "wait_s_quick", "wait_s_by_size",
    "wait_s_by_kind",
    "wait_s_by_priority", "wait_s_by_team", "wait_hours_by_reason", "unexplained_s", "fairness", "preempted", "evicted",
    "lost_gpu_hours", "waste", "fragmentation", "energy_kwh", "peak_w", "ramp_w_per_s", "replaced", "tickets",
    "technician_hours", "hours_to_validate", "passes", "cpu_s",
}  # fmt: skip


@pytest.fixture
def trace(tmp_path: Path) -> str:
    target = tmp_path / "trace.csv"
    assert main(["cluster", "generate", str(target), "--jobs", "60", "--nodes", "32", "--seed", "7"]) == 0
    return str(target)


def test_a_trace_is_made_and_replayed_under_several_policies(
    trace: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    capsys.readouterr()
    jobs, plot = tmp_path / "jobs.csv", tmp_path / "replay.svg"
    arguments = ["cluster", "replay", trace, "--nodes", "32", "--policy", "weft,fifo", "--json"]
    assert main([*arguments, "--jobs", str(jobs), "--plot", str(plot), "--failures"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found.keys() == {"site", "nodes", "format", "left_out", "policies", "provenance"}
    assert [each["policy"] for each in found["policies"]] == ["weft", "fifo"]
    assert all(each.keys() == KEYS for each in found["policies"])
    assert plot.read_text().startswith("<?xml")
    rows = list(csv.DictReader(jobs.read_text().splitlines()))
    assert len(rows) == 120
    for row in rows:
        explained = sum(float(part.partition("=")[2]) for part in row["reasons"].replace("next pass", "next").split())
        assert row["preemptions"] != "0" or explained == pytest.approx(float(row["wait_s"]))


def test_people_get_tables(trace: str, capsys: pytest.CaptureFixture[str]):
    capsys.readouterr()
    assert main(["cluster", "replay", trace, "--nodes", "32"]) == 0
    out = capsys.readouterr().out
    for words in ("60 jobs on 32 nodes", "utilisation", "why jobs waited", "unexplained", "idle-time tests of all"):
        assert words in out


def test_the_same_seed_makes_the_same_trace(trace: str, tmp_path: Path):
    again = tmp_path / "again.csv"
    main(["cluster", "generate", str(again), "--jobs", "60", "--nodes", "32", "--seed", "7"])
    assert again.read_text() == Path(trace).read_text()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["replay", "nowhere.csv"], "there is no file nowhere.csv"),
        (["replay", "TRACE", "--nodes", "1"], "the cluster has 1 such nodes"),
        (["replay", "TRACE", "--nodes", "0"], "write a number from 1"),
        (["replay", "TRACE", "--nodes", "32", "--policy", "magic"], "there is no policy 'magic'"),
        (["replay", "TRACE", "--nodes", "32", "--quota", "red=many"], "write TEAM=GPUS"),
        (["replay", "TRACE", "--nodes", "32", "--quota", "red=4"], "there is no team"),
        (["replay", "TRACE", "--nodes", "32", "--quota", "team-0=9999"], "the cluster has 128"),
        (["replay", "TRACE", "--nodes", "32", "--jobs", "jobs.txt"], "ends in .csv"),
        (["generate", "new.csv", "--jobs", "0"], "from 1 to 10,000,000"),
        (["generate", "new.csv", "--load", "0"], "above 0"),
        (["generate", "new.csv", "--scene", "party"], "there is no scene 'party'"),
    ],
)
def test_bad_input_is_one_sentence_status_2_and_creates_nothing(
    trace: str, arguments: list[str], words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
):  # fmt: skip
    empty = tmp_path / "empty"
    empty.mkdir()
    monkeypatch.chdir(empty)
    assert main(["cluster", *(trace if each == "TRACE" else each for each in arguments)]) == 2
    assert words in capsys.readouterr().err
    assert not list(empty.iterdir())


HELIOS = """job_id,user,vc,gpu_num,cpu_num,node_num,state,submit_time,start_time,end_time,duration,queue
1,u1,vcJkd,16,1,2,COMPLETED,2020-06-09 18:41:01,2020-06-09 18:41:01,2020-06-09 19:41:01,3600,0
2,u2,vchbv,1,16,1,FAILED,2020-06-09 18:51:27,2020-06-09 18:51:27,2020-06-09 18:55:36,249,0
3,u3,vcpDC,0,1,1,CANCELLED,2020-06-09 19:41:28,2020-06-09 18:41:28,2020-06-17 14:15:21,675233,0
"""


def test_another_projects_trace_is_replayed_and_converted(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    foreign, ours = tmp_path / "cluster_log.csv", tmp_path / "ours.csv"
    foreign.write_text(HELIOS)
    assert main(["cluster", "replay", str(foreign), "--nodes", "16", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["format"], found["left_out"]) == ("Helios", {"asks for no GPU": 1})
    assert found["policies"][0]["done"] == 2
    arguments = ["cluster", "trace", str(foreign), str(ours), "--load", "0.5", "--nodes", "4", "--most-gpus", "16"]
    assert main([*arguments, "--team", "one", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found.keys() == {"file", "format", "jobs", "days", "left_out"}
    # 16 GPU-hours and a little of 16 GPUs' time: two hours apart.
    assert found["days"] == pytest.approx(1.0 / 24, rel=0.01)
    rows = list(csv.DictReader(ours.read_text().splitlines()))
    assert [(row["nodes"], row["gpus_per_node"], row["team"]) for row in rows] == [("2", "8", "one"), ("1", "1", "one")]
    assert main(["cluster", "trace", str(foreign), str(ours), "--node-gpus", "4"]) == 0
    assert "left out of" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--load", "0.9"], "--load and --nodes go together"),
        (["--load", "0", "--nodes", "4"], "above 0"),
        (["--node-gpus", "0"], "--node-gpus 0"),
        (["--most-gpus", "0"], "no job asks for so few"),
    ],
)
def test_a_conversion_that_makes_no_sense_writes_nothing(
    arguments: list[str], words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    foreign, ours = tmp_path / "cluster_log.csv", tmp_path / "ours.csv"
    foreign.write_text(HELIOS)
    assert main(["cluster", "trace", str(foreign), str(ours), *arguments]) == 2
    assert words in capsys.readouterr().err
    assert not ours.exists()


def test_a_bad_trace_is_named_with_its_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    target = tmp_path / "bad.csv"
    target.write_text(",".join(COLUMNS) + "\n0,5,10,1,4,red,-1,training\n")
    assert main(["cluster", "replay", str(target)]) == 2
    assert "bad.csv:2  priority" in capsys.readouterr().err
