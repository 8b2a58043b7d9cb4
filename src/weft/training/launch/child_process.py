"""A process that the fork server made, watched by the kernel's own handle on it instead of through the fork server.

Python's handle says that a child has ended as soon as the fork server does, and then no longer sends it signals: a dead
fork server would be taken for the death of every rank and keeper, and those would live on unseen. A pidfd belongs to
the process itself. Knows nothing of ranks.
"""

import contextlib
import os
import signal
import weakref
from multiprocessing.connection import wait
from typing import Any

_REAPED_S = 1.0
_UNKNOWN = 255
"""What Python gives as the status of a process whose fork server has gone."""


class ChildProcess:
    """A started process; what Python's own object offers, true also without its fork server."""

    def __init__(self, process: Any) -> None:
        """Watch `process`, which has been started."""
        self._process = process
        self.pid: int = process.pid
        try:
            self._handle: int | None = os.pidfd_open(self.pid)
            weakref.finalize(self, os.close, self._handle)
        except (AttributeError, OSError):
            # Not Linux, or it has ended already: Python's handle is all that there is.
            self._handle = None

    @property
    def sentinel(self) -> int:
        """Return what becomes ready when the process ends."""
        return self._process.sentinel if self._handle is None else self._handle

    def is_alive(self) -> bool:
        """Return whether it has not ended."""
        return not wait([self.sentinel], 0)

    def join(self, timeout: float | None = None) -> None:
        """Wait until it has ended, and a moment more until its number is free."""
        if wait([self.sentinel], timeout):
            self._process.join(_REAPED_S)

    def signal(self, number: int) -> None:
        """Send it a signal, if it is still there; a later process of the same number never gets it."""
        with contextlib.suppress(ProcessLookupError):
            if self._handle is None:
                os.kill(self.pid, number)
            else:
                signal.pidfd_send_signal(self._handle, number)

    def kill(self) -> None:
        """End it at once."""
        self.signal(signal.SIGKILL)

    @property
    def exitcode(self) -> int | None:
        """Return how it ended: a status, a signal below zero, nothing where it runs or where nobody knows."""
        if self.is_alive():
            return None
        self.join()
        code = self._process.exitcode
        return None if code == _UNKNOWN else code
