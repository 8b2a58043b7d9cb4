"""Tables as lines of text that fit: no column is lost, words stay whole, a column that is empty is left out.

One rule for all. A table is as wide as its cells. Where that is wider than the screen, its last column is folded at
spaces if it holds words; else the columns are dealt into tables below each other, each of which begins with what names
a row; else every row becomes a block of names and values. A pipe has no width: there a row is one line, and a cell that
is empty is a dash, so that `awk -F '  +'` counts columns. Nothing here prints.
"""

import re
import unicodedata
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum

from rich.cells import cell_len

GAP = 2
"""Spaces between two columns, at least; no cell holds so many."""
_LEAST_FOLDED = 30
"""Letters that a column of words keeps at least when it is folded."""
_LEAST_VALUE = 20
_NOTHING = ("", "-")
_BEFORE_UNIT = re.compile(r"(?<=[0-9]) (?=[A-Za-z%/]{1,7}(?:[\s,;.)]|$))")
_GLUE = "\N{NO-BREAK SPACE}"


class LineKind(Enum):
    """What a line of a table is, for those who colour it."""

    HEAD = "head"
    RULE = "rule"
    BODY = "body"


Line = tuple[str, LineKind]


@dataclass(frozen=True)
class Cells:
    """The columns and rows of a table, cleaned, and which of the columns hold words."""

    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    words: frozenset[int]

    def __post_init__(self) -> None:
        """Refuse rows of another length; their ends would be lost silently."""
        assert all(len(row) == len(self.columns) for row in self.rows), "a row has a cell for each column"

    def width(self, number: int) -> int:
        """Return the cells of screen that a column takes."""
        return max(cell_len(self.columns[number]), *(cell_len(row[number]) for row in self.rows), 0)

    def widths(self) -> list[int]:
        """Return the cells of screen that each column takes."""
        return [self.width(number) for number in range(len(self.columns))]

    def only(self, numbers: Sequence[int]) -> "Cells":
        """Return some of the columns."""
        return Cells(
            tuple(self.columns[number] for number in numbers),
            tuple(tuple(row[number] for number in numbers) for row in self.rows),
            frozenset(place for place, number in enumerate(numbers) if number in self.words),
        )


def table_lines(
    columns: Sequence[str], rows: Sequence[Sequence[str]], width: int | None, words: Collection[int] = (0,)
) -> list[Line]:
    """Return a table as lines no wider than `width` where its words allow that; without a width, one line a row."""
    table = _that_say_something(
        Cells(
            tuple(map(clean, columns)), tuple(tuple(map(clean, row)) for row in rows),
            frozenset(number % max(1, len(columns)) for number in words),
        )
    )  # fmt: skip
    if width is None:
        return _table(table, None, empty="-")
    for attempt in (_one_table, _stacked):
        lines = attempt(table, width)
        if lines is not None:
            return lines
    return list(_records(table, width))


def clean(text: str) -> str:
    """Return a text without what moves the cursor or cannot be written, and with single spaces only."""
    shown = "".join(
        "\N{REPLACEMENT CHARACTER}" if (kind := unicodedata.category(letter)) == "Cs"
        else " " if kind in {"Cc", "Zl", "Zp", "Zs"} else letter
        for letter in text
    )  # fmt: skip
    return " ".join(shown.split())


def folded(text: str, width: int) -> list[str]:
    """Return a text as lines of at most `width`, broken at spaces alone; a longer word has a line of its own.

    A figure stays beside its unit.
    """
    lines = [""]
    for word in _BEFORE_UNIT.sub(_GLUE, text).split(" "):
        if lines[-1] and cell_len(lines[-1]) + 1 + cell_len(word) > width:
            lines.append(word)
        else:
            lines[-1] = f"{lines[-1]} {word}" if lines[-1] else word
    return [line.replace(_GLUE, " ") for line in lines]


def prose_lines(line: str, width: int | None) -> list[str]:
    """Return a line of prose folded to `width` below its own beginning; as it is without a width (in a pipe)."""
    if width is None:
        return [line]
    indent = " " * (len(line) - len(line.lstrip(" ")))
    return [indent + part for part in folded(line[len(indent) :], max(1, width - len(indent)))]


def _that_say_something(table: Cells) -> Cells:
    """Leave out columns that are empty in every row; the first one stays."""
    kept = [
        number for number in range(len(table.columns))
        if number == 0 or not table.rows or any(row[number] not in _NOTHING for row in table.rows)
    ]  # fmt: skip
    return table.only(kept)


def _one_table(table: Cells, width: int) -> list[Line] | None:
    """Return the table whole, its last column folded where it must be and can be; None where it is too wide."""
    widths = table.widths()
    if sum(widths) + GAP * (len(widths) - 1) <= width:
        return _table(table, None)
    last = len(widths) - 1
    room = width - sum(widths[:-1]) - GAP * last
    if last not in table.words or room < _least(table, last):
        return None
    return _table(table, room)


def _least(table: Cells, number: int) -> int:
    """Return what a column of words needs at least: its heading and its longest word whole, and some letters a line."""
    longest = max((cell_len(word) for row in table.rows for word in row[number].split(" ")), default=0)
    return max(cell_len(table.columns[number]), longest, min(table.width(number), _LEAST_FOLDED))


def _table(table: Cells, last_width: int | None, empty: str = "") -> list[Line]:
    widths = table.widths()
    if last_width is not None:
        widths[-1] = min(widths[-1], last_width)

    def line(cells: Sequence[str]) -> str:
        placed = [
            cell + " " * (width - cell_len(cell)) if number in table.words else " " * (width - cell_len(cell)) + cell
            for number, (cell, width) in enumerate(zip(cells, widths, strict=True))
        ]
        return (" " * GAP).join(placed).rstrip(" ")

    lines = [(line(table.columns), LineKind.HEAD), ("─" * (sum(widths) + GAP * (len(widths) - 1)), LineKind.RULE)]
    for row in table.rows:
        *before, final = [cell or empty for cell in row]
        for part in folded(final, widths[-1]) if last_width is not None else [final]:
            lines.append((line([*before, part]), LineKind.BODY))
            before = [""] * len(before)
    return lines


def _stacked(table: Cells, width: int) -> list[Line] | None:
    """Return tables below each other, each with what names a row and some columns; None where one is too wide."""
    keys = _naming(table)
    rest = range(keys, len(table.columns))
    if len(table.rows) <= 1 or not rest:
        return None
    groups: list[list[int]] = []
    for number in rest:
        here = [*groups[-1], number] if groups else []
        if not here or _one_table(table.only(here), width) is None:
            here = [*range(keys), number]
            groups.append(here)
        else:
            groups[-1] = here
        if _one_table(table.only(here), width) is None:
            return None
    parts = [_one_table(table.only(group), width) for group in groups]
    lines: list[Line] = []
    for part in parts:
        assert part is not None, "each group was tried"
        lines += [*([("", LineKind.BODY)] if lines else []), *part]
    return lines


def _naming(table: Cells) -> int:
    """Return how many of the first columns are needed to tell the rows apart; one where no number of them does."""
    for count in range(1, len(table.columns)):
        if len({row[:count] for row in table.rows}) == len(table.rows):
            return count
    return 1


def _records(table: Cells, width: int) -> Iterator[Line]:
    """Yield a block for each row: a name and its value in a line, the value folded beside the name or below it."""
    names = max((cell_len(name) for name in table.columns), default=0)
    for count, row in enumerate(table.rows or [("",) * len(table.columns)]):
        if count:
            yield "", LineKind.BODY
        for name, value in zip(table.columns, row, strict=True):
            longest = max(cell_len(word) for word in value.split(" "))
            # A word that fits the screen alone but not beside the name goes below it.
            if names + GAP + max(_LEAST_VALUE, longest if longest + GAP <= width else 0) <= width:
                yield from _beside(name, value, names + GAP, width)
            else:
                yield from ((part, LineKind.HEAD) for part in folded(name, width))
                below = folded(value, width - GAP) if value else []
                yield from ((f"{' ' * GAP}{part}", LineKind.BODY) for part in below)


def _beside(name: str, value: str, indent: int, width: int) -> Iterator[Line]:
    for number, part in enumerate(folded(value, width - indent)):
        head = name if number == 0 else ""
        yield f"{head}{' ' * (indent - cell_len(head))}{part}".rstrip(" "), LineKind.BODY
