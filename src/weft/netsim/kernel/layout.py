"""What stands where in the engine's columns: the six words of a packet, a port's row, a node's row, the counters.

A packet is six 64-bit words. It is copied from the wire into a queue and from the queue onto the next wire, so what is
read together lies together; nothing else in memory belongs to it.

- `UID`: its number.
- `PLACE`: 40 bits of picoseconds into the slot in which it arrives; above them the port that it crossed, or in a queue
  the low 16 bits of the key with which it came, the random draw for marks.
- `NAME`: 32 bits of EV; above them its half (2 x queue pair, + 1 from the destination).
- `STATE`: PSN, kind, flags, hops so far, and one number (length of data, offset of a SACK, id of a probe).
- `EXTRA`: the bitmap of a SACK, the reason of a NACK, a port status; of data in a queue, the port that it came over.
- `GOAL`: destination NIC, uplink of the T0, uplink of the T1, and the offset of a SACK's bitmap.

A row of a queue has two words more, `AFTER` for the row that follows and `BYTES` for the packet's size on the wire: a
whole line of the cache, so that a packet that has waited is one access.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from weft.core.compile.rules import replaceable, rule
from weft.netsim.host.host_state import Column, HostState, Records
from weft.netsim.transports.routing import Routing

WORDS = 6
UID, PLACE, NAME, STATE, EXTRA, GOAL = range(WORDS)
QUEUE_WORDS = 8
AFTER, BYTES = 6, 7

# A slot is far below 2^40 ps (1.1 s), and a packet never stands further ahead than the ring of slots.
PLACE_BITS = 40
PLACE_MASK = (1 << PLACE_BITS) - 1
PORT_MASK = (1 << 24) - 1
"""Ports and NICs have numbers of 24 bits."""
HALF_SHIFT = 32
PAIR_SHIFT = 33
LOW32 = 0xFFFFFFFF
SIGN32 = 1 << 31
UID_BITS = 36

# `STATE` from its lowest bit: 24 of PSN, 4 of kind, flags, 2 of trim, flags, 2 of verdict, 3 of hops, 16 of number.
PSN_MASK = 0xFFFFFF
KIND_SHIFT, KIND_MASK = 24, 15
CONTROL = 1 << 28
MARKED = 1 << 29
TRIM_SHIFT, TRIM_MASK = 30, 3
AGAIN = 1 << 32
ASKS = 1 << 33
VERDICT_SHIFT, VERDICT_MASK = 34, 3
PROBED = 1 << 36
HOP_SHIFT, HOP_MASK = 37, 7
NUMBER_SHIFT, NUMBER_MASK = 40, 0xFFFF
SIGN16 = 1 << 15

# `GOAL` from its lowest bit: 24 of NIC, 12 of uplink, 12 of second uplink, 16 of the SACK offset.
UPLINK_SHIFT, UPLINK_MASK = 24, 4095
SECOND_SHIFT = 36
OFFSET_SHIFT = 48

PORT_COLUMNS = 16
CREDIT, CREDITED, DATA_BYTES, CONTROL_BYTES, DATA_FIRST, DATA_LAST, CONTROL_FIRST, CONTROL_LAST = range(8)
GRADE, RATE, FAR, NUMBER, LINK_FAULT, PACE, WAY, MARK_FROM = range(8, 16)
"""Of a port: its grade (a row of `grades`), rate (a row of `rates`), the node at its far end, its number in the
network, and its fault (a row of `link_faults`; 0 for none). Then what most packets need of its rate and grade:
picoseconds a byte and for the way, `NO_WAY` where that is not so simple, and the bytes from which it may mark."""
# So far below zero that no sum with it is a time: the quick arithmetic fails and the exact one is asked.
NO_WAY = -(2**31)
MARKS_NOTHING = 2**31 - 1

GRADE_COLUMNS = 8
DELAY, ECN_LOW, ECN_HIGH, DATA_LIMIT, CONTROL_LIMIT, STAGE, LAST_HOP, ECN_MOST = range(GRADE_COLUMNS)

RATE_COLUMNS = 7
BPS, PER_BYTE, WHOLE, PART, BASE, BLOCK, REST = range(RATE_COLUMNS)
"""Of a rate: bits a second; picoseconds a byte where that is a whole number, else 0; whole bytes granted in a slot and
the fraction `PART`/`BASE` on top; and that fraction of 2^19 slots, as whole bytes and a rest."""
# In one product, rate x time would pass 2^63 within some hundred slots. `BASE` is below 2^43, so 2^19 slots fit.
BLOCK_BITS = 19

NODE_COLUMNS = 8
TIER, PLANE, INDEX, FIRST_PORT, PORTS, FIRST_NIC, NICS, FIRST_WORD = range(NODE_COLUMNS)
"""Of a node: its tier (-1 for NICs), plane, index in it (of a T1: its pod), its ports, the NICs below it (T0s and
NICs), and where its words of busy ports begin."""
AT_NICS = -1

FIGURES = 32
SLOT_PS, ORDER_WORD, LOSS_WORD, TRIMMING, HEADER, FULL, PLANES, DOWN, BUNDLE, POD_T0, SECONDS, TIERS, WATCHING = range(
    13
)
PAUSING, XOFF, XON, ROOM, ORDERED, ADAPTIVE, UPS, T0S, T1S, POD_T1, FIRST_UPLINK, FIRST_SECOND = range(13, 25)
PER_SLOT, ROUND_SLOTS, SWITCH_SLOTS, FURTHEST, MOST_SENT, NEAR, METERED = range(25, 32)
"""Whether switches pause, from and to how many bytes, and with how many they drop; whether packets keep their order;
whether switches choose uplinks, and what they need to name links: counts, and the first link of each
stage. `PER_SLOT` is 2^44 over the length of a slot, rounded up, by which dividing times below `NEAR` is quick. A round
has `ROUND_SLOTS`: through those NICs can be taken one by one, and switches through `SWITCH_SLOTS`; `FURTHEST` is how
far ahead a packet may be put on a wire, `MOST_SENT` how many data packets a NIC's port can be given in a slot;
`METERED` says whether every port counts what it carries."""

HOLD_COLUMNS = 40
HELD, ASKED, OVERRUN, LAG, NEXT_READ, NEXT_WRITTEN, PAUSED, PAUSED_SINCE, PAUSED_SLOTS, CHANGES = range(10)
MOST_CHANGES = HOLD_COLUMNS - CHANGES
"""Of a port, by its number: the data bytes that came over it and wait at its far end, whether a pause is asked for,
whether there were too many when the last slot ended, the slots until a pause acts; where in the ring of changes the
next one is read and written; whether it is paused, since when, and for how long it was; the ring: slots in which pauses
and resumes act, in turn."""

COUNTERS = 16
INJECTED, DELIVERED, DROPPED, LOST, TRIMMED, MARKS, HOPS, TRACE, BUSY, LOSSES, SEEN, FAULTY, NEED, ASKS_SENT = range(14)
NIC_NODES, AHEAD = 14, 15
"""Of a part: totals; ports that hold packets; rows of the two logs; what ended it; what it lacks; how many of its
nodes, the first ones, are NICs; and the slot up to which those have been taken."""

PER_SLOT_BITS, NEAR_BITS = 44, 24
LINK_DOWN = -1
"""What stands in `link_faults` for a port that loses everything."""


class Fabric(NamedTuple):
    """All ports and nodes, and what is the same for everybody."""

    figures: Column
    """Single numbers."""
    ports: NDArray[np.int32]
    """One row for each port, those of a node one after the other."""
    grades: Column
    """Delay, limits and place of the ports that are alike."""
    rates: Column
    """What the rates grant."""
    link_faults: Column
    """Share of packets lost out of 2^32, or `LINK_DOWN`."""
    nodes: Column
    """One row for each node."""
    t0_of: NDArray[np.int32]
    """Index of the T0 of every NIC."""
    sent: Column
    """Packets that each NIC has sent so far."""
    last_sent: Column
    """Slot in which each NIC last sent data."""
    due: Column
    """Of a node of NICs: a time before which none of them has anything to do by itself."""
    awake: Column
    """Of a node of NICs: whether one may have data to send."""
    holds: Column
    """What every port, by its number, has waiting at its far end, and its pauses; one row where nobody pauses."""
    arrives: Column
    """When the last packet of every port, by its number, arrives; one entry where order does not matter."""
    dead: NDArray[np.int8]
    """Links that are seen to be down (bit 0) and that routing knows to be (bit 1); one entry where nobody asks."""
    meters: Column
    """What every port, by its number, has carried in the open bin; one row where nobody asks."""
    watched: Column
    """Lowest and highest packet of each pair that was lost and has not arrived; the first above the second for none."""


class Wires(NamedTuple):
    """Packets that have left a port: for each slot of a ring, each node and each part that sends, a list of chunks."""

    rows: Column
    """Packets, `CHUNK` in a chunk."""
    after: NDArray[np.int32]
    """Next chunk of the same list."""
    heads: Column
    """Of every list (part, slot, node): how many packets it holds in the lower half, its first chunk in the upper."""
    free: Column
    """Of every part: its first free chunk, the first one that was never used, where those end, and how many are free
    again."""
    waiting: Column
    """Chunks that were begun for each slot of the ring, by part."""


class Queues(NamedTuple):
    """Packets that wait in ports."""

    rows: Column
    """Packets, each with the row that follows in its queue and with its size."""
    spare: NDArray[np.int32]
    """Free rows of every part as a stack: apart from the rows, so that those which were never used are not touched."""
    free: Column
    """Of every part: how high its stack is, the first row that was never used, where those end, and how many it has."""


class Shard(NamedTuple):
    """What one part of the fabric works with; a thread takes one shard at a time."""

    part: int
    """Its number."""

    nodes: Column
    """The nodes that it looks after."""
    pool: Records
    """One header, for its type: none is kept."""
    events: Column
    """Time, pair and kind of what was completed (`weft.netsim.host.mrc_host`)."""
    events_used: Column
    """Rows used of `events`, in entry 1 as in the count of a packet pool."""
    count: Column
    """Counters."""
    peaks: Column
    """Deepest data queue of every stage."""
    lost: Column
    """Port, half, PSN (-1 for control) and slot of packets lost to faults."""
    seen: Column
    """Pair, PSN and time of data that had been watched for."""
    first: Column
    """First arrival for every port or NIC of the node at hand."""
    came: Column
    """Of every arrival, `CAME` entries: its key, its row of the wire, and the next one for the same port or NIC. An
    arrival is known by where its entries begin."""
    order: Column
    """Arrivals of one port or NIC, being sorted."""
    room: Column
    """Bytes that each port of the NIC at hand can take."""
    grant: Column
    """Bytes that each rate makes in a slot, for some slots in a row: by the low bits of a slot's number."""


class KernelColumns(NamedTuple):
    """Everything that all shards of a run share. One record, so that a rule takes it and a shard and little else.

    Compiled rules are inlined into each other, so that passing it costs no instruction.
    """

    fabric: Fabric
    """Ports and nodes."""
    wires: Wires
    """Packets in flight on links."""
    queues: Queues
    """Packets that wait in ports."""
    hosts: HostState
    """NICs and their queue pairs: `HostState`, or what takes its place for another transport."""
    routing: Routing
    """How EVs become paths."""
    busy: Column
    """A bit for every port that holds packets: a word of `WORD_BITS` ports of a switch, a word for each NIC."""


class Outbox(NamedTuple):
    """Where one NIC sends from in one slot; the rules of `weft.netsim.host.mrc_host` take it for their packet pool."""

    columns: KernelColumns
    shard: Shard
    nic: int
    slot: int
    first_port: int
    """The NIC's first port; its others follow, a plane each."""
    word: int
    """Where in `busy` the bits of its ports stand."""
    pool: Records
    events: Column
    count: Column
    """These three are the shard's, under the names that the rules know."""
    free: Column
    out: Column
    """Never looked at: the kernel replaces `take_head`, `give_head` and `emit`, which alone would."""


CAME, AT, NEXT = 4, 1, 2
"""How many entries of `came` belong to an arrival, and which of them are its row and the next arrival."""
# One chunk of six words a packet is 24 lines of the cache: long enough to stream, short enough to share.
CHUNK = 32
"""Packets in a chunk."""
CHUNK_SHIFT, NO_CHUNK = 32, -1 << 32
"""Where in a head the number of a chunk stands, and a head without one."""
ANSWERS = 4
"""Packets that a NIC may send in answer to one."""
GRANT_SLOTS = 32
"""Slots of `Shard.grant`, at least those of a round."""


@replaceable("never where switches only queue")
@rule
def pauses(fabric: Fabric) -> bool:
    """Return whether switches pause what fills them."""
    return fabric.figures[PAUSING] != 0


@replaceable("never where switches only queue")
@rule
def keeps_order(fabric: Fabric) -> bool:
    """Return whether nothing overtakes on a link."""
    return fabric.figures[ORDERED] != 0


@replaceable("never where switches only queue")
@rule
def chooses(fabric: Fabric) -> bool:
    """Return whether switches choose uplinks."""
    return fabric.figures[ADAPTIVE] != 0


@replaceable("never where nobody asks for links over time")
@rule
def is_metered(fabric: Fabric) -> bool:
    """Return whether every port counts what it carries."""
    return fabric.figures[METERED] != 0


@rule
def never(_fabric: Fabric) -> bool:
    """Take the place of those where switches do none of it: what is never done need not be asked for."""
    return False


PLAINLY = {pauses: never, keeps_order: never, chooses: never}
UNMETERED = {is_metered: never}


@rule
def granted(fabric: Fabric, rate: int, slot: int) -> int:
    """Return the whole bytes that a rate has been granted up to the end of `slot`."""
    # Exact in whole numbers: bytes granted never drift from rate x time, however many slots there were.
    row = fabric.rates[rate]
    slots = slot + 1
    blocks = slots >> BLOCK_BITS
    left = slots & ((1 << BLOCK_BITS) - 1)
    return row[WHOLE] * slots + blocks * row[BLOCK] + (blocks * row[REST] + row[PART] * left) // row[BASE]
