"""Endpoints whose queue pairs are columns and whose NICs are rules over them: what all transports share.

`rules` is the module of those rules: `weft.netsim.hosts`, or another one that has the same entry points. Which columns
there are, and how packets find their way, is each transport's own.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from types import ModuleType
from typing import Any, ClassVar

import numpy as np

from weft.mrc import columns
from weft.mrc.compiled import Swap
from weft.mrc.sender import POSTED
from weft.netsim import halves, hosts
from weft.netsim.compiling import Fixed
from weft.netsim.network import Network
from weft.netsim.transports.base import Arrival, Event, Outcome, Pair
from weft.netsim.transports.routing import Routing

_LEAST_POOL = 4096


class ColumnEndpoints:
    """All NICs of a run."""

    rules: ClassVar[ModuleType]
    """What they do."""
    network: Network
    """What they send over."""
    pairs: tuple[Pair, ...]
    """Their queue pairs."""
    halves: Any
    """The columns of these."""
    sheet: hosts.Sheet
    """The headers of packets under way, and what a slot brings forth."""
    params: Any
    """Their parameters, one row."""
    routing: Routing
    """How what packets name becomes a path."""
    swap: ClassVar[Swap | None] = None
    """Rules that take the place of those of `weft.netsim.hosts` in an engine."""
    _fast: bool
    _fixed: dict[Callable[..., Any], Fixed]

    @cached_property
    def _fields(self) -> tuple[Any, Any, Any]:
        """Return views of what is asked for every flow: a field of a row alone takes ten times as long to reach."""
        return self.halves.r.qp["expected"], self.halves.s.qp["una"], self.halves.s.qp["error"]

    def reached(self, pairs: Sequence[int]) -> tuple[Sequence[int], Sequence[int]]:
        """Return how many packets of each pair have arrived without a gap, and of how many the sender knows it."""
        expected, oldest, _ = self._fields
        return expected[pairs].tolist(), oldest[pairs].tolist()

    def has(self, pair: int, sequence: int) -> bool:
        """Return whether packet number `sequence` of a pair has arrived; out of order none is kept, if not said."""
        return sequence < int(self._fields[0][pair])

    @property
    def most_posts(self) -> int:
        """Return how many messages a pair can hold at once."""
        row = self.params[0]
        return int(row["messages"]) if "messages" in self.params.dtype.names else int(row["message_mask"]) + 1

    def received(self) -> Any:
        """Return the bytes that each pair has received so far."""
        return self.halves.r.qp["received_bytes"].copy()

    def failed(self, pairs: Sequence[int]) -> Mapping[int, str]:
        """Return those of `pairs` that have ended in an error, with its name."""
        codes = self._fields[2][pairs]
        return {pairs[k]: columns.ERROR_NAMES[codes[k]] for k in np.flatnonzero(codes).tolist()}

    def reconverge(self, dead: frozenset[int]) -> None:
        """Take in that routing now knows these links, and no others, to be dead: nobody here is told."""

    def counters(self) -> Mapping[str, Any]:
        """Return every counter as a column over pairs."""
        raise AssertionError("each transport counts its own")

    def warm_up(self) -> None:
        """Compile what is going to be used, which is no part of what a run takes: ask with nothing to answer."""
        if not self._fast:
            return
        self._rule(self.rules.take_in)(self.halves, self.sheet, np.zeros((1, 5), np.int64), 0)
        nothing = np.zeros((self.network.shape.hosts, self.network.shape.planes), np.int64)
        self._rule(self.rules.send_out)(self.halves, self.sheet, 0, nothing[:, 0].copy(), nothing)

    def _rule(self, function: Callable[..., Any]) -> Any:
        if not self._fast:
            return function
        if function not in self._fixed:
            self._fixed[function] = Fixed(function)
        return self._fixed[function]

    def take_in(self, arrivals: Sequence[Arrival]) -> Outcome:
        """Take in what arrived in one slot, in order."""
        count = len(arrivals)
        if count == 0:
            return Outcome((), ())
        table = np.zeros((count, 5), np.int64)
        table[:, :4] = arrivals
        self._make_room(8 * count + 64)
        self.sheet.count[:] = 0
        self._rule(self.rules.take_in)(self.halves, self.sheet, table, count)
        return self._outcome(table[:, 4].tolist())

    def send_out(self, start_ps: int, phase: Any, room: Any) -> Outcome:
        """Send what may go in the slot that begins at `start_ps`."""
        self._make_room(int(np.maximum(room, 0).sum()) // self.network.frames.header + 4 * len(self.halves.deadline))
        self.sheet.count[:] = 0
        self._rule(self.rules.send_out)(self.halves, self.sheet, start_ps, phase, room)
        return self._outcome(())

    def _outcome(self, fresh: Sequence[int]) -> Outcome:
        sent, events = self.sheet.count.tolist()
        out = self.sheet.out[:sent]
        out[:, halves.HOST] = self.halves.nic[2 * out[:, halves.PAIR] + out[:, halves.HALF]]
        return Outcome(
            out.tolist(),
            [Event(*row) for row in self.sheet.events[:events].tolist()],
            fresh,
        )

    def _make_room(self, rows: int) -> None:
        """See to it that a call can send `rows` packets."""
        sheet = self.sheet
        if len(sheet.out) < rows:
            sheet = sheet._replace(
                out=np.zeros((2 * rows, hosts.OUT_COLUMNS), np.int64), events=np.zeros((2 * rows, 3), np.int64)
            )
        if sheet.free[0] < rows:
            held = len(sheet.pool)
            more = max(held, 2 * rows)
            free = np.zeros(held + more + 1, np.int64)
            free[: sheet.free[0] + 1] = sheet.free[: sheet.free[0] + 1]
            free[sheet.free[0] + 1 : sheet.free[0] + 1 + more] = np.arange(held, held + more)
            free[0] = sheet.free[0] + more
            sheet = sheet._replace(pool=np.concatenate((sheet.pool, np.zeros(more, hosts.HEADER))), free=free)
        self.sheet = sheet

    def post(self, pair: int, length: int) -> bool:
        """Give a pair a message; return whether it had room for it."""
        return self.post_many([pair], [length])[0]

    def post_many(self, pairs: Sequence[int], lengths: Sequence[int]) -> Sequence[bool]:
        """Give each of `pairs` a message; return which had room for it."""
        table = np.array([pairs, lengths], np.int64)
        self._rule(self.rules.post_messages)(self.halves, table)
        return [code == POSTED for code in table[1].tolist()]

    def set_goals(self, pairs: Sequence[int], arrived: Sequence[int], acknowledged: Sequence[int]) -> None:
        """Say after how many packets of each pair an `ARRIVED` and an `ACKNOWLEDGED` are wanted; `NEVER` for none."""
        self.halves.goal[pairs, 0] = arrived
        self.halves.goal[pairs, 1] = acknowledged

    def drop(self, row: int) -> None:
        """Forget a packet that was lost on the way."""
        hosts.give_row(self.sheet, row)

    def change_port(self, nic: int, plane: int, *, up: bool, now_ps: int) -> None:
        """Tell a NIC that one of its ports went up or down."""
        self._rule(self.rules.change_port)(self.halves, nic, plane, int(up), now_ps)

    def deadline_ps(self) -> int:
        """Return when any half has something to do by itself."""
        return int(self.halves.deadline.min())

    def sequence(self, row: int) -> int:
        """Return the packet number in its pair that a data packet carries."""
        return int(self.sheet.pool[row]["seq"])


def make_sheet(network: Network, pairs: int) -> hosts.Sheet:
    """Return room for the headers of packets under way and for what a slot brings forth."""
    rows = max(_LEAST_POOL, 64 * pairs)
    free = np.zeros(rows + 1, np.int64)
    free[0] = rows
    free[1:] = np.arange(rows)
    out = max(_LEAST_POOL, 8 * network.shape.hosts * network.shape.planes)
    return hosts.Sheet(
        np.zeros(rows, hosts.HEADER),
        free,
        np.zeros((out, hosts.OUT_COLUMNS), np.int64),
        np.zeros((out, 3), np.int64),
        np.zeros(2, np.int64),
    )
