"""The daemon's own log: bounded in size, and a message that repeats is written a few times and then counted."""

import logging
import time
from collections.abc import Callable
from logging.handlers import RotatingFileHandler
from pathlib import Path

from typing_extensions import override

_LARGEST_BYTES, _OLD_FILES = 4 * 2**20, 2
_TIMES, _WINDOW_S = 3, 60.0
_MOST_KINDS = 256


class RepeatFilter(logging.Filter):
    """Lets a message through a few times a minute; the next that passes says how many did not."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """Begin with nothing seen."""
        super().__init__()
        self._clock = clock
        self._seen: dict[tuple[str, int, str, str], tuple[float, int]] = {}

    @override
    def filter(self, record: logging.LogRecord) -> bool:
        """Return whether a message is written."""
        error = record.exc_info[0] if isinstance(record.exc_info, tuple) else None
        kind = (record.name, record.levelno, str(record.msg)[:80], error.__name__ if error is not None else "")
        now = self._clock()
        since, times = self._seen.get(kind, (now, 0))
        if now - since >= _WINDOW_S:
            if times > _TIMES:
                record.msg = f"{record.msg} ({times - _TIMES:,} more like it since)"
            since, times = now, 0
        if kind not in self._seen and len(self._seen) >= _MOST_KINDS:
            # Whoever makes up kinds of messages gets no memory for it.
            self._seen.clear()
        self._seen[kind] = (since, times + 1)
        return times < _TIMES


def write_to(path: Path) -> None:
    """Write everything that is logged in this process to `path`, and nothing to the terminal."""
    handler = RotatingFileHandler(path, maxBytes=_LARGEST_BYTES, backupCount=_OLD_FILES, encoding="utf-8")
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    handler.addFilter(RepeatFilter())
    # A log that cannot be written, on a full disk, is no reason to fail or to complain elsewhere.
    logging.raiseExceptions = False
    logging.basicConfig(level=logging.INFO, handlers=[handler])
