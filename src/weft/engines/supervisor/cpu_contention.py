"""What other programs take of this machine's processors while ours run, from Linux's own counters.

Elsewhere nothing is known and nobody else is assumed. Ours is what shares this process's group: ranks and keepers do.
"""

import contextlib
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

_PROC = Path("/proc")
_GROUP, _TIMES = 2, slice(11, 15)
"""Places in /proc/PID/stat after the name, which proc(5) counts from 3: the group; user and system time, of the process
and of those children that have ended."""
_IDLE = (3, 4, 5, 6)
"""Places in /proc/stat: nothing ran, or an interrupt did, which on loopback is ours."""
_REAL = 8
"""Counters there that exclude each other; guests are in the first two again."""


@dataclass(frozen=True)
class Ticks:
    """Processor time since the machine started, in the kernel's ticks."""

    all: int
    """Of all processors, busy or idle."""
    idle: int
    """While no program ran."""
    ours: int
    """In this process's group."""


def ticks() -> Ticks | None:
    """Return the counters as they stand, or none where there are none."""
    try:
        counters = [int(word) for word in (_PROC / "stat").read_text().split("\n", 1)[0].split()[1 : _REAL + 1]]
    except (OSError, ValueError):
        return None
    ours = sum(_ours(folder) for folder in _PROC.iterdir() if folder.name.isdigit())
    return Ticks(sum(counters), sum(counters[place] for place in _IDLE), ours)


def _ours(process: Path) -> int:
    # A process may end while it is looked at.
    with contextlib.suppress(OSError, ValueError, IndexError):
        words = (process / "stat").read_text().rpartition(")")[2].split()
        if int(words[_GROUP]) == os.getpgrp():
            return sum(int(word) for word in words[_TIMES])
    return 0


def others_share(marks: Sequence[Ticks]) -> float:
    """Return which share of all processors other programs took between the first and the last of `marks`."""
    if len(marks) < 2:  # noqa: PLR2004 - a beginning and an end
        return 0.0
    whole, idle, ours = (
        getattr(marks[-1], name) - getattr(marks[0], name) for name in ("all", "idle", "ours")
    )  # fmt: skip
    return max(0.0, (whole - idle - ours) / whole) if whole > 0 else 0.0
