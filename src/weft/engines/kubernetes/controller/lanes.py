"""Writes to the API server, fairly: a bind of 7,500 pods never stands in the way of a bind of one.

Each gang has a line of its own; places in flight are given to the lines in turn, so a short line is through after as
many turns as it is long. Some places are kept for lines that have just begun. A bucket of tokens bounds the rate, and
halves it for a while when the server says that it is too much.
"""

import asyncio
import logging
from collections import OrderedDict, deque
from collections.abc import Awaitable, Callable

from weft.core.errors import WeftError
from weft.engines.kubernetes.api.api_client import ApiError

_LOG = logging.getLogger(__name__)
_MANY = 429
_SHORT = 16
_EASE_S = 5.0

Work = Callable[[], Awaitable[None]]


class Lanes:
    """Runs pieces of work, at most `width` at once and `rate_per_s` in a second."""

    def __init__(self, width: int = 32, kept: int = 8, rate_per_s: float = 2000.0) -> None:
        """Open; `kept` of the places are only for short lines."""
        assert 0 < kept < width, "some places are kept, not all"
        self._width, self._kept = width, kept
        self._rate = rate_per_s
        self._tokens = float(width)
        self._filled = 0.0
        self._eased_until = 0.0
        self._lines: OrderedDict[str, deque[Work]] = OrderedDict()
        self._running: dict[str, int] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._wake = asyncio.Event()
        self.done = 0
        self.failed = 0

    def put(self, line: str, work: Work) -> None:
        """Put a piece of work at the end of a line."""
        self._lines.setdefault(line, deque()).append(work)
        self._wake.set()

    def waiting(self, line: str) -> int:
        """Return how many pieces of a line wait or are in flight."""
        return len(self._lines.get(line, ())) + self._running.get(line, 0)

    async def run(self) -> None:
        """Work until cancelled."""
        try:
            while True:
                self._wake.clear()
                pause_s = self._start_what_may()
                if pause_s is None:
                    await self._wake.wait()
                else:
                    await asyncio.sleep(pause_s)
        finally:
            for task in self._tasks:
                task.cancel()

    def _start_what_may(self) -> float | None:
        """Start pieces in turn; returns after how long to look again, or nothing where somebody will say."""
        while line := self._next():
            if self._take_token() is False:
                return 1.0 / self._rate
            queue = self._lines[line]
            work = queue.popleft()
            if queue:
                self._lines.move_to_end(line)
            else:
                del self._lines[line]
            self._running[line] = self._running.get(line, 0) + 1
            task = asyncio.create_task(self._do(line, work))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        return None

    def _next(self) -> str | None:
        """Return the line whose turn it is, if it may."""
        busy = sum(self._running.values())
        if busy >= self._width:
            return None
        crowded = busy >= self._width - self._kept
        for line, queue in self._lines.items():
            if not crowded or len(queue) + self._running.get(line, 0) <= _SHORT:
                return line
        return None

    def _take_token(self) -> bool:
        now = asyncio.get_running_loop().time()
        rate = self._rate / 2 if now < self._eased_until else self._rate
        self._tokens = min(float(self._width), self._tokens + (now - self._filled) * rate)
        self._filled = now
        if self._tokens < 1:
            return False
        self._tokens -= 1
        return True

    async def _do(self, line: str, work: Work) -> None:
        try:
            await work()
            self.done += 1
        except ApiError as error:
            self.failed += 1
            if error.status == _MANY:
                self._eased_until = asyncio.get_running_loop().time() + _EASE_S
            _LOG.warning("%s: %s", line, error)
        except WeftError as error:
            self.failed += 1
            _LOG.warning("%s: %s", line, error)
        finally:
            self._running[line] -= 1
            if not self._running[line]:
                del self._running[line]
            self._wake.set()
