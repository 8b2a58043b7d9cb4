"""What a reader of foreign traces is, the words that it answers in, and how tables and times are read.

A reader sees text and yields jobs as the file tells them: seconds, pieces and GPUs. What a cluster makes of that
(nodes, names of teams, the bounds of a trace) is `campaign.importing`'s business. Knows no format.
"""

import csv
import io
import math
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Protocol

MINUTE_S, HOUR_S, DAY_S = 60, 3600, 86_400
_HEAD = 4096


class BrokenLineError(Exception):
    """A line that cannot be what its file says it is; the text says what is wrong with it."""


@dataclass(frozen=True)
class ForeignTrace:
    """One file as readers see it."""

    text: str
    beside: Callable[[str], str | None] = lambda _: None
    """Returns the text of another file of the same folder, by name; nothing where there is none."""
    processors_per_gpu: int = 1
    """How many processors count as one GPU, in formats that know no GPUs."""

    @property
    def head(self) -> str:
        """Return its beginning."""
        return self.text[:_HEAD]

    @property
    def columns(self) -> list[str]:
        """Return the words of its first line, as CSV."""
        return [word.strip() for word in self.head.partition("\n")[0].split(",")]


@dataclass(frozen=True, slots=True)
class ForeignJob:
    """One job of a foreign trace."""

    line: int
    """Where it stands in its file."""
    submit_s: float
    duration_s: float
    gpus: int
    """GPUs of each piece."""
    pieces: int = 1
    """Parts that must run together and each have their GPUs on one node."""
    limit_s: float | None = None
    team: str = ""
    service: bool = False
    """Whether it is a server rather than something that ends by itself."""


@dataclass(frozen=True, slots=True)
class LeftOut:
    """A job that is not replayed."""

    line: int
    why: str


class TraceReader(Protocol):
    """Reads one format."""

    name: str
    """What the format is called in reports."""

    def recognises(self, trace: ForeignTrace) -> bool:
        """Return whether a file is of this format, by its beginning."""
        ...

    def jobs(self, trace: ForeignTrace) -> Iterator[ForeignJob | LeftOut]:
        """Yield every job of a file; raises `BrokenLineError` with the line as its first argument."""
        ...


def table(text: str, columns: list[str] | None = None, separator: str = ",") -> Iterator[tuple[int, dict[str, str]]]:
    """Yield the rows of a table below its header (or of one without, with given columns), with their line numbers."""
    reader = csv.reader(io.StringIO(text), delimiter=separator, quoting=csv.QUOTE_NONE if separator == "|" else 0)
    try:
        names = [name.strip() for name in next(reader)] if columns is None else columns
        for row in reader:
            if not row:
                continue
            if len(row) != len(names):
                raise BrokenLineError(reader.line_num, f"{len(row)} values where there are {len(names)} columns")
            yield reader.line_num, dict(zip(names, (value.strip() for value in row), strict=True))
    except csv.Error as error:
        raise BrokenLineError(reader.line_num, str(error)) from None


def number(line: int, row: Mapping[str, str], column: str, *, empty: float | None = None) -> float:
    """Return a finite number that is not negative; `empty` where nothing is written."""
    text = row[column]
    if empty is not None and text.lower() in ("", "nan", "none", "unknown"):
        return empty
    try:
        value = float(text)
    except ValueError:
        raise BrokenLineError(line, f"{column} is {text!r}, which is no number") from None
    if not math.isfinite(value) or value < 0:
        raise BrokenLineError(line, f"{column} is {text}, which is no number from 0 on")
    return value


def whole(line: int, row: Mapping[str, str], column: str, *, empty: int | None = None) -> int:
    """Return a whole number that is not negative; `empty` where nothing is written."""
    value = number(line, row, column, empty=empty)
    if value != int(value):
        raise BrokenLineError(line, f"{column} is {row[column]}, which is no whole number")
    return int(value)


def moment(line: int, column: str, text: str) -> float | None:
    """Return a date and time as seconds; nothing where none is written. Without a zone it counts as UTC."""
    if text.lower() in ("", "none", "unknown", "nan", "nat", "null"):
        return None
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        raise BrokenLineError(line, f"{column} is {text!r}; a time looks like 2020-06-09 18:41:01") from None
    return (found if found.tzinfo is not None else found.replace(tzinfo=UTC)).timestamp()


def span(line: int, column: str, text: str) -> float:
    """Return a span of Slurm's, `[days-]hours:minutes:seconds` or less of it, in seconds."""
    found = re.fullmatch(r"(?:(\d+)-)?(?:(\d+):)?(\d+)(?::(\d+(?:\.\d+)?))?", text)
    if found is None:
        raise BrokenLineError(line, f"{column} is {text!r}; a span looks like 1-12:30:00")
    days, first, second, third = found.groups()
    # With days the fields are hours, minutes, seconds from the left; without, minutes and seconds from the right.
    fields = [float(each) for each in (first, second, third) if each is not None]
    if days is not None:
        weights = (HOUR_S, MINUTE_S, 1)[: len(fields)]
    else:
        weights = {1: (MINUTE_S,), 2: (MINUTE_S, 1), 3: (HOUR_S, MINUTE_S, 1)}[len(fields)]
    return int(days or 0) * DAY_S + sum(value * weight for value, weight in zip(fields, weights, strict=True))
