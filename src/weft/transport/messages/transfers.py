"""Messages with names between two endpoints, and programs made of them, all inside the compiled thread.

A write needs an address at the peer, so a message goes in one of two ways. A short one is written into the next slot of
the peer's inbox, which was agreed when the queue pair was made, and is copied out there (*eager*). A long one waits for
the receiver's *grant*, address and key of the memory that it is for, and is then written straight into it. Both
sides name a message by a 64-bit tag that is used once, so that nothing depends on the order of calls.

Who sends and receives are programs (`messages.running`).
"""

from typing import NamedTuple

import numpy as np

from weft.core.compile.rules import rule
from weft.mrc.rules.endpoint import post_message
from weft.mrc.rules.sender import POSTED
from weft.transport.memory import native, tables
from weft.transport.memory.arithmetic import reduce_at, width_of
from weft.transport.memory.layout import EndpointState, end_of

_apart, _move = native.apart, native.move


class Write(NamedTuple):
    """A write to a peer's memory."""

    local: int
    """Where the bytes lie here."""
    far: int
    """Where they go there."""
    key: int
    """What opens the memory there."""
    length: int
    """Bytes."""
    immediate: int
    """What the peer reads once everything before it has landed; -1 for none."""
    tag: int
    """What the owner calls it; -1 where nobody wants to know of its end."""


class Grant(NamedTuple):
    """Where a long message is to go, in the receiver's words."""

    length: int
    far: int
    key: int
    row: int
    """The receiver's row, which the immediate of the message names."""


class Transfer(NamedTuple):
    """One message of a program, seen from one side."""

    program: int
    pair: int
    tag: int
    address: int
    length: int


@rule
def post_write(state: EndpointState, pair: int, write: Write, now_ps: int) -> int:
    """Post a write; return the protocol's answer."""
    _apart()
    answer = post_message(end_of(state, pair), write.far, write.key, write.length, write.immediate, now_ps)
    if answer == POSTED:
        # The protocol counts messages without end; its table holds a power of two of them.
        index = (state.sender.qp[pair]["msg_end"] - 1) & state.sender.params[0]["message_mask"]
        state.source[pair, index] = write.local
        state.tags[pair, index] = write.tag
        state.peers[pair]["dirty"] = 1
    return answer


@rule
def _send_eager(state: EndpointState, pair: int, kind: int, transfer: Transfer, grant: Grant, now_ps: int) -> bool:
    """Write a short message or a grant into the peer's inbox; return whether there was room."""
    _apart()
    peer = state.peers[pair]
    in_flight = peer["eager_sent"] - peer["eager_back"]
    # Grants have slots that data may not take: else two ends full of data would wait for each other's grants.
    if in_flight >= tables.SLOTS or (kind == tables.DATA_MESSAGE and in_flight >= tables.SLOTS - tables.RESERVED):
        return False
    slot = peer["eager_sent"] % tables.SLOTS
    place = (pair * tables.SLOTS + slot) * tables.SLOT
    words = state.transfers.bounce_words
    at = place >> 3
    words[at], words[at + 1], words[at + 2] = kind, transfer.tag, transfer.length
    # Credit for the peer's own messages rides along, so that bare credits are rare.
    words[at + 3], words[at + 4], words[at + 5], words[at + 6] = grant.far, grant.key, grant.row, peer["eager_taken"]
    size = tables.HEAD
    if kind == tables.DATA_MESSAGE:
        # Copied away: the program may go on and change its memory before the write is acknowledged.
        _move(state.transfers.at[2] + place + tables.HEAD, transfer.address, transfer.length)
        size += transfer.length
    word = tables.WORD_EAGER << tables.WORD_SHIFT | slot
    far = peer["far_inbox"] + slot * tables.SLOT
    write = Write(state.transfers.at[2] + place, far, peer["far_key"], size, word, -1)
    if post_write(state, pair, write, now_ps) != POSTED:
        return False
    peer["eager_sent"] += 1
    peer["eager_reported"] = peer["eager_taken"]
    return True


@rule
def take_word(state: EndpointState, pair: int, word: int, now_ps: int) -> None:
    """Take in the immediate of a message that has landed."""
    _apart()
    peer = state.peers[pair]
    kind, value = word >> tables.WORD_SHIFT, word & tables.WORD_MASK
    if kind == tables.WORD_EAGER and value < tables.SLOTS:
        _take_eager(state, pair, value)
        peer["eager_taken"] += 1
        if peer["eager_taken"] - peer["eager_reported"] >= tables.CREDIT_EVERY:
            give_credit(state, pair, now_ps)
    elif kind == tables.WORD_DATA and value < tables.RECEIVES:
        row = state.transfers.receives[value]
        if row["state"] == tables.POSTED_HERE and row["qp"] == pair:
            row["state"] = tables.DONE
    elif kind == tables.WORD_CREDIT:
        # Only the low 24 bits of the count travel; it never goes back, so the difference is what is new.
        back = peer["eager_back"]
        peer["eager_back"] = back + ((value - back) & tables.WORD_MASK)
    elif kind == tables.WORD_BYE:
        peer["bye"] = 1
    elif kind == tables.WORD_ABORT:
        _reported_gone(state, value)


@rule
def _reported_gone(state: EndpointState, rank: int) -> None:
    """Take a rank for gone because a peer says so."""
    for other in range(state.hub[0]["queue_pairs"]):
        peer = state.peers[other]
        if peer["open"] and peer["rank"] == rank and peer["engine"] and peer["failed"] == 0:
            peer["failed"] = tables.REPORTED_GONE


@rule
def say(state: EndpointState, pair: int, word: int, now_ps: int) -> int:
    """Send a bare word; return the protocol's answer."""
    peer = state.peers[pair]
    local = state.transfers.at[2] + pair * tables.SLOTS * tables.SLOT
    # A write has at least one byte. These eight land in the unused end of the first slot's head: only the word matters.
    write = Write(local, peer["far_inbox"] + tables.HEAD - 8, peer["far_key"], 8, word, -1)
    return post_write(state, pair, write, now_ps)


@rule
def give_credit(state: EndpointState, pair: int, now_ps: int) -> None:
    """Tell the peer how many of its messages have been taken."""
    peer = state.peers[pair]
    if (
        say(state, pair, tables.WORD_CREDIT << tables.WORD_SHIFT | (peer["eager_taken"] & tables.WORD_MASK), now_ps)
        == POSTED
    ):
        peer["eager_reported"] = peer["eager_taken"]


@rule
def _take_eager(state: EndpointState, pair: int, slot: int) -> None:
    """Take a message out of a slot of the inbox."""
    _apart()
    peer = state.peers[pair]
    place = (pair * tables.SLOTS + slot) * tables.SLOT
    words = state.transfers.inbox_words
    at = place >> 3
    kind, tag, length = words[at], words[at + 1], words[at + 2]
    # Slots may be read out of order, and a peer may lie: credit only grows, and never beyond what was sent.
    peer["eager_back"] = max(peer["eager_back"], min(words[at + 6], peer["eager_sent"]))
    if kind == tables.GRANT_MESSAGE:
        _take_grant(state, pair, tag, Grant(length, words[at + 3], words[at + 4], words[at + 5]))
        return
    if kind != tables.DATA_MESSAGE or length < 0 or length > tables.EAGER:
        return
    source = state.transfers.at[1] + place + tables.HEAD
    found = _find_receive(state, pair, tag, False)
    if found >= 0:
        row = state.transfers.receives[found]
        if row["length"] != length:
            fail_program(state, row["program"], tables.WRONG_SIZE, pair)
            return
        _land(row, source, length)
        row["state"] = tables.DONE
        return
    # Nobody waits for it yet. It is copied away, so that its slot is free for the peer whatever the program does.
    for index in range(tables.POOL):
        row = state.transfers.pool[index]
        if row["state"] == tables.FREE:
            row["state"], row["qp"], row["tag"], row["length"] = tables.READY, pair, tag, length
            _move(state.transfers.at[0] + index * tables.EAGER, source, length)
            state.transfers.at[tables.N_POOLED] += 1
            return
    peer["failed"] = tables.OVERFULL


@rule
def _land(row: np.void, source: int, length: int) -> None:
    """Bring a short message to where a receive wants it, or combine it with what is there."""
    adds = row["adds"]
    if adds > 0:
        reduce_at(adds - 1, row["address"], source, length // width_of(adds - 1))
    else:
        _move(row["address"], source, length)


@rule
def _take_grant(state: EndpointState, pair: int, tag: int, grant: Grant) -> None:
    """Take in the peer's grant: where a long message is to go."""
    _apart()
    for index in range(tables.SENDS if state.transfers.at[tables.N_SENDS] else 0):
        row = state.transfers.sends[index]
        if row["state"] == tables.WAITING and row["qp"] == pair and row["tag"] == tag:
            _granted(state, row, grant)
            return
    for index in range(tables.GRANTS):
        row = state.transfers.grants[index]
        if row["state"] == tables.FREE:
            row["state"], row["qp"], row["tag"], row["length"] = tables.READY, pair, tag, grant.length
            row["far"], row["key"], row["row"] = grant.far, grant.key, grant.row
            state.transfers.at[tables.N_GRANTS] += 1
            return
    state.peers[pair]["failed"] = tables.OVERFULL


@rule
def _granted(state: EndpointState, row: np.void, grant: Grant) -> None:
    """Let a send go to where the grant says."""
    if grant.length != row["length"]:
        fail_program(state, row["program"], tables.WRONG_SIZE, row["qp"])
        return
    row["far"], row["key"], row["row"] = grant.far, grant.key, grant.row
    row["state"] = tables.READY


@rule
def _find_receive(state: EndpointState, pair: int, tag: int, done: bool) -> int:
    """Return the row of the receive of a message, one that is done or one that is not; -1 where there is none."""
    # Rows in use are counted, so that a search ends behind the last of them instead of at the end of the table.
    left = state.transfers.at[tables.N_RECEIVES]
    for index in range(tables.RECEIVES):
        if left <= 0:
            break
        row = state.transfers.receives[index]
        if row["state"] != tables.FREE:
            left -= 1
            if row["tag"] == tag and row["qp"] == pair and (row["state"] == tables.DONE) == done:
                return index
    return -1


@rule
def begin_send(state: EndpointState, transfer: Transfer, now_ps: int) -> bool:
    """Begin a send; return whether there was room for it."""
    _apart()
    pair, tag = transfer.pair, transfer.tag
    if transfer.length <= tables.EAGER:
        return _send_eager(state, pair, tables.DATA_MESSAGE, transfer, Grant(0, 0, 0, 0), now_ps)
    for index in range(tables.SENDS):
        row = state.transfers.sends[index]
        if row["state"] == tables.FREE:
            row["state"], row["qp"], row["tag"], row["program"] = tables.WAITING, pair, tag, transfer.program
            row["address"], row["length"] = transfer.address, transfer.length
            state.transfers.at[tables.N_SENDS] += 1
            state.transfers.programs[transfer.program]["in_flight"] += 1
            # The grant may have come first: the receiver does not wait for anybody to ask.
            for place in range(tables.GRANTS if state.transfers.at[tables.N_GRANTS] else 0):
                early = state.transfers.grants[place]
                if early["state"] == tables.READY and early["qp"] == pair and early["tag"] == tag:
                    early["state"] = tables.FREE
                    state.transfers.at[tables.N_GRANTS] -= 1
                    _granted(state, row, Grant(early["length"], early["far"], early["key"], early["row"]))
                    break
            return True
    return False


@rule
def begin_receive(state: EndpointState, transfer: Transfer, key: int) -> bool:
    """Begin a receive; return whether there was room for it."""
    _apart()
    for index in range(tables.RECEIVES):
        row = state.transfers.receives[index]
        if row["state"] != tables.FREE:
            continue
        state.transfers.at[tables.N_RECEIVES] += 1
        row["qp"], row["tag"], row["program"] = transfer.pair, transfer.tag, transfer.program
        row["address"], row["length"] = transfer.address, transfer.length
        row["key"], row["adds"] = key & tables.KEY_MASK, key >> tables.ADDS_SHIFT
        if transfer.length > tables.EAGER:
            # It waits for a slot in the peer's inbox to send its grant.
            row["state"] = tables.WAITING
            return True
        row["state"] = tables.POSTED_HERE
        _land_pooled(state, transfer, row)
        return True
    return False


@rule
def _land_pooled(state: EndpointState, transfer: Transfer, row: np.void) -> None:
    """Give a new receive its short message, where that came before it was asked for."""
    for place in range(tables.POOL if state.transfers.at[tables.N_POOLED] else 0):
        kept = state.transfers.pool[place]
        if kept["state"] == tables.READY and kept["qp"] == transfer.pair and kept["tag"] == transfer.tag:
            kept["state"] = tables.FREE
            state.transfers.at[tables.N_POOLED] -= 1
            if kept["length"] != transfer.length:
                fail_program(state, transfer.program, tables.WRONG_SIZE, transfer.pair)
                return
            _land(row, state.transfers.at[0] + place * tables.EAGER, transfer.length)
            row["state"] = tables.DONE
            return


@rule
def waited(state: EndpointState, program: int, pair: int, tag: int) -> bool:
    """Return whether a receive is done, and forget it if so."""
    found = _find_receive(state, pair, tag, True)
    if found < 0 or state.transfers.receives[found]["program"] != program:
        return False
    state.transfers.receives[found]["state"] = tables.FREE
    state.transfers.at[tables.N_RECEIVES] -= 1
    return True


@rule
def fail_program(state: EndpointState, number: int, error: int, pair: int) -> None:
    """End a program with an error that names a queue pair."""
    _apart()
    program = state.transfers.programs[number]
    # The first error is the cause; what follows from it must not hide it.
    if program["error"] == 0:
        program["error"] = error
        program["culprit"] = pair


@rule
def fail_members(state: EndpointState, pair: int, error: int) -> None:
    """End every program of every group that a queue pair belongs to."""
    _apart()
    for number in range(tables.PROGRAMS):
        program = state.transfers.programs[number]
        if program["state"] != tables.FREE and state.transfers.members[program["group"], pair]:
            fail_program(state, number, error, pair)
    for index in range(tables.SENDS):
        row = state.transfers.sends[index]
        if row["state"] == tables.IN_FLIGHT and row["qp"] == pair:
            row["state"] = tables.FREE
            state.transfers.at[tables.N_SENDS] -= 1


@rule
def run_transfers(state: EndpointState, now_ps: int) -> int:
    """Send grants and long messages that can go now; return how many went."""
    return _send_grants(state, now_ps) + _send_granted(state, now_ps)


@rule
def _send_grants(state: EndpointState, now_ps: int) -> int:
    """Tell the peers of long receives where their messages go; return how many went."""
    _apart()
    went = 0
    left = state.transfers.at[tables.N_RECEIVES]
    for index in range(tables.RECEIVES):
        if left <= 0:
            break
        row = state.transfers.receives[index]
        left -= 1 if row["state"] != tables.FREE else 0
        if row["state"] == tables.WAITING and state.peers[row["qp"]]["failed"] == 0:
            transfer = Transfer(row["program"], row["qp"], row["tag"], 0, row["length"])
            grant = Grant(row["length"], row["address"], row["key"], index)
            if _send_eager(state, row["qp"], tables.GRANT_MESSAGE, transfer, grant, now_ps):
                row["state"] = tables.POSTED_HERE
                went += 1
    return went


@rule
def _send_granted(state: EndpointState, now_ps: int) -> int:
    """Post the long messages whose grants have come; return how many were."""
    _apart()
    went = 0
    left = state.transfers.at[tables.N_SENDS]
    for index in range(tables.SENDS):
        if left <= 0:
            break
        row = state.transfers.sends[index]
        left -= 1 if row["state"] != tables.FREE else 0
        if row["state"] == tables.READY and state.peers[row["qp"]]["failed"] == 0:
            word = tables.WORD_DATA << tables.WORD_SHIFT | row["row"]
            # The tag of a program's own write has a bit that no tag of a user has.
            write = Write(row["address"], row["far"], row["key"], row["length"], word, tables.OF_ENGINE | index)
            if post_write(state, row["qp"], write, now_ps) == POSTED:
                row["state"] = tables.IN_FLIGHT
                went += 1
    return went


@rule
def sent(state: EndpointState, tag: int) -> None:
    """Note that a long message has been acknowledged."""
    row = state.transfers.sends[tag & ~tables.OF_ENGINE]
    if row["state"] == tables.IN_FLIGHT:
        row["state"] = tables.FREE
        state.transfers.at[tables.N_SENDS] -= 1
        if row["program"] != tables.NOBODY:
            state.transfers.programs[row["program"]]["in_flight"] -= 1


@rule
def expects(state: EndpointState, pair: int) -> bool:
    """Return whether anything is awaited from the peer of a queue pair."""
    _apart()
    left = state.transfers.at[tables.N_RECEIVES]
    for index in range(tables.RECEIVES):
        if left <= 0:
            break
        row = state.transfers.receives[index]
        if row["state"] != tables.FREE:
            left -= 1
            if row["qp"] == pair and row["state"] != tables.DONE:
                return True
    left = state.transfers.at[tables.N_SENDS]
    for index in range(tables.SENDS):
        if left <= 0:
            break
        row = state.transfers.sends[index]
        if row["state"] != tables.FREE:
            left -= 1
            if row["qp"] == pair:
                return True
    return False
