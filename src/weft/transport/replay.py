"""Sockets against simulation: makes the calls of an endpoint's thread into the protocol's rules once more.

A journal holds every call with its numbers and what was decided. Here the same calls go, in order, to fresh columns and
the plain rules, those that the readable simulator runs; every decision must come out the same: which packet went next
and on which EV, what a SACK acknowledged, what was presumed lost, which SACK was sent. No socket and no clock is left.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from weft.mrc.columns import NOTHING, REPLY, SEND, Receiver, Sender, make_receiver, make_sender
from weft.mrc.rules.acks import on_nack, on_sack
from weft.mrc.rules.control import next_control, on_ev_probe_answer, on_timer
from weft.mrc.rules.evs import Paths, deny
from weft.mrc.rules.ports import on_port_answer, on_port_status, port_changed
from weft.mrc.rules.receiver import (
    DataHeader,
    on_probe,
    receive,
    receive_trimmed,
    start_receiver,
    take_immediate,
    take_sack,
)
from weft.mrc.rules.reverse import next_reverse_probe, on_reverse_answer, reverse_ev
from weft.mrc.rules.sender import next_data, post, start_sender
from weft.transport.memory import journal

_VERDICT_MASK, _PROBE_SHIFT = 0xFF, 8


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
    """What was decided on the wire."""
    now: tuple[int, ...]
    """What is decided here."""


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


Decision = tuple[list[int], list[int]]
"""What a rule decides now, and what the journal says that it decided."""


class _Rules:
    """Fresh columns, and one method for each rule that a journal calls: (queue pair, time, numbers of the row)."""

    def __init__(self, record: RecordedCalls) -> None:
        pairs = max(record.starts, default=0) + 1
        self.sender, self.receiver = make_sender(record.params, pairs), make_receiver(record.params, pairs)
        self.out, self.reply = np.zeros(1, SEND)[0], np.zeros(1, REPLY)[0]
        scratch = np.zeros(record.paths, np.int64)
        for pair, start in record.starts.items():
            start_sender(self.sender, pair, start.word, start.first, Paths(record.paths, record.paths, scratch))
            start_receiver(self.receiver, pair, start.back_word, start.far_first)

    def _fill(self, **values: int) -> np.void:
        for name in REPLY.names or ():
            self.reply[name] = values.get(name, 0)
        return self.reply

    def post(self, pair: int, _now: int, row: list[int]) -> Decision:
        return [post(self.sender, pair, *row[:4])], row[4:5]

    def next_data(self, pair: int, now: int, row: list[int]) -> Decision:
        if next_data(self.sender, pair, now, row[5], self.out) == NOTHING:
            return [-1], row[:1]
        names = ("seq", "ev", "value", "retransmission", "length")
        return [int(self.out[name]) for name in names], row[:5]

    def next_control(self, pair: int, now: int, row: list[int]) -> Decision:
        kind = next_control(self.sender, pair, now, -1, self.out)
        decided = [kind] if kind == NOTHING else [kind, int(self.out["ev"]), int(self.out["id"])]
        return decided, row[:1] if row[0] == NOTHING else row[:3]

    def next_reverse_probe(self, pair: int, now: int, row: list[int]) -> Decision:
        kind = next_reverse_probe(self.sender, pair, self.receiver, pair, now, self.out)
        return [kind, int(self.out["ev"]) if kind else 0, int(self.out["id"]) if kind else 0], row[:3]

    def reverse_ev(self, pair: int, _now: int, row: list[int]) -> Decision:
        return [int(reverse_ev(self.sender, pair, self.receiver, pair))], row[:1]

    def on_timer(self, pair: int, now: int, row: list[int]) -> Decision:
        on_timer(self.sender, pair, now)
        return [int(self.sender.qp[pair]["error"]), int(self.sender.qp[pair]["timeouts"])], row[:2]

    def on_sack(self, pair: int, now: int, row: list[int]) -> Decision:
        reply = self._fill(
            cack_psn=row[0], ack_psn_offset=row[1], value=row[2], verdict=row[3] & _VERDICT_MASK,
            probe_response=row[3] >> _PROBE_SHIFT, mpr=row[4], sack_offset=row[5], bitmap_low=row[6],
            bitmap_high=row[7], penalty=row[8],
        )  # fmt: skip
        acked = on_sack(self.sender, pair, reply, now)
        return [int(acked), int(self.sender.qp[pair]["una"]), int(self.sender.qp[pair]["waiting"])], row[9:12]

    def on_nack(self, pair: int, now: int, row: list[int]) -> Decision:
        on_nack(self.sender, pair, self._fill(reason=row[0], psn=row[1], value=row[2]), now)
        return [int(self.sender.qp[pair]["waiting"])], row[3:4]

    def on_probe(self, pair: int, now: int, row: list[int]) -> Decision:
        on_probe(self.receiver, pair, row[0], row[1], now)
        return [], []

    def receive(self, pair: int, now: int, row: list[int]) -> Decision:
        header = DataHeader(row[0], row[1], row[7], row[2], row[3], row[4], row[5])
        return [receive(self.receiver, pair, header, now)], row[6:7]

    def receive_trimmed(self, pair: int, _now: int, row: list[int]) -> Decision:
        return [receive_trimmed(self.receiver, pair, row[0], row[1], row[2], self.reply)], row[3:4]

    def take_sack(self, pair: int, _now: int, row: list[int]) -> Decision:
        take_sack(self.receiver, pair, self.reply)
        names = ("cack_psn", "ack_psn_offset", "value", "verdict", "sack_offset", "bitmap_low", "bitmap_high")
        return [int(self.reply[name]) for name in names], row[:7]

    def take_immediate(self, pair: int, _now: int, row: list[int]) -> Decision:
        return [int(take_immediate(self.receiver, pair))], row[:1]

    def on_ev_probe_answer(self, pair: int, _now: int, row: list[int]) -> Decision:
        on_ev_probe_answer(self.sender, pair, row[0], row[1])
        return [], []

    def on_reverse_answer(self, pair: int, _now: int, row: list[int]) -> Decision:
        on_reverse_answer(self.sender, pair, self.receiver, pair, row[0])
        return [], []

    def on_port_answer(self, pair: int, _now: int, row: list[int]) -> Decision:
        on_port_answer(self.sender, pair, row[0])
        return [], []

    def on_port_status(self, pair: int, _now: int, row: list[int]) -> Decision:
        on_port_status(self.sender, pair, row[0])
        return [], []

    def port_changed(self, pair: int, now: int, row: list[int]) -> Decision:
        port_changed(self.sender, pair, row[0], row[1], now)
        return [], []

    def deny(self, pair: int, _now: int, row: list[int]) -> Decision:
        deny(self.sender, pair, row[0], row[1])
        return [], []


def replay(record: RecordedCalls) -> JournalReplay:
    """Make every call of a journal again and compare what is decided, up to the first difference."""
    rules = _Rules(record)
    # Methods are called as the rules are, so that a journal's names lead to them.
    calls: list[Callable[[int, int, list[int]], Decision]] = [getattr(rules, name) for name in journal.CALL_NAMES[1:]]
    counted: dict[str, int] = {}
    for number, row in enumerate(record.rows.tolist()):
        name = journal.CALL_NAMES[row[journal.CALL]]
        now, then = calls[row[journal.CALL] - 1](row[journal.PAIR], row[journal.TIME], row[journal.FIRST :])
        counted[name] = counted.get(name, 0) + 1
        if now != then:
            difference = DecisionDifference(number, name, tuple(then), tuple(now))
            return JournalReplay(number, counted, difference, rules.sender, rules.receiver)
    return JournalReplay(len(record.rows), counted, None, rules.sender, rules.receiver)
