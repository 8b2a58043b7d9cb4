"""`weft scale`: the commands, their JSON and their refusals."""

import json
from pathlib import Path

import numpy as np
import pytest

from weft.cli.main import main
from weft.planning.scaling_laws.scaling import Law

LAW = Law(1.69, 406.4, 410.7, 0.34, 0.28)


@pytest.fixture
def table(tmp_path: Path) -> Path:
    rng = np.random.default_rng(0)
    params, tokens = 10 ** rng.uniform(7, 10, 80), 10 ** rng.uniform(9, 12, 80)
    loss = LAW.loss(params, tokens) * np.exp(0.003 * rng.standard_normal(80))
    loss[::20] *= 1.3
    lines = [f"{a:.0f},{b:.0f},{c:.6f},x" for a, b, c in zip(params, tokens, loss, strict=True)]
    path = tmp_path / "points.csv"
    path.write_text("params, tokens,loss,note\n" + "\n".join(lines) + "\n")
    return path


def test_a_fit_prints_its_documented_keys(table: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path):
    assert main(["scale", "fit", str(table), "--json", "--plot", str(tmp_path / "fit.svg")]) == 0
    document = json.loads(capsys.readouterr().out)
    for name in ("E", "A", "B", "alpha", "beta"):
        assert document[f"{name}_low"] <= document[name] <= document[f"{name}_high"]
    assert (document["points"], document["outliers"], document["outlier_rows"]) == (80, 4, [1, 21, 41, 61])
    assert 0 < document["objective"] < 1
    assert (tmp_path / "fit.svg").stat().st_size > 1000


def test_the_table_shows_the_rule_and_what_it_left_out(table: Path, capsys: pytest.CaptureFixture[str]):
    assert main(["scale", "fit", str(table)]) == 0
    assert "4 outliers left out: a point farther than 5 robust standard deviations" in capsys.readouterr().out


def test_the_other_law_is_fitted_where_it_is_asked_for(table: Path, capsys: pytest.CaptureFixture[str]):
    assert main(["scale", "fit", str(table), "--law", "kaplan", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["law"] == "kaplan"
    assert main(["scale", "fit", str(table), "--law", "kaplan"]) == 0
    assert "unlimited tokens" in capsys.readouterr().out
    assert main(["scale", "optimal", str(table), "--law", "kaplan", "--flops", "1e23"]) == 0


def test_predictions_and_optima_come_with_intervals_and_warnings(table: Path, capsys: pytest.CaptureFixture[str]):
    assert main(["scale", "predict", str(table), "--params", "70e9", "--tokens", "1.4e12", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["loss_low"] < LAW.loss(70e9, 1.4e12) < document["loss_high"]
    assert main(["scale", "predict", str(table), "--params", "1e15", "--tokens", "1e15"]) == 0
    assert "too far to rely on" in capsys.readouterr().out
    assert main(["scale", "optimal", str(table), "--flops", "1e23", "--json"]) == 0
    best = json.loads(capsys.readouterr().out)
    assert best["params"] * best["tokens"] * 6 == pytest.approx(1e23)
    assert best["params_low"] < best["params"] < best["params_high"]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("params,tokens,loss\n1e6,1e8,nan\n", ":2  loss = nan is not a finite number"),
        ("params,tokens,loss\n1e6,1e8,3\n1e7,1e8,2\n", "there are 2 points"),
        ("params,tokens,loss\n1e6,x,3\n", ":2  tokens = 'x' is not a number"),
        ("params,tokens,loss\n1e6,1e8\n", ":2  loss = None is not a number"),
        ("params,loss\n1e6,3\n", "has no column tokens"),
        ("", "has no column params, tokens, loss"),
    ],
)
def test_bad_tables_are_refused_in_one_line(text: str, words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    path = tmp_path / "points.csv"
    path.write_text(text)
    assert main(["scale", "fit", str(path)]) == 2
    assert words in capsys.readouterr().err


@pytest.mark.parametrize(
    "arguments",
    [["fit", "none.csv"], ["fit", "POINTS", "--delta", "0"], ["fit", "POINTS", "--seed", "-1"],
     ["predict", "POINTS", "--params", "-1", "--tokens", "1"], ["optimal", "POINTS", "--flops", "nan"]],
)  # fmt: skip
def test_bad_options_are_refused(arguments: list[str], table: Path):
    assert main(["scale", *(str(table) if word == "POINTS" else word for word in arguments)]) == 2


@pytest.mark.parametrize(("keep", "status"), [("largest", 0), ("all", 0), ("3", 0), ("0", 2), ("4000", 2), ("some", 2)])
def test_rows_are_kept_by_number_or_name(keep: str, status: int, capsys: pytest.CaptureFixture[str]):
    assert main(["scale", "fit", "examples/points.csv", "--keep", keep, "--json"]) == status
    said = capsys.readouterr()
    assert '"isoflop": null' in said.out if status == 0 else "write a row from 1 to" in said.err
