"""The columns of NICs and their queue pairs in a simulation, and what stands in them; rules over them are `hosts`'s."""

from typing import Any, NamedTuple

import numpy as np

from weft.mrc.columns import REPLY, SEND

EV_ANSWER, PORT_ANSWER = 7, 8
"""Kinds of packets besides those of `weft.mrc.columns`: the answers to endpoint operations."""
KINDS = 9
TURN, RECYCLE, DRAW, REPS = 0, 1, 2, 3
"""How a sending half chooses EVs: in turn (MRC, UET oblivious and bitmap), unmarked ones again first, at random, or by
the rules of `weft.netsim.host.reps_ring`."""
FREEZE, ECHOES, PER_PLANE = 1, 2, 3
"""Entries of `spray` behind the first: for how long `REPS` freezes, whether answers go back on the EV bits with which
packets came, and how many of these a plane has."""
TRIMMED_LAST_HOP = 2
"""What stands in an arrival whose payload was cut off on the last hop; 1 for any other hop."""
ARRIVED, ACKNOWLEDGED, FAILED = 0, 1, 2
"""Kinds of rows in `events`: a receiver has everything, a sender knows it, a queue pair has failed."""

_FIELDS = dict.fromkeys((*(SEND.names or ()), *(REPLY.names or ())))
HEADER = np.dtype([("row", "i8"), ("pair", "i8"), ("half", "i8"), *((name, "i8") for name in _FIELDS)])
"""What a packet under way says, whatever its kind: `row` is its own, `half` 1 where the destination's half sent it."""

HALF_COLUMNS = 4
DUE, UNTIL, AT_NIC, SEEN_AS = range(HALF_COLUMNS)
"""Of a half: when it has something to do by itself; the sequence number by which the current flow has arrived or, of a
sending half, is acknowledged; its NIC; and what switches see of it besides EVs: its number, or that of the half which
sends data the same way over the same queue pair."""

ROW, PAIR, HALF, ROUTE, SIZE, KIND, HOST, TIME = range(8)
"""Columns of `out`: header row, queue pair, half that sends, EV bits that route it, bytes, kind, NIC, time."""
OUT_COLUMNS = 8
WORD_BITS = 32
"""Halves in one word of `ready`."""
WORD_SHIFT, WORD_MASK = 5, 31


class HostState(NamedTuple):
    """The columns of all queue pairs of a run, and what ties them to NICs."""

    s: Any
    """Sending halves at the sources."""
    b: Any
    """Sending halves at the destinations, which carry no data; idle where `SEEN_AS` names one that does."""
    r: Any
    """Receiving halves at the destinations."""
    each: Any
    """One row for every half, `DUE` and so on: those of a pair lie together in one line of the cache."""
    first: Any
    """Where the halves of a NIC begin in `of_nic`; one more entry than NICs."""
    of_nic: Any
    """The halves of every NIC, sending ones and receiving ones."""
    turn: Any
    """Whose turn it is at every NIC."""
    place: Any
    """Where every half stands among those of its NIC."""
    ready: Any
    """Halves that may have data to send, bits in words of 32, those of a NIC from `first_word` on."""
    first_word: Any
    """Where the words of a NIC begin in `ready`; one more entry than NICs."""
    awake: Any
    """1 for every NIC that has a bit in `ready`."""
    due: Any
    """A time before which no half of a NIC has anything to do by itself."""
    ring: Any
    """EVs whose packets came back unmarked, for `RECYCLE`: one row a pair."""
    ring_at: Any
    """Where the ring of a pair begins and how many it holds."""
    sizes: Any
    """Bytes of every kind of control packet; of a data packet, its header."""
    frozen: Any
    """For `REPS`: until when nothing new is tried, and how much of the ring has been written; one row a pair."""
    spray: Any
    """How EVs are chosen, and `FREEZE`, `ECHOES`, `PER_PLANE`."""


class PacketPool(NamedTuple):
    """Where the headers of packets under way stand, and what a slot brings forth."""

    pool: Any
    """Headers."""
    free: Any
    """Free rows of the pool as a stack; its height stands in entry 0."""
    out: Any
    """Packets that a call sends, one row each."""
    events: Any
    """Time, pair and kind of what a call completes."""
    count: Any
    """Rows used of `out` and of `events`."""
