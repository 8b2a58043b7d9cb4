"""Every command refuses what is wrong with it in one message, status 2, on standard error, leaving no file."""

import signal
from pathlib import Path

import pytest

from weft.cli import main as entry
from weft.cli.main import INTERRUPTED, main

WRONG = [
    # (words, what the message must name)
    (["nonsense"], "nonsense"),
    (["design"], "weft design --gpus"),
    (["design", "nowhere"], "nowhere"),
    (["design", "laptop", "--gpus", "64"], "name a site"),
    (["design", "laptop", "--nic", "100 Gb/s"], "--nic goes with --gpus"),
    (["design", "laptop", "--switch", "1 Tb/s"], "--switch goes with --gpus"),
    (["design", "laptop", "--planes", "4"], "--planes goes with --gpus"),
    (["design", "--gpus", "lots"], "lots"),
    (["design", "--gpus", "5000000"], "at most 4,000,000"),
    (["design", "--gpus", "64", "--nic", "fast"], "fast"),
    (["design", "--gpus", "64", "--nic", "0 Gb/s"], "above zero"),
    (["design", "laptop", "--plot", "picture.jpg"], ".svg or .png"),
    (["explain", "gravity"], "gravity"),
    (["explain", "planes", "nowhere"], "nowhere"),
    (["explain", "planes", "laptop", "--seed", "-1"], "--seed"),
    (["fabric"], ""),
    (["fabric", "path", "laptop", "--src", "0", "--dst", "9999"], "9999"),
    (["fabric", "path", "laptop", "--src", "x", "--dst", "1"], "'x'"),
    (["fabric", "path", "laptop", "--dst", "1"], "--src"),
    (["fabric", "path", "laptop", "--src", "0", "--dst", "1", "--ev", "none"], "none"),
    (["fabric", "path", "laptop", "--src", "0", "--dst", "1", "--down", "link9"], "link9"),
    (["fabric", "table", "laptop", "--switch", "t9"], "t9"),
    (["fabric", "table", "laptop"], "--switch"),
    (["fabric", "import", "missing.csv"], "missing.csv"),
    (["fabric", "import", "missing.csv", "--hosts", "colour:red"], "colour"),
    (["fabric", "export", "gb200-8x100g-131k"], "--force"),
    (["fabric", "export", "laptop", "--prefix", "too-long"], "too-long"),
    (["site", "show", "nowhere"], "nowhere"),
    (["site", "measure", "here.txt"], ".toml"),
    (["site", "measure", "here.toml", "--ranks", "0"], "--ranks 0"),
    (["site", "measure", "here.toml", "--rounds", "-1"], "--rounds -1"),
    (["schema", "cat"], "cat"),
    (["check"], "at least one file"),
    (["check", "missing.toml"], "missing.toml"),
    (["completion", "csh"], "csh"),
    (["simulate"], "name a scenario"),
    (["simulate", "nothing"], "nothing"),
    (["simulate", "pair", "other"], "one scenario at a time"),
    (["simulate", "sweep"], "weft simulate sweep FILE"),
    (["simulate", "sweep", "missing.toml"], "missing.toml"),
    (["simulate", "--matrix", "a.cm"], "--topology"),
    (["simulate", "pair", "--chakra", "x", "--matrix", "m"], "not both"),
    (["simulate", "--chakra", "x"], "--site"),
    (["simulate", "pair", "--posting", "nccl"], "--collective"),
    (["simulate", "pair", "--transport", "pigeon"], "pigeon"),
    (["simulate", "pair", "--engine", "steam"], "steam"),
    (["simulate", "pair", "--collective", "ring"], "either a scenario or a collective"),
    (["simulate", "--collective", "dance"], "dance"),
    (["simulate", "--collective", "ring", "--size", "big"], "--size"),
    (["simulate", "--collective", "ring", "--size", "0 B"], "is empty"),
    (["simulate", "pair", "--flows", "flows.txt"], ".parquet or .csv"),
    (["simulate", "pair", "--series", "series.csv"], ".jsonl"),
    (["plan", "gpt-1t"], "--site"),
    (["plan", "nothing", "--site", "laptop"], "nothing"),
    (["plan", "gpt-1t", "--site", "nowhere"], "nowhere"),
    (["plan", "gpt-1t", "--site", "laptop", "--top", "0"], "--top 0"),
    (["plan", "gpt-1t", "--site", "laptop", "--fix", "tp"], "tp=8"),
    (["plan", "gpt-1t", "--site", "laptop", "--fix", "tp=2", "--fix", "tp=4"], "twice"),
    (["plan", "gpt-1t", "--site", "laptop", "--precision", "fp4"], "fp4"),
    (["plan", "tiny-gpt", "--site", "laptop", "--what-if", "moon=2"], "moon"),
    (["plan", "compare", "a", "b"], "--site"),
    (["plan", "compare", "a", "b", "--site", "laptop", "--job", "gpt-1t"], "--job"),
    (["rehearse", "laptop"], "JOB"),
    (["rehearse", "nowhere", "tiny-gpt"], "nowhere"),
    (["rehearse", "laptop", "tiny-gpt", "--start", "tomorrow"], "2027-01-31"),
    (["rehearse", "laptop", "tiny-gpt", "--html", "page.txt"], ".html"),
    (["scale", "fit", "missing.csv"], "missing.csv"),
    (["scale", "fit", "missing.csv", "--delta", "2"], "--delta 2"),
    (["scale", "fit", "missing.csv", "--seed", "-1"], "--seed -1"),
    (["scale", "fit", "missing.csv", "--law", "moore"], "moore"),
    (["scale", "predict", "missing.csv", "--tokens", "1e9"], "--params"),
    (["scale", "optimal", "missing.csv"], "--flops"),
    (["scale", "ladder", "nothing"], "nothing"),
    (["train", "nothing"], "nothing"),
    (["train", "tiny-gpt", "--set", "steps"], "KEY=VALUE"),
    (["train", "tiny-gpt", "--set", "stepz=4"], "stepz"),
    (["train", "tiny-gpt", "--set", "plan.dp=-1"], "plan"),
    (["runs", "show", "nothing", "--folder", "none"], "no folder none"),
    (["runs", "compare", "one", "--folder", "none"], "RIGHT"),
    (["runs", "incidents", "nothing", "--folder", "none"], "no folder none"),
    (["cluster", "generate", "t.csv", "--jobs", "0"], "--jobs 0"),
    (["cluster", "generate", "t.csv", "--load", "11"], "--load 11"),
    (["cluster", "generate", "t.csv", "--nodes", "0"], "--nodes 0"),
    (["cluster", "generate", "t.csv", "--scene", "opera"], "opera"),
    (["cluster", "replay", "missing.csv"], "weft cluster generate"),
    (["cluster", "replay", "missing.csv", "--site", "nowhere"], "nowhere"),
    (["cluster", "replay", "missing.csv", "--jobs", "out.txt"], ".csv"),
    (["cluster", "up", "--team", "red"], "NAME=GPUS"),
    (["cluster", "control", "--rate", "0"], "--rate 0"),
    (["cluster", "act", "--silence", "2"], "--silence 2"),
    (["nodes", "test", "nonsense"], "nonsense"),
    (["nodes", "test", "--seconds", "0"], "--seconds 0"),
    (["nodes", "test", "--runs", "missing"], "missing"),
    (["logs"], "JOB"),
    (["why"], "JOB"),
    (["drain"], "NODE"),
    (["undrain"], "NODE"),
    (["cancel"], "name a job"),
    (["submit"], "name a job file"),
]  # fmt: skip
GROUPS = {"fabric"}


@pytest.fixture(autouse=True)
def empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Work in an empty folder, with a cluster of its own."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("WEFT_CLUSTER", str(tmp_path / ".cluster"))
    return tmp_path


@pytest.mark.parametrize(
    ("words", "named"), WRONG, ids=lambda value: " ".join(value) if isinstance(value, list) else ""
)
def test_what_is_wrong_is_said_in_one_message(words: list[str], named: str, empty_folder: Path, capsys):
    if words[0] in GROUPS and len(words) == 1:
        assert main(words) == 0
        return
    assert main(words) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("error:") == 1
    assert named in err
    assert "Traceback" not in err
    assert [path.name for path in empty_folder.iterdir() if path.name != ".cluster"] == []


@pytest.mark.parametrize(
    "word", ["design", "simulate", "plan", "train", "runs", "jobs", "cluster", "site", "scale", "nodes"]
)
def test_an_unknown_option_is_named(word: str, capsys: pytest.CaptureFixture[str]):
    assert main([word, "--no-such-option"]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert "no-such-option" in err
    assert f"weft {word} --help" in err


@pytest.mark.parametrize("failure", [KeyboardInterrupt])
def test_ctrl_c_ends_with_its_status_and_one_word(failure: type[BaseException], monkeypatch, capsys):
    def interrupted(*_: object, **__: object) -> None:
        raise failure

    monkeypatch.setattr(entry, "app", interrupted)
    assert main(["design", "laptop"]) == INTERRUPTED == 128 + signal.SIGINT
    out, err = capsys.readouterr()
    assert out == ""
    assert err == "interrupted\n"


def test_what_is_broken_in_weft_itself_is_not_hidden(monkeypatch: pytest.MonkeyPatch):
    def broken(*_: object, **__: object) -> None:
        raise AssertionError("an invariant")

    monkeypatch.setattr(entry, "app", broken)
    with pytest.raises(AssertionError, match="an invariant"):
        main([])


def test_an_error_of_the_system_that_is_not_a_full_disk_is_not_hidden(monkeypatch: pytest.MonkeyPatch):
    def broken(*_: object, **__: object) -> None:
        raise PermissionError(13, "denied")

    monkeypatch.setattr(entry, "app", broken)
    with pytest.raises(PermissionError):
        main([])


@pytest.mark.parametrize("text", ["[bold]x[/]", "[", "[/]", "[red]"])
def test_brackets_of_the_user_are_no_markup(text: str, capsys: pytest.CaptureFixture[str]):
    assert main(["design", text]) == 2
    assert text in capsys.readouterr().err
