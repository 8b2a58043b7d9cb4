"""The columns of NICs and their queue pairs in a simulation, and what stands in them; rules over them are `hosts`'s."""

from typing import Any, NamedTuple

import numpy as np

from weft.mrc.columns import REPLY, SEND

EV_ANSWER, PORT_ANSWER = 7, 8
"""Kinds of packets besides those of `weft.mrc.columns`: the answers to endpoint operations."""
KINDS = 9
TURN, RECYCLE, DRAW, REPS = 0, 1, 2, 3
"""How a sending half chooses EVs: in turn (MRC, UET oblivious and bitmap), unmarked ones again first, at random, or by
the rules of `weft.netsim.reps`."""
TRIMMED_LAST_HOP = 2
"""What stands in an arrival whose payload was cut off on the last hop; 1 for any other hop."""
ARRIVED, ACKNOWLEDGED, FAILED = 0, 1, 2
"""Kinds of rows in `events`: a receiver has everything, a sender knows it, a queue pair has failed."""

_FIELDS = dict.fromkeys((*(SEND.names or ()), *(REPLY.names or ())))
HEADER = np.dtype([("pair", "i8"), ("half", "i8"), *((name, "i8") for name in _FIELDS)])
"""What a packet under way says, whatever its kind; `half` is 1 where the destination's half sent it."""

ROW, PAIR, HALF, ROUTE, SIZE, KIND, HOST, TIME = range(8)
"""Columns of `out`: header row, queue pair, half that sends, EV bits that route it, bytes, kind, NIC, time."""
OUT_COLUMNS = 8
RECENT_ROUND_TRIPS = 8
WORD_BITS = 32
"""Halves in one word of `ready`."""
WORD_SHIFT, WORD_MASK = 5, 31


class Halves(NamedTuple):
    """The columns of all queue pairs of a run, and what ties them to NICs."""

    s: Any
    """Sending halves at the sources."""
    b: Any
    """Sending halves at the destinations, which carry no data; idle where `opposite` names one that does."""
    r: Any
    """Receiving halves at the destinations."""
    nic: Any
    """NIC of every half."""
    deadline: Any
    """When every half has something to do by itself."""
    goal: Any
    """Sequence numbers by which the current flow has arrived (column 0) and is acknowledged (column 1)."""
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
    opposite: Any
    """For every pair the one that goes the other way over the same queue pair, or -1: its sending half is this one's at
    the destination."""
    spray: Any
    """How EVs are chosen, and for how long `REPS` freezes."""


class Sheet(NamedTuple):
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
