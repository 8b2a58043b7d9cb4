"""Messages with names between two endpoints, and programs made of them, all inside the compiled thread.

A write needs an address at the peer, so a message goes in one of two ways. A short one is written into the next slot of
the peer's inbox, which was agreed when the queue pair was made, and is copied out there (*eager*). A long one waits for
the receiver's *grant*, address and key of the memory that it is for, and is then written straight into it. Both
sides name a message by a 64-bit tag that is used once, so that nothing depends on the order of calls.

Who sends and receives are programs (`weft.transport.messages.running`).
"""

from typing import Any

from weft.core.compile.rules import rule
from weft.mrc.rules.sender import POSTED, post
from weft.transport.memory import native
from weft.transport.memory.arithmetic import reduce_at, width_of
from weft.transport.memory.journal import POST, note_all
from weft.transport.messages.tables import (
    ADDS_SHIFT,
    DATA_MESSAGE,
    DONE,
    EAGER,
    FREE,
    GRANT_MESSAGE,
    GRANTS,
    HEAD,
    KEY_MASK,
    N_GRANTS,
    N_POOLED,
    N_RECEIVES,
    N_SENDS,
    NOBODY,
    OF_ENGINE,
    OVERFULL,
    POOL,
    POSTED_HERE,
    PROGRAMS,
    READY,
    RECEIVES,
    RESERVED,
    SENDS,
    SLOT,
    SLOTS,
    TELL_AFTER,
    TOLD,
    UNDER_WAY,
    WAITING,
    WORD_ABORT,
    WORD_BYE,
    WORD_CREDIT,
    WORD_DATA,
    WORD_EAGER,
    WORD_MASK,
    WORD_SHIFT,
    WRONG_SIZE,
)

_apart, _move = native.apart, native.move


@rule
def post_write(
    w: Any, i: int, local: int, far: int, key: int, length: int, immediate: int, tag: int, now_ps: int
) -> int:
    """Post a write whose bytes lie at `local`; return what the protocol says."""
    _apart()
    answer = post(w.s, i, far, key, length, immediate)
    note_all(w, POST, i, now_ps, far, key, length, immediate, answer, 0, 0, 0, 0, 0, 0, 0)
    if answer == POSTED:
        index = (w.s.qp[i]["msg_end"] - 1) & w.s.params[0]["message_mask"]
        w.source[i, index] = local
        w.tags[i, index] = tag
        w.peers[i]["dirty"] = 1
    return answer


@rule
def _eager(
    w: Any, i: int, kind: int, tag: int, address: int, length: int, far: int, key: int, row: int, now: int
) -> bool:
    """Write a short message or a grant into the peer's inbox; return whether there was room."""
    _apart()
    peer = w.peers[i]
    under_way = peer["eager_sent"] - peer["eager_back"]
    if under_way >= SLOTS or (kind == DATA_MESSAGE and under_way >= SLOTS - RESERVED):
        return False
    slot = peer["eager_sent"] % SLOTS
    place = (i * SLOTS + slot) * SLOT
    words = w.t.bounce_words
    at = place >> 3
    words[at], words[at + 1], words[at + 2] = kind, tag, length
    words[at + 3], words[at + 4], words[at + 5], words[at + 6] = far, key, row, peer["eager_taken"]
    size = HEAD
    if kind == DATA_MESSAGE:
        _move(w.t.at[2] + place + HEAD, address, length)
        size += length
    word = WORD_EAGER << WORD_SHIFT | slot
    if (
        post_write(w, i, w.t.at[2] + place, peer["far_inbox"] + slot * SLOT, peer["far_key"], size, word, -1, now)
        != POSTED
    ):
        return False
    peer["eager_sent"] += 1
    peer["eager_told"] = peer["eager_taken"]
    return True


@rule
def take_word(w: Any, i: int, word: int, now_ps: int) -> None:
    """Take in the immediate of a message that has landed."""
    _apart()
    peer = w.peers[i]
    kind, value = word >> WORD_SHIFT, word & WORD_MASK
    if kind == WORD_EAGER and value < SLOTS:
        _take_eager(w, i, value)
        peer["eager_taken"] += 1
        if peer["eager_taken"] - peer["eager_told"] >= TELL_AFTER:
            give_back(w, i, now_ps)
    elif kind == WORD_DATA and value < RECEIVES:
        row = w.t.receives[value]
        if row["state"] == POSTED_HERE and row["qp"] == i:
            row["state"] = DONE
    elif kind == WORD_CREDIT:
        back = peer["eager_back"]
        peer["eager_back"] = back + ((value - back) & WORD_MASK)
    elif kind == WORD_BYE:
        peer["bye"] = 1
    elif kind == WORD_ABORT:
        _told_of_death(w, value)


@rule
def _told_of_death(w: Any, rank: int) -> None:
    """Take a rank for gone because a peer says so."""
    for j in range(w.hub[0]["queue_pairs"]):
        peer = w.peers[j]
        if peer["open"] and peer["rank"] == rank and peer["engine"] and peer["failed"] == 0:
            peer["failed"] = TOLD


@rule
def give_back(w: Any, i: int, now_ps: int) -> None:
    """Tell the peer how many of its messages have been taken."""
    peer = w.peers[i]
    word = WORD_CREDIT << WORD_SHIFT | (peer["eager_taken"] & WORD_MASK)
    at = w.t.at[2] + i * SLOTS * SLOT
    # Its eight bytes land in the unused end of the first slot's head: only the word matters.
    if post_write(w, i, at, peer["far_inbox"] + HEAD - 8, peer["far_key"], 8, word, -1, now_ps) == POSTED:
        peer["eager_told"] = peer["eager_taken"]


@rule
def say(w: Any, i: int, word: int, now_ps: int) -> int:
    """Send a bare word; returns what the protocol says."""
    peer = w.peers[i]
    at = w.t.at[2] + i * SLOTS * SLOT
    return post_write(w, i, at, peer["far_inbox"] + HEAD - 8, peer["far_key"], 8, word, -1, now_ps)


@rule
def _take_eager(w: Any, i: int, slot: int) -> None:
    """Take a message out of a slot of the inbox."""
    _apart()
    peer = w.peers[i]
    place = (i * SLOTS + slot) * SLOT
    words = w.t.inbox_words
    at = place >> 3
    kind, tag, length = words[at], words[at + 1], words[at + 2]
    peer["eager_back"] = max(peer["eager_back"], min(words[at + 6], peer["eager_sent"]))
    if kind == GRANT_MESSAGE:
        _take_grant(w, i, tag, length, words[at + 3], words[at + 4], words[at + 5])
        return
    if kind != DATA_MESSAGE or length < 0 or length > EAGER:
        return
    source = w.t.at[1] + place + HEAD
    k = _find_receive(w, i, tag)
    if k >= 0:
        row = w.t.receives[k]
        if row["length"] != length:
            fail_program(w, row["program"], WRONG_SIZE, i)
            return
        _land(row, source, length)
        row["state"] = DONE
        return
    for k in range(POOL):
        if w.t.pool[k]["state"] == FREE:
            row = w.t.pool[k]
            row["state"], row["qp"], row["tag"], row["length"] = READY, i, tag, length
            _move(w.t.at[0] + k * EAGER, source, length)
            w.t.at[N_POOLED] += 1
            return
    peer["failed"] = OVERFULL


@rule
def _land(row: Any, source: int, length: int) -> None:
    """Bring a short message to where a receive wants it, or combine it with what is there."""
    adds = row["adds"]
    if adds > 0:
        reduce_at(adds - 1, row["address"], source, length // width_of(adds - 1))
    else:
        _move(row["address"], source, length)


@rule
def _take_grant(w: Any, i: int, tag: int, length: int, far: int, key: int, row_there: int) -> None:
    """Take in the peer's word on where a long message is to go."""
    _apart()
    for k in range(SENDS if w.t.at[N_SENDS] else 0):
        row = w.t.sends[k]
        if row["state"] == WAITING and row["qp"] == i and row["tag"] == tag:
            _granted(w, row, length, far, key, row_there)
            return
    for k in range(GRANTS):
        grant = w.t.grants[k]
        if grant["state"] == FREE:
            grant["state"], grant["qp"], grant["tag"], grant["length"] = READY, i, tag, length
            grant["far"], grant["key"], grant["row"] = far, key, row_there
            w.t.at[N_GRANTS] += 1
            return
    w.peers[i]["failed"] = OVERFULL


@rule
def _granted(w: Any, row: Any, length: int, far: int, key: int, row_there: int) -> None:
    """Let a send go to where the grant says."""
    if length != row["length"]:
        fail_program(w, row["program"], WRONG_SIZE, row["qp"])
        return
    row["far"], row["key"], row["row"] = far, key, row_there
    row["state"] = READY


@rule
def _find_receive(w: Any, i: int, tag: int) -> int:
    """Return the row of a receive that waits for a message, or -1."""
    left = w.t.at[N_RECEIVES]
    for k in range(RECEIVES):
        if left <= 0:
            break
        row = w.t.receives[k]
        if row["state"] != FREE:
            left -= 1
            if row["tag"] == tag and row["qp"] == i and row["state"] != DONE:
                return k
    return -1


@rule
def begin_send(w: Any, program: int, i: int, tag: int, address: int, length: int, now_ps: int) -> bool:
    """Begin a send; return whether there was room for it."""
    _apart()
    if length <= EAGER:
        return _eager(w, i, DATA_MESSAGE, tag, address, length, 0, 0, 0, now_ps)
    for k in range(SENDS):
        row = w.t.sends[k]
        if row["state"] == FREE:
            row["state"], row["qp"], row["tag"], row["address"], row["length"] = WAITING, i, tag, address, length
            row["program"] = program
            w.t.at[N_SENDS] += 1
            w.t.programs[program]["under_way"] += 1
            for g in range(GRANTS if w.t.at[N_GRANTS] else 0):
                grant = w.t.grants[g]
                if grant["state"] == READY and grant["qp"] == i and grant["tag"] == tag:
                    grant["state"] = FREE
                    w.t.at[N_GRANTS] -= 1
                    _granted(w, row, grant["length"], grant["far"], grant["key"], grant["row"])
                    break
            return True
    return False


@rule
def begin_receive(w: Any, program: int, i: int, tag: int, address: int, length: int, key: int) -> bool:
    """Begin a receive; return whether there was room for it."""
    _apart()
    for k in range(RECEIVES):
        row = w.t.receives[k]
        if row["state"] != FREE:
            continue
        w.t.at[N_RECEIVES] += 1
        row["qp"], row["tag"], row["address"], row["length"] = i, tag, address, length
        row["program"], row["key"], row["adds"] = program, key & KEY_MASK, key >> ADDS_SHIFT
        row["state"] = POSTED_HERE
        if length > EAGER:
            row["state"] = WAITING
            return True
        for p in range(POOL if w.t.at[N_POOLED] else 0):
            kept = w.t.pool[p]
            if kept["state"] == READY and kept["qp"] == i and kept["tag"] == tag:
                kept["state"] = FREE
                w.t.at[N_POOLED] -= 1
                if kept["length"] != length:
                    fail_program(w, program, WRONG_SIZE, i)
                    return True
                _land(row, w.t.at[0] + p * EAGER, length)
                row["state"] = DONE
                break
        return True
    return False


@rule
def waited(w: Any, program: int, i: int, tag: int) -> bool:
    """Return whether a receive is done, and forget it if so."""
    left = w.t.at[N_RECEIVES]
    for k in range(RECEIVES):
        if left <= 0:
            break
        row = w.t.receives[k]
        left -= 1 if row["state"] != FREE else 0
        if row["state"] == DONE and row["tag"] == tag and row["qp"] == i and row["program"] == program:
            row["state"] = FREE
            w.t.at[N_RECEIVES] -= 1
            return True
    return False


@rule
def fail_program(w: Any, number: int, error: int, i: int) -> None:
    """End a program with an error that names a queue pair."""
    _apart()
    program = w.t.programs[number]
    if program["error"] == 0:
        program["error"] = error
        program["culprit"] = i


@rule
def fail_members(w: Any, i: int, error: int) -> None:
    """End every program of every group that queue pair `i` belongs to."""
    _apart()
    for number in range(PROGRAMS):
        program = w.t.programs[number]
        if program["state"] != FREE and w.t.members[program["group"], i]:
            fail_program(w, number, error, i)
    for k in range(SENDS):
        row = w.t.sends[k]
        if row["state"] == UNDER_WAY and row["qp"] == i:
            row["state"] = FREE
            w.t.at[N_SENDS] -= 1


@rule
def run_transfers(w: Any, now_ps: int) -> int:
    """Send grants and long messages that can go now; return how many went."""
    return _send_grants(w, now_ps) + _send_granted(w, now_ps)


@rule
def _send_grants(w: Any, now_ps: int) -> int:
    """Tell the peers of long receives where their messages go; return how many were told."""
    _apart()
    went = 0
    left = w.t.at[N_RECEIVES]
    for k in range(RECEIVES):
        if left <= 0:
            break
        row = w.t.receives[k]
        left -= 1 if row["state"] != FREE else 0
        if row["state"] == WAITING and w.peers[row["qp"]]["failed"] == 0:
            i = row["qp"]
            if _eager(w, i, GRANT_MESSAGE, row["tag"], 0, row["length"], row["address"], row["key"], k, now_ps):
                row["state"] = POSTED_HERE
                went += 1
    return went


@rule
def _send_granted(w: Any, now_ps: int) -> int:
    """Post the long messages whose grants have come; return how many were."""
    _apart()
    went = 0
    left = w.t.at[N_SENDS]
    for k in range(SENDS):
        if left <= 0:
            break
        row = w.t.sends[k]
        left -= 1 if row["state"] != FREE else 0
        if row["state"] == READY and w.peers[row["qp"]]["failed"] == 0:
            word = WORD_DATA << WORD_SHIFT | row["row"]
            i = row["qp"]
            mine = OF_ENGINE | k
            if post_write(w, i, row["address"], row["far"], row["key"], row["length"], word, mine, now_ps) == POSTED:
                row["state"] = UNDER_WAY
                went += 1
    return went


@rule
def sent(w: Any, tag: int) -> None:
    """Note that a long message has been acknowledged."""
    row = w.t.sends[tag & ~OF_ENGINE]
    if row["state"] == UNDER_WAY:
        row["state"] = FREE
        w.t.at[N_SENDS] -= 1
        if row["program"] != NOBODY:
            w.t.programs[row["program"]]["under_way"] -= 1


@rule
def expects(w: Any, i: int) -> bool:
    """Return whether anything is awaited from the peer of queue pair `i`."""
    _apart()
    left = w.t.at[N_RECEIVES]
    for k in range(RECEIVES):
        if left <= 0:
            break
        row = w.t.receives[k]
        if row["state"] != FREE:
            left -= 1
            if row["qp"] == i and row["state"] != DONE:
                return True
    left = w.t.at[N_SENDS]
    for k in range(SENDS):
        if left <= 0:
            break
        row = w.t.sends[k]
        if row["state"] != FREE:
            left -= 1
            if row["qp"] == i:
                return True
    return False
