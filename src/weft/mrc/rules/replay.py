"""A journal's calls made again: the same questions to fresh columns must be decided as they were.

Whatever world has written it, simulated or on sockets. A call notes itself when it is made, so to compare is to look at
two rows. Each rule here runs plain or compiled, as those that it asks.
"""

from typing import NamedTuple

import numpy as np

from weft.core.compile.rules import rule
from weft.mrc import journal
from weft.mrc.columns import DATA, NACK, ON_THE_WIRE, REPLY, SACK, SEND, Receiver, Sender, Words
from weft.mrc.journal import END, FIRST, TIME
from weft.mrc.rules.endpoint import (
    RECEIVING,
    SENDING,
    PairEnd,
    Passage,
    deny_ev,
    next_due,
    next_immediate,
    next_packet,
    next_probe_back,
    next_sack,
    operation_ev,
    pass_time,
    post_message,
    refuse,
    reply_ev,
    report_port,
    take_data,
    take_operation,
    take_probe,
    take_reply,
)


class ReplayRows(NamedTuple):
    """What calls are made with, one row each."""

    out: np.ndarray
    """What a sender wants on the wire."""
    packet: np.ndarray
    """What comes."""
    reply: np.ndarray
    """What is answered."""


def make_replay_rows() -> ReplayRows:
    """Return rows to make calls with."""
    return ReplayRows(np.zeros(1, SEND), np.zeros(1, ON_THE_WIRE), np.zeros(1, REPLY))


@rule
def redo_all(sender: Sender, receiver: Receiver, kept: Words, rows: Words, given: ReplayRows) -> int:
    """Make the calls of `rows` again; return how many came out as they were before the first that did not.

    `kept` is a journal with room for one call, in which the last one stands then.
    """
    for at in range(rows.shape[0]):
        number = rows[at, END]
        kept[0, 0] = 0
        for place in range(kept.shape[1]):
            kept[1, place] = 0
        redo(PairEnd(sender, number, receiver, number, number, kept), rows[at], given)
        for place in range(kept.shape[1]):
            if kept[1, place] != rows[at, place]:
                return at
    return rows.shape[0]


@rule
def redo(end: PairEnd, row: Words, given: ReplayRows) -> None:
    """Make one call again."""
    call = row[journal.CALL]
    if call in (journal.NEXT_DATA, journal.NEXT_CONTROL, journal.TIMER, journal.POST):
        _redo_sending(end, row, given)
    elif call in (journal.ON_SACK, journal.ON_NACK):
        _redo_reply(end, row, given)
    elif call in (journal.OPERATION, journal.OPERATION_EV, journal.PORT_CHANGED, journal.DENY):
        _redo_operation(end, row, given)
    else:
        _redo_receiving(end, row, given)


@rule
def _redo_sending(end: PairEnd, row: Words, given: ReplayRows) -> None:
    """Make a call again that sends, or lets time pass."""
    call, now_ps = row[journal.CALL], row[TIME]
    if call == journal.POST:
        post_message(end, row[FIRST], row[FIRST + 1], row[FIRST + 2], row[FIRST + 3], now_ps)
    elif call == journal.NEXT_DATA:
        next_packet(end, row[FIRST + 6], now_ps, row[FIRST + 5], given.out[0])
    elif call == journal.TIMER:
        pass_time(end, now_ps)
    elif row[FIRST + 3] == RECEIVING:
        next_probe_back(end, now_ps, given.out[0])
    else:
        back = -1 if row[FIRST + 3] == SENDING else end.back
        next_due(PairEnd(end.sender, end.row, end.receiver, back, end.number, end.journal), now_ps, given.out[0])


@rule
def _redo_reply(end: PairEnd, row: Words, given: ReplayRows) -> None:
    """Take in a SACK or a NACK again."""
    packet = given.packet[0]
    packet["kind"] = SACK if row[journal.CALL] == journal.ON_SACK else NACK
    if packet["kind"] == NACK:
        packet["reason"], packet["psn"], packet["value"] = row[FIRST], row[FIRST + 1], row[FIRST + 2]
    else:
        packet["cack_psn"], packet["ack_psn_offset"], packet["value"] = row[FIRST], row[FIRST + 1], row[FIRST + 2]
        packet["verdict"], packet["probe_response"], packet["mpr"] = row[FIRST + 3], row[FIRST + 4], row[FIRST + 5]
        packet["sack_offset"], packet["bitmap_low"] = row[FIRST + 6], row[FIRST + 7]
        packet["bitmap_high"], packet["penalty"] = row[FIRST + 8], row[FIRST + 9]
    take_reply(end, packet, row[TIME])


@rule
def _redo_operation(end: PairEnd, row: Words, given: ReplayRows) -> None:
    """Take in an endpoint operation again, answer one, or what is said of ports and paths here."""
    call, now_ps, packet = row[journal.CALL], row[TIME], given.packet[0]
    if call == journal.PORT_CHANGED:
        report_port(end, row[FIRST], row[FIRST + 1], now_ps)
    elif call == journal.DENY:
        deny_ev(end, row[FIRST], row[FIRST + 1], now_ps)
    elif call == journal.OPERATION_EV:
        operation_ev(end, row[FIRST], Passage(row[FIRST + 1], row[FIRST + 2], 0, 0), now_ps)
    else:
        packet["kind"], packet["id"] = row[FIRST], row[FIRST + 1]
        packet["verdict"], packet["port_status"] = row[FIRST + 2], row[FIRST + 3]
        passage = Passage(row[FIRST + 4], row[FIRST + 5], row[FIRST + 6], 0)
        take_operation(end, packet, passage, now_ps, given.reply[0])


@rule
def _redo_receiving(end: PairEnd, row: Words, given: ReplayRows) -> None:
    """Take in data or a probe again, or ask for what is answered."""
    call, now_ps, packet = row[journal.CALL], row[TIME], given.packet[0]
    packet["kind"] = DATA
    if call == journal.RECEIVE:
        packet["psn"], packet["retransmission"] = row[FIRST], row[FIRST + 2]
        packet["ack_request"], packet["length"] = row[FIRST + 3], row[FIRST + 4]
        packet["immediate"] = row[FIRST + 5]
        take_data(end, packet, Passage(row[FIRST + 1], row[FIRST + 8], row[FIRST + 7], 0), now_ps)
    elif call == journal.REFUSE:
        packet["psn"] = row[FIRST]
        passage = Passage(row[FIRST + 1], row[FIRST + 3], 0, row[FIRST + 2])
        refuse(end, packet, passage, now_ps, given.reply[0])
    elif call == journal.ON_PROBE:
        packet["id"] = row[FIRST]
        take_probe(end, packet, Passage(row[FIRST + 1], row[FIRST + 2], 0, 0), now_ps)
    elif call == journal.TAKE_SACK:
        next_sack(end, now_ps, given.reply[0])
    elif call == journal.REPLY_EV:
        reply_ev(end, now_ps)
    elif call == journal.TAKE_IMMEDIATE:
        next_immediate(end, now_ps)
