"""What pausing does to a fabric: trees of ports that wait for one, and circles in which they wait for each other.

Port numbers are those of the sending side; what is counted and when is the simulators' business.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

Waits: TypeAlias = Mapping[int, Mapping[int, int]]
"""For every paused port, the ports at its far end that hold its packets, with how many bytes."""


@dataclass(frozen=True)
class PauseTree:
    """Ports that wait for one that is not paused itself, at one moment."""

    at_ps: int
    """When it was seen."""
    root: int
    """The port that they all wait for."""
    ports: tuple[int, ...]
    """The paused ports, nearest to the root first."""
    depth: int
    """Pauses between the root and the farthest of them."""
    innocent: int
    """Queue pairs that wait in them though their packets do not cross the root."""


@dataclass
class PauseRecord:
    """What pausing did in a run."""

    pauses: int = 0
    """Pause frames sent."""
    paused_slots: list[int] = field(default_factory=list)
    """Slots for which every port was paused."""
    largest: PauseTree | None = None
    """The tree with the most ports."""
    trees: int = 0
    """Trees seen at the ends of bins, added up."""
    deadlock: tuple[int, ...] = ()
    """Ports that wait for each other in a circle."""
    deadlock_ps: int = -1
    """When that was seen."""

    def see(
        self, waits: Waits, held_back: set[int], xon: int, now_ps: int, innocent: Callable[[int, Sequence[int]], int]
    ) -> None:
        """Note the trees of paused ports at one moment, and a deadlock.

        `waits` has every paused port; `held_back` are those of them that nobody has let go yet; `innocent` counts the
        queue pairs that wait in the ports of a tree without crossing its root.
        """
        below: dict[int, list[int]] = {}
        for paused in sorted(waits):
            for blocking in waits[paused]:
                below.setdefault(blocking, []).append(paused)
        for root in sorted(below):
            if root in waits:
                continue
            self.trees += 1
            members, depth = tree_below(root, below)
            if self.largest is None or len(members) > len(self.largest.ports):
                self.largest = PauseTree(now_ps, root, members, depth, innocent(root, members))
        stuck = deadlocked(waits, held_back, xon)
        if stuck:
            self.deadlock, self.deadlock_ps = tuple(sorted(stuck)), now_ps


def tree_below(root: int, below: dict[int, list[int]]) -> tuple[tuple[int, ...], int]:
    """Return every port that waits for `root`, nearest first, and how far the farthest is."""
    seen, layer, depth = [root], [root], 0
    while layer:
        layer = [each for port in layer for each in below.get(port, ()) if each not in seen]
        layer = list(dict.fromkeys(layer))
        seen += layer
        depth += bool(layer)
    return tuple(seen[1:]), depth


def deadlocked(waits: Waits, paused: set[int], xon: int) -> set[int]:
    """Return the largest set of paused ports each of which has more than `xon` bytes behind others of the set.

    None of them can ever be let go: that is a deadlock, and there is no other.
    """
    stuck = {number for number in paused if number in waits}
    while True:
        freed = {p for p in stuck if sum(size for q, size in waits[p].items() if q in stuck) <= xon}
        if not freed:
            return stuck
        stuck -= freed
