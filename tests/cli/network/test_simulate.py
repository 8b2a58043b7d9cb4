"""`weft simulate`: what it prints, what it writes, and what it says to bad input."""

import csv
import json
from pathlib import Path

import polars
import pytest

import weft
from weft.cli.main import main

KEYS = {
    *(
        "transport",
        "hosts",
        "planes",
        "fct_us",
        "ideal_us",
        "goodput_bps_per_nic",
        "retransmitted",
        "trimmed",
        "marked",
    ),
    *("qps_touched", "recovery_us", "packet_hops", "wall_s", "cpu_s", "hash"),
}
SMALL = """
name = "small"
site = "gb200-8x100g-131k"
gpus = 8
[traffic]
pattern = "permutation"
size = "64 KiB"
"""


def written(folder: Path, text: str = SMALL, more: str = "") -> str:
    file = folder / "scenario.toml"
    file.write_text(text + more)
    return str(file)


def found(capsys: pytest.CaptureFixture[str], *arguments: str):
    assert main(["simulate", *arguments, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_one_transport_gives_one_document(capsys: pytest.CaptureFixture[str], tmp_path: Path):
    document = found(capsys, written(tmp_path))
    assert document.keys() >= KEYS
    assert document["fct_us"].keys() == {"min", "mean", "p50", "p99", "max"}
    assert (document["hosts"], document["planes"], document["completed"]) == (8, 8, 8)


def test_several_transports_give_a_list(capsys: pytest.CaptureFixture[str], tmp_path: Path):
    documents = found(capsys, written(tmp_path), "--transport", "mrc,uet,random")
    assert [document["transport"] for document in documents] == ["mrc", "uet", "random"]


def test_the_same_seed_gives_the_same_bytes(capsys: pytest.CaptureFixture[str], tmp_path: Path):
    runs = [found(capsys, written(tmp_path), "--seed", seed) for seed in ("5", "5", "6")]
    for run in runs:
        del run["wall_s"], run["cpu_s"]
    assert json.dumps(runs[0]) == json.dumps(runs[1]) != json.dumps(runs[2])


def test_python_gives_the_same_report(capsys: pytest.CaptureFixture[str], tmp_path: Path):
    (report,) = weft.simulate(written(tmp_path))
    assert report.hash() == found(capsys, written(tmp_path))["hash"]


def test_people_get_a_table_with_faults(capsys: pytest.CaptureFixture[str], tmp_path: Path):
    more = '[[faults]]\nkind = "black-hole"\ntarget = "link0-p0-i0"\nat = "2 us"\nlasts = "40 us"\n'
    assert main(["simulate", written(tmp_path, more=more), "--details"]) == 0
    text = capsys.readouterr().out
    assert "verdict: mrc: all 8 flows done" in text
    assert "black-hole" in text
    assert "slowest flow" in text


def test_flows_and_pictures_are_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    file, table, picture = tmp_path / "f.csv", tmp_path / "f.parquet", tmp_path / "p.svg"
    scenario = written(tmp_path)
    assert main(["simulate", scenario, "--flows", str(file), "--plot", str(picture)]) == 0
    assert main(["simulate", scenario, "--flows", str(table)]) == 0
    with file.open() as lines:
        rows = list(csv.DictReader(lines))
    assert len(rows) == len(polars.read_parquet(table)) == 8
    assert int(rows[0]["acknowledged_ps"]) > 0
    assert picture.read_text().startswith("<?xml")


def test_links_are_written_named_and_drawn(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    text, table, picture = tmp_path / "l.csv", tmp_path / "l.parquet", tmp_path / "l.svg"
    scenario = written(tmp_path)
    plain = found(capsys, scenario)
    document = found(capsys, scenario, "--links", str(text))
    assert (document["hash"], plain["worst_links"]) == (plain["hash"], None)
    assert {each["link"].split()[0] for each in document["worst_links"]} == {f"t0-p{plane}-i0" for plane in range(8)}
    with text.open() as lines:
        rows = list(csv.DictReader(lines))
    up = [row for row in rows if row["tier"] == "0" and row["down"] == "0"]
    assert sum(int(row["bytes"]) for row in up) >= 8 * 64 * 1024
    assert main(["simulate", scenario, "--links", str(table), "--plot", str(picture), "--transport", "mrc,uet"]) == 0
    assert "worst links" in capsys.readouterr().out
    both = polars.read_parquet(table)
    assert both.filter(polars.col("transport") == "mrc").height == len(rows)
    assert picture.read_text().startswith("<?xml")
    for more, reason in (("--keep", "not stored with a run"), ("--collective", "goes with a scenario")):
        last = [str(tmp_path / "k")] if more == "--keep" else ["ring"]
        first = [scenario] if more == "--keep" else []
        assert main(["simulate", *first, "--links", str(text), more, *last]) == 2
        assert reason in capsys.readouterr().err


def test_a_series_grows_by_a_line_for_each_bin(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    file = tmp_path / "bins.jsonl"
    documents = found(capsys, written(tmp_path), "--transport", "mrc,uet", "--series", str(file))
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    for document in documents:
        mine = [line for line in lines if line["transport"] == document["transport"]]
        times = [line["time_us"] for line in mine]
        assert times == sorted(set(times))
        assert mine[-1]["received_bytes"] == 8 * 64 * 1024
        for name in ("packet_hops", "trimmed", "marked", "dropped", "lost"):
            assert mine[-1][name] == document[name]
        assert max(line["queue_peak_bytes"] for line in mine)[0] <= document["queue_peak_bytes"][0]
        spans_us = [after - before for before, after in zip([0, *times], times, strict=False)]
        carried = sum(line["rate_bps"] * span for line, span in zip(mine, spans_us, strict=True)) / 8e6
        assert carried == pytest.approx(mine[-1]["received_bytes"], rel=1e-6)


BAD = {
    "absent switch": ('[[faults]]\nkind = "switch-down"\ntarget = "t1-p0-i999"\n', "i999 does not exist"),
    "a link where a switch is wanted": (
        '[[faults]]\nkind = "switch-down"\ntarget = "link0-p0-i0"\n',
        "no switch called",
    ),
    "fault before 0": ('[[faults]]\nkind = "link-down"\ntarget = "link0-p0-i0"\nat = "-1 us"\n', "too small"),
    "a flap without a period": ('[[faults]]\nkind = "flap"\ntarget = "link0-p0-i0"\n', "needs a period"),
    "a port that is no NIC's": ('[[faults]]\nkind = "port-down"\ntarget = "link1-p0-i0-u0"\n', "no port of a NIC"),
    "unknown key": ("[transport.mrc]\nskipp = true\n", "skipp"),
}


@pytest.mark.parametrize(("more", "reason"), BAD.values(), ids=BAD.keys())
def test_bad_faults_are_named(more: str, reason: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    assert main(["simulate", written(tmp_path, more=more)]) == 2
    assert reason in capsys.readouterr().err


TRAFFIC = {
    "a flow to itself": ('pattern = "pair"\nsource = 3\ndestination = 3', "itself"),
    "no bytes": ('size = "0 B"', "too small"),
    "a NIC that is not there": ('pattern = "pair"\ndestination = 8', "run from 0 to 7"),
    "too many hosts": ("hosts = 9", "has 8 NICs"),
    "three terabytes": ('pattern = "pair"\nsize = "3 TB"', "packets, more than"),
    "an uplink that is not there": ("uplinks = [256]", "run from 0 to 255"),
    "flows without the pattern": ('flows = [{source = 0, destination = 1, size = "1 B"}]', "go together"),
}


@pytest.mark.parametrize(("traffic", "reason"), TRAFFIC.values(), ids=TRAFFIC.keys())
def test_bad_traffic_is_named(traffic: str, reason: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    text = f'name = "bad"\nsite = "gb200-8x100g-131k"\ngpus = 8\n[traffic]\n{traffic}\n'
    assert main(["simulate", written(tmp_path, text)]) == 2
    assert reason in capsys.readouterr().err


def test_three_terabytes_work_where_time_is_limited(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    text = 'name = "long"\nsite = "gb200-8x100g-131k"\ngpus = 8\n[traffic]\npattern = "pair"\nsize = "3 TB"\n'
    document = found(capsys, written(tmp_path, text, '[measure]\nuntil = "30 us"\n'))
    assert document["fct_us"]["max"] is None
    assert document["goodput_bps_per_nic"] > 0


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (("--transport", "tcp"), "there are mrc, uet, random"),
        (("--flows", "x.xls"), ".parquet or .csv"),
        (("--series", "x.csv"), "ends in .jsonl"),
        (("--keep", "x", "--transport", "mrc,uet"), "name one transport"),
        (("--keep", "x", "--engine", "reference"), "only the engine keeps"),
        (("--keep", __file__, "--engine", "engine"), "is no kept run"),
        (("--keep", str(Path(__file__).parent), "--engine", "engine"), "is no kept run"),
        (("--keep", f"{__file__}/x", "--engine", "engine"), "Not a directory"),
        (("--threads", "0"), "from 1 to 256"),
        (("--threads", "-3", "--engine", "engine"), "from 1 to 256"),
        (("--seed", "-1"), "seed"),
        (("--posting", "nccl"), "goes with --collective"),
    ],
)
def test_bad_options_are_named(arguments, reason: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    assert main(["simulate", written(tmp_path), *arguments]) == 2
    assert reason in capsys.readouterr().err


def test_the_reference_refuses_the_whole_site_with_a_way_out(capsys: pytest.CaptureFixture[str], tmp_path: Path):
    text = 'name = "all"\nsite = "gb200-8x100g-131k"\n[traffic]\npattern = "permutation"\nsize = "8 MiB"\n'
    assert main(["simulate", written(tmp_path, text), "--engine", "reference"]) == 2
    assert "gpus = 1024" in capsys.readouterr().err
