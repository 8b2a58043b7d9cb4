"""One shape of command lines: defaults of a person, examples, log levels, job and site in either order."""

import json
import logging
import shlex
from pathlib import Path
from typing import Any

import pytest
from tests.cli.invocations import command, leaves

from weft.cli.main import app, main
from weft.cli.screen.examples import example_of
from weft.cli.screen.logs import level_of, without_verbosity
from weft.core.errors import UsageError


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    return tmp_path / "weft.toml"


def planned(capsys: pytest.CaptureFixture[str], *words: str) -> Any:
    assert main(["plan", *words, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_a_table_of_a_command_gives_options_that_are_not_written(config: Path, capsys: pytest.CaptureFixture[str]):
    config.write_text('folder = "elsewhere"\n[plan]\nsite = "laptop"\ntop = 2\n')
    assert len(planned(capsys, "tiny-gpt")["plans"]) == len(planned(capsys, "tiny-gpt", "--top", "2")["plans"])
    assert len(planned(capsys, "tiny-gpt", "--top", "5")["plans"]) > len(planned(capsys, "tiny-gpt")["plans"])


def test_what_means_the_same_everywhere_stands_at_the_top(config: Path, capsys: pytest.CaptureFixture[str]):
    other = config.parent / "elsewhere"
    other.mkdir()
    config.write_text(f"folder = {json.dumps(str(other))}\n")
    assert main(["runs"]) == 0
    assert f"no runs in {other}" in capsys.readouterr().out
    assert main(["runs", "--folder", str(config.parent)]) == 0
    assert f"no runs in {config.parent}\n" in capsys.readouterr().out


@pytest.mark.parametrize(("text", "hint"), [
    ("site = 'laptop'\n", "site is no option of every command"), ("[plan]\nsit = 'laptop'\n", "has no option sit"),
    ("x = \n", "is not TOML"),
])  # fmt: skip
def test_a_mistake_in_the_file_is_named(config: Path, text: str, hint: str, capsys: pytest.CaptureFixture[str]):
    config.write_text(text)
    assert main(["plan", "tiny-gpt", "laptop"]) == 2
    error = capsys.readouterr().err
    assert str(config) in error
    assert hint in error


def test_job_and_site_go_in_either_order(capsys: pytest.CaptureFixture[str], tmp_path: Path):
    assert planned(capsys, "tiny-gpt", "laptop") == planned(capsys, "laptop", "tiny-gpt")
    assert planned(capsys, "tiny-gpt", "laptop") == planned(capsys, "tiny-gpt", "--site", "laptop")
    site, job = tmp_path / "s.toml", tmp_path / "j.toml"
    site.write_text('extends = "laptop"\nname = "mine"\n')
    job.write_text('extends = "tiny-gpt"\nname = "own"\n')
    assert planned(capsys, str(site), str(job)) == planned(capsys, str(job), str(site))
    folder = ["--folder", str(tmp_path), "--json"]
    texts = []
    for words in (["laptop", "tiny-gpt"], ["tiny-gpt", "laptop"]):
        assert main(["rehearse", *words, *folder]) == 0
        texts.append(capsys.readouterr().out)
    assert texts[0] == texts[1]


def test_two_of_a_kind_are_refused(capsys: pytest.CaptureFixture[str]):
    assert main(["rehearse", "laptop", "bed-64x400g"]) == 2
    assert "are both a site" in capsys.readouterr().err


@pytest.mark.parametrize("words", leaves(), ids=" ".join)
def test_every_command_has_an_example_that_it_takes(words: tuple[str, ...]):
    name = " ".join(words)
    if name == "pod" or (words[0] == "lab" and command(("lab",)).default_command is not None):
        return
    example = example_of(name)
    assert example is not None
    assert shlex.split(example)[1 : 1 + len(words)] == list(words)
    app.parse_args(shlex.split(example)[1:], exit_on_error=False, print_error=False)


def test_help_ends_with_the_example(capsys: pytest.CaptureFixture[str]):
    assert main(["plan", "--help"]) == 0
    assert capsys.readouterr().out.endswith(f"Example:\n  {example_of('plan')}\n")


def test_verbosity_stands_before_a_command_or_anywhere_in_it():
    assert without_verbosity(["-v", "plan", "x"], anywhere=False) == (["plan", "x"], 1)
    assert without_verbosity(["plan", "x", "-vv"], anywhere=True) == (["plan", "x"], 2)
    assert without_verbosity(["submit", "-v"], anywhere=False) == (["submit", "-v"], 0)
    assert without_verbosity(["lab", "--", "-v"], anywhere=True) == (["lab", "--", "-v"], 0)


def test_the_level_follows_from_the_flag_or_the_environment():
    assert level_of(0, {}) is None
    assert level_of(1, {"WEFT_LOG": "debug"}) == logging.INFO
    assert level_of(2, {}) == level_of(0, {"WEFT_LOG": "DEBUG"}) == logging.DEBUG
    with pytest.raises(UsageError, match="WEFT_LOG=loud: write one of"):
        level_of(0, {"WEFT_LOG": "loud"})


def test_what_is_done_is_logged_where_that_is_asked_for(capsys: pytest.CaptureFixture[str]):
    assert main(["-v", "simulate", "pair"]) == 0
    assert "INFO weft.netsim: running mrc" in capsys.readouterr().err


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_knows_the_built_in_names(shell: str, capsys: pytest.CaptureFixture[str]):
    assert main(["completion", shell]) == 0
    script = capsys.readouterr().out
    assert all(name in script for name in ("gpt-1t", "gb200-8x100g-131k", "htsim-permutation"))
