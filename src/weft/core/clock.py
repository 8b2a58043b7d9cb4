"""Time as an argument: the clock protocol, a manual clock for simulated worlds, and the system's.

Decisions never hold a clock; they are given `now`. Only shells and the outermost commands read one.
"""

import time
from typing import Protocol

from weft.core.units import Picoseconds

_START = Picoseconds(0)


class Clock(Protocol):
    """Anything that knows what time it is."""

    def now(self) -> Picoseconds:
        """Return the time since this clock's start; never less than the time before."""
        ...


class ManualClock:
    """A clock that moves only when it is moved."""

    def __init__(self, start: Picoseconds = _START) -> None:
        """Begin at `start`."""
        self._now = start

    def now(self) -> Picoseconds:
        """Return the time it was last set to."""
        return self._now

    def advance(self, span: Picoseconds) -> Picoseconds:
        """Move forward by `span` and return the new time."""
        if span < 0:
            raise ValueError(f"a clock cannot go back by {-span} ps")
        self._now = Picoseconds(self._now + span)
        return self._now


class SystemClock:
    """The machine's monotonic clock, counted from when this object was made."""

    def __init__(self, start: Picoseconds = _START) -> None:
        """Begin now, at `start`: where another process's clock has stopped."""
        self._start_ns = time.monotonic_ns() - start // 1000

    def now(self) -> Picoseconds:
        """Return the picoseconds since the start; its resolution is a nanosecond or coarser."""
        return Picoseconds((time.monotonic_ns() - self._start_ns) * 1000)
