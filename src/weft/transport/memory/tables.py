"""The tables of the engine: messages in flight, memory for short ones, programs; and the numbers that name things."""

from typing import NamedTuple

import numpy as np

EAGER = 8192
"""Bytes of the longest message that goes without a grant."""
HEAD = 64
SLOT = EAGER + HEAD
SLOTS = 64
RESERVED = 16
"""Slots of the inbox that only grants may use, so that they always get through."""
CREDIT_EVERY = 16
"""Messages taken after which the peer gets credit for their slots."""
SENDS, RECEIVES, GRANTS, POOL, PROGRAMS, INSTRUCTIONS, GROUPS = 512, 2048, 2048, 512, 256, 2048, 256

SEND, RECEIVE, WAIT, REDUCE, COPY = 1, 2, 3, 4, 5
"""Instructions: send(qp, address, length, sub-tag); receive(qp, address, length, sub-tag, key); wait(qp, sub-tag);
reduce(kind, to, from, count); copy(to, from, bytes). The upper half of a receive's key is 0 or one more than the number
of the reduction by which what comes is combined with what is there."""
COLUMNS, BASES = 9, 5
"""Of an instruction: what was named above, then what its two addresses and its key count from, out of so many bases."""
ADDS_SHIFT, KEY_MASK = 32, 0xFFFFFFFF
SCRATCH_BYTES = 1 << 16
"""Memory of its own that a program has for what is on its way."""
WORD_EAGER, WORD_DATA, WORD_CREDIT, WORD_BYE, WORD_ABORT = 1, 2, 3, 4, 5
WORD_SHIFT, WORD_MASK = 24, 0xFFFFFF
DATA_MESSAGE, GRANT_MESSAGE = 1, 2
FREE, WAITING, READY, IN_FLIGHT, POSTED_HERE, DONE = 0, 1, 2, 3, 4, 5
OVERFULL, WRONG_SIZE, REPORTED_GONE = 101, 102, 103
"""Errors of the engine: more short messages came than anybody asked for; a message has another length than expected;
another peer says that this one is gone."""
OF_ENGINE = 1 << 62
NOBODY = -1


def _rows(*names: str) -> np.dtype:
    return np.dtype([(name, "i8") for name in names])


class Transfers(NamedTuple):
    """The tables of the engine."""

    sends: np.ndarray
    receives: np.ndarray
    grants: np.ndarray
    pool: np.ndarray
    pool_bytes: np.ndarray
    programs: np.ndarray
    code: np.ndarray
    bases: np.ndarray
    """For every program the addresses, then the keys, that its instructions count from."""
    members: np.ndarray
    """Which queue pairs belong to a group."""
    seats: np.ndarray
    """Queue pair of every rank of a group."""
    scratch: np.ndarray
    """Memory of the programs."""
    inbox: np.ndarray
    bounce: np.ndarray
    inbox_words: np.ndarray
    bounce_words: np.ndarray
    at: np.ndarray
    """Where pool, inbox and bounce lie, and how many sends, receives, grants and pooled messages there are."""


N_SENDS, N_RECEIVES, N_GRANTS, N_POOLED = 3, 4, 5, 6
"""Where in `at` the rows in use are counted."""


def make_transfers(queue_pairs: int) -> Transfers:
    """Return the tables for `queue_pairs`, all empty."""
    inbox, bounce = np.zeros(queue_pairs * SLOTS * SLOT, np.uint8), np.zeros(queue_pairs * SLOTS * SLOT, np.uint8)
    pool = np.zeros(POOL * EAGER, np.uint8)
    at = np.zeros(8, np.int64)
    at[:3] = pool.ctypes.data, inbox.ctypes.data, bounce.ctypes.data
    return Transfers(
        sends=np.zeros(SENDS, _rows("state", "qp", "tag", "address", "length", "program", "far", "key", "row")),
        receives=np.zeros(RECEIVES, _rows("state", "qp", "tag", "address", "length", "program", "key", "adds")),
        grants=np.zeros(GRANTS, _rows("state", "qp", "tag", "length", "far", "key", "row")),
        pool=np.zeros(POOL, _rows("state", "qp", "tag", "length")),
        pool_bytes=pool,
        programs=np.zeros(PROGRAMS, _rows("state", "at", "end", "tag", "group", "in_flight", "error", "culprit")),
        code=np.zeros((PROGRAMS, INSTRUCTIONS, COLUMNS), np.int64),
        bases=np.zeros((PROGRAMS, 2 * BASES), np.int64),
        members=np.zeros((GROUPS, queue_pairs), np.uint8),
        seats=np.zeros((GROUPS, queue_pairs + 1), np.int64),
        scratch=np.empty((PROGRAMS, SCRATCH_BYTES), np.uint8),
        inbox=inbox,
        bounce=bounce,
        inbox_words=inbox.view(np.int64),
        bounce_words=bounce.view(np.int64),
        at=at,
    )
