"""What cannot be read on a command line is refused in one sentence that says what would be right, for every command."""

import re
from pathlib import Path
from typing import Any, get_args

import pytest
from tests.cli.invocations import command, leaves

from weft.cli.main import main
from weft.cli.screen.examples import example_of

Words = tuple[str, ...]
_OWN_WORDS = (("submit",), ("lab", "exec"), ("pod",))
"""Commands that run the words they are given: an option that is not theirs is a word like any other."""


def options(*kinds: type) -> list[Any]:
    """Return every option of every command that takes one value of one of `kinds`."""
    found: list[Any] = []
    for words in leaves():
        for argument in command(words).assemble_argument_collection(parse_docstring=True):
            hints = {argument.hint, *get_args(argument.hint)}
            name = next((each for each in argument.names if each.startswith("--")), None)
            if name is not None and hints & set(kinds) and words not in _OWN_WORDS:
                found.append(pytest.param(words, name, id=" ".join((*words, name))))
    return found


def needed(words: Words, without: str = "") -> Words:
    """Return words for what a command cannot do without, except the option `without`."""
    found: list[str] = []
    for argument in command(words).assemble_argument_collection(parse_docstring=True):
        if argument.required and without not in argument.names:
            positional = argument.field_info.is_positional
            found += ["1.toml"] if positional else [argument.name, "1.pcapng" if argument.hint is Path else "1"]
    return tuple(found)


def refused(words: Words, capsys: pytest.CaptureFixture[str]) -> str:
    assert main(list(words)) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("error: ")
    assert not re.search(r"Traceback|\bparameter\b|unable to convert|Unused|JSONDecodeError", err, re.IGNORECASE), err
    return err


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("WEFT_CLUSTER", str(tmp_path / "none"))


@pytest.mark.parametrize(("words", "option"), options(int, float))
@pytest.mark.parametrize("value", ["many", "", "[1"])
def test_what_is_no_number_is_refused_with_one(words: Words, option: str, value: str, capsys):
    said = refused((*words, *needed(words, option), option, value), capsys)
    assert f"{option} {value!r}: write a" in said
    assert f"weft {' '.join(words)} --help" in said


@pytest.mark.parametrize(("words", "option"), options(Path))
def test_an_empty_name_of_a_file_is_refused(words: Words, option: str, capsys):
    assert f"{option}: the name is empty" in refused((*words, *needed(words, option), option, ""), capsys)


@pytest.mark.parametrize("words", [each.values[0] for each in options(int) if each.values[1] == "--seed"])
@pytest.mark.parametrize("seed", [-1, 2**63, 10**30])
def test_a_seed_that_is_none_is_refused(words: Words, seed: int, capsys):
    assert f"--seed {seed}: write a number from 0" in refused((*words, *needed(words), "--seed", str(seed)), capsys)


@pytest.mark.parametrize(
    "words", [words for words in leaves() if words[0] not in ("lab", "pod", "health")], ids=" ".join
)
def test_what_a_command_lacks_is_named_with_an_example(words: Words, capsys):
    arguments = command(words).assemble_argument_collection(parse_docstring=True)
    lacking = [argument for argument in arguments if argument.required]
    if not lacking:
        return
    said = refused(words, capsys)
    assert f"weft {' '.join(words)} needs " in said
    assert f"as in {example_of(' '.join(words))}" in said


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("fabric bill", "there is no command 'bill'; there are path, table"),
        ("desing", "there is no command 'desing'; did you mean 'design'?"),
        ("--loud", "unknown option --loud"),
        ("explain planes --seed", "--seed needs a value"),
        ("plan gpt-1t --top 1 --top 2", "--top is given twice"),
        ("plan gpt-1t laptop --precision fp4", "write one of fp32, bf16"),
        ("schema cat", "KIND 'cat': write one of site, job"),
        ("design laptop more words", "unexpected 'more' 'words'; leave it out"),
        ("fabric export laptop --switch t0-p0-i0", "--format iproute2 is one file"),
        ("fabric export laptop --format cabling --json", "leave --json"),
        ("cluster up --host no.such.host.invalid", "give an address of this machine"),
        ("cluster up --port 70000", "write a port from 0 to 65535"),
        ("ui --host no.such.host.invalid", "give an address of this machine"),
        ("check a.toml b.toml", "2 mistakes in 2 files"),
        ("nodes test kernel --kernel-log .", "that is a folder; name a file"),
    ],
)
def test_what_would_be_right_is_said(words: str, said: str, capsys):
    assert main(words.split()) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert said in err


IDLE = [
    ("pair", "size"), ("pair", "ranks"), ("pair", "posting"), ("pair", "site"), ("pair", "out"),
    ("--collective ring", "engine"), ("--collective ring", "threads"), ("--collective ring", "flows"),
    ("--collective ring", "series"), ("--collective ring", "keep"), ("sweep file.toml", "transport"),
    ("golden folder", "site"),
]  # fmt: skip
_VALUES = {"posting": "nccl", "engine": "engine", "threads": "1", "ranks": "4", "flows": "f.csv", "series": "s.jsonl"}


@pytest.mark.parametrize(("asked", "option"), IDLE)
def test_an_option_that_would_do_nothing_is_refused(asked: str, option: str, capsys, tmp_path: Path):
    said = refused(("simulate", *asked.split(), f"--{option}", _VALUES.get(option, "x")), capsys)
    assert f"--{option} goes with " in said
    assert list(tmp_path.iterdir()) == []
