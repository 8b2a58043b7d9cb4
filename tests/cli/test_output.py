"""What commands share: tables, numbers for people, files that appear whole, progress, and documented JSON."""

import inspect
import json
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.cli.invocations import command, leaves

from weft.cli import output, pictures
from weft.cli.main import main
from weft.cli.screen.figures import scaled
from weft.core.errors import FailedError, UsageError

ROOT = Path(__file__).parents[2]
UNITS = {"G": 1e9, "M": 1e6, "k": 1e3}
NAMED_MOST = 12
"""Parameters of a command; every other function has at most six."""


@pytest.mark.parametrize(
    ("value", "text"), [(0, "0"), (999, "999"), (1000, "1 k"), (1.25e6, "1.25 M"), (3e12, "3000 G")]
)
def test_a_number_is_shown_in_the_largest_unit_that_it_reaches(value: float, text: str):
    assert scaled(value, UNITS).replace(",", "") == text


@given(st.floats(1, 1e12))
def test_a_scaled_number_is_right_to_three_digits(value: float):
    number, _, unit = scaled(value, UNITS).replace(",", "").partition(" ")
    assert float(number) * UNITS.get(unit, 1) == pytest.approx(value, rel=0.01)


def test_a_line_is_printed_as_it_is(capsys: pytest.CaptureFixture[str]):
    text = "[bold]not markup[/] " + "x" * 300
    output.say(text)
    assert capsys.readouterr().out == text + "\n"


def test_json_has_one_form_and_no_invented_numbers(capsys: pytest.CaptureFixture[str]):
    output.print_json({"b": "ü", "a": [1]})
    assert capsys.readouterr().out == '{\n  "b": "ü",\n  "a": [\n    1\n  ]\n}\n'
    with pytest.raises(ValueError, match="nan"):
        output.print_json({"a": float("nan")})


def test_a_file_appears_whole(tmp_path: Path):
    target = tmp_path / "x.csv"
    with output.writing(target) as part:
        part.write_text("half")
        assert not target.exists()
    assert target.read_text() == "half"
    assert [path.name for path in tmp_path.iterdir()] == ["x.csv"]


def test_a_file_that_is_not_finished_does_not_appear(tmp_path: Path):
    target = tmp_path / "x.csv"
    target.write_text("old")

    def write() -> None:
        with output.writing(target) as part:
            part.write_text("half")
            raise RuntimeError

    with pytest.raises(RuntimeError):
        write()
    assert target.read_text() == "old"
    assert [path.name for path in tmp_path.iterdir()] == ["x.csv"]


def test_a_file_without_a_folder_is_a_failure(tmp_path: Path):
    target = tmp_path / "none" / "x.csv"

    def write() -> None:
        with output.writing(target) as part:
            part.write_text("x")

    with pytest.raises(FailedError, match="cannot be written"):
        write()


@pytest.mark.parametrize(("name", "hint"), [
    ("x.txt", "ends in .csv"), ("y" * 241 + ".csv", "at most 240 bytes"), ("none/x.csv", "there is no folder"),
    ("folder.csv", "that is a folder"),
])  # fmt: skip
def test_a_name_that_cannot_be_written_is_refused_first(name: str, hint: str, tmp_path: Path):
    (tmp_path / "folder.csv").mkdir()
    check: Any = output.written_to("--out", ".csv").validator[0]  # pyrefly: ignore
    with pytest.raises(UsageError, match=hint):
        check(Path, tmp_path / name)
    check(Path, None)
    check(Path, tmp_path / "x.csv")


def test_progress_of_what_is_short_is_not_shown_in_a_pipe(capsys: pytest.CaptureFixture[str]):
    with output.progress() as watch:
        watch("one", 1, 2)
    with output.counting("runs", 2) as step:
        step()
        step()
    assert capsys.readouterr() == ("", "")


PICTURES = sorted(
    set(re.findall(r'"(draw_\w+)"', "".join(path.read_text() for path in (ROOT / "src/weft/cli").rglob("*.py"))))
)


@pytest.mark.parametrize("name", PICTURES)
def test_a_picture_that_a_command_names_exists_and_takes_a_figure(name: str):
    assert next(iter(inspect.signature(getattr(pictures, name)).parameters)) == "figure"


def test_every_picture_is_named_by_a_command():
    drawn = {name for name in dir(pictures) if name.startswith("draw_")}
    assert drawn == set(PICTURES)


@pytest.mark.parametrize("words", [leaf for leaf in leaves() if leaf[0] != "lab"], ids=" ".join)
def test_a_command_takes_few_parameters(words: tuple[str, ...]):
    here = command(words)
    assert here.default_command is not None
    assert len(inspect.signature(here.default_command).parameters) <= NAMED_MOST


def documented(heading: str) -> set[str]:
    """Return the keys that a section of docs/json.md names."""
    text = (ROOT / "docs" / "json.md").read_text()
    section = next(part for part in text.split("\n## ") if part.startswith(heading))
    return set(re.findall(r"`([A-Za-z_][\w]*)`", section))


def keys_of(document: Any) -> set[str]:
    first = document[0] if isinstance(document, list) else document
    return set(first)


@pytest.mark.parametrize(("heading", "words"), [
    ("`weft design SITE", ["design", "laptop"]),
    ("`weft design SITE", ["design", "--gpus", "4096"]),
    ("`weft explain TOPIC", ["explain", "planes", "laptop"]),
    ("`weft fabric ...", ["fabric", "path", "laptop", "--src", "0", "--dst", "3"]),
    ("`weft fabric ...", ["fabric", "table", "laptop", "--switch", "t0-p0-i0"]),
    ("`weft fabric ...", ["fabric", "export", "laptop"]),
    ("`weft site ...", ["site", "list"]),
    ("`weft site ...", ["check", "laptop", "tiny-gpt"]),
    ("`weft plan JOB", ["plan", "tiny-gpt", "--site", "laptop"]),
    ("`weft rehearse SITE", ["rehearse", "laptop", "tiny-gpt", "--folder", "none"]),
    ("`weft nodes --json", ["nodes", "programs"]),
])  # fmt: skip
def test_json_has_only_documented_keys(heading: str, words: list[str], capsys: pytest.CaptureFixture[str]):
    assert main([*words, "--json"]) == 0
    found = keys_of(json.loads(capsys.readouterr().out))
    assert found - documented(heading) - {"provenance", "name", "site", "job"} == set()
