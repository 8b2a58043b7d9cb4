"""Technicians and parts: when a ticket is worked on, how long that takes, what it costs.

A ticket waits for its part and for a technician, whose shift may be over; then the work takes what the ticket says, and
the node is repaired when the turnaround that was drawn for it is over. First come, first served.
"""

import heapq
import math

import numpy as np

from weft.campaign.fleet import DAY_MS, HOUR_MS, ms
from weft.specs.campaign import RepairSpec

MINUTE_MS = 60_000


def log_normal(draw: np.random.Generator, mean: float, spread: float) -> float:
    """Return a log-normal number with this mean and spread of its logarithm."""
    return mean * math.exp(spread * draw.standard_normal() - spread * spread / 2) if spread else mean


class RepairShop:
    """Who repairs, and what is on the shelf; one owner."""

    def __init__(self, spec: RepairSpec, draw: np.random.Generator) -> None:
        """Open it with all technicians free and the shelf full."""
        self._spec, self._draw = spec, draw
        self._free_ms = [0] * (spec.crews or 0)
        self._stock = spec.stock
        self._orders: list[int] = []
        self.technician_ms = 0
        self.parts = 0
        self.tickets = 0
        self.parts_waited_ms = 0
        self.crews_waited_ms = 0

    def take(self, now_ms: int, technician_min: int, parts: int, turnaround_ms: int) -> tuple[int, int]:
        """Take a ticket; returns when work on it begins and when the node is repaired."""
        work_ms = max(1, round(log_normal(self._draw, technician_min * MINUTE_MS, self._spec.spread)))
        turn_ms = max(1, round(log_normal(self._draw, turnaround_ms, self._spec.spread)))
        self.tickets += 1
        self.technician_ms += work_ms
        ready_ms = now_ms if not parts else self._part_at(now_ms)
        self.parts += parts
        self.parts_waited_ms += ready_ms - now_ms
        begin_ms = self._in_shift(ready_ms)
        if self._free_ms:
            begin_ms = self._in_shift(max(ready_ms, self._free_ms[0]))
            heapq.heapreplace(self._free_ms, begin_ms + work_ms)
        self.crews_waited_ms += begin_ms - ready_ms
        return begin_ms, begin_ms + max(work_ms, turn_ms)

    def _part_at(self, now_ms: int) -> int:
        """Return when the part is there; what is used is ordered again at once."""
        if self._stock is None:
            return now_ms
        heapq.heappush(self._orders, now_ms + ms(self._spec.lead))
        if self._stock > 0:
            self._stock -= 1
            return now_ms
        return max(now_ms, heapq.heappop(self._orders))

    def restock(self, now_ms: int) -> None:
        """Put on the shelf what has arrived."""
        while self._stock is not None and self._orders and self._orders[0] <= now_ms:
            heapq.heappop(self._orders)
            self._stock += 1

    def _in_shift(self, at_ms: int) -> int:
        """Return the first moment from then on at which somebody works; shifts begin at midnight."""
        shift_ms = round(self._spec.shift * HOUR_MS)
        into_ms = at_ms % DAY_MS
        return at_ms if into_ms < shift_ms else at_ms - into_ms + DAY_MS
