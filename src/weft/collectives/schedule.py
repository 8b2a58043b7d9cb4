"""A collective as data: sends in columns, each with the sends that must have arrived before it may start.

The buffer of a collective is cut into equal parts. A send carries a run of parts from one rank to another, which adds
them to its own or keeps them. Nothing is carried out here: `netsim` runs schedules over a transport, and `symbolic`
proves them. A `Builder` keeps who holds what since when, so that algorithms only say who sends what to whom.
"""

from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

Kind: TypeAlias = Literal["all-reduce", "reduce-scatter", "all-gather", "broadcast", "all-to-all", "send"]
Integers: TypeAlias = NDArray[np.int32]


@dataclass(frozen=True)
class Schedule:
    """A collective over `ranks` ranks; row i of every column is send number i."""

    kind: Kind
    """What it achieves."""
    ranks: int
    """Ranks that take part."""
    parts: int
    """Equal parts that the buffer is cut into."""
    source: Integers
    """Rank that sends."""
    target: Integers
    """Rank that receives."""
    first: Integers
    """First part that is sent."""
    count: Integers
    """Parts that are sent."""
    adds: NDArray[np.bool_]
    """Whether the receiver adds them to its own; it keeps them as they are otherwise."""
    far: NDArray[np.bool_]
    """Whether the send leaves a scale-up domain."""
    before_start: NDArray[np.int64]
    """Where the sends that must have arrived before send i begin in `before`; one entry more than there are sends."""
    before: Integers
    """Numbers of those sends."""

    def __len__(self) -> int:
        """Return the number of sends."""
        return len(self.source)

    def before_of(self, send: int) -> Integers:
        """Return the sends that must have arrived before `send` may start."""
        return self.before[self.before_start[send] : self.before_start[send + 1]]

    def sent_bytes(self, size_bytes: int) -> NDArray[np.int64]:
        """Return the bytes of every send for a buffer of `size_bytes`; parts are rounded up."""
        part = -(-size_bytes // self.parts)
        return self.count.astype(np.int64) * part


class Builder:
    """Collects sends and finds what each one waits for: the last arrivals of its parts at its source.

    A send also waits for sends of the same parts by its target where those would be overwritten; the algorithms here
    never overwrite what is still to be sent, so arrivals alone decide.
    """

    def __init__(self, kind: Kind, ranks: int, parts: int) -> None:
        """Begin an empty schedule."""
        assert ranks >= 1, "a collective needs a rank"
        assert parts >= 1, "a collective needs a part"
        self.kind: Kind = kind
        self.ranks = ranks
        self.parts = parts
        self._rows: list[tuple[int, int, int, int, bool, bool]] = []
        self._before: list[tuple[int, ...]] = []
        self._arrivals: dict[tuple[int, int], list[int]] = {}

    def send(self, source: int, target: int, first: int, count: int = 1, *, adds: bool, far: bool = False) -> int:
        """Add a send and return its number."""
        assert source != target, f"rank {source} sends to itself"
        number = len(self._rows)
        waits = {each for part in range(first, first + count) for each in self._arrivals.get((source, part), ())}
        self._rows.append((source, target, first, count, adds, far))
        self._before.append(tuple(sorted(waits)))
        for part in range(first, first + count):
            earlier = self._arrivals.get((target, part), [])
            self._arrivals[target, part] = [*earlier, number] if adds else [number]
        return number

    def ring(self, members: list[int], blocks: list[tuple[int, int]], *, adds: bool, far: bool = False) -> None:
        """Add n - 1 rounds around `members`: block i ends, or begins, at member i.

        Adding, it is a reduce-scatter: block i starts at the member after i and comes home complete. Keeping, it is an
        all-gather: block i starts at home and reaches everybody.
        """
        size = len(members)
        for step in range(size - 1):
            for place in range(size):
                block = (place - step - (1 if adds else 0)) % size
                first, count = blocks[block]
                self.send(members[place], members[(place + 1) % size], first, count, adds=adds, far=far)

    def build(self) -> Schedule:
        """Return what was collected."""
        table = np.array(self._rows, dtype=np.int32).reshape(-1, 6)
        lengths = [len(waits) for waits in self._before]
        return Schedule(
            kind=self.kind,
            ranks=self.ranks,
            parts=self.parts,
            source=np.ascontiguousarray(table[:, 0]),
            target=np.ascontiguousarray(table[:, 1]),
            first=np.ascontiguousarray(table[:, 2]),
            count=np.ascontiguousarray(table[:, 3]),
            adds=table[:, 4].astype(np.bool_),
            far=table[:, 5].astype(np.bool_),
            before_start=np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64),
            before=np.array([each for waits in self._before for each in waits], dtype=np.int32),
        )
