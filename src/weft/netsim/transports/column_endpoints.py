"""Endpoints whose queue pairs are columns and whose NICs are rules over them: what all transports share.

`rules` is the module of those rules: `weft.netsim.host.mrc_host`, or another one that has the same entry points.
Which columns there are, and how packets find their way, is each transport's own.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from types import ModuleType
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from weft.core.compile.rules import Specialisation
from weft.mrc import columns
from weft.mrc.columns import NEVER
from weft.mrc.rules.sender import POSTED
from weft.netsim.host import host_state, mrc_host
from weft.netsim.host.compiling import Fixed
from weft.netsim.model.network import Network
from weft.netsim.model.queue_pairs import FlowEvent, Numbers, Pair
from weft.netsim.transports.base import Arrival, EndpointOutcome
from weft.netsim.transports.routing import Routing, seen_as

_ROWS = 4096
"""Headers that a run begins with; an engine needs none."""


class ColumnEndpoints:
    """All NICs of a run."""

    rules: ClassVar[ModuleType]
    """What they do."""
    network: Network
    """What they send over."""
    pairs: tuple[Pair, ...]
    """Their queue pairs."""
    host_state: Any
    """The columns of these."""
    outbox: host_state.PacketPool
    """The headers of packets in flight, and what a slot brings forth."""
    params: Any
    """Their parameters, one row."""
    routing: Routing
    """How what packets name becomes a path."""
    swap: ClassVar[Specialisation | None] = None
    """Rules that take the place of those of `weft.netsim.host.mrc_host` in an engine."""
    _fast: bool
    _checked: int = 0
    _fixed: dict[Callable[..., Any], Fixed]

    @cached_property
    def _fields(self) -> tuple[Any, Any, Any]:
        """Return views of what is asked for every flow: a field of a row alone takes ten times as long to reach."""
        return self.host_state.r.qp["expected"], self.host_state.s.qp["una"], self.host_state.s.qp["error"]

    def reached(self, pairs: Numbers) -> tuple[Sequence[int], Sequence[int]]:
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

    def received(self) -> NDArray[np.int64]:
        """Return the bytes that each pair has received so far."""
        return self.host_state.r.qp["received_bytes"].copy()

    def failed(self, pairs: Numbers) -> Mapping[int, str]:
        """Return those of `pairs` that have ended in an error, with its name."""
        codes = self._fields[2][pairs]
        return {pairs[k]: columns.ERROR_NAMES[codes[k]] for k in np.flatnonzero(codes).tolist()}

    def reconverge(self, dead: frozenset[int]) -> None:
        """Take in that routing now knows these links, and no others, to be dead: nobody here asks."""

    def check_pair(self, pair: int) -> None:
        """Assert what must hold of a pair's columns between two slots, where the transport has such rules."""

    def check_one(self) -> None:
        """Check one pair, another one each time: simulators call this at the ends of some bins.

        A violation is an error of the program, not of its user; the message names the pair and what does not hold.
        """
        if not self.pairs:
            return
        pair = self._checked % len(self.pairs)
        self._checked += 1
        try:
            self.check_pair(pair)
        except AssertionError as error:
            ends = self.pairs[pair]
            raise AssertionError(
                f"queue pair {pair} from NIC {ends.source} to NIC {ends.destination} breaks an invariant: {error}"
            ) from error

    def counters(self) -> Mapping[str, NDArray[np.int64]]:
        """Return every counter as a column over pairs."""
        raise AssertionError("each transport counts its own")

    def warm_up(self) -> None:
        """Compile what is going to be used, which is no part of what a run takes: ask with nothing to answer."""
        if not self._fast:
            return
        self._rule(self.rules.take_in)(self.host_state, self.outbox, np.zeros((1, 5), np.int64), 0)
        nothing = np.zeros((self.network.shape.hosts, self.network.shape.planes), np.int64)
        self._rule(self.rules.send_out)(self.host_state, self.outbox, 0, nothing[:, 0].copy(), nothing)

    def _rule(self, function: Callable[..., Any]) -> Any:
        if not self._fast:
            return function
        if function not in self._fixed:
            self._fixed[function] = Fixed(function)
        return self._fixed[function]

    def take_in(self, arrivals: Sequence[Arrival]) -> EndpointOutcome:
        """Take in what arrived in one slot, in order."""
        count = len(arrivals)
        if count == 0:
            return EndpointOutcome((), ())
        table = np.zeros((count, 5), np.int64)
        table[:, :4] = arrivals
        self._make_room(8 * count + 64)
        self.outbox.count[:] = 0
        self._rule(self.rules.take_in)(self.host_state, self.outbox, table, count)
        return self._outcome(table[:, 4].tolist())

    def send_out(self, start_ps: int, phase: NDArray[np.int64], room: NDArray[np.int64]) -> EndpointOutcome:
        """Send what may go in the slot that begins at `start_ps`."""
        self._make_room(
            int(np.maximum(room, 0).sum()) // self.network.frames.header + 4 * len(self.host_state.nics.each)
        )
        self.outbox.count[:] = 0
        self._rule(self.rules.send_out)(self.host_state, self.outbox, start_ps, phase, room)
        return self._outcome(())

    def _outcome(self, fresh: Sequence[int]) -> EndpointOutcome:
        sent, events = self.outbox.count.tolist()
        out = self.outbox.out[:sent]
        out[:, host_state.HOST] = self.host_state.nics.each[
            2 * out[:, host_state.PAIR] + out[:, host_state.HALF], host_state.AT_NIC
        ]
        return EndpointOutcome(
            out.tolist(),
            [FlowEvent(*row) for row in self.outbox.events[:events].tolist()],
            fresh,
        )

    def _make_room(self, rows: int) -> None:
        """See to it that a call can send `rows` packets."""
        outbox = self.outbox
        if len(outbox.out) < rows:
            outbox = outbox._replace(
                out=np.zeros((2 * rows, host_state.OUT_COLUMNS), np.int64), events=np.zeros((2 * rows, 3), np.int64)
            )
        if outbox.free[0] < rows:
            held = len(outbox.pool)
            more = max(held, 2 * rows)
            free = np.zeros(held + more + 1, np.int64)
            free[: outbox.free[0] + 1] = outbox.free[: outbox.free[0] + 1]
            free[outbox.free[0] + 1 : outbox.free[0] + 1 + more] = np.arange(held, held + more)
            free[0] = outbox.free[0] + more
            outbox = outbox._replace(pool=np.concatenate((outbox.pool, make_headers(held, more))), free=free)
        self.outbox = outbox

    def post(self, pair: int, length: int) -> bool:
        """Give a pair a message; return whether it had room for it."""
        return self.post_many([pair], [length])[0]

    def post_many(self, pairs: Numbers, lengths: Numbers) -> Sequence[bool]:
        """Give each of `pairs` a message; return which had room for it."""
        table = np.array([pairs, lengths], np.int64)
        self._rule(self.rules.post_messages)(self.host_state, table)
        return [code == POSTED for code in table[1].tolist()]

    def set_goals(self, pairs: Numbers, arrived: Numbers, acknowledged: Numbers) -> None:
        """Say after how many packets of each pair an `ARRIVED` and an `ACKNOWLEDGED` are wanted; `NEVER` for none."""
        sending = 2 * np.asarray(pairs, np.int64)
        self.host_state.nics.each[sending + 1, host_state.UNTIL] = arrived
        self.host_state.nics.each[sending, host_state.UNTIL] = acknowledged

    def drop(self, row: int) -> None:
        """Forget a packet that was lost on the way."""
        mrc_host.give_head(self.outbox, self.outbox.pool[row])

    def change_port(self, nic: int, plane: int, *, up: bool, now_ps: int) -> None:
        """Tell a NIC that one of its ports went up or down."""
        self._rule(self.rules.change_port)(self.host_state, nic, plane, int(up), now_ps)

    def deadline_ps(self) -> int:
        """Return when any half has something to do by itself, or 0 where one may have data to send."""
        due = self.host_state.nics.each[:, host_state.DUE]
        return 0 if self.host_state.nics.awake.any() else int(due.min(initial=NEVER))

    def sequence(self, row: int) -> int:
        """Return the packet number in its pair that a data packet carries."""
        return int(self.outbox.pool[row]["seq"])


def nic_columns(network: Network, pairs: Sequence[Pair], kinds: int) -> host_state.NicColumns:
    """Return what ties the halves of `pairs` to NICs, with the sizes of `kinds` of packets."""
    count, nics = 2 * len(pairs), network.shape.hosts
    each = columns.aligned((count, host_state.HALF_COLUMNS), np.int64)
    each[:, [host_state.DUE, host_state.UNTIL]] = columns.NEVER
    each[:, host_state.AT_NIC] = [end for pair in pairs for end in (pair.source, pair.destination)]
    each[:, host_state.SEEN_AS] = seen_as(pairs)
    nic = each[:, host_state.AT_NIC]
    order = np.argsort(nic, kind="stable")
    first = np.searchsorted(nic[order], np.arange(nics + 1))
    place = np.empty(count, np.int64)
    place[order] = np.arange(count) - first[nic[order]]
    words = np.concatenate(([0], np.cumsum(-(-np.diff(first) // host_state.WORD_BITS))))
    sizes = np.zeros(kinds, np.int64)
    sizes[columns.DATA] = network.frames.header
    for kind, size in network.frames.control.items():
        sizes[kind] = size
    return host_state.NicColumns(
        each=each,
        first=first.astype(np.int64),
        of_nic=order.astype(np.int64),
        turn=np.zeros(nics, np.int64),
        place=place,
        ready=np.zeros(int(words[-1]), np.int64),
        first_word=words.astype(np.int64),
        awake=np.zeros(nics, np.int8),
        due=np.full(nics, columns.NEVER, np.int64),
        sizes=sizes,
    )


def make_headers(first: int, count: int) -> host_state.Records:
    """Return so many headers, which know their own rows, from row `first` on."""
    pool = np.zeros(count, host_state.HEADER)
    pool["row"] = np.arange(first, first + count)
    return pool


def make_packet_pool() -> host_state.PacketPool:
    """Return a little room for headers of packets in flight and what a slot brings forth; `_make_room` adds to it."""
    return host_state.PacketPool(
        make_headers(0, _ROWS),
        np.concatenate(([_ROWS], np.arange(_ROWS))),
        np.zeros((_ROWS, host_state.OUT_COLUMNS), np.int64),
        np.zeros((_ROWS, 3), np.int64),
        np.zeros(2, np.int64),
    )
