"""The state of queue pairs as columns: one row for a queue pair, one row of rows for its EVs and packets.

A rule takes the columns and an index and returns numbers. Every column is signed and every scalar is 64 bits wide, so
that plain and compiled rules compute alike; only what exists once for each EV or packet is kept narrow. A packet lies
in slot `seq & slot_mask`: slots are a power of two, because divisions are dear. Times are picoseconds, `NEVER` where
there is none. Rows link to each other by slot numbers, -1 for none.
"""

from typing import Any, NamedTuple, TypeAlias

import numpy as np

NEVER = 2**62
"""A time that does not come."""
LOW32 = 0xFFFFFFFF
"""The low 32 bits of a word: columns are 64 bits wide, words of a bitmap and of the wire 32."""
_LINE = 64

GOOD, SKIP, ASSUMED_BAD, DENIED = 0, 1, 2, 3
EV_STATE_NAMES = ("GOOD", "SKIP", "ASSUMED_BAD", "DENIED")
ACTIVE, SPARE, OUT = 0, 1, 2
"""What an EV is used for: in the rotation, ready to replace one, or neither."""

FREE, IN_FLIGHT, LOST, ACKED = 0, 1, 2, 3
"""What a packet slot holds: nothing, a packet in flight, one that waits to be sent again, one that has arrived."""

KEPT, VANISHED, RETURNED = 0, 1, 2
"""Why a packet was last given up: not at all, silence, or a NACK."""

ERROR_NONE, ERROR_RETRIES, ERROR_NO_PATH, ERROR_PEER, ERROR_IMMEDIATES = 0, 1, 2, 3, 4
ERROR_NAMES = ("NONE", "RETRY_EXCEEDED", "NO_PATH", "PEER_FATAL", "IMMEDIATE_OVERFLOW")
"""Names of the ends that a queue pair can come to."""


def _wide(*names: str) -> list[tuple[str, str]]:
    return [(name, "i8") for name in names]


def _in_lines(fields: list[tuple[str, str]]) -> np.dtype:
    """Return the type of rows that begin at the beginning of a line of the cache, each of them."""
    names, formats = zip(*fields, strict=True)
    size = np.dtype(fields).itemsize
    return np.dtype({"names": list(names), "formats": list(formats), "itemsize": size + -size % _LINE})


PARAMS = np.dtype(
    _wide(
        *("payload", "overhead", "window", "slot_mask", "planes", "evs", "active", "min_active", "losses_to_retire"),
        *("most_skips", "trimming", "retire", "skip", "even", "paced", "same_plane", "shuffle", "remap_ps"),
        *("ev_probe_interval_ps", "ev_probe_timeout_ps", "probes_to_readmit"),
        *("infer", "spread_ps", "spread_max_ps", "spread_decay_ps", "passed_packets", "probe_after_ps"),
        *("timeout_ps", "linear_retries", "exponential_retries"),
        *("messages", "message_mask", "immediates", "ack_bytes", "ack_packet_bytes", "mpr"),
        *("congestion", "base_rtt_ps", "target_ps", "bdp", "window_max", "mtu", "prop_gain", "fair_gain", "fast_gain"),
        *("eta", "adjust_bytes", "quick_adapt", "qa_gate", "delay_cuts"),
        *("probe_back_ps", "heard_lately_ps"),
    )
)
"""The parameters of all queue pairs of a run, one row; `settings` fills it."""

SENDER = _in_lines(
    _wide(
        # What every packet and every acknowledgement looks at comes first, so that it lies in few lines of a cache.
        # Sequence numbers: oldest not acknowledged, next new one, end of what was posted; window granted by the peer.
        *("una", "next", "end", "granted"),
        # What is in flight, bytes and packets, and how much may be; how the queue pair ended.
        *("inflight_bytes", "inflight", "cwnd", "error"),
        # Two lists of slots, oldest transmission and oldest loss first; the number of the next transmission.
        *("oldest", "newest", "lost_first", "order"),
        # Random stream: a word and how often it was drawn from. EVs: place in the round, how many are in rotation.
        *("word", "draws", "cursor", "active"),
        # Planes that have EVs in rotation, and that are up here and at the peer (bits); since when nothing could be
        # sent; when anything was last heard and sent. Messages: oldest, next to send.
        *("reach", "local_up", "peer_up", "stalled_ps", "heard_ps", "active_ps", "msg_first", "msg_next"),
        # What `word` gives next. How often anything was sent; what was delivered; the newest transmission known to have
        # arrived; the spread in force, and the longest that a packet has lately waited in queues.
        *("drawn", "sent", "delivered_bytes", "passed_ps", "passed_order", "spread_ps", "late_ps"),
        # Of what was sent lately, the share lost, over few and over many, and the share trimmed; for how long the last
        # loss is remembered; whether an EV was ever blamed. Timeouts in a row, probes without an answer, retries.
        *("loss_share", "trim_share", "background", "loss_left", "lossy", "backoff", "probe_misses", "retries"),
        # EVs that are retired, marks, and how many EVs of the rotation are in SKIP.
        *("bad", "marks", "skipping"),
        # Congestion control.
        *("cc_inc", "cc_received", "cc_adjusted_ps", "cc_delay_ps", "cc_fast_bytes", "cc_fast", "cc_achieved"),
        *("cc_ignore", "cc_ignored", "cc_adapt_ps", "cc_trouble", "cc_cut_ps"),
        # The share marked; when the spread was last changed.
        *("mark_share", "spread_at_ps"),
        # The reliability probe: whether it waits for its answer, time of the last one. When the last timeout was.
        *("probe_open", "probe_sent_ps", "expired_ps"),
        # The EV of the last loss; when the probe of a retired EV, and news about ports, are due.
        *("loss_ev", "ev_probe_sent_ps", "ev_probe_due_ps", "ports_due_ps", "announced_ps", "ports_announced"),
        # What is looked at now and then: end of the list of losses, how many wait in it; messages that were posted.
        *("lost_last", "waiting", "msg_end", "immediates", "msn", "completed"),
        # The last reliability probe's number and order; the probe of a retired EV; ports announced to the peer.
        *("probe_id", "probe_order", "ev_probe_id", "ev_probe_ev", "ev_probe_at", "announce_id"),
        # Counters.
        *("resent", "trims", "silent", "spurious", "timeouts", "probes"),
        *("ev_probes", "retired", "refused", "readmitted", "reused_ev", "bad_acks"),
    )
)
"""One queue pair's sender."""

EV = np.dtype(
    [
        *(("value", "i4"), ("skips", "i2"), ("patience", "i2")),
        *(("plane", "i1"), ("state", "i1"), ("role", "i1"), ("losses", "i1"), ("probes", "i1")),
        *(("stale", "i1"), ("inflight", "i2")),
    ]
)
"""One entropy value: its 32 bits; for how many rounds it is still passed over, and for how many after its next packet;
its plane, its state and use, silent losses and answered probes in a row; how many packets were in flight on it when a
mark last counted, less those whose fate is known; its packets in flight. Its 16 bytes never lie across two lines."""

PLANE = np.dtype(
    [
        *(("active", "i4"), ("spare", "i4"), ("target", "i4"), ("used", "i4"), ("reverse", "i4")),
        *(("silent", "i4"), ("due_ps", "i8"), ("up", "i8")),
    ]
)
"""One plane of a queue pair: EVs in rotation, ready, aimed at and all there are; its reverse EV; losses in a row,
with nothing delivered in the plane between; its local port's pending change."""

PACKET = np.dtype(
    [
        *(("sent_ps", "i8"), ("order", "i4"), ("message", "i4"), ("bytes", "i4")),
        *((name, "i2") for name in ("older", "newer", "ev", "before")),
        *((name, "i1") for name in ("state", "tries", "gone", "spare")),
    ]
)
"""One packet of the window: last transmission, its message and size, neighbours in its list, EV now and before. Its 32
bytes never lie across two lines of a cache."""

MESSAGE = np.dtype(_wide("first", "packets", "address", "key", "length", "immediate", "msn"))
"""One write: its packets, where it goes, and its immediate (-1 for none)."""

RECEIVER = _in_lines(
    _wide(
        # What every packet looks at comes first.
        *("expected", "highest", "unreported_bytes", "report_low", "report_high", "due", "trigger", "trigger_ev"),
        *("verdict", "error", "heard_ps", "came_ev", "received_bytes", "accepted", "probe_due", "sacks", "asked"),
        *("reverse_at", "reverse_turn", "reverse_good_ps", "reverse_probe_ps", "stamp", "marked", "reverse_draws"),
        *("word", "reverse_probe_ev", "reverse_probe_id", "reverse_replies"),
        *("probe_id", "immediates", "duplicates", "outside", "trimmed", "nacks"),
    )
)
"""One queue pair's receiver."""

STASH = np.dtype(_wide("seq", "immediate"))
"""An immediate that waits until everything before it has landed."""

SEND = np.dtype(
    _wide(
        *("kind", "seq", "psn", "ev", "value", "plane", "opcode", "address", "key", "length", "immediate", "msn"),
        *("ack_request", "retransmission", "bytes", "id", "port_status"),
    )
)
"""What a sender wants on the wire, filled by `next_data` and `next_control`."""

REPLY = np.dtype(
    _wide(
        *("kind", "cack_psn", "ack_psn_offset", "value", "verdict", "probe_response", "mpr", "sack_offset"),
        *("bitmap_low", "bitmap_high", "reason", "psn", "received_units", "ooo_count", "penalty", "stamp", "id"),
    )
)
"""What a receiver answers: a SACK, a NACK, or the answer to an endpoint operation."""

ON_THE_WIRE = np.dtype(_wide(*dict.fromkeys((*(SEND.names or ()), *(REPLY.names or ())))))
"""What any packet says, whatever its kind."""

NOTHING, DATA, PROBE, EV_PROBE, PORT_STATUS, SACK, NACK, EV_ANSWER, PORT_ANSWER = 0, 1, 2, 3, 4, 5, 6, 7, 8
"""Kinds of packets in `SEND` and `REPLY` rows."""


Rows: TypeAlias = np.ndarray[Any, np.dtype[np.void]]
"""A column of structured rows."""
Words: TypeAlias = np.ndarray[Any, np.dtype[Any]]
"""A column of whole numbers."""
ByteArray: TypeAlias = np.ndarray[Any, np.dtype[np.uint8]]
"""Memory to the byte."""
# A row by the name of its type above; the type checker knows no more of a row than that it has fields.
SettingsRow: TypeAlias = np.void
SenderRow: TypeAlias = np.void
ReceiverRow: TypeAlias = np.void
EvRow: TypeAlias = np.void
PacketRow: TypeAlias = np.void
MessageRow: TypeAlias = np.void
SendRow: TypeAlias = np.void
ReplyRow: TypeAlias = np.void


class Sender(NamedTuple):
    """The columns of the senders of many queue pairs; the first index is the queue pair."""

    params: Rows
    qp: Rows
    packets: Rows
    arrived: Words
    evs: Rows
    rotation: Words
    planes: Rows
    messages: Rows


class Receiver(NamedTuple):
    """The columns of the receivers of many queue pairs; the first index is the queue pair."""

    params: Rows
    qp: Rows
    arrived: Words
    stash: Rows
    heard: Words
    """When the peer was last heard on each plane; no planes where answers do not ask for it."""


def aligned(shape: Any, dtype: Any) -> np.ndarray:
    """Return a column of zeros that begins at the beginning of a line of the cache."""
    size = int(np.prod(shape)) * np.dtype(dtype).itemsize
    memory = np.zeros(size + _LINE, np.uint8)
    first = -memory.ctypes.data % _LINE
    return memory[first : first + size].view(dtype).reshape(shape)


def together(*columns: np.ndarray) -> list[np.ndarray]:
    """Return columns of zeros like those given, in which the rows of one queue pair lie behind each other.

    A processor remembers where few pages of memory are: what is looked at together had better lie in one.
    """
    sizes = [column[:1].nbytes for column in columns]
    firsts = np.cumsum([0, *(size + -size % _LINE for size in sizes)])
    # Rows that are an odd number of lines apart spread over all sets of a cache.
    pitch = (int(firsts[-1]) // _LINE | 1) * _LINE
    block = aligned((len(columns[0]), pitch), np.uint8)
    return [
        np.ndarray(column.shape, column.dtype, block.data, int(first), (pitch, *column.strides[1:]))
        for column, first in zip(columns, firsts[:-1], strict=True)
    ]


def make_sender(params: np.ndarray, queue_pairs: int) -> Sender:
    """Return columns for `queue_pairs` senders, all zero; `start_sender` makes each one ready."""
    row = params[0]
    slots, planes = int(row["slot_mask"]) + 1, int(row["planes"])
    return Sender(
        params,
        aligned(queue_pairs, SENDER),
        aligned((queue_pairs, slots), PACKET),
        aligned((queue_pairs, slots // 32), np.int64),
        aligned((queue_pairs, int(row["evs"])), EV),
        aligned((queue_pairs, int(row["evs"])), np.int16),
        aligned((queue_pairs, planes), PLANE),
        aligned((queue_pairs, int(row["message_mask"]) + 1), MESSAGE),
    )


def make_receiver(params: np.ndarray, queue_pairs: int) -> Receiver:
    """Return columns for `queue_pairs` receivers, all zero; `start_receiver` makes each one ready."""
    row = params[0]
    heard = int(row["planes"]) if row["heard_lately_ps"] else 0
    return Receiver(
        params,
        aligned(queue_pairs, RECEIVER),
        aligned((queue_pairs, (int(row["slot_mask"]) + 1) // 32), np.int64),
        aligned((queue_pairs, int(row["immediates"])), STASH),
        aligned((queue_pairs, heard), np.int64),
    )
