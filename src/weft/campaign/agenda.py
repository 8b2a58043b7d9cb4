"""What happens when: calls in order of simulated time, and the time itself. Nothing between two of them is stepped."""

import heapq
import itertools
from collections.abc import Callable
from typing import Any


class Agenda:
    """The clock of a campaign and what is still to come; one owner."""

    def __init__(self) -> None:
        """Begin at 0."""
        self.now_ms = 0
        self.done = 0
        """Events that have happened."""
        self.dirty = True
        """Whether something has changed about which decisions are to be made."""
        self._heap: list[tuple[int, int, Callable[..., None], tuple[Any, ...]]] = []
        self._count = itertools.count()

    def at(self, at_ms: int, call: Callable[..., None], *given: Any) -> None:
        """Let something happen then, at the earliest now; what is due together happens in the order of asking."""
        heapq.heappush(self._heap, (max(at_ms, self.now_ms), next(self._count), call, given))

    def after(self, delay_ms: int, call: Callable[..., None], *given: Any) -> None:
        """Let something happen after a delay."""
        self.at(self.now_ms + delay_ms, call, *given)

    def next_ms(self) -> int | None:
        """Return when the next thing happens."""
        return self._heap[0][0] if self._heap else None

    def happen(self) -> None:
        """Let everything happen that is due now."""
        while self._heap and self._heap[0][0] <= self.now_ms:
            _, _, call, given = heapq.heappop(self._heap)
            self.done += 1
            call(*given)
