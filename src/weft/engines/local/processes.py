"""Which process is meant, for good: a number alone is given again to another one.

A process is known by its number, the time of its start and the boot of the machine. Linux, by /proc. Standard library
only.
"""

import contextlib
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

_PROC = Path("/proc")
_STATE, _PARENT, _GROUP, _START = 0, 1, 2, 19
_GONE = frozenset("ZXx")


@dataclass(frozen=True, slots=True)
class Identity:
    """One process."""

    pid: int
    start: int
    """When it started, in clock ticks since the boot."""
    boot: str
    """Which boot of the machine."""

    @classmethod
    def of(cls, pid: int) -> "Identity | None":
        """Return the identity of the process that has number `pid` now."""
        fields = _fields(pid)
        return None if fields is None else cls(pid, int(fields[_START]), boot())

    @classmethod
    def from_plain(cls, plain: Mapping[str, Any]) -> "Identity":
        """Return the identity that was written down."""
        return cls(int(plain["pid"]), int(plain["start"]), str(plain["boot"]))

    def as_plain(self) -> dict[str, Any]:
        """Return the identity as plain values."""
        return asdict(self)

    def alive(self) -> bool:
        """Return whether this very process still runs; one that only waits to be fetched does not."""
        fields = _fields(self.pid)
        return (
            fields is not None
            and int(fields[_START]) == self.start
            and fields[_STATE] not in _GONE
            and boot() == self.boot
        )

    def signal(self, number: int) -> bool:
        """Send a signal to this very process; returns whether it was there to get it."""
        if not self.alive():
            return False
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, number)
            return True
        return False

    def signal_group(self, number: int) -> None:
        """Send a signal to the process group that it leads, while any of it is there."""
        fields = _fields(self.pid)
        if boot() != self.boot or (fields is not None and int(fields[_START]) != self.start):
            return
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, number)


def boot() -> str:
    """Return the name of this boot of the machine."""
    with contextlib.suppress(OSError):
        return (_PROC / "sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    return ""


def _fields(pid: int) -> list[str] | None:
    """Return the fields of a process's state line from the third on; its name, which may hold anything, is skipped."""
    try:
        return (_PROC / str(pid) / "stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
    except OSError:
        return None
