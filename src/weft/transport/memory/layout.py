"""The state of an endpoint as columns: what its compiled thread and the Python around it share.

Rules of sharing, because plain loads and stores are all there is: a row of `commands` belongs to Python until `posted`
counts it, and to the thread afterwards; a row of `events` the other way round with `events_head`. Everything else is
the thread's alone while it runs, except switches in `HUB` that Python sets and counters that it reads. Neither side
ever waits by watching memory: Python writes to a pipe, the thread returns from its call.
"""

from typing import NamedTuple

import numpy as np

from weft.core.compile.rules import rule
from weft.mrc.columns import NEVER, REPLY, SEND, Receiver, Sender, make_receiver, make_sender
from weft.mrc.journal import make_journal
from weft.mrc.rules.endpoint import PairEnd
from weft.mrc.wire.inplace import VIEW
from weft.mrc.wire.tags import KEY_BYTES
from weft.transport.memory.keyed_hash import TAIL_BYTES
from weft.transport.memory.native import CRC_SCRATCH
from weft.transport.memory.tables import Transfers

PREFIX = 4
"""Bytes in front of the base transport header: the EV, which the specification carries in port and flow label."""
TX_SLOTS, HEAD_BYTES, TRAILER_AT = 64, 128, 120
RX_SLOTS = 16
NAME_BYTES = 32
MESSAGE_WORDS, CONTROL_WORDS = 3, 6
"""Words of one control message of a socket, and of those that a packet may come with."""
COMMANDS, EVENTS = 1024, 4096
INDEX_BITS = 12
INDEX_MASK = (1 << INDEX_BITS) - 1
REGIONS = 1 << INDEX_BITS
PLANES_MOST = 16
GAP_BUCKETS = 64
RING_SLOTS = 32
RING_NAME_AT, RING_HEAD_AT, RING_TAIL_AT, RING_ASLEEP_AT, RING_FRONT = 0, 64, 128, 192, 4096
"""Of a ring in shared memory: its word, packets put in, packets taken out, whether its owner sleeps, its first place.
Each has a cache line of its own."""
RING_HEADER_AT, RING_HEADS = 64, 192
"""Of a place in a ring: where the headers stand, and the payload behind them."""
KEY_WORDS = KEY_BYTES // 8
"""Of the keys of one direction."""
REPLAY_WORDS = 513
"""Words of 32 bits in which a queue pair notes which of the last 16,384 packets came."""
TAG_TAIL_AT = 64
"""Word from which `tag_words` has room for the tail of a payload; what is hashed stands before it."""

SENT, IMMEDIATE, FAILED, PROGRAM_DONE = 1, 2, 3, 4
"""Kinds of rows in `events`: a write is acknowledged, an immediate came, a queue pair ended, a program ended."""
POST, BEGIN, PORT, DENY_EV, CLOSE, OPEN = 1, 2, 3, 4, 5, 6
"""Kinds of rows in `commands`."""
GONE = 100
"""The error of a queue pair whose peer was silent for too long; the others are the protocol's."""

MALFORMED = ("too_short", "unknown_opcode", "wrong_version", "wrong_check", "wrong_length", "wrong_reason")
COUNTERS = (
    *("packets_in", "packets_out", "bytes_in", "bytes_out", "batches_in", "batches_out", "wakes"),
    *MALFORMED,
    *("wrong_key", "out_of_bounds", "replayed", "no_queue_pair", "wrong_ev", "refused"),
    *("wrong_source", "wrong_tag", "stale", "marked_in", "trimmed_in", "shared_in", "shared_out"),
    *("shim_out", "shim_in", "send_errors", "last_errno", "sends_blocked"),
)
HUB = np.dtype(
    [
        (name, "i8")
        for name in (
            *("socket", "bell", "base_ns", "stride", "check", "authenticate", "slot_bytes", "queue_pairs", "stop"),
            *("first", "staged", "blocked", "turn", "asleep", "spin_ns", "crowded_ns"),
            *("taken", "posted", "events_head", "events_tail"),
            *("cut", "shim_word", "shim_draws", "shim_on"),
            *("capture_on", "capture_at", "capture_lost"),
            *("liveness_ps", "programs"),
            # Level and type of the message by which the kernel says a packet's traffic class; that of the one at hand.
            *("class_message", "traffic_class"),
            # Planes whose port has room, bits: on sockets all of them, always.
            *("room",),
            # The plane that is shared memory, or -1; its rings; the queue pair through whose ring the packet at hand
            # came, or -1; and what leads from a place among the headers to the payload.
            *("shared_plane", "rings", "ring_slot_bytes", "shared_pair", "payload_from"),
            *COUNTERS,
        )
    ]
)
"""The one row of an endpoint: what it is set to, where its rings stand, and what it has counted."""

PEER = np.dtype(
    [
        (name, "i8")
        for name in (
            *("open", "number", "remote", "engine", "watched", "waiting"),
            *("heard_ps", "asked_ps", "asks", "deadline_ps"),
            *("dirty", "failed", "sent_reported", "closing", "bye"),
            # Eager messages: written, given back by the peer; taken here, credited to the peer.
            *(
                "eager_sent",
                "eager_back",
                "eager_taken",
                "eager_reported",
                "bounce_at",
                "inbox_at",
                "far_inbox",
                "far_key",
            ),
            *("rank",),
            # Where its packets come from, as the first word of a socket address; packets signed for it, newest taken.
            *("source", "source_mask", "signed", "newest"),
            # How often an answer made paths skip a turn, and the window smaller.
            *("skips", "window_cuts"),
            # Shared memory: the rings, how far each has come, the peer's bell, and the EV that stands for it.
            *("ring_out", "ring_in", "ring_head", "ring_tail", "bell", "shared_ev"),
        )
    ]
)
"""What an endpoint knows of one queue pair besides the protocol's columns."""

REGION = np.dtype([(name, "i8") for name in ("key", "address", "size", "open", "adds")])
"""Memory that peers may write to: a 32-bit key, where it lies, whether it may be written, and 0 or one more than the
number of the reduction (`weft.transport.memory.arithmetic`) by which what comes is combined with what is there."""

PATH = np.dtype([(name, "i8") for name in ("sent", "resent", "bytes", "received")])
"""What one EV of a queue pair has carried."""

CAPTURE_BYTES = 128
"""How much of a packet a capture keeps."""


class EndpointState(NamedTuple):
    """Everything that the compiled thread of an endpoint works on."""

    hub: np.ndarray
    sender: Sender
    """Sending sides of the queue pairs."""
    receiver: Receiver
    """Receiving sides."""
    peers: np.ndarray
    paths: np.ndarray
    """Traffic of every EV."""
    source: np.ndarray
    """Where the bytes of every message lie here."""
    tags: np.ndarray
    """What the owner of every message calls it; -1 where nobody wants to know."""
    names: np.ndarray
    """Socket address of every EV."""
    name_bytes: np.ndarray
    regions: np.ndarray
    shim: np.ndarray
    """Share of packets to be lost on each plane, in millionths."""
    heard_on: np.ndarray
    """When something last came on each plane."""
    gaps: np.ndarray
    """How long peers took to be heard of, in powers of two."""
    heads: np.ndarray
    tx_iov: np.ndarray
    tx_msg: np.ndarray
    tx_at: np.ndarray
    """Where the rings lie: heads, iovecs, messages, names, poll set, time, and the message of control packets."""
    rx: np.ndarray
    rx_iov: np.ndarray
    rx_msg: np.ndarray
    rx_at: np.ndarray
    rx_names: np.ndarray
    """Where the packets of the receive ring came from, as words of socket addresses."""
    rx_control: np.ndarray
    """What the kernel says of each of them besides: its traffic class."""
    tx_control: np.ndarray
    """What the kernel is given with control packets: their traffic class."""
    keys: np.ndarray
    """Keys of every queue pair, for what comes and for what goes (`weft.mrc.wire.tags`)."""
    replay: np.ndarray
    """Which packets of every queue pair came lately."""
    tag_words: np.ndarray
    tag_bytes: np.ndarray
    """What a tag is being made of: the same memory twice."""
    scratch: np.ndarray
    clock: np.ndarray
    polls: np.ndarray
    out: np.ndarray
    reply: np.ndarray
    seen: np.ndarray
    """What the packet at hand says."""
    commands: np.ndarray
    events: np.ndarray
    journal: np.ndarray
    capture: np.ndarray
    capture_rows: np.ndarray
    transfers: Transfers
    """Messages and programs."""


@rule
def end_of(state: EndpointState, pair: int) -> PairEnd:
    """Return our end of a queue pair."""
    return PairEnd(state.sender, pair, state.receiver, pair, pair, state.journal)


def address_of(array: np.ndarray) -> int:
    """Return where an array lies."""
    return int(array.ctypes.data)


def make_state(
    params: np.ndarray, *, queue_pairs: int, transfers: Transfers, journal_rows: int, capture_rows: int
) -> EndpointState:
    """Return the columns of an endpoint with room for `queue_pairs`, all zero, its rings wired up."""
    row = params[0]
    evs, messages = int(row["evs"]), int(row["message_mask"]) + 1
    slot = -(-(PREFIX + 64 + int(row["payload"]) + 32) // 4096) * 4096
    heads = np.zeros(TX_SLOTS * HEAD_BYTES, np.uint8)
    tx_iov, tx_msg = np.zeros((TX_SLOTS, 3, 2), np.int64), np.zeros((TX_SLOTS, 8), np.int64)
    rx, rx_iov, rx_msg = np.zeros((RX_SLOTS + 1) * slot, np.uint8), np.zeros((RX_SLOTS, 2), np.int64), np.zeros(
        (RX_SLOTS, 8), np.int64
    )  # fmt: skip
    names = np.zeros((queue_pairs, evs, NAME_BYTES), np.uint8)
    clock, polls = np.zeros(4, np.int64), np.zeros(2, np.int64)
    tx_iov[:, 0, 0] = address_of(heads) + np.arange(TX_SLOTS) * HEAD_BYTES
    tx_iov[:, 2, 0] = tx_iov[:, 0, 0] + TRAILER_AT
    tx_iov[:, 2, 1] = 4
    tx_msg[:, 2] = address_of(tx_iov) + np.arange(TX_SLOTS) * 48
    rx_iov[:, 0] = address_of(rx) + np.arange(RX_SLOTS) * slot
    rx_iov[:, 1] = slot
    rx_msg[:, 2] = address_of(rx_iov) + np.arange(RX_SLOTS) * 16
    rx_msg[:, 3] = 1
    rx_names, tag_words = np.zeros((RX_SLOTS, 4), np.int64), np.zeros(TAG_TAIL_AT + TAIL_BYTES // 8, np.int64)
    rx_msg[:, 0] = address_of(rx_names) + np.arange(RX_SLOTS) * NAME_BYTES
    rx_msg[:, 1] = NAME_BYTES
    rx_control, tx_control = np.zeros((RX_SLOTS, CONTROL_WORDS), np.int64), np.zeros(MESSAGE_WORDS, np.int64)
    rx_msg[:, 4] = address_of(rx_control) + np.arange(RX_SLOTS) * CONTROL_WORDS * 8
    at = np.array([address_of(one) for one in (heads, tx_iov, tx_msg, names, polls, clock, tx_control)], np.int64)
    hub = np.zeros(1, HUB)
    hub["slot_bytes"], hub["queue_pairs"], hub["shim_word"] = slot, queue_pairs, 1
    hub["shared_plane"] = hub["shared_pair"] = hub["room"] = -1
    hub["payload_from"] = address_of(rx)
    return EndpointState(
        hub=hub, sender=make_sender(params, queue_pairs), receiver=make_receiver(params, queue_pairs),
        peers=np.zeros(queue_pairs, PEER), paths=np.zeros((queue_pairs, evs), PATH),
        source=np.zeros((queue_pairs, messages), np.int64), tags=np.full((queue_pairs, messages), -1, np.int64),
        names=names, name_bytes=np.zeros(queue_pairs, np.int64), regions=np.zeros(REGIONS, REGION),
        shim=np.zeros(PLANES_MOST, np.int64), heard_on=np.full((queue_pairs, PLANES_MOST), -NEVER, np.int64),
        gaps=np.zeros((queue_pairs, GAP_BUCKETS), np.int64),
        heads=heads, tx_iov=tx_iov, tx_msg=tx_msg, tx_at=at, rx=rx, rx_iov=rx_iov, rx_msg=rx_msg,
        rx_at=np.array([address_of(rx), address_of(rx_msg), address_of(rx_iov)], np.int64),
        rx_names=rx_names, rx_control=rx_control, tx_control=tx_control,
        keys=np.zeros((queue_pairs, 2, KEY_WORDS), np.int64),
        replay=np.zeros((queue_pairs, REPLAY_WORDS), np.int64), tag_words=tag_words, tag_bytes=tag_words.view(np.uint8),
        scratch=np.zeros(CRC_SCRATCH, np.uint8), clock=clock, polls=polls,
        out=np.zeros(1, SEND), reply=np.zeros(1, REPLY), seen=np.zeros(1, VIEW),
        commands=np.zeros((COMMANDS, 8), np.int64), events=np.zeros((EVENTS, 5), np.int64),
        journal=make_journal(journal_rows),
        capture=np.zeros((capture_rows, CAPTURE_BYTES), np.uint8), capture_rows=np.zeros((capture_rows, 6), np.int64),
        transfers=transfers,
    )  # fmt: skip
