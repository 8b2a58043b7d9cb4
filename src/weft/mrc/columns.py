"""The state of queue pairs as columns: one row for a queue pair, one row of rows for its EVs and packets.

A rule takes the columns and an index and returns numbers. Every column is signed and every scalar is 64 bits wide, so
that plain and compiled rules compute alike; only what exists once for each EV or packet is kept narrow. A packet lies
in slot `seq & slot_mask`: slots are a power of two, because divisions are dear. Times are picoseconds, `NEVER` where
there is none. Rows link to each other by slot numbers, -1 for none.
"""

from typing import Any, NamedTuple

import numpy as np

NEVER = 2**62
"""A time that does not come."""

GOOD, SKIP, ASSUMED_BAD, DENIED = 0, 1, 2, 3
EV_STATE_NAMES = ("GOOD", "SKIP", "ASSUMED_BAD", "DENIED")
ACTIVE, SPARE, OUT = 0, 1, 2
"""What an EV is used for: in the rotation, ready to replace one, or neither."""

FREE, IN_FLIGHT, LOST, ACKED = 0, 1, 2, 3
"""What a packet slot holds: nothing, a packet under way, one that waits to be sent again, one that has arrived."""

KEPT, VANISHED, RETURNED = 0, 1, 2
"""Why a packet was last given up: not at all, silence, or a NACK."""

ERROR_NONE, ERROR_RETRIES, ERROR_NO_PATH, ERROR_PEER, ERROR_IMMEDIATES = 0, 1, 2, 3, 4
ERROR_NAMES = ("NONE", "RETRY_EXCEEDED", "NO_PATH", "PEER_FATAL", "IMMEDIATE_OVERFLOW")
"""Names of the ends that a queue pair can come to."""


def _wide(*names: str) -> list[tuple[str, str]]:
    return [(name, "i8") for name in names]


PARAMS = np.dtype(
    _wide(
        *(
            "payload",
            "overhead",
            "window",
            "slot_mask",
            "planes",
            "evs",
            "active",
            "min_active",
            "losses_to_retire",
            "most_skips",
        ),
        *("trimming", "retire", "skip", "even", "same_plane", "shuffle", "remap_ps"),
        *("ev_probe_interval_ps", "ev_probe_timeout_ps", "probes_to_readmit"),
        *("spread_ps", "spread_max_ps", "spread_decay_ps", "passed_packets", "probe_after_ps"),
        *("timeout_ps", "linear_retries", "exponential_retries"),
        *("messages", "message_mask", "immediates", "ack_bytes", "ack_packet_bytes", "mpr"),
        *("congestion", "base_rtt_ps", "target_ps", "bdp", "window_max", "mtu", "prop_gain", "fair_gain", "fast_gain"),
        *("eta", "adjust_bytes", "quick_adapt", "qa_gate"),
    )
)
"""The parameters of all queue pairs of a run, one row; `settings` fills it."""

SENDER = np.dtype(
    _wide(
        # Chance: a word and how often it was drawn from.
        *("word", "draws"),
        # Sequence numbers: oldest not acknowledged, next new one, end of what was posted; window granted by the peer.
        *("una", "next", "end", "granted"),
        # What is under way: bytes and packets, and two lists of slots, oldest transmission and oldest loss first.
        *("inflight_bytes", "inflight", "oldest", "newest", "waiting", "lost_first", "lost_last"),
        # The newest transmission known to have arrived, the spread in force and when that was last changed.
        *("order", "passed_ps", "passed_order", "spread_ps", "spread_at_ps"),
        # Retries: of the budget, of the backoff; when anything was last heard or sent, since when nothing could be.
        *("retries", "backoff", "heard_ps", "active_ps", "stalled_ps", "error"),
        # The reliability probe: number, time and order of the last one, whether it waits for its answer, how many did.
        *("probe_id", "probe_sent_ps", "probe_order", "probe_open", "probe_misses"),
        # Messages: oldest, next to send, end; immediates under way; next message number.
        *("msg_first", "msg_next", "msg_end", "immediates", "msn"),
        # EVs: place in the round, EVs in rotation and how many of them are in SKIP, planes that have any (bits); of
        # what was sent lately, the share lost, over few and over many; the EV of the last loss and for how long
        # it is remembered; the probe of a retired one.
        *(
            "cursor",
            "active",
            "skipping",
            "reach",
            "bad",
            "loss_share",
            "loss_ev",
            "loss_left",
            "background",
            "ev_probe_id",
            "ev_probe_ev",
            "ev_probe_sent_ps",
            "ev_probe_due_ps",
            "ev_probe_at",
        ),
        # Ports: planes up here and at the peer, what the peer was told, and when.
        *("local_up", "peer_up", "told", "tell_id", "tell_sent_ps", "ports_due_ps"),
        # Congestion control.
        *("cwnd", "cc_inc", "cc_received", "cc_adjusted_ps", "cc_delay_ps", "cc_fast_bytes", "cc_fast", "cc_cut_ps"),
        *("cc_achieved", "cc_adapt_ps", "cc_ignore", "cc_ignored", "cc_trouble"),
        # Counters.
        *("sent", "resent", "delivered_bytes", "trims", "marks", "silent", "spurious", "timeouts", "probes"),
        *("ev_probes", "retired", "refused", "readmitted", "reused_ev", "bad_acks", "completed"),
    )
)
"""One queue pair's sending half."""

EV = np.dtype(
    [
        *(("value", "i4"), ("plane", "i1"), ("state", "i1"), ("role", "i1"), ("losses", "i1"), ("probes", "i1")),
        *(("skips", "i2"), ("patience", "i2"), ("flying", "i2")),
    ]
)
"""One entropy value: its 32 bits, its plane, its state and use, silent losses and answered probes in a row; for how
many rounds it is still passed over, and for how many after its next packet; its packets under way."""

PLANE = np.dtype(
    [
        *(("active", "i4"), ("spare", "i4"), ("target", "i4"), ("used", "i4"), ("reverse", "i4")),
        *(("due_ps", "i8"), ("up", "i8")),
    ]
)
"""One plane of a queue pair: EVs in rotation, ready, aimed at and all there are; its reverse EV; its local port's
pending change."""

PACKET = np.dtype(
    [
        *(("sent_ps", "i8"), ("order", "i4"), ("message", "i4"), ("bytes", "i4")),
        *(
            ("older", "i2"),
            ("newer", "i2"),
            ("ev", "i2"),
            ("before", "i2"),
            ("state", "i1"),
            ("tries", "i1"),
            ("gone", "i1"),
            ("spare", "i1"),
        ),
    ]
)
"""One packet of the window: last transmission, its message and size, neighbours in its list, EV now and before. Its 32
bytes never lie across two lines of a cache."""

MESSAGE = np.dtype(_wide("first", "packets", "address", "key", "length", "immediate", "msn"))
"""One write: its packets, where it goes, and its immediate (-1 for none)."""

RECEIVER = np.dtype(
    _wide(
        *("expected", "highest", "unreported_bytes", "report_low", "report_high", "due"),
        *("trigger", "trigger_ev", "verdict", "stamp", "probe_due", "probe_id"),
        *(
            "received_bytes",
            "immediates",
            "error",
            "reverse_at",
            "reverse_turn",
            "reverse_good_ps",
            "reverse_draws",
            "reverse_probe_ps",
            "reverse_probe_ev",
        ),
        *(
            "reverse_probe_id",
            "heard_ps",
            "word",
            "accepted",
            "duplicates",
            "outside",
            "trimmed",
            "marked",
            "sacks",
            "nacks",
        ),
    )
)
"""One queue pair's receiving half."""

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
        *("bitmap_low", "bitmap_high", "reason", "psn", "received_units", "ooo_count", "penalty", "stamp"),
    )
)
"""What a receiver answers: a SACK or a NACK."""

NOTHING, DATA, PROBE, EV_PROBE, PORT_STATUS, SACK, NACK = 0, 1, 2, 3, 4, 5, 6
"""Kinds of packets in `SEND` and `REPLY` rows."""


class Sender(NamedTuple):
    """The columns of the sending halves of many queue pairs."""

    params: Any
    qp: Any
    packets: Any
    arrived: Any
    evs: Any
    rotation: Any
    planes: Any
    messages: Any


class Receiver(NamedTuple):
    """The columns of the receiving halves of many queue pairs."""

    params: Any
    qp: Any
    arrived: Any
    stash: Any


def make_sender(params: np.ndarray, queue_pairs: int) -> Sender:
    """Return columns for `queue_pairs` senders, all zero; `start_sender` makes each one ready."""
    row = params[0]
    slots, planes = int(row["slot_mask"]) + 1, int(row["planes"])
    return Sender(
        params,
        np.zeros(queue_pairs, SENDER),
        np.zeros((queue_pairs, slots), PACKET),
        np.zeros((queue_pairs, slots // 32), np.int64),
        np.zeros((queue_pairs, int(row["evs"])), EV),
        np.zeros((queue_pairs, int(row["evs"])), np.int16),
        np.zeros((queue_pairs, planes), PLANE),
        np.zeros((queue_pairs, int(row["message_mask"]) + 1), MESSAGE),
    )


def make_receiver(params: np.ndarray, queue_pairs: int) -> Receiver:
    """Return columns for `queue_pairs` receivers, all zero; `start_receiver` makes each one ready."""
    row = params[0]
    return Receiver(
        params,
        np.zeros(queue_pairs, RECEIVER),
        np.zeros((queue_pairs, (int(row["slot_mask"]) + 1) // 32), np.int64),
        np.zeros((queue_pairs, int(row["immediates"])), STASH),
    )
