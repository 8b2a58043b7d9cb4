"""Sockets against simulation: makes the calls of an endpoint's thread into the protocol's rules once more.

A journal holds every call with its numbers and what was decided. Here the same calls go, in order, to fresh columns and
the plain rules, those that the readable simulator runs; every decision must come out the same: which packet went next
and on which EV, what a SACK acknowledged, what was presumed lost, which SACK was sent. No socket and no clock is left.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from weft.core.compile.rules import compiled
from weft.mrc import journal
from weft.mrc.columns import Receiver, Sender, make_receiver, make_sender
from weft.mrc.rules.evs import Paths
from weft.mrc.rules.receiver import start_receiver
from weft.mrc.rules.replay import make_replay_rows, redo_all
from weft.mrc.rules.sender import start_sender


@dataclass(frozen=True)
class PairStart:
    """How a queue pair began."""

    word: int
    """Random word of its sending side."""
    first: int
    """First sequence number that it sent."""
    back_word: int
    """Random word of its receiving side."""
    far_first: int
    """First sequence number that it received."""


@dataclass(frozen=True, eq=False)
class RecordedCalls:
    """What an endpoint's thread asked of the protocol."""

    params: np.ndarray
    """The protocol's parameters."""
    paths: int
    """EVs of a plane."""
    starts: Mapping[int, PairStart]
    """How each queue pair began."""
    rows: np.ndarray
    """The journal."""
    lost: int
    """Calls that did not fit."""

    def save(self, file: Path) -> None:
        """Write it to a file."""
        starts = [[i, one.word, one.first, one.back_word, one.far_first] for i, one in self.starts.items()]
        np.savez_compressed(
            file, params=self.params, paths=self.paths, lost=self.lost, rows=self.rows,
            starts=np.array(starts, np.int64).reshape(-1, 5),
        )  # fmt: skip

    @classmethod
    def load(cls, file: Path) -> "RecordedCalls":
        """Read one from a file."""
        with np.load(file, allow_pickle=False) as found:
            starts = {int(row[0]): PairStart(*(int(each) for each in row[1:])) for row in found["starts"]}
            return cls(found["params"], int(found["paths"]), starts, found["rows"], int(found["lost"]))


@dataclass(frozen=True)
class DecisionDifference:
    """A decision that came out otherwise."""

    row: int
    """Which call of the journal."""
    call: str
    """Its rule."""
    then: tuple[int, ...]
    """The row of the journal."""
    now: tuple[int, ...]
    """The row that the same call writes here."""


@dataclass(frozen=True)
class JournalReplay:
    """What came of a replay."""

    calls: int
    """Calls that were made again."""
    decisions: Mapping[str, int]
    """How many there were of each rule."""
    difference: DecisionDifference | None
    """The first decision that came out otherwise."""
    sender: Sender
    """The sending sides afterwards."""
    receiver: Receiver
    """The receiving sides afterwards."""


def replay(record: RecordedCalls, *, fast: bool = False) -> JournalReplay:
    """Make every call of a journal again and compare what is decided, up to the first difference; `fast` compiles."""
    ends = max(record.starts, default=0) + 1
    sender, receiver = make_sender(record.params, ends), make_receiver(record.params, ends)
    scratch = np.zeros(record.paths, np.int64)
    for number, start in record.starts.items():
        start_sender(sender, number, start.word, start.first, Paths(record.paths, record.paths, scratch))
        start_receiver(receiver, number, start.back_word, start.far_first)
    kept = journal.make_journal(1)
    redo = compiled(redo_all) if fast else redo_all
    calls = int(redo(sender, receiver, kept, record.rows, make_replay_rows()))
    numbers, counts = np.unique(record.rows[:calls, journal.CALL], return_counts=True)
    decisions = {journal.CALL_NAMES[one]: int(count) for one, count in zip(numbers.tolist(), counts, strict=True)}
    difference = None
    if calls < len(record.rows):
        then, now = record.rows[calls].tolist(), kept[1].tolist()
        difference = DecisionDifference(calls, journal.CALL_NAMES[then[journal.CALL]], tuple(then), tuple(now))
    return JournalReplay(calls, decisions, difference, sender, receiver)
