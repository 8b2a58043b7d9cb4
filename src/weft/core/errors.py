"""The error tree: what a user got wrong, what failed, and which limit was reached.

`UsageError` ends a command with status 2 and says what to change; every other `WeftError` ends it with status 1. Broken
invariants are assertions, not errors of this tree.
"""

from dataclasses import dataclass


class WeftError(Exception):
    """The root of every error that weft raises on purpose; its text is a sentence for the user."""

    exit_status = 1


class FailedError(WeftError):
    """The request was right, but carrying it out failed."""


class LimitReachedError(WeftError):
    """A named limit (a queue, a retry budget, a wait) was reached; the text names it."""


class UsageError(WeftError):
    """The request itself was wrong; the text says what would be right."""

    exit_status = 2


@dataclass(frozen=True, slots=True)
class Mistake:
    """One thing that is wrong in one file."""

    file: str
    """The file, as the user wrote it."""
    key: str
    """Dotted path of the key, empty where the file as a whole is meant."""
    problem: str
    """What was found."""
    remedy: str = ""
    """What would be right, where that is known."""
    line: int | None = None
    """Line in the file, counted from 1, where it is known."""

    def __str__(self) -> str:
        """Return the mistake as two lines: where, then what."""
        place = self.file if self.line is None else f"{self.file}:{self.line}"
        head = f"{place}  {self.key}" if self.key else place
        return f"{head}\n    {self.problem}" + (f"; {self.remedy}" if self.remedy else "")


class SpecError(UsageError):
    """A site, job or scenario file is wrong; carries every mistake in it."""

    def __init__(self, mistakes: list[Mistake]) -> None:
        """Collect `mistakes`, at least one."""
        assert mistakes, "a SpecError needs a mistake"
        self.mistakes = tuple(mistakes)
        count = len(mistakes)
        opening = "1 mistake" if count == 1 else f"{count} mistakes"
        files = len({mistake.file for mistake in mistakes})
        where = f"{mistakes[0].file} has {opening}" if files == 1 else f"{opening} in {files} files"
        super().__init__(f"{where}\n" + "\n".join(f"  {mistake}" for mistake in mistakes))
