"""Sweeps: every combination once, each kept, none run twice."""

import itertools
import json
from pathlib import Path
from typing import Any

import polars
import pytest
from matplotlib.figure import Figure

from weft.cli.main import main
from weft.cli.pictures import draw_sweep
from weft.core.errors import WeftError
from weft.netsim.sweeps import axes_of, points_of, rows_of, scenario_at, site_at
from weft.specs import load_scenario, load_site
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


def test_any_key_of_the_scenario_and_of_the_fabric_is_varied(tmp_path: Path):
    keys: dict[str, Any] = {
        "fabric.planes": (2, 8),
        "network.queues.ecn_low": (0.1, 0.2),
        "faults.0.kind": ("link-down", "black-hole"),
    }
    (tmp_path / "plain.toml").write_text(SCENARIO + '[[faults]]\nkind = "link-down"\ntarget = "link0-p0-i0"\n')
    spec = SweepSpec(name="s", scenario=str(tmp_path / "plain.toml"), vary=keys)
    scenario = load_scenario(spec.scenario)
    points = points_of(spec, scenario)
    assert len({point.key() for point in points}) == len(points) == 8
    for point in points:
        asked, found = dict(point.varied), scenario_at(scenario, point)
        fabric = site_at(load_site(found.site), point, found.gpus).fabric
        assert (found.faults[0].kind, found.network.queues.ecn_low) == (
            asked["faults.0.kind"],
            asked["network.queues.ecn_low"],
        )
        assert (fabric.planes, fabric.planes * fabric.port_rate) == (asked["fabric.planes"], 800 * 10**9)
        assert fabric.radix * fabric.port_rate == 51_200 * 10**9
    assert axes_of(spec) == ("fabric.planes", "network.queues.ecn_low", "faults.0.kind")


@pytest.mark.parametrize(
    ("vary", "says"),
    [
        ({"network.queues.ecn": [1]}, "unknown key"),
        ({"network.queues.ecn_low": [0.9]}, "ecn_low lies above ecn_high"),
        ({"fabric.radix": [3]}, "multiple of 2"),
        ({"faults.0.kind": ["flap"]}, "no '0' in a list of 0"),
        ({"gpus.x": [1]}, "'gpus' is a value"),
    ],
)
def test_a_value_that_cannot_be_is_named_before_anything_runs(tmp_path: Path, vary: dict[str, list[object]], says: str):
    file = tmp_path / "scenario.toml"
    file.write_text(SCENARIO.replace("gpus = 8", "gpus = 8\nfaults = []"))
    spec = SweepSpec.model_validate({"name": "s", "scenario": str(file), "vary": vary})
    with pytest.raises(WeftError, match=says):
        rows_of(spec, tmp_path / "rows", workers=1)
    assert not list(tmp_path.glob("rows/*"))


@pytest.mark.parametrize("axes", [1, 2, 3, 4])
def test_every_axis_is_drawn_or_named(tmp_path: Path, axes: int):
    keys = {"load": [0.1, 0.2], "a": ["x", "y"], "b": [1, 2], "c": [3, 4]}
    chosen = dict(list(keys.items())[:axes])
    spec = sweep(tmp_path, vary=chosen, seeds=2)
    rows = [
        {
            **dict(zip(chosen, values, strict=True)),
            "transport": "mrc",
            "fct_mean_us": 1.0,
            "fct_p99_us": 2.0,
            "seed": seed,
        }
        for values in itertools.product(*chosen.values())
        for seed in (0, 1)
    ]
    figure = Figure()
    draw_sweep(figure, spec, rows)
    shown = axes_of(spec)
    assert len(figure.axes) == 2 ** min(axes - 1, 2)
    told = " ".join([figure.get_suptitle(), *(panel.get_title() for panel in figure.axes), figure.axes[0].get_xlabel()])
    assert all(name in told for name in shown)
    assert "seeds" in told
