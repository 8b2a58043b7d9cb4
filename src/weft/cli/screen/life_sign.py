"""The sign of life of a command: one line on standard error that says what is being done, how far, and for how long.

On a terminal the line is redrawn a few times a second and is gone when the command prints. Elsewhere it is a plain line
now and then, rarer the longer it takes. The phase is the newest message that any part of weft logs at the
level INFO; how far is what a part reports to `advance`.
"""

import logging
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TextIO

from typing_extensions import override

FIRST_S = 0.3
"""Nothing is shown of what is over sooner."""
TICK_S = 0.2
_PLAIN_FIRST_S, _PLAIN_FACTOR = 10.0, 3.0
_FRAMES = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏"
_CLEAR = "\r\x1b[2K"
_LONGEST = 60


class LifeSign(logging.Handler):
    """What a command is doing, shown while it prints nothing."""

    def __init__(self, stream: TextIO, name: str, clock: Callable[[], float] = time.monotonic) -> None:
        """Make one that is not shown yet, for the command `name`."""
        super().__init__(logging.INFO)
        self._stream, self._name, self._clock = stream, name, clock
        self._terminal = stream.isatty()
        self._began = clock()
        self._next_plain = _PLAIN_FIRST_S
        self._phase, self._share = "starting", ""
        self._shown = self._quiet = False
        self._beats = 0
        self._line = threading.RLock()
        self._over = threading.Event()

    @override
    def emit(self, record: logging.LogRecord) -> None:
        """Take a message as the phase that begins."""
        self._phase, self._share, self._quiet = record.getMessage().split("\n")[0], "", False

    def advance(self, name: str, done: int, total: int) -> None:
        """Say how far something is."""
        self._phase, self._quiet = name, False
        self._share = f" {done / total:.0%}" if total else ""

    def text(self) -> str:
        """Return what is said now."""
        elapsed = self._clock() - self._began
        phase = self._phase if len(self._phase) <= _LONGEST else f"{self._phase[: _LONGEST - 3]}..."
        return f"{self._name}: {phase}{self._share}, {elapsed:.0f} s"

    def beat(self) -> None:
        """Show the line if it is time to."""
        elapsed = self._clock() - self._began
        with self._line:
            if self._over.is_set():
                return
            if not self._terminal:
                if elapsed >= self._next_plain:
                    self._next_plain = elapsed * _PLAIN_FACTOR
                    self._stream.write(f"{self.text()}\n")
            elif elapsed >= FIRST_S and not self._quiet:
                self._beats += 1
                self._stream.write(f"{_CLEAR}{_FRAMES[self._beats % len(_FRAMES)]} {self.text()}")
                self._stream.flush()
                self._shown = True

    def hush(self) -> None:
        """Take the line away until the next phase begins: somebody else writes."""
        with self._line:
            self._quiet = True
            if self._shown:
                self._shown = False
                self._stream.write(_CLEAR)
                self._stream.flush()

    def end(self) -> None:
        """Take the line away for good."""
        with self._line:
            self.hush()
            self._over.set()

    def keep_beating(self) -> None:
        """Show the line again and again, until the end."""
        while not self._over.wait(TICK_S):
            self.beat()


class _Yielding:
    """A stream before whose words the line is taken away."""

    def __init__(self, stream: TextIO, sign: LifeSign) -> None:
        """Write to `stream`."""
        self._stream, self._sign = stream, sign

    def write(self, text: str) -> int:
        """Write what a command says."""
        self._sign.hush()
        return self._stream.write(text)

    def __getattr__(self, name: str) -> Any:
        """Be the stream in everything else."""
        return getattr(self._stream, name)


_SIGNS: list[LifeSign] = []


@contextmanager
def showing(name: str) -> Iterator[None]:
    """Show a sign of life of the command `name` while it works."""
    sign = LifeSign(sys.stderr, name)
    # Only what goes to a terminal shares a line with the sign.
    kept = sys.stdout, sys.stderr
    sys.stdout, sys.stderr = (_Yielding(each, sign) if each.isatty() else each for each in kept)
    logger = logging.getLogger("weft")
    level = logger.level
    logger.addHandler(sign)
    logger.setLevel(min(level or logging.INFO, logging.INFO))
    _SIGNS.append(sign)
    thread = threading.Thread(target=sign.keep_beating, name="sign of life", daemon=True)
    thread.start()
    try:
        yield
    finally:
        sign.end()
        thread.join()
        _SIGNS.remove(sign)
        logger.removeHandler(sign)
        logger.setLevel(level)
        sys.stdout, sys.stderr = kept


def advance(name: str, done: int, total: int) -> None:
    """Say how far something is, where somebody looks."""
    for sign in _SIGNS:
        sign.advance(name, done, total)


def end_signs() -> None:
    """Take the line away for good: the command draws its own."""
    for sign in _SIGNS:
        sign.end()
