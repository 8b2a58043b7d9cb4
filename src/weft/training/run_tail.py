"""Follows a run folder while somebody else writes it: what is new since the last look, and whether the past changed.

A run that recovers cuts lines off and writes those steps again; a file that is shorter, or holds other bytes where the
last line that was read ended, is read from its beginning. Whole lines count alone, as in `run_dir`. Free of torch.
"""

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from weft.core.input_files import json_of
from weft.training.run_dir import EVALUATIONS, INCIDENTS, METRICS

_MOST_BYTES = 8 << 20
"""What one look reads of one file; the rest comes with the next."""
_REMEMBERED = 256


@dataclass
class FileTail:
    """The end of one file of lines."""

    path: Path
    """The file; it need not be there yet."""
    offset: int = 0
    """Where the next whole line begins."""
    _before: bytes = b""
    """The bytes just before `offset`."""

    def read(self) -> tuple[bool, list[dict[str, Any]]]:
        """Return whether what was read before is void, and the lines since (all of them, where it is)."""
        try:
            with self.path.open("rb") as stream:
                anew = not self._goes_on(stream.fileno())
                if anew:
                    self.offset, self._before = 0, b""
                stream.seek(self.offset)
                whole, newline, _ = stream.read(_MOST_BYTES).rpartition(b"\n")
        except FileNotFoundError:
            anew = self.offset > 0
            self.offset, self._before = 0, b""
            return anew, []
        whole += newline
        self.offset += len(whole)
        self._before = (self._before + whole)[-_REMEMBERED:]
        return anew, [line for raw in whole.splitlines() if (line := _line(raw)) is not None]

    def _goes_on(self, handle: int) -> bool:
        if os.fstat(handle).st_size < self.offset:
            return False
        return os.pread(handle, len(self._before), self.offset - len(self._before)) == self._before


def _line(raw: bytes) -> dict[str, Any] | None:
    try:
        found = json_of(raw)
    except ValueError:
        return None
    return found if isinstance(found, dict) else None


@dataclass
class RunNews:
    """What a look has found."""

    reset: bool
    """Whether everything that was given before is void."""
    steps: list[dict[str, Any]] = field(default_factory=list)
    evaluations: list[dict[str, Any]] = field(default_factory=list)
    incidents: list[dict[str, Any]] = field(default_factory=list)

    def __bool__(self) -> bool:
        """Return whether there is anything new."""
        return bool(self.reset or self.steps or self.evaluations or self.incidents)


class RunTail:
    """The ends of all files of one run."""

    def __init__(self, folder: Path) -> None:
        """Begin at the beginning of the files in `folder`."""
        self._folder = folder
        self._files = [FileTail(folder / name) for name in (METRICS, EVALUATIONS, INCIDENTS)]

    def read(self) -> RunNews:
        """Return what is new; where a file was cut, everything is given again."""
        found = [each.read() for each in self._files]
        if any(anew for anew, _ in found):
            self._files = [FileTail(each.path) for each in self._files]
            found = [each.read() for each in self._files]
            return RunNews(True, *(lines for _, lines in found))
        return RunNews(False, *(lines for _, lines in found))
