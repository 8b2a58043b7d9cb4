"""The example pair: one site file and one job file go unchanged through every command there is."""

from pathlib import Path

import pytest

from weft.cli.main import app, main

EXAMPLES = Path(__file__).parents[2] / "examples"
SITE, JOB = str(EXAMPLES / "site.toml"), str(EXAMPLES / "job.toml")

COMMANDS: dict[str, list[list[str]]] = {
    "check": [["check", SITE, JOB]],
    "design": [["design", SITE], ["design", SITE, "--json"]],
    "explain": [["explain", "planes", SITE], ["explain", "tail", SITE, "--json"]],
    "fabric": [
        ["fabric", "path", SITE, "--src", "0", "--dst", "1023", "--ev", "3"],
        ["fabric", "table", SITE, "--switch", "t1-p3-i0"],
        ["fabric", "export", SITE, "--force"],
    ],
    "campaign": [["campaign", SITE, "--seeds", "1", "--processes", "1", "--set", "duration=2 d", "--json"]],
    "plan": [["plan", JOB, "--site", SITE], ["plan", JOB, "--site", SITE, "--json"]],
    "rehearse": [["rehearse", SITE, JOB], ["rehearse", SITE, JOB, "--json"]],
    "serve-plan": [["serve-plan", JOB, "--site", SITE]],
    "site": [["site", "show", SITE]],
}
WITHOUT_FILES = {
    "calibrate", "cancel", "capacity", "cluster", "compile", "completion", "doctor", "drain", "export", "health",
    "jobs", "lab", "logs", "nodes", "pod", "run", "runs", "scale", "schema",
    "simulate", "submit", "top", "train", "ui", "undrain", "why",
}  # fmt: skip
"""Commands that take neither (a scenario names its site) or a log besides, and training, with a test of its own."""


@pytest.mark.parametrize("arguments", [line for lines in COMMANDS.values() for line in lines], ids=" ".join)
def test_the_pair_goes_through(arguments: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    assert main(arguments) == 0


def test_no_command_is_left_out():
    words = {name for name in app.resolved_commands() if not name.startswith("-")}
    assert words == set(COMMANDS) | WITHOUT_FILES


@pytest.mark.slow
def test_the_job_is_trained_and_rehearsed_with_what_was_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.chdir(tmp_path)
    assert main(["train", JOB, "--json"]) == 0
    assert main(["runs", "show", "example-gpt-1"]) == 0
    assert main(["runs", "compare", "example-gpt-1", "example-gpt-1"]) == 0
    capsys.readouterr()
    assert main(["rehearse", SITE, JOB]) == 0
    assert "measured: none" not in capsys.readouterr().out
