"""Sweeps: every combination once, each kept, none run twice."""

import json
from pathlib import Path

import polars
import pytest

from weft.cli.main import main
from weft.netsim.sweeps import points_of, rows_of, scenario_at
from weft.specs import load_scenario
from weft.specs.scenario import SweepSpec

SCENARIO = """
name = "small"
site = "gb200-8x100g-131k"
gpus = 8
[traffic]
pattern = "permutation"
size = "8 KiB"
"""


def sweep(folder: Path, **more) -> SweepSpec:
    file = folder / "scenario.toml"
    file.write_text(SCENARIO)
    return SweepSpec(name="s", scenario=str(file), **more)


def test_a_sweep_is_every_combination(tmp_path: Path):
    spec = sweep(tmp_path, gpus=(4, 8), transport=("mrc", "uet"), seeds=3)
    points = points_of(spec, load_scenario(spec.scenario))
    assert len(points) == len({point.key() for point in points}) == 12


def test_failed_links_are_drawn_from_the_seed(tmp_path: Path):
    spec = sweep(tmp_path, failed_links=(2,), seeds=2)
    scenario = load_scenario(spec.scenario)
    first, second = (scenario_at(scenario, point).faults for point in points_of(spec, scenario))
    assert len(first) == 2
    assert first != second


def test_rows_that_are_there_are_not_run_again(tmp_path: Path):
    spec = sweep(tmp_path, seeds=2)
    rows = rows_of(spec, tmp_path / "rows", workers=1)
    assert [row["seed"] for row in rows] == [0, 1]
    kept = min((tmp_path / "rows").glob("*.json"))
    changed = json.loads(kept.read_text()) | {"hash": "kept"}
    kept.write_text(json.dumps(changed))
    assert rows_of(spec, tmp_path / "rows", workers=1)[0]["hash"] == "kept"


def test_rows_of_a_scenario_that_was_edited_are_run_again(tmp_path: Path):
    spec = sweep(tmp_path)
    first = rows_of(spec, tmp_path / "rows", workers=1)
    (tmp_path / "scenario.toml").write_text(SCENARIO.replace("8 KiB", "64 KiB"))
    second = rows_of(spec, tmp_path / "rows", workers=1)
    assert second[0]["fct_mean_us"] > first[0]["fct_mean_us"]


def test_the_command_writes_a_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    spec = sweep(tmp_path)
    file = tmp_path / "sweep.toml"
    file.write_text(f'name = "s"\nscenario = "{spec.scenario}"\n')
    out = tmp_path / "s.parquet"
    assert main(["simulate", "sweep", str(file), "--out", str(out), "--plot", str(tmp_path / "s.svg"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["runs"] == 1
    assert polars.read_parquet(out)["completed"].to_list() == [8]
    assert (tmp_path / "s.svg").read_text().startswith("<?xml")
