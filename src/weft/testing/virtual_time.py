"""Virtual time for asyncio: sleeping costs nothing, and an hour of waiting passes in the blink of an eye.

`run` is `asyncio.run` on a loop whose clock jumps to the next timer whenever nothing else is to be done. What reads
`loop.time()` sees virtual seconds; what reads the system's clock does not.
"""

import asyncio
import selectors
from collections.abc import Coroutine
from typing import Any, TypeVar

from typing_extensions import override

T = TypeVar("T")


class _JumpingSelector(selectors.DefaultSelector):
    """Waits for nothing: where no file is ready, the clock moves on instead."""

    now_s = 0.0

    @override
    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = super().select(0)
        if not ready and timeout is None:
            # No timer is left: only a thread or a socket can wake the loop, in real time.
            return super().select(None)
        if not ready and timeout is not None:
            self.now_s += max(0.0, timeout)
        return ready


class VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop with a clock of its own."""

    def __init__(self) -> None:
        """Begin at zero."""
        self._jumping = _JumpingSelector()
        super().__init__(self._jumping)

    @override
    def time(self) -> float:
        return self._jumping.now_s


def run(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine in virtual time."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(work)
