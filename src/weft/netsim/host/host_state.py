"""The columns of NICs and their queue pairs in a simulation, and what stands in them; rules over them are `hosts`'s."""

from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from weft.mrc.columns import ON_THE_WIRE, Receiver, Sender

Column = NDArray[np.int64]
"""Numbers, one or a row of them for each thing; a row of such a column, too. Narrower where there are many."""
Record = np.void
"""One row with named fields."""
Records = NDArray[np.void]
"""A column of those."""

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

HEADER = np.dtype([(name, "i8") for name in ("row", "pair", "half", *(ON_THE_WIRE.names or ()))])
"""What a packet in flight says, whatever its kind: `row` is its own, `half` 1 where the destination's half sent it."""

HALF_COLUMNS = 4
DUE, UNTIL, AT_NIC, SEEN_AS = range(HALF_COLUMNS)
"""Of a half: when it has something to do by itself; the sequence number by which the current flow has arrived or, of a
sending half, is acknowledged; its NIC; and what switches see of it besides EVs: its number, or that of the half which
sends data the same way over the same queue pair."""

ROW, PAIR, HALF, ROUTE, SIZE, KIND, HOST, TIME = range(8)
"""Columns of `out`: header row, queue pair, half that sends, EV bits that route it, bytes, kind, NIC, time."""
OUT_COLUMNS = 8
WORD_BITS = 32
"""How many halves there are in one word of `ready`."""
WORD_SHIFT, WORD_MASK = 5, 31


class NicColumns(NamedTuple):
    """What ties the halves of queue pairs to NICs, whatever their transport."""

    each: Column
    """One row for every half, `DUE` and so on: those of a pair lie together in one line of the cache."""
    first: Column
    """Where the halves of a NIC begin in `of_nic`; one more entry than NICs."""
    of_nic: Column
    """The halves of every NIC, sending ones and receiving ones."""
    turn: Column
    """Whose turn it is at every NIC."""
    place: Column
    """Where every half stands among those of its NIC."""
    ready: Column
    """Which halves may have data to send, bits in words of 32, those of a NIC from `first_word` on."""
    first_word: Column
    """Where the words of a NIC begin in `ready`; one more entry than NICs."""
    awake: NDArray[np.int8]
    """1 for every NIC that has a bit in `ready`."""
    due: Column
    """A time before which no half of a NIC has anything to do by itself."""
    sizes: Column
    """Bytes of every kind of control packet; of a data packet, its header."""


class Places(NamedTuple):
    """What the places of all NICs ask for; see `weft.mrc.rules.placing`."""

    begin: Column
    """By NIC and plane."""
    add: Column
    """By T0, plane and place in the order."""


class HostState(NamedTuple):
    """The columns of all queue pairs of a run, and what ties them to NICs."""

    nics: NicColumns
    """Their NICs."""
    s: Sender
    """Sending halves at the sources."""
    b: Sender
    """Sending halves at the destinations, which carry no data; idle where `SEEN_AS` names one that does."""
    r: Receiver
    """Receiving halves at the destinations."""
    ring: NDArray[np.int16]
    """EVs whose packets came back unmarked, for `RECYCLE`: one row a pair."""
    ring_at: NDArray[np.int16]
    """Where the ring of a pair begins and how many it holds."""
    frozen: Column
    """For `REPS`: until when nothing new is tried, and how much of the ring has been written; one row a pair."""
    spray: Column
    """How EVs are chosen, and `FREEZE`, `ECHOES`, `PER_PLANE`."""
    journal: Column
    """What the ends were asked and decided, where that is kept (`weft.mrc.journal`)."""


class PacketPool(NamedTuple):
    """Where the headers of packets in flight stand, and what a slot brings forth."""

    pool: Records
    """Headers."""
    free: Column
    """Free rows of the pool as a stack; its height stands in entry 0."""
    out: Column
    """Packets that a call sends, one row each."""
    events: Column
    """Time, pair and kind of what a call completes."""
    count: Column
    """Rows used of `out` and of `events`."""


class Outgoing(Protocol):
    """Where rules put what they send and complete: a `PacketPool`, or the kernel's `Outbox`, which has its fields."""

    @property
    def pool(self) -> Records:
        """Return the headers."""
        ...

    @property
    def free(self) -> Column:
        """Return the free rows."""
        ...

    @property
    def out(self) -> Column:
        """Return the packets sent."""
        ...

    @property
    def events(self) -> Column:
        """Return what was completed."""
        ...

    @property
    def count(self) -> Column:
        """Return the rows used."""
        ...
