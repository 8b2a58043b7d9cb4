"""`weft site measure`: this machine as a site file."""

import json
from pathlib import Path

import pytest

from weft.cli.main import main
from weft.specs import load_site


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_measured_machine_can_be_planned_for(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    file = tmp_path / "here.toml"
    assert main(["site", "measure", str(file), "--ranks", "2", "--seconds", "0.02", "--rounds", "1", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    site = load_site(str(file))
    assert site.efficiency is not None
    assert document["efficiency"]["step_us"] == site.efficiency.step_us > 0
    assert site.fabric.gpus == 2
    assert main(["plan", "tiny-gpt", "--site", str(file), "--fix", "pp=1", "--json"]) == 0


@pytest.mark.slow
def test_without_rounds_only_kernels_are_timed(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    file = tmp_path / "here.toml"
    assert main(["site", "measure", str(file), "--ranks", "1", "--seconds", "0.01", "--rounds", "0"]) == 0
    assert "matrix products" in capsys.readouterr().out
    site = load_site(str(file))
    assert site.efficiency is not None
    assert site.efficiency.step_us == 0


@pytest.mark.parametrize("wrong", [["--rounds", "-1"], ["--ranks", "0"], ["--seconds", "0"]])
def test_what_cannot_be_measured_is_refused(tmp_path: Path, wrong: list[str]):
    assert main(["site", "measure", str(tmp_path / "here.toml"), *wrong]) == 2


def test_a_folder_is_refused_before_anything_is_measured(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    (tmp_path / "here.toml").mkdir()
    assert main(["site", "measure", str(tmp_path / "here.toml")]) == 2
    assert "is a folder; write the name of a file" in capsys.readouterr().err
