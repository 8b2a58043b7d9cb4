"""Follows a kernel log as it grows: the kernel's device, or a file that others write and rotate.

A place in the log is kept on disk, so that an agent that is restarted says nothing twice and misses nothing that the
log still holds. Nothing here knows what a line means.
"""

import contextlib
import datetime
import json
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from weft.cluster.health.kernel_lines import said_at_ms
from weft.core.errors import FailedError

DEVICE = Path("/dev/kmsg")
_RECORD = 8192
_CHUNK = 2**16
_MOST_LINE = 2**14
_MOST_AT_ONCE = 100_000


@dataclass(frozen=True, slots=True)
class LogLine:
    """One line, and how long ago the kernel said it, where the log tells that."""

    text: str
    age_ms: int = 0
    past: bool = False
    """Whether it stood in the log before it was followed."""


def said_by() -> Callable[[str], int]:
    """Return a function that says when a line was said, in milliseconds since 1970; now, where a line does not tell."""
    now_ms, up_ms = time.time_ns() // 1_000_000, _up_us() // 1000
    zone = datetime.datetime.now().astimezone().tzinfo or datetime.UTC

    def said_at(line: str) -> int:
        at_ms = said_at_ms(line, now_ms, up_ms, zone)
        return now_ms if at_ms is None else at_ms

    return said_at


class LogFollower(Protocol):
    """A log that grows."""

    def new_lines(self) -> Iterator[LogLine]:
        """Yield what has come since the last call; returns at once."""
        ...

    def close(self) -> None:
        """Let go of it."""
        ...


def write_atomically(path: Path, text: str) -> None:
    """Replace a file so that a crash leaves the old or the new content."""
    path.parent.mkdir(parents=True, exist_ok=True)
    new = path.with_suffix(".new")
    new.write_text(text, encoding="utf-8")
    new.replace(path)


def follow(path: Path, place: Path | None) -> LogFollower:
    """Follow a log from where `place` says that it was read to; from its beginning where nothing is kept."""
    return DeviceFollower(path, place) if path == DEVICE else FileFollower(path, place)


class DeviceFollower:
    """Follows /dev/kmsg: one record for each read, numbered since the boot."""

    def __init__(self, path: Path, place: Path | None) -> None:
        """Open the device."""
        self._place = place
        self._boot = _read(Path("/proc/sys/kernel/random/boot_id"))
        kept = _kept(place)
        self._read_to = int(kept.get("sequence", -1)) if kept.get("boot") == self._boot else -1
        try:
            self._handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
        except OSError as error:
            raise FailedError(f"{path}: {error.strerror}; the agent needs root, or a file given by --log") from None

    def new_lines(self) -> Iterator[LogLine]:
        """Yield the records since the last call."""
        up_us = _up_us()
        before = self._read_to
        for _ in range(_MOST_AT_ONCE):
            try:
                record = os.read(self._handle, _RECORD).decode("utf-8", errors="replace")
            except BlockingIOError:
                break
            except BrokenPipeError:
                continue  # the buffer has moved on below us; the next read goes on
            line = record.partition("\n")[0]
            _, sequence, at_us, *_ = [*line.partition(";")[0].split(","), "", ""]
            if sequence.isdigit():
                if int(sequence) <= self._read_to:
                    continue
                self._read_to = int(sequence)
            yield LogLine(line, max(0, (up_us - int(at_us)) // 1000) if at_us.isdigit() else 0)
        if self._place is not None and self._read_to != before:
            write_atomically(self._place, json.dumps({"boot": self._boot, "sequence": self._read_to}))

    def close(self) -> None:
        """Close the device."""
        os.close(self._handle)


class FileFollower:
    """Follows a file that grows, is cut short, or is moved away and made anew."""

    def __init__(self, path: Path, place: Path | None) -> None:
        """Begin where the last one ended, if the file is still the same."""
        self._path, self._place = path, place
        self._handle: int | None = None
        self._rest = b""
        self._open()
        self._past_to = 0 if self._handle is None else os.fstat(self._handle).st_size
        kept = _kept(place)
        if self._handle is not None and kept.get("inode") == os.fstat(self._handle).st_ino:
            os.lseek(self._handle, min(int(kept.get("offset", 0)), os.fstat(self._handle).st_size), os.SEEK_SET)

    def _open(self) -> None:
        with contextlib.suppress(FileNotFoundError):
            self._handle = os.open(self._path, os.O_RDONLY | os.O_NONBLOCK)

    def new_lines(self) -> Iterator[LogLine]:
        """Yield the whole lines since the last call."""
        if self._handle is None:
            self._open()
        if self._handle is None:
            return
        yield from self._read()
        try:
            now = self._path.stat()
        except FileNotFoundError:
            return
        held = os.fstat(self._handle)
        if now.st_ino != held.st_ino:
            # Moved away: what was still written into the old one has been read above.
            os.close(self._handle)
            self._handle, self._rest, self._past_to = None, b"", 0
            self._open()
            yield from self._read()
        elif held.st_size < os.lseek(self._handle, 0, os.SEEK_CUR):
            os.lseek(self._handle, 0, os.SEEK_SET)
            self._rest, self._past_to = b"", 0
            yield from self._read()
        self._keep()

    def _read(self) -> Iterator[LogLine]:
        assert self._handle is not None, "only an open file is read"
        while part := os.read(self._handle, _CHUNK):
            *lines, self._rest = (self._rest + part).split(b"\n")
            if len(self._rest) > _MOST_LINE:
                self._rest = self._rest[:_MOST_LINE]
            past = os.lseek(self._handle, 0, os.SEEK_CUR) <= self._past_to
            for line in lines:
                yield LogLine(line[:_MOST_LINE].decode("utf-8", errors="replace"), past=past)

    def _keep(self) -> None:
        if self._place is None or self._handle is None:
            return
        offset = os.lseek(self._handle, 0, os.SEEK_CUR) - len(self._rest)
        kept = {"inode": os.fstat(self._handle).st_ino, "offset": offset}
        if kept != _kept(self._place):
            write_atomically(self._place, json.dumps(kept))

    def close(self) -> None:
        """Close the file."""
        if self._handle is not None:
            os.close(self._handle)


def _kept(place: Path | None) -> dict[str, int | str]:
    with contextlib.suppress(OSError, ValueError):
        if place is not None and isinstance(kept := json.loads(place.read_text(encoding="utf-8")), dict):
            return kept
    return {}


def _read(path: Path) -> str:
    with contextlib.suppress(OSError):
        return path.read_text(encoding="ascii").strip()
    return ""


def _up_us() -> int:
    up = _read(Path("/proc/uptime")).split()
    return int(float(up[0]) * 1_000_000) if up else 0
