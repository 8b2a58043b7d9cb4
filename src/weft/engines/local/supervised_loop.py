"""The engine's loop, as something that does not end: what goes wrong is written down, waited out and tried again.

Jobs depend on this loop. After any error the database alone is believed, and opened anew; while that fails, as on a
full disk, it is tried again every few seconds. It says of itself how it is (`health`). One turn at a time; who sleeps
between them is the daemon.
"""

import contextlib
import logging
import shutil
import sqlite3
import time
from collections.abc import Callable
from typing import Any

from weft.engines.local.atomic_files import is_full, is_passing
from weft.engines.local.engine import LocalEngine, wall_ms
from weft.engines.local.home import Home
from weft.engines.local.store import disk_error_number, is_about_the_disk

_log = logging.getLogger("weft.cluster")
_BUSY_S, _IDLE_S = 0.1, 0.5
_FIRST_TROUBLE_S, _LONGEST_TROUBLE_S = 0.5, 4.0
_STALLED_S = 10.0
"""A loop that has not come round for so long does nothing for jobs."""


def disk_trouble(error: Exception) -> str | None:
    """Return what is wrong with the disk, in words, where that is what `error` is about."""
    if isinstance(error, sqlite3.Error) and is_about_the_disk(error):
        error = OSError(disk_error_number(error), str(error))
    if not isinstance(error, OSError) or not is_passing(error):
        return None
    return "the disk is full" if is_full(error) else f"the disk of the cluster's folder fails ({error.strerror})"


class EngineLoop:
    """Turns an engine, whatever happens."""

    def __init__(self, engine: LocalEngine, home: Home, clock: Callable[[], float] = time.monotonic) -> None:
        """Turn `engine`, whose state lies in `home`."""
        self._engine, self._home, self._clock = engine, home, clock
        self._stumbled = False
        self._trouble_s = _FIRST_TROUBLE_S
        self._turned_s = clock()
        self._stumbles = 0
        self._last_error: dict[str, Any] | None = None

    def turn(self) -> float:
        """Do the next piece of work; return how many seconds nothing else has to be done, 0 where there may be more."""
        try:
            if self._stumbled:
                self._engine.reopen()
                self._stumbled = False
                _log.warning("the engine goes on from what is written down")
            more = self._engine.tick()
        except Exception as error:  # noqa: BLE001 - whatever it was: jobs depend on this loop
            self.stumble(error)
            pause_s, self._trouble_s = self._trouble_s, min(2 * self._trouble_s, _LONGEST_TROUBLE_S)
            return pause_s
        self._turned_s, self._trouble_s = self._clock(), _FIRST_TROUBLE_S
        if more:
            return 0.0
        return _BUSY_S if any(entry.job.holds for entry in self._engine.entries) else _IDLE_S

    def stumble(self, error: Exception) -> None:
        """Note that what is held in memory may differ from the database: it is no longer believed."""
        self._stumbled = True
        self._stumbles += 1
        # Whoever asks meanwhile reads what is written down, not what had been about to be.
        with contextlib.suppress(OSError, sqlite3.Error):
            self._engine.reread()
        first_line = (str(error).strip() or "it says nothing").splitlines()[0]
        text = disk_trouble(error) or f"{type(error).__name__}: {first_line}"
        self._last_error = {"text": text, "at_ms": wall_ms()}
        _log.error("the engine has stumbled: %s", text, exc_info=error if disk_trouble(error) is None else None)

    def health(self) -> dict[str, Any]:
        """Return how the loop is: what it does for jobs, when it last came round, and what went wrong last."""
        age_s = self._clock() - self._turned_s
        state = "stumbling" if self._stumbled else "stalled" if age_s > _STALLED_S else "ok"
        disk = shutil.disk_usage(self._home.folder)
        return {
            "state": state, "turned_s_ago": round(age_s, 3), "stumbles": self._stumbles, "last_error": self._last_error,
            "disk_free_bytes": disk.free, "disk_total_bytes": disk.total,
        }  # fmt: skip
