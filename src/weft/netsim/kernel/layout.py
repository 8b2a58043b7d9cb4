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

from typing import Any, NamedTuple

from weft.core.compile.rules import replaceable, rule

WORDS = 6
UID, PLACE, NAME, STATE, EXTRA, GOAL = range(WORDS)
QUEUE_WORDS = 8
AFTER, BYTES = 6, 7

PLACE_BITS = 40
PLACE_MASK = (1 << PLACE_BITS) - 1
PORT_MASK = (1 << 24) - 1
"""Ports and NICs have numbers of 24 bits."""
HALF_SHIFT = 32
PAIR_SHIFT = 33
LOW32 = 0xFFFFFFFF
SIGN32 = 1 << 31
UID_BITS = 36

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

UPLINK_SHIFT, UPLINK_MASK = 24, 4095
SECOND_SHIFT = 36
OFFSET_SHIFT = 48

PORT_COLUMNS = 16
CREDIT, CREDITED, DATA_BYTES, CONTROL_BYTES, DATA_FIRST, DATA_LAST, CONTROL_FIRST, CONTROL_LAST = range(8)
GRADE, RATE, FAR, NUMBER, LINK_FAULT, PACE, WAY, MARK_FROM = range(8, 16)
"""Of a port: its grade (a row of `grades`), rate (a row of `rates`), the node at its far end, its number in the
network, and what is wrong with it (a row of `harms`; 0 for nothing). Then what most packets need of its rate and grade:
picoseconds a byte and for the way, `NO_WAY` where that is not so simple, and the bytes from which it may mark."""
NO_WAY = -(2**31)
MARKS_NOTHING = 2**31 - 1

GRADE_COLUMNS = 8
DELAY, ECN_LOW, ECN_HIGH, DATA_LIMIT, CONTROL_LIMIT, STAGE, LAST_HOP, ECN_MOST = range(GRADE_COLUMNS)

RATE_COLUMNS = 7
BPS, PER_BYTE, WHOLE, PART, BASE, BLOCK, REST = range(RATE_COLUMNS)
"""Of a rate: bits a second; picoseconds a byte where that is a whole number, else 0; whole bytes granted in a slot and
the fraction `PART`/`BASE` on top; and that fraction of 2^19 slots, as whole bytes and a rest."""
BLOCK_BITS = 19

NODE_COLUMNS = 8
TIER, PLANE, INDEX, FIRST_PORT, PORTS, FIRST_NIC, NICS, FIRST_WORD = range(NODE_COLUMNS)
"""Of a node: its tier (-1 for NICs), plane, index in it (of a T1: its pod), its ports, the NICs below it (T0s and
NICs), and where its words of busy ports begin."""
AT_NICS = -1

FIGURES = 31
SLOT_PS, ORDER_WORD, LOSS_WORD, TRIMMING, HEADER, FULL, PLANES, DOWN, BUNDLE, POD_T0, SECONDS, TIERS, WATCHING = range(
    13
)
PAUSING, XOFF, XON, ROOM, ORDERED, ADAPTIVE, UPS, T0S, T1S, POD_T1, FIRST_UPLINK, FIRST_SECOND = range(13, 25)
PER_SLOT, ROUND_SLOTS, SWITCH_SLOTS, FURTHEST, MOST_SENT, NEAR = range(25, 31)
"""Whether switches pause, from and to how many bytes, and with how many they drop; whether packets keep their order;
whether switches choose uplinks, and what they need to name links: counts, and the first link of each
stage. `PER_SLOT` is 2^44 over the length of a slot, rounded up, by which dividing times below `NEAR` is quick. A round
has `ROUND_SLOTS`: through those NICs can be taken one by one, and switches through `SWITCH_SLOTS`; `FURTHEST` is how
far ahead a packet may be put on a wire, `MOST_SENT` how many data packets a NIC's port can be given in a slot."""

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
"""What stands in `harms` for a port that loses everything."""


class Fabric(NamedTuple):
    """All ports and nodes, and what is the same for everybody."""

    figures: Any
    """Single numbers."""
    ports: Any
    """One row for each port, those of a node one after the other."""
    grades: Any
    """Delay, limits and place of the ports that are alike."""
    rates: Any
    """What the rates grant."""
    harms: Any
    """Share of packets lost out of 2^32, or `DARK`."""
    nodes: Any
    """One row for each node."""
    t0_of: Any
    """Index of the T0 of every NIC."""
    sent: Any
    """Packets that each NIC has sent so far."""
    last_sent: Any
    """Slot in which each NIC last sent data."""
    due: Any
    """Of a node of NICs: a time before which none of them has anything to do by itself."""
    awake: Any
    """Of a node of NICs: whether one may have data to send."""
    holds: Any
    """What every port, by its number, has waiting at its far end, and its pauses; one row where nobody pauses."""
    arrives: Any
    """When the last packet of every port, by its number, arrives; one entry where order does not matter."""
    dead: Any
    """Links that are seen to be down (bit 0) and that routing knows to be (bit 1); one entry where nobody asks."""
    watched: Any
    """Lowest and highest packet of each pair that was lost and has not arrived; the first above the second for none."""


class Wires(NamedTuple):
    """Packets that have left a port: for each slot of a ring, each node and each part that sends, a list of chunks."""

    rows: Any
    """Packets, `CHUNK` in a chunk."""
    after: Any
    """Next chunk of the same list."""
    heads: Any
    """Of every list (part, slot, node): how many packets it holds in the lower half, its first chunk in the upper."""
    free: Any
    """Of every part: its first free chunk, the first one that was never used, where those end, and how many are free
    again."""
    waiting: Any
    """Chunks that were begun for each slot of the ring, by part."""


class Queues(NamedTuple):
    """Packets that wait in ports."""

    rows: Any
    """Packets, each with the row that follows in its queue and with its size."""
    spare: Any
    """Free rows of every part as a stack: apart from the rows, so that those which were never used are not touched."""
    free: Any
    """Of every part: how high its stack is, the first row that was never used, where those end, and how many it has."""


class Shard(NamedTuple):
    """What one part works with."""

    nodes: Any
    """The nodes that it looks after."""
    pool: Any
    """One header, for its type: none is kept."""
    events: Any
    """Time, pair and kind of what was completed (`weft.netsim.host.mrc_host`)."""
    told: Any
    """Rows used of `events`, in entry 1 as in a sheet's count."""
    count: Any
    """Counters."""
    peaks: Any
    """Deepest data queue of every stage."""
    lost: Any
    """Port, half, PSN (-1 for control) and slot of packets lost to faults."""
    seen: Any
    """Pair, PSN and time of data that had been watched for."""
    first: Any
    """First arrival for every port or NIC of the node at hand."""
    came: Any
    """Of every arrival, `CAME` entries: its key, its row of the wire, and the next one for the same port or NIC. An
    arrival is known by where its entries begin."""
    order: Any
    """Arrivals of one port or NIC, being sorted."""
    room: Any
    """Bytes that each port of the NIC at hand can take."""
    grant: Any
    """Bytes that each rate makes in a slot, for some slots in a row: by the low bits of a slot's number."""


class Outbox(NamedTuple):
    """Where one NIC sends from in one slot; the rules of `weft.netsim.host.mrc_host` take it for their sheet."""

    f: Any
    w: Any
    q: Any
    t: Any
    d: Any
    busy: Any
    each: Any
    """What is known of every half."""
    part: int
    nic: int
    slot: int
    first_port: int
    """The NIC's first port; its others follow, a plane each."""
    word: int
    """Where in `busy` the bits of its ports stand."""
    pool: Any
    events: Any
    count: Any
    """These three are the desk's."""


CAME, AT, NEXT = 4, 1, 2
"""How many entries of `came` belong to an arrival, and which of them are its row and the next arrival."""
CHUNK = 32
"""Packets in a chunk."""
CHUNK_SHIFT, NO_CHUNK = 32, -1 << 32
"""Where in a head the number of a chunk stands, and a head without one."""
ANSWERS = 4
"""Packets that a NIC may send in answer to one."""
GRANT_SLOTS = 32
"""Slots of `Desk.grant`, at least those of a round."""


@replaceable("never where switches only queue")
@rule
def pauses(f: Any) -> bool:
    """Return whether switches pause what fills them."""
    return f.figures[PAUSING] != 0


@replaceable("never where switches only queue")
@rule
def keeps_order(f: Any) -> bool:
    """Return whether nothing overtakes on a link."""
    return f.figures[ORDERED] != 0


@replaceable("never where switches only queue")
@rule
def chooses(f: Any) -> bool:
    """Return whether switches choose uplinks."""
    return f.figures[ADAPTIVE] != 0


@rule
def never(_f: Any) -> bool:
    """Take the place of those three where switches do none of it: what is never done need not be asked for."""
    return False


PLAINLY = {pauses: never, keeps_order: never, chooses: never}


@rule
def granted(f: Any, rate: int, slot: int) -> int:
    """Return the whole bytes that a rate has been granted up to the end of `slot`."""
    row = f.rates[rate]
    slots = slot + 1
    blocks = slots >> BLOCK_BITS
    left = slots & ((1 << BLOCK_BITS) - 1)
    return row[WHOLE] * slots + blocks * row[BLOCK] + (blocks * row[REST] + row[PART] * left) // row[BASE]
