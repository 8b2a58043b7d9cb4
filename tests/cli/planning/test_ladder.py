"""`weft scale ladder`: small trainings through a cluster of its own, a fit, a prediction, and the large run."""

import json
from pathlib import Path

import pytest

from weft.cli.main import main
from weft.engines.local.client import LocalClient
from weft.engines.local.home import Home


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_ladder_is_trained_fitted_and_held_against_the_large_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    """How near the prediction comes is measured by benchmarks/ladder.py, on runs long enough to follow a law."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "text.txt").write_text("the quick brown fox jumps over the lazy dog; " * 400)
    job = tmp_path / "short.toml"
    job.write_text(
        'extends = "ladder-gpt"\nname = "short"\nsteps = 300\n[data]\ncorpus = "text.txt"\n[optimizer]\nwarmup = 15\n'
        "[batch]\nsequences = 8\nmicro = 8\n[evaluation]\nsequences = 64\n"
    )
    arguments = [
        "scale",
        "ladder",
        str(job),
        "--run",
        "--home",
        str(tmp_path / "cluster"),
        "--out",
        "points.csv",
        "--json",
    ]
    assert main(arguments) == 0
    document = json.loads(capsys.readouterr().out)
    assert len(document["rungs"]) == 16
    assert document["times_cheaper"] >= 10
    assert document["measured"] > 0
    assert {test["law"] for test in document["self_test"]["laws"]} == {"hoffmann", "kaplan"}
    assert document["fit"]["law"] == document["self_test"]["laws"][0]["law"]
    assert "below 1,000 losses scatter" in document["warnings"][0]
    assert document["error"] == pytest.approx(document["predicted"]["loss"] / document["measured"] - 1)
    assert len(Path("points.csv").read_text().splitlines()) == 17
    assert LocalClient(Home(tmp_path / "cluster")).process() is None, (
        "a cluster that was started for the time is taken down"
    )
    assert main(["scale", "fit", "points.csv"]) == 0


def test_a_budget_without_a_ladder_starts_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    assert main(["scale", "ladder", "--budget", "1e6", "--home", str(tmp_path / "cluster")]) == 2
    assert list(tmp_path.iterdir()) == []
