"""Tables fit the screen: nothing is lost, no word is broken, at any width; and so do those of every command."""

import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from rich.cells import cell_len

from weft.cli import output
from weft.cli.main import main
from weft.cli.screen import tables
from weft.cli.screen.tables import clean, folded, prose_lines, table_lines

ROOT = Path(__file__).parents[3]
WIDTHS = (80, 100, 120, None)
_WORDS = st.lists(st.text(min_size=1, max_size=12), max_size=8).map(" ".join)
_FIGURES = st.sampled_from(["", "-", "3.43 s", "162 M USD", "12,288", "0.4 %", "-3"])
_CELLS = st.one_of(_WORDS, _FIGURES, st.text(max_size=60))


@st.composite
def drawn_tables(draw: st.DrawFn) -> tuple[list[str], list[list[str]], set[int]]:
    count = draw(st.integers(1, 14))
    columns = [draw(_WORDS) for _ in range(count)]
    rows = draw(st.lists(st.lists(_CELLS, min_size=count, max_size=count), max_size=6))
    return columns, rows, draw(st.sets(st.integers(0, count - 1)))


def flat(lines: Sequence[str]) -> str:
    return " ".join(" ".join(lines).split())


def says_something(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> list[int]:
    return [
        number for number in range(len(columns))
        if number == 0 or not rows or any(clean(row[number]) not in {"", "-"} for row in rows)
    ]  # fmt: skip


def check_whole(columns: Sequence[str], rows: Sequence[Sequence[str]], lines: Sequence[str]) -> None:
    """Every heading and every cell of a column that says something stands in the lines, in one piece but for folds."""
    text = flat(lines)
    for number in says_something(columns, rows):
        for cell in (columns[number], *(row[number] for row in rows)):
            assert clean(cell) in text, (cell, lines)


def check_fits(columns: Sequence[str], rows: Sequence[Sequence[str]], lines: Sequence[str], width: int) -> None:
    """No line is wider than the screen, unless a word alone is."""
    words = {word for text in (*columns, *(cell for row in rows for cell in row)) for word in clean(text).split(" ")}
    for line in (each.rstrip() for each in lines):
        wide = [word for word in words if cell_len(word) > width // 2 and word in line]
        assert cell_len(line) <= width or wide, line


@example((["n" * 50, "b", "c"], [["", "", ""], ["", "", "v" * 21]], {0}), 72)
@given(drawn_tables(), st.integers(40, 200))
def test_a_drawn_table_loses_and_breaks_nothing(table: tuple[list[str], list[list[str]], set[int]], width: int) -> None:
    columns, rows, words = table
    lines = [line for line, _ in table_lines(columns, rows, width, words)]
    check_whole(columns, rows, lines)
    check_fits(columns, rows, lines, width)


@given(drawn_tables())
def test_in_a_pipe_a_row_is_a_line_and_every_column_has_its_place(
    table: tuple[list[str], list[list[str]], set[int]],
) -> None:
    columns, rows, words = table
    lines = [line for line, _ in table_lines(columns, rows, None, words)]
    assert len(lines) == 2 + len(rows)
    kept = says_something(columns, rows)
    for row, line in zip(rows, lines[2:], strict=True):
        cells = [clean(row[number]) or "-" for number in kept]
        assert re.split(r" {2,}", line.strip(" ")) == cells


@given(_WORDS, st.integers(1, 60))
def test_folding_breaks_at_spaces_only(text: str, width: int):
    assert flat(folded(clean(text), width)) == clean(text)


@given(st.text("ab \n-", max_size=80), st.integers(5, 40))
def test_prose_is_folded_below_its_own_beginning_on_a_terminal_and_whole_in_a_pipe(text: str, width: int):
    for line in text.split("\n"):
        parts = prose_lines(line, width)
        assert " ".join(part.strip() for part in parts).split() == line.split()
        assert len({len(part) - len(part.lstrip(" ")) for part in parts if part.strip()}) <= 1
        assert all(len(part) <= width or len(part.split()) == 1 for part in parts)
        assert prose_lines(line, None) == [line]


def test_a_figure_is_not_parted_from_its_unit():
    assert folded("four planes of 200 Mb/s", 19) == ["four planes of", "200 Mb/s"]


def test_a_column_that_says_nothing_is_left_out():
    lines = [line for line, _ in table_lines(("job", "text", "GPUs"), [("a", "-", "1"), ("b", "", "2")], 80)]
    assert "text" not in lines[0]
    assert "GPUs" in lines[0]


def test_what_does_not_fit_is_dealt_into_tables_that_begin_with_what_names_a_row():
    rows = [("mrc", "cut", "x" * 20, "y" * 20), ("mrc", "flap", "x" * 20, "y" * 20)]
    lines = [line for line, _ in table_lines(("transport", "fault", "a", "b"), rows, 40, (0, 1))]
    assert [line.split() for line in lines if line.startswith("transport")] == [
        ["transport", "fault", "a"], ["transport", "fault", "b"],
    ]  # fmt: skip


def test_one_row_that_does_not_fit_becomes_names_and_values():
    lines = [line for line, _ in table_lines(("job", "text"), [("a", "word " * 40)], 40, (0,))]
    assert lines[0].split() == ["job", "a"]
    assert all(cell_len(line) <= 40 for line in lines)


@pytest.fixture
def recorded(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[tuple[Sequence[str], Sequence[Sequence[str]]]]]:
    """Keep what every table was given."""
    found: list[tuple[Sequence[str], Sequence[Sequence[str]]]] = []
    real = tables.table_lines

    def keep(columns: Sequence[str], rows: Sequence[Sequence[str]], *more: object) -> list[tables.Line]:
        found.append((columns, rows))
        return real(columns, rows, *more)  # pyrefly: ignore

    monkeypatch.setattr(tables, "table_lines", keep)
    yield found
    assert found, "the command prints a table"


_SITES = ("laptop", "gb200-8x100g-131k", "h100-400g-16k")
COMMANDS = [
    *(["design", site, "--details"] for site in _SITES),
    *(["design", "--gpus", count] for count in ("512", "131072")),
    ["site", "list"], ["nodes", "programs"],
    *(["plan", job, "--site", site, "--details"]
      for job, site in (("tiny-gpt", "laptop"), ("gpt-1t", "gb200-8x100g-131k"))),
    ["plan", "compare", "gpt-1t", "tiny-gpt", "--site", "gb200-8x100g-131k"],
    *(["rehearse", site, job, "--folder", "none", *more]
      for site, job in (("laptop", "tiny-gpt"), ("gb200-8x100g-131k", "gpt-1t")) for more in ((), ("--details",))),
    *(["explain", topic, "laptop"] for topic in ("planes", "spraying", "static-routing", "lossy", "tail")),
    ["fabric", "path", "laptop", "--src", "0", "--dst", "3"],
    ["fabric", "path", "gb200-8x100g-131k", "--src", "0", "--dst", "131071", "--ev", "5"],
    ["fabric", "table", "laptop", "--switch", "t0-p0-i0"],
    ["scale", "fit", "examples/points.csv"],
    ["scale", "optimal", "examples/points.csv", "--flops", "1e20"],
]  # fmt: skip
SLOW = [
    ["simulate", "pair", "--details"], ["simulate", "htsim-permutation", "--transport", "mrc,roce"],
    ["simulate", "--collective", "ring", "--ranks", "8", "--size", "64KiB"], ["nodes", "test", "kernel", "gpus"],
]  # fmt: skip


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_every_table_fits(words: list[str], checked: Callable[[list[str]], None]):
    checked(words)


@pytest.mark.slow
@pytest.mark.parametrize("words", SLOW, ids=" ".join)
def test_every_table_of_a_long_command_fits(words: list[str], checked: Callable[[list[str]], None]):
    checked(words)


@pytest.fixture
def checked(
    recorded: list[tuple[Sequence[str], Sequence[Sequence[str]]]], monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> Callable[[list[str]], None]:  # fmt: skip
    """Return what runs a command at every width and checks its screens."""
    monkeypatch.chdir(ROOT)

    def check(words: list[str]) -> None:
        for width in WIDTHS:
            recorded.clear()
            monkeypatch.setattr(output, "screen_width", lambda width=width: width)
            # A machine that its tests find faulty is reported with status 1, in a table like any other.
            assert main(words) in {0, int(words[:2] == ["nodes", "test"])}
            lines = capsys.readouterr().out.splitlines()
            assert not any("\x1b" in line for line in lines), "no colour in a pipe"
            for columns, rows in recorded:
                check_whole(columns, rows, lines)
                if width is not None:
                    check_fits(columns, rows, lines, width)

    return check
