"""How commands speak: tables for people, JSON for programs, pictures where they say more.

Colour is used on a terminal only; a pipe gets plain text of any width.
"""

import itertools
import json as json_format
import os
import sys
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeAlias

from cyclopts import Parameter

from weft.cli.screen.life_sign import advance, end_signs
from weft.core.errors import FailedError, UsageError
from weft.core.seeds import SEEDS

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from rich.console import Console

Watch = Callable[[str, int, int], None]
PAGE_WIDTH = 100
_WATCH_S = 2.0
_LONGEST_NAME = 240
"""Bytes of a file's name; with what stands around it until the file is whole, file systems take 255."""


def _names(kind: str) -> tuple[str, ...]:
    """Return the built-in names of a kind of file, for shells to complete; the specs themselves are not loaded."""
    return tuple(sorted(path.stem for path in (Path(__file__).parents[1] / "specs/builtin" / kind).glob("*.toml")))


if TYPE_CHECKING:
    BuiltInSite: TypeAlias = str
    BuiltInJob: TypeAlias = str
    BuiltInScenario: TypeAlias = str
else:
    # Any text is taken; the names are for the completion of shells.
    BuiltInSite = Literal[_names("sites")] | str
    BuiltInJob = Literal[_names("jobs")] | str
    BuiltInScenario = Literal[_names("scenarios")] | str

SiteArgument = Annotated[BuiltInSite, Parameter(help="Built-in name or path of a site file.", show_choices=False)]
JobArgument = Annotated[BuiltInJob, Parameter(help="Built-in name or path of a job file.", show_choices=False)]
RunArgument = Annotated[str, Parameter(help="Name or path of a run.")]
JsonFlag = Annotated[bool, Parameter(name="--json", negative="", help="Print JSON for programs instead of a table.")]


DetailsFlag = Annotated[bool, Parameter(name="--details", negative="", help="Print every table below the headline.")]


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


def _check_seed(_kind: object, seed: int | None) -> None:
    if seed is not None and not 0 <= seed < SEEDS:
        raise UsageError(f"--seed {seed}: write a number from 0 to 2^63 - 1")


def seed_option(help: str) -> Parameter:
    """Return what describes an option --seed, and refuses what no seed can be."""
    return Parameter(name="--seed", help=help, validator=_check_seed)


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

    return PipeConsole(highlight=False, emoji=False, width=None if sys.stdout.isatty() else PAGE_WIDTH)


def print_json(document: Mapping[str, Any] | Sequence[Any]) -> None:
    """Print `document` as JSON, one stable form."""
    sys.stdout.write(json_format.dumps(document, indent=2, ensure_ascii=False, allow_nan=False) + "\n")


def screen_width() -> int | None:
    """Return the columns of the terminal that standard output goes to; None for a pipe, which has no width."""
    return console().width if sys.stdout.isatty() else None


def print_table(
    title: str,
    columns: Sequence[str],
    rows: Sequence[Sequence[str]],
    *,
    words: Collection[int] = (0,),
    marks: Mapping[str, str] | None = None,
) -> None:
    """Print a table; the columns numbered in `words` hold words, the others figures; `marks` gives words a style."""
    from rich.text import Text

    from weft.cli.screen.tables import LineKind, table_lines

    out = console()
    say(title, style="bold")
    styles = {LineKind.HEAD: "bold", LineKind.RULE: "dim", LineKind.BODY: ""}
    for line, kind in table_lines(columns, rows, screen_width(), words):
        text = Text(line, style=styles[kind])
        for word, style in (marks or {}).items():
            text.highlight_words([word], style)
        out.print(text, soft_wrap=True)
    out.print()


def say(text: str, style: str = "") -> None:
    """Print prose: folded at spaces on a terminal, as it is in a pipe; no markup."""
    from weft.cli.screen.tables import prose_lines

    out, width = console(), screen_width()
    for line in text.split("\n"):
        for part in prose_lines(line, width):
            out.print(part, style=style, markup=False, soft_wrap=True)


def say_paragraph(text: str, style: str = "") -> None:
    """Print a paragraph: folded at spaces also in a pipe, where a page is as wide as a book's."""
    from weft.cli.screen.tables import folded

    for part in folded(text, min(PAGE_WIDTH, screen_width() or PAGE_WIDTH)):
        console().print(part, style=style, markup=False, soft_wrap=True)


def write_text(text: str) -> None:
    """Write a file's text to standard output as it is."""
    sys.stdout.write(text if text.endswith("\n") else f"{text}\n")


def warn(text: str) -> None:
    """Write one line to standard error, folded at spaces where that is a terminal."""
    from rich.console import Console

    from weft.cli.screen.tables import prose_lines

    width = Console(stderr=True).width if sys.stderr.isatty() else None
    sys.stderr.write("".join(f"{part}\n" for line in text.split("\n") for part in prose_lines(line, width)))


@contextmanager
def progress() -> Iterator[Watch]:
    """Give what shows (name, done, total) in the command's sign of life."""
    yield advance


@contextmanager
def counting(name: str, total: int) -> Iterator[Callable[[], None]]:
    """Give what counts one more of `total` with each call."""
    done = itertools.count(1)
    advance(name, 0, total)
    yield lambda: advance(name, next(done), total)


def watched(show: Callable[[], None], *, pause: Callable[[float], None] = time.sleep) -> None:
    """Call `show` again and again until Ctrl-C, each time on a clean screen where there is one."""
    draw_own_screen()
    while True:
        if sys.stdout.isatty():
            # Home, and erase to the end: the screen does not flicker, and what scrolled away stays.
            sys.stdout.write("\x1b[H\x1b[J")
        show()
        sys.stdout.flush()
        pause(_WATCH_S)


def draw_own_screen() -> None:
    """End the sign of life: from here on the command shows itself how it goes."""
    end_signs()


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
