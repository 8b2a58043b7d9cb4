"""How commands speak: tables for people, JSON for programs, pictures where they say more.

Colour is used on a terminal only; a pipe gets plain text of any width.
"""

import json as json_format
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Parameter

from weft.core.errors import FailedError, UsageError

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from rich.console import Console

PIPE_WIDTH = 120
_SHORT_FIGURE = 10
_SHORT_NAME = 24
_LONGEST_NAME = 240
"""Bytes of a file's name; with what stands around it until the file is whole, file systems take 255."""

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
            raise UsageError(f"{name}: the folder {target.parent} can not be written to")

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


@contextmanager
def writing(target: Path) -> Iterator[Path]:
    """Give a place to write to, and put what was written there into `target`, which appears whole or not at all."""
    part = target.with_name(f".{target.name}.part{target.suffix}")
    try:
        yield part
        part.replace(target)
    except OSError as error:
        raise FailedError(f"{target} can not be written: {error.strerror}") from None
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
