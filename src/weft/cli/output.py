"""How commands speak: tables for people, JSON for programs, pictures where they say more.

Colour is used on a terminal only; a pipe gets plain text of any width.
"""

import itertools
import json as json_format
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Parameter

from weft.core.errors import FailedError, UsageError
from weft.core.quantity import significant

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from rich.console import Console

Watch = Callable[[str, int, int], None]
PIPE_WIDTH = 120
_SHORT_FIGURE = 10
_SHORT_NAME = 24
_LONGEST_NAME = 240
"""Bytes of a file's name; with what stands around it until the file is whole, file systems take 255."""

SiteArgument = Annotated[str, Parameter(help="Built-in name or path of a site file.")]
JobArgument = Annotated[str, Parameter(help="Built-in name or path of a job file.")]
RunArgument = Annotated[str, Parameter(help="Name or path of a run.")]
JsonFlag = Annotated[bool, Parameter(name="--json", negative="", help="Print JSON for programs instead of a table.")]


def written_to(option: str, *endings: str) -> Parameter:
    """Return what refuses, before any work is done, a file of `option` that could not be written after it."""

    def check(_kind: object, target: Path | None) -> None:
        if target is None:
            return
        name = f"{option} {target}".lstrip()
        if endings and target.suffix not in endings:
            raise UsageError(f"{name}: write a name that ends in {' or '.join(endings)}")
        if len(os.fsencode(target.name)) > _LONGEST_NAME:
            raise UsageError(f"{name}: write a name of at most {_LONGEST_NAME} bytes")
        # For names that are too long, `is_dir` of pathlib raises.
        if os.path.isdir(target):  # noqa: PTH112
            raise UsageError(f"{name}: that is a folder; write the name of a file")
        if not os.path.isdir(target.parent):  # noqa: PTH112
            raise UsageError(f"{name}: there is no folder {target.parent}")
        if not os.access(target.parent, os.W_OK):
            raise UsageError(f"{name}: the folder {target.parent} cannot be written to")

    return Parameter(validator=check)


PlotFile = Annotated[
    Path | None,
    Parameter(name="--plot", help="Draw it into FILE (.svg or .png)."),
    written_to("--plot", ".svg", ".png"),
]

# Same input, same bytes: no random ids in the file. The grid lies behind what is drawn.
PICTURE_STYLE = {
    "svg.hashsalt": "weft", "font.size": 10, "axes.grid": True, "axes.axisbelow": True, "grid.alpha": 0.3,
}  # fmt: skip


def console() -> "Console":
    """Return a console on standard output."""
    from rich.console import Console
    from typing_extensions import override

    class PipeConsole(Console):
        """A console that leaves a reader who has gone to `main`, instead of ending with status 1."""

        @override
        def on_broken_pipe(self) -> None:
            raise BrokenPipeError

    return PipeConsole(highlight=False, width=None if sys.stdout.isatty() else PIPE_WIDTH)


def print_json(document: Mapping[str, Any] | Sequence[Any]) -> None:
    """Print `document` as JSON, one stable form."""
    sys.stdout.write(json_format.dumps(document, indent=2, ensure_ascii=False, allow_nan=False) + "\n")


def print_table(
    title: str, columns: Sequence[str], rows: Sequence[Sequence[str]], *, words: Sequence[int] = (0,)
) -> None:
    """Print a table; the columns numbered in `words` hold words, the others figures; cells may hold rich markup."""
    from rich import box
    from rich.table import Table

    # A title inside the table would be folded at the table's width, which may be a few letters.
    out = console()
    out.print(title, style="bold", markup=False, soft_wrap=True)
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    names_are_short = all(len(row[0]) <= _SHORT_NAME for row in rows)
    for number, column in enumerate(columns):
        widest = max((len(word) for word in column.split()), default=0)
        alignment: Literal["left", "right"] = "left" if number in words else "right"
        if number not in words:
            # A heading may take two lines, "372 Gb/s" may not.
            widest = max((widest, *(len(row[number]) for row in rows if len(row[number]) <= _SHORT_FIGURE)))
        table.add_column(
            column, justify=alignment, overflow="fold", no_wrap=number == 0 and names_are_short, min_width=widest
        )
    for row in rows:
        table.add_row(*row)
    out.print(table)


def say(text: str) -> None:
    """Print one line of prose as it is: no markup, no folding."""
    console().print(text, markup=False, soft_wrap=True)


def warn(text: str) -> None:
    """Write one line to standard error."""
    sys.stderr.write(f"{text}\n")


def scaled(value: float, units: Mapping[str, float], *, below: Callable[[float], str] = significant) -> str:
    """Return a number in the first of `units` (largest first) that it reaches, three digits and the unit: 28.5 M."""
    for name, size in units.items():
        if value >= size:
            return f"{significant(value / size)} {name}"
    return below(value)


@contextmanager
def progress() -> Iterator[Watch | None]:
    """Give what shows (name, done, total) as a bar on a terminal; None where standard error goes elsewhere."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    tasks: dict[str, Any] = {}
    with Progress(*columns, console=Console(stderr=True), transient=True) as bars:

        def watch(name: str, done: int, total: int) -> None:
            if name not in tasks:
                tasks[name] = bars.add_task(name)
            bars.update(tasks[name], completed=done, total=total)

        yield watch


@contextmanager
def counting(name: str, total: int) -> Iterator[Callable[[], None]]:
    """Give what counts one more of `total` with each call, shown as a bar on a terminal."""
    done = itertools.count(1)
    with progress() as watch:
        if watch is not None:
            watch(name, 0, total)
        yield (lambda: watch(name, next(done), total)) if watch is not None else (lambda: None)


@contextmanager
def writing(target: Path) -> Iterator[Path]:
    """Give a place to write to, and put what was written there into `target`, which appears whole or not at all."""
    part = target.with_name(f".{target.name}.part{target.suffix}")
    try:
        yield part
        part.replace(target)
    except OSError as error:
        raise FailedError(f"{target} cannot be written: {error.strerror}") from None
    finally:
        with suppress(OSError):
            part.unlink()


def save_plot(target: Path | None, draw: "Callable[[Figure], None]", size: tuple[float, float] = (9.0, 5.0)) -> None:
    """Draw a picture into `target`, where one is wanted."""
    if target is None:
        return
    import matplotlib as mpl
    from matplotlib.figure import Figure

    with mpl.rc_context(PICTURE_STYLE), writing(target) as part:
        figure = Figure(figsize=size, layout="constrained")
        draw(figure)
        figure.savefig(part, dpi=150, metadata={"Date": None} if target.suffix == ".svg" else None)


def save_picture(target: Path | None, name: str, *drawn: Any, size: tuple[float, float] = (9.0, 5.0)) -> None:
    """Draw with the function `name` of `weft.cli.pictures` into `target`, where a picture is wanted."""
    if target is not None:
        from weft.cli import pictures

        save_plot(target, lambda figure: getattr(pictures, name)(figure, *drawn), size)
