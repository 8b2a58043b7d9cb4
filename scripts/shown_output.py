"""Output that pages show: a `text` block right after a block of commands is what they print, and a test holds it so.

`python scripts/shown_output.py PAGE...` runs the commands of pages and writes what they print in the place of what is
shown. A line of three dots stands for any lines. After `<!-- figures may differ -->` numbers may be others: times and
rates of the machine that runs them.
"""

import io
import re
import sys
from collections.abc import Iterator
from contextlib import redirect_stdout
from dataclasses import dataclass
from pathlib import Path

from weft.cli.main import main

_BLOCK = re.compile(
    r"(?P<loose><!-- figures may differ -->\n+)?```sh\n(?P<commands>.*?)^```\n(?:\n```text\n(?P<shown>.*?)^```\n)?",
    re.MULTILINE | re.DOTALL,
)
_FIGURE = re.compile(r"\d[\d,]*(?:\.\d+)?")
ANY = "..."


@dataclass(frozen=True)
class ShownBlock:
    """Commands of a page, and what it shows of their output."""

    commands: tuple[str, ...]
    """Commands of weft, without the comments behind them."""
    shown: str | None
    """Output as the page shows it; none where it shows none."""
    loose: bool
    """Whether figures may differ."""
    line: int
    """Line of the page in which the block begins."""


def blocks_of(text: str) -> Iterator[ShownBlock]:
    """Yield the blocks of commands of a page."""
    for found in _BLOCK.finditer(text):
        lines = [line.partition("#")[0].strip() for line in found["commands"].splitlines()]
        commands = tuple(line for line in lines if line.startswith("weft "))
        yield ShownBlock(commands, found["shown"], found["loose"] is not None, text[: found.start()].count("\n") + 1)


def printed(commands: tuple[str, ...]) -> tuple[str, list[int]]:
    """Return what commands print one after the other, and their statuses."""
    out, statuses = io.StringIO(), []
    with redirect_stdout(out):
        statuses = [main(command.split()[1:]) for command in commands]
    return "\n".join(line.rstrip() for line in out.getvalue().splitlines()).strip("\n") + "\n", statuses


def agrees(shown: str, output: str, *, loose: bool = False) -> bool:
    """Return whether an output is what is shown."""
    parts = [_pattern(part, loose=loose) for part in re.split(rf"(?m)^{re.escape(ANY)}\n", shown)]
    return re.fullmatch("(?:.*\n)*?".join(parts), output) is not None


def _pattern(text: str, *, loose: bool) -> str:
    if not loose:
        return re.escape(text)
    # Columns are as wide as their figures.
    pieces = [re.escape(piece) for piece in _FIGURE.split(text)]
    return re.sub(r"(?:\\ )+", r"\\s*", r"\d[\d,]*(?:\.\d+)?".join(pieces)).replace("─", "─*")


def updated(text: str) -> str:
    """Return a page with what its commands print now; what it left out stays left out at the end."""

    def renewed(found: "re.Match[str]") -> str:
        shown = found["shown"]
        if shown is None:
            return found[0]
        block = next(blocks_of(found[0]))
        output = printed(block.commands)[0].splitlines()
        kept = shown.splitlines()
        if kept and kept[-1] == ANY:
            output = [*output[: len(kept) - 1], ANY]
        return found[0].replace(f"```text\n{shown}", "```text\n" + "".join(f"{line}\n" for line in output))

    return _BLOCK.sub(renewed, text)


if __name__ == "__main__":
    for name in sys.argv[1:]:
        page = Path(name)
        page.write_text(updated(page.read_text(encoding="utf-8")), encoding="utf-8")
