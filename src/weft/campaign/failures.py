"""Nodes that fail in a replay, at the rates that a site states, and what tests and technicians then find.

Failures come at random times to random nodes, a few nodes far more often than the others (lemons); a share of them does
not come again when the node is tested. All drawn from a seed.
"""

from dataclasses import dataclass

import numpy as np

from weft.core.seeds import Seed
from weft.core.units import PICOSECONDS_PER_SECOND
from weft.specs.site import SiteSpec

_FIT_HOURS = 1e9
_HOUR_MS = 3_600_000
LEMONS = 0.02
"""Share of nodes that fail more often (arXiv 2410.21680: 40 of two to three thousand)."""
LEMON_FACTOR = 20
"""How much more often."""
ELUSIVE = 0.3
"""Share of faults that a test does not find again (the vendor's test finds 70 %, SOSP 2025, ByteRobust)."""


@dataclass(frozen=True)
class Failures:
    """When nodes fail, and how it goes on."""

    per_node_hour: float
    """Failures of an ordinary node in an hour."""
    repair_ms: int
    """From a ticket to a repaired node."""
    detect_ms: int
    """From a failure to its being known."""
    seed: Seed
    """Root of the random streams."""
    test_ms: int = 900_000
    """A long test."""

    @classmethod
    def of(cls, site: SiteSpec, seed: Seed) -> "Failures":
        """Return the failures of a site's nodes: their GPUs and hosts."""
        rates = site.failures
        per_ms = PICOSECONDS_PER_SECOND // 1000
        fit = site.node.gpus * rates.gpu + rates.host
        return cls(fit / _FIT_HOURS, rates.repair // per_ms, rates.detection // per_ms, seed.branch("failures"))

    def until(self, nodes: int, end_ms: int) -> list[tuple[int, int]]:
        """Return when which node fails, up to `end_ms`, in order."""
        draw = self.seed.stream("times")
        weights = np.where(draw.random(nodes) < LEMONS, float(LEMON_FACTOR), 1.0)
        rate = self.per_node_hour * float(weights.sum())
        if rate <= 0:
            return []
        count = int(draw.poisson(rate * end_ms / _HOUR_MS))
        times = np.sort(draw.random(count) * end_ms).astype(np.int64)
        which = draw.choice(nodes, size=count, p=weights / weights.sum())
        return list(zip(times.tolist(), which.tolist(), strict=True))

    def found_again(self, number: int) -> bool:
        """Return whether the test after failure `number` finds the fault."""
        return bool(self.seed.stream("found", number).random() >= ELUSIVE)
