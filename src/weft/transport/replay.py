"""Wire = simulation: gives the calls that an endpoint's thread made into the protocol's rules to those rules again.

A journal holds every call with its numbers and what was decided. Here the same calls go, in order, to fresh columns and
the plain rules, those that the readable simulator runs; every decision must come out the same: which packet went next
and on which EV, what a SACK acknowledged, what was presumed lost, which SACK was sent. No socket and no clock is left.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from weft.mrc.columns import NOTHING, REPLY, SEND, Receiver, Sender, make_receiver, make_sender
from weft.mrc.rules.acks import on_nack, on_sack
from weft.mrc.rules.control import next_control, on_ev_probe_answer, on_timer
from weft.mrc.rules.evs import deny
from weft.mrc.rules.ports import on_port_answer, on_port_status, port_changed
from weft.mrc.rules.receiver import on_probe, receive, start_receiver, take_immediate, take_sack
from weft.mrc.rules.reverse import next_reverse_probe, on_reverse_answer, reverse_ev
from weft.mrc.rules.sender import next_data, post, start_sender
from weft.transport.memory import journal

_VERDICT_MASK, _PROBE_SHIFT = 0xFF, 8


@dataclass(frozen=True)
class PairStart:
    """How a queue pair began."""

    word: int
    """Chance of its sending half."""
    first: int
    """First sequence number that it sent."""
    back_word: int
    """Chance of its receiving half."""
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
        with np.load(file) as found:
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
    """The sending halves afterwards."""
    receiver: Receiver
    """The receiving halves afterwards."""


class _World:
    """Fresh columns and the rules of one journal."""

    def __init__(self, record: RecordedCalls) -> None:
        pairs = max(record.starts, default=0) + 1
        self.s, self.r = make_sender(record.params, pairs), make_receiver(record.params, pairs)
        self.out, self.reply = np.zeros(1, SEND)[0], np.zeros(1, REPLY)[0]
        scratch = np.zeros(record.paths, np.int64)
        for i, start in record.starts.items():
            start_sender(self.s, i, start.word, start.first, record.paths, record.paths, scratch)
            start_receiver(self.r, i, start.back_word, start.far_first)

    def _fill(self, **values: int) -> Any:
        for name in REPLY.names or ():
            self.reply[name] = values.get(name, 0)
        return self.reply

    def post(self, i: int, _now: int, a: list[int]) -> tuple[list[int], list[int]]:
        return [post(self.s, i, a[0], a[1], a[2], a[3])], a[4:5]

    def next_data(self, i: int, now: int, a: list[int]) -> tuple[list[int], list[int]]:
        kind = next_data(self.s, i, now, -1, self.out)
        if kind == NOTHING:
            return [-1], a[:1]
        names = ("seq", "ev", "value", "retransmission", "length")
        return [int(self.out[name]) for name in names], a[:5]

    def next_control(self, i: int, now: int, a: list[int]) -> tuple[list[int], list[int]]:
        kind = next_control(self.s, i, now, -1, self.out)
        return [kind] if kind == NOTHING else [kind, int(self.out["ev"]), int(self.out["id"])], (
            a[:1] if a[0] == NOTHING else a[:3]
        )

    def reverse_probe(self, i: int, now: int, a: list[int]) -> tuple[list[int], list[int]]:
        kind = next_reverse_probe(self.s, i, self.r, i, now, -1, self.out)
        return [kind, int(self.out["ev"]) if kind else 0, int(self.out["id"]) if kind else 0], a[:3]

    def reverse_ev(self, i: int, _now: int, a: list[int]) -> tuple[list[int], list[int]]:
        return [int(reverse_ev(self.s, i, self.r, i, -1))], a[:1]

    def timer(self, i: int, now: int, a: list[int]) -> tuple[list[int], list[int]]:
        on_timer(self.s, i, now)
        return [int(self.s.qp[i]["error"]), int(self.s.qp[i]["timeouts"])], a[:2]

    def on_sack(self, i: int, now: int, a: list[int]) -> tuple[list[int], list[int]]:
        reply = self._fill(
            cack_psn=a[0], ack_psn_offset=a[1], value=a[2], verdict=a[3] & _VERDICT_MASK,
            probe_response=a[3] >> _PROBE_SHIFT, mpr=a[4], sack_offset=a[5], bitmap_low=a[6], bitmap_high=a[7],
            penalty=a[8],
        )  # fmt: skip
        acked = on_sack(self.s, i, reply, now)
        return [int(acked), int(self.s.qp[i]["una"]), int(self.s.qp[i]["waiting"])], a[9:12]

    def on_nack(self, i: int, now: int, a: list[int]) -> tuple[list[int], list[int]]:
        on_nack(self.s, i, self._fill(reason=a[0], psn=a[1], value=a[2]), now)
        return [int(self.s.qp[i]["waiting"])], a[3:4]

    def on_probe(self, i: int, now: int, a: list[int]) -> tuple[list[int], list[int]]:
        on_probe(self.r, i, a[0], a[1], now)
        return [], []

    def receive(self, i: int, now: int, a: list[int]) -> tuple[list[int], list[int]]:
        return [receive(self.r, i, a[0], a[1], 0, a[2], a[3], a[4], a[5], now)], a[6:7]

    def take_sack(self, i: int, _now: int, a: list[int]) -> tuple[list[int], list[int]]:
        take_sack(self.r, i, self.reply)
        names = ("cack_psn", "ack_psn_offset", "value", "verdict", "sack_offset", "bitmap_low", "bitmap_high")
        return [int(self.reply[name]) for name in names], a[:7]

    def take_immediate(self, i: int, _now: int, a: list[int]) -> tuple[list[int], list[int]]:
        return [int(take_immediate(self.r, i))], a[:1]

    def ev_answer(self, i: int, _now: int, a: list[int]) -> tuple[list[int], list[int]]:
        on_ev_probe_answer(self.s, i, a[0], a[1])
        return [], []

    def reverse_answer(self, i: int, _now: int, a: list[int]) -> tuple[list[int], list[int]]:
        on_reverse_answer(self.s, i, self.r, i, a[0])
        return [], []

    def port_answer(self, i: int, _now: int, a: list[int]) -> tuple[list[int], list[int]]:
        on_port_answer(self.s, i, a[0])
        return [], []

    def port_status(self, i: int, _now: int, a: list[int]) -> tuple[list[int], list[int]]:
        on_port_status(self.s, i, a[0])
        return [], []

    def port_changed(self, i: int, now: int, a: list[int]) -> tuple[list[int], list[int]]:
        port_changed(self.s, i, a[0], a[1], now)
        return [], []

    def deny(self, i: int, _now: int, a: list[int]) -> tuple[list[int], list[int]]:
        deny(self.s, i, a[0], a[1])
        return [], []


def replay(record: RecordedCalls) -> JournalReplay:
    """Make every call of a journal again and compare what is decided, up to the first difference."""
    world = _World(record)
    calls: dict[int, Callable[[int, int, list[int]], tuple[list[int], list[int]]]] = {
        journal.POST: world.post, journal.NEXT_DATA: world.next_data, journal.NEXT_CONTROL: world.next_control,
        journal.REVERSE_PROBE: world.reverse_probe, journal.REVERSE_EV: world.reverse_ev, journal.TIMER: world.timer,
        journal.ON_SACK: world.on_sack, journal.ON_NACK: world.on_nack, journal.ON_PROBE: world.on_probe,
        journal.RECEIVE: world.receive, journal.TAKE_SACK: world.take_sack,
        journal.TAKE_IMMEDIATE: world.take_immediate, journal.EV_ANSWER: world.ev_answer,
        journal.REVERSE_ANSWER: world.reverse_answer, journal.PORT_ANSWER: world.port_answer,
        journal.PORT_STATUS: world.port_status, journal.PORT_CHANGED: world.port_changed, journal.DENY: world.deny,
    }  # fmt: skip
    counted: dict[str, int] = {}
    for number, row in enumerate(record.rows.tolist()):
        name = journal.CALL_NAMES[row[journal.CALL]]
        now, then = calls[row[journal.CALL]](row[journal.PAIR], row[journal.TIME], row[journal.FIRST :])
        counted[name] = counted.get(name, 0) + 1
        if now != then:
            difference = DecisionDifference(number, name, tuple(then), tuple(now))
            return JournalReplay(number, counted, difference, world.s, world.r)
    return JournalReplay(len(record.rows), counted, None, world.s, world.r)
