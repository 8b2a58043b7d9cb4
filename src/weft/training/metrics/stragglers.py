"""Who arrives last, by how much, and what it costs the job: from the times of steps, rank by rank.

A rank's own time in a step is what it computed before it first had to wait for others. Ranks that do the same kind of
work (equal pipeline stages) are compared with each other in the same step, so whatever slows everybody cancels out. A
rank is named when it is slower than its peers by a margin in most of the last steps: noise hits another rank in every
step, a slow device the same one. Pure: seconds in, findings out; `run` measures and the balancing of micro-batches acts
on it.
"""

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import median

WINDOW = 16
_LEAST = 8
_MARGIN = 0.3
_SHARE = 0.8


@dataclass(frozen=True)
class Straggler:
    """One rank that holds the others up."""

    rank: int
    """Whom."""
    slowdown: float
    """Its time over its peers', the middle of the window."""
    late_share: float
    """In which part of the window it was late by the margin."""
    cost_s: float
    """Seconds that every other rank waited for it in a step, on average."""


@dataclass(frozen=True)
class StragglerReport:
    """What the last steps say."""

    steps: int
    """How many were looked at."""
    ranking: tuple[tuple[int, float], ...]
    """All ranks with their time over their peers', the slowest first."""
    stragglers: tuple[Straggler, ...]
    """Those that are slow for sure, the dearest first."""
    newly: tuple[int, ...] = ()
    """Those of them that were not named a step before."""

    def sentence(self, word: str = "rank") -> str:
        """Return one sentence for people, in which what was timed is called `word`."""
        if not self.stragglers:
            return f"no {word} holds the others up"
        worst = self.stragglers[0]
        return (
            f"{word} {worst.rank} takes {worst.slowdown:.1f} times as long as its peers and costs every other one"
            f" {worst.cost_s:.3f} s in a step"
        )


def _peer_time(row: Sequence[float], peers: Sequence[int], rank: int) -> float:
    others = [row[other] for other in peers if other != rank]
    return median(others) if others else row[rank]


def report(
    steps: Sequence[Sequence[float]], peers: Sequence[Sequence[int]] | None = None, margin: float = _MARGIN
) -> StragglerReport:
    """Return who is slow in `steps`, each a row of seconds by rank; `peers` are groups of ranks with equal work.

    Seconds should be for equal work: divide by the number of micro-batches where it differs.
    """
    count = len(steps[0]) if steps else 0
    groups = peers if peers is not None else [range(count)]
    group_of = {rank: group for group in groups for rank in group}
    ratios: dict[int, list[float]] = {rank: [] for rank in range(count)}
    cost = [0.0] * count
    for row in steps:
        for rank in range(count):
            usual = _peer_time(row, group_of[rank], rank)
            ratios[rank].append(row[rank] / usual if usual > 0 else 1.0)
        last = max(range(count), key=lambda rank: row[rank])
        second = max((row[rank] for rank in range(count) if rank != last), default=row[last])
        cost[last] += row[last] - second
    ranking = sorted(((rank, median(found)) for rank, found in ratios.items()), key=lambda item: -item[1])
    named = []
    if len(steps) >= _LEAST:
        for rank, slowdown in ranking:
            late = sum(ratio > 1 + margin for ratio in ratios[rank]) / len(steps)
            if late >= _SHARE:
                named.append(Straggler(rank, slowdown, late, cost[rank] / len(steps)))
    return StragglerReport(len(steps), tuple(ranking), tuple(sorted(named, key=lambda one: -one.cost_s)))


@dataclass
class Watcher:
    """Keeps the last steps' times and says who is slow."""

    window: int = WINDOW
    """Steps that are looked at."""
    peers: Sequence[Sequence[int]] | None = None
    """Groups of ranks with equal work; all where absent."""
    _rows: deque[tuple[float, ...]] = field(default_factory=deque)
    _named: frozenset[int] = frozenset()

    def step(self, seconds: Sequence[float], micro_batches: Sequence[int] | None = None) -> StragglerReport:
        """Take the times of one step and return what the window says now."""
        counts = micro_batches or [1] * len(seconds)
        self._rows.append(tuple(spent / max(1, count) for spent, count in zip(seconds, counts, strict=True)))
        if len(self._rows) > self.window:
            self._rows.popleft()
        found = report(self._rows, self.peers)
        named = frozenset(one.rank for one in found.stragglers)
        newly, self._named = tuple(sorted(named - self._named)), named
        return replace(found, newly=newly)

    def speeds(self) -> Mapping[int, float]:
        """Return micro-batches a second by rank, the middle of the window: what `balance.assign` wants."""
        if not self._rows:
            return {}
        columns = zip(*self._rows, strict=True)
        return {rank: 1.0 / max(median(column), 1e-12) for rank, column in enumerate(columns)}
