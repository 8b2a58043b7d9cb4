"""A disk that fails at seeded points: every write, sync, new file and database statement of this process counts."""

import builtins
import errno
import io
import os
import sqlite3
from collections.abc import Callable
from typing import Any

import pytest
from typing_extensions import override

CODES = {errno.ENOSPC: "SQLITE_FULL", errno.EIO: "SQLITE_IOERR"}


class FailingConnection(sqlite3.Connection):
    """A connection whose statements fail while the disk does."""

    faults: "DiskFaults"

    @override
    def execute(self, *arguments: Any) -> Any:
        statement = str(arguments[0]).strip().split()[0].lower()
        if statement not in ("select", "rollback", "pragma"):
            self.faults.touch(sql=True)
        return super().execute(*arguments)


class DiskFaults:
    """Fails from the `first` point on, `count` times in a row."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, number: int) -> None:
        self.number, self.points, self.failed = number, 0, 0
        self.first = self.last = -1
        self.full = False
        """Whether everything fails until this is taken back."""
        connection = type("Connection", (FailingConnection,), {"faults": self})
        connect = sqlite3.connect
        monkeypatch.setattr(sqlite3, "connect", lambda path, **more: connect(path, factory=connection, **more))
        monkeypatch.setattr(os, "fsync", self.before(os.fsync))
        monkeypatch.setattr(os, "replace", self.before(os.replace))
        opened, real = io.open, os.open

        def open_file(file: Any, mode: str = "r", *arguments: Any, **more: Any) -> Any:
            if set(mode) & set("wax+"):
                self.touch()
            return opened(file, mode, *arguments, **more)

        def open_handle(path: Any, flags: int, *arguments: Any, **more: Any) -> int:
            if flags & os.O_CREAT:
                self.touch()
            return real(path, flags, *arguments, **more)

        monkeypatch.setattr(io, "open", open_file)
        monkeypatch.setattr(builtins, "open", open_file)
        monkeypatch.setattr(os, "open", open_handle)

    def before(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def called(*arguments: Any, **more: Any) -> Any:
            self.touch()
            return function(*arguments, **more)

        return called

    def fail(self, first: int, count: int) -> None:
        """Let `count` points fail, from the `first` one after now."""
        self.first = self.points + first
        self.last = self.first + count

    def touch(self, *, sql: bool = False) -> None:
        """Pass a point, or fail."""
        self.points += 1
        if not self.full and not self.first <= self.points < self.last:
            return
        self.failed += 1
        if sql:
            error = sqlite3.OperationalError("the disk of the test fails")
            error.sqlite_errorcode = getattr(sqlite3, CODES[self.number])
            raise error
        raise OSError(self.number, os.strerror(self.number))
