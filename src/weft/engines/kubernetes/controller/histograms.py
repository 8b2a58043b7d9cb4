"""What is measured of the controller itself: how long jobs wait and passes take, what health has done. Pure counts.

`controller_main` shows them to Prometheus; nothing here knows of it.
"""

from bisect import bisect_left
from collections import Counter
from dataclasses import dataclass, field

WAIT_BOUNDS_S = (1.0, 5.0, 15.0, 60.0, 300.0, 900.0, 3600.0, 4 * 3600.0, 24 * 3600.0)
PASS_BOUNDS_S = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0)
_SIZES = ((1, "1"), (8, "2-8"), (64, "9-64"), (512, "65-512"))
_LARGEST = "513+"


@dataclass
class HistogramCounts:
    """How many values lie below each bound, and their sum."""

    bounds: tuple[float, ...]
    counts: list[int] = field(default_factory=list)
    total: float = 0.0

    def __post_init__(self) -> None:
        """Begin with none; the last count is of what lies above every bound."""
        self.counts = [0] * (len(self.bounds) + 1)

    def add(self, value: float) -> None:
        """Count a value."""
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value

    def buckets(self) -> list[tuple[str, float]]:
        """Return the cumulated counts by their upper bounds, as Prometheus reads them."""
        found: list[tuple[str, float]] = []
        below = 0
        for bound, count in zip((*map(str, self.bounds), "+Inf"), self.counts, strict=True):
            below += count
            found.append((bound, float(below)))
        return found


def size_class(nodes: int) -> str:
    """Return the class of sizes that a job of so many nodes belongs to."""
    return next((name for most, name in _SIZES if nodes <= most), _LARGEST)


@dataclass
class ControllerMeasures:
    """Everything that is counted."""

    waits: dict[str, HistogramCounts] = field(default_factory=dict)
    """Seconds from being queued to being placed, by class of size."""
    passes: HistogramCounts = field(default_factory=lambda: HistogramCounts(PASS_BOUNDS_S))
    """Seconds that a pass of decisions took."""
    health: Counter[str] = field(default_factory=Counter)
    """Health actions by kind."""
    reports: Counter[str] = field(default_factory=Counter)
    """What agents have reported, by severity."""

    def placed(self, nodes: int, waited_s: float) -> None:
        """Count a job that was given its nodes."""
        self.waits.setdefault(size_class(nodes), HistogramCounts(WAIT_BOUNDS_S)).add(waited_s)
