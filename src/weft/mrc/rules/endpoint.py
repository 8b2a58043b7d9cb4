"""One end of a queue pair, in every world: packets come in and go out, time passes, ports change.

The rules of `weft.mrc.rules` say what each part of the protocol does; here is what an endpoint does with them: which
rule a packet belongs to, what is answered and on which path, what is due and when. A simulated NIC and a socket's
thread call the same functions and only move bytes. How the parts of a queue pair are kept is their own: a `PairEnd`
names them.

    outcome = take_data(end, packet, passage, now)   # and take_probe, take_reply, take_operation, by the kind
    refuse(end, packet, passage, now, reply)         # where the outcome is ANSWER: a NACK may be due
    next_sack(end, now, reply), reply_ev(end, now)   # SACKs that are due, and the path of each answer
    next_packet(end, -1, now, room, out)             # data, as long as there is room
    pass_time, next_due, deadline                    # what is done by itself, and when

Every call is noted in the end's journal, where it has one.
"""

from typing import NamedTuple

from weft.core.compile.rules import rule
from weft.mrc import journal
from weft.mrc.columns import (
    EV_ANSWER,
    EV_PROBE,
    NACK,
    NEVER,
    NOTHING,
    PORT_ANSWER,
    PORT_STATUS,
    Receiver,
    ReplyRow,
    Sender,
    SendRow,
    SettingsRow,
    Words,
)
from weft.mrc.journal import note
from weft.mrc.rules.acks import on_nack, on_sack
from weft.mrc.rules.control import KEEP_ALIVE, next_control, next_deadline, on_ev_probe_answer, on_timer
from weft.mrc.rules.evs import deny, usable
from weft.mrc.rules.ports import on_port_answer, on_port_status, port_changed
from weft.mrc.rules.receiver import (
    ACCEPTED,
    DUPLICATE,
    OUTSIDE,
    REFUSED,
    DataHeader,
    on_probe,
    receive,
    receive_trimmed,
    refusal,
    take_immediate,
    take_sack,
)
from weft.mrc.rules.reverse import (
    REVERSE_ID,
    next_reverse_probe,
    on_reverse_answer,
    reverse_due_ps,
    reverse_ev,
    way_it_came,
)
from weft.mrc.rules.sender import next_data_on, post
from weft.mrc.wire.packets import TRIMMED_LASTHOP, VERDICT_NONE, VERDICT_SKIP_ONCE

NEW, AGAIN, ANSWER = 1, 2, 3
"""What `take_data` answers: place the bytes; they came before; ask `refuse` for what is to be answered."""


BOTH, SENDING, RECEIVING = 0, 1, 2
"""Which rows of an end were asked for what is due, as its journal says."""


class PairEnd(NamedTuple):
    """One end of a queue pair: the row that sends, the row that receives, and what is noted of them."""

    sender: Sender
    row: int
    receiver: Receiver
    back: int
    """-1 where this end receives no data."""
    number: int
    """What the journal calls it."""
    journal: Words
    """See `weft.mrc.journal`."""


class Passage(NamedTuple):
    """What befell a packet on its way."""

    value: int
    """The 32 bits of the EV that it came on."""
    plane: int
    """The plane of that EV."""
    marked: int
    """Whether a switch set ECN's mark."""
    trimmed: int
    """0, or the NACK's reason where its payload was cut off."""


@rule
def _hear(end: PairEnd, plane: int, now_ps: int) -> None:
    """Note that the peer was heard on a plane, where answers ask for that. Writes `heard`."""
    if end.receiver.params[0]["heard_lately_ps"] > 0 and end.back >= 0:
        end.receiver.heard[end.back, plane] = now_ps


@rule
def _asked_plane(end: PairEnd, passage: Passage) -> int:
    """Return the plane that a packet came on, where that is asked: a world need not know it otherwise."""
    return passage.plane if end.receiver.params[0]["heard_lately_ps"] > 0 else 0


@rule
def post_message(end: PairEnd, address: int, key: int, length: int, immediate: int, now_ps: int) -> int:
    """Take one write, as `sender.post` does; return its fate."""
    answer = post(end.sender, end.row, address, key, length, immediate)
    note(end.journal, journal.POST, end.number, now_ps, (address, key, length, immediate, answer))
    return answer


@rule
def next_packet(end: PairEnd, wish: int, now_ps: int, room: int, out: SendRow) -> int:
    """Fill `out` with the next data packet, as `sender.next_data_on` does."""
    drawn = end.sender.qp[end.row]["draws"]
    found = next_data_on(end.sender, end.row, wish, now_ps, room, out)
    if found != NOTHING:
        note(
            end.journal, journal.NEXT_DATA, end.number, now_ps,
            (out["seq"], out["ev"], out["value"], out["retransmission"], out["length"], room, wish),
        )  # fmt: skip
    elif end.sender.qp[end.row]["draws"] != drawn or end.sender.qp[end.row]["stalled_ps"] == now_ps:
        # No path can be used; looking for one has moved the rotation on, or begun the wait for one.
        note(end.journal, journal.NEXT_DATA, end.number, now_ps, (-1, 0, 0, 0, 0, room, wish))
    return found


@rule
def take_data(end: PairEnd, packet: ReplyRow, passage: Passage, now_ps: int) -> int:
    """Take in a data packet, trimmed or whole; return NEW where its bytes are to be placed, AGAIN, or ANSWER."""
    # A trimmed packet brings no bytes: only `refuse` looks at it.
    if passage.trimmed:
        return ANSWER
    _hear(end, passage.plane, now_ps)
    header = DataHeader(
        packet["psn"], passage.value, passage.marked, packet["retransmission"], packet["ack_request"],
        packet["length"], packet["immediate"],
    )  # fmt: skip
    verdict = receive(end.receiver, end.back, header, now_ps)
    note(
        end.journal, journal.RECEIVE, end.number, now_ps,
        (header.psn, header.value, header.retransmission, header.ack_request, header.length, header.immediate,
         verdict, header.marked, _asked_plane(end, passage)),
    )  # fmt: skip
    if verdict == ACCEPTED:
        return NEW
    return AGAIN if verdict == DUPLICATE else ANSWER


@rule
def refuse(end: PairEnd, packet: ReplyRow, passage: Passage, now_ps: int, reply: ReplyRow) -> int:
    """Fill `reply` with the NACK of data that came trimmed or is not taken, and return NACK, or return NOTHING."""
    psn = packet["psn"]
    if passage.trimmed:
        _hear(end, passage.plane, now_ps)
        last = 1 if passage.trimmed == TRIMMED_LASTHOP else 0
        due = receive_trimmed(end.receiver, end.back, psn, passage.value, last, reply)
    else:
        verdict = REFUSED if end.receiver.qp[end.back]["error"] != 0 else OUTSIDE
        due = refusal(end.receiver, end.back, verdict, psn, passage.value, reply)
    reason = reply["reason"] if due != NOTHING else 0
    note(
        end.journal, journal.REFUSE, end.number, now_ps,
        (psn, passage.value, passage.trimmed, _asked_plane(end, passage), due, reason),
    )  # fmt: skip
    return due


@rule
def take_probe(end: PairEnd, packet: ReplyRow, passage: Passage, now_ps: int) -> None:
    """Take in a reliability probe: a SACK is due at once."""
    _hear(end, passage.plane, now_ps)
    on_probe(end.receiver, end.back, packet["id"], passage.value, now_ps)
    note(end.journal, journal.ON_PROBE, end.number, now_ps, (packet["id"], passage.value, _asked_plane(end, passage)))


@rule
def take_reply(end: PairEnd, packet: ReplyRow, now_ps: int) -> None:
    """Take in a SACK or a NACK."""
    sender, qp = end.sender, end.sender.qp[end.row]
    if packet["kind"] == NACK:
        on_nack(sender, end.row, packet, now_ps)
        values = (packet["reason"], packet["psn"], packet["value"], qp["waiting"])
        note(end.journal, journal.ON_NACK, end.number, now_ps, values)
        return
    acked = on_sack(sender, end.row, packet, now_ps)
    note(
        end.journal, journal.ON_SACK, end.number, now_ps,
        (packet["cack_psn"], packet["ack_psn_offset"], packet["value"], packet["verdict"], packet["probe_response"],
         packet["mpr"], packet["sack_offset"], packet["bitmap_low"], packet["bitmap_high"], packet["penalty"],
         acked, qp["una"], qp["waiting"]),
    )  # fmt: skip


@rule
def take_operation(end: PairEnd, packet: ReplyRow, passage: Passage, now_ps: int, reply: ReplyRow) -> int:
    """Take in an endpoint operation or the answer to one; return the kind of the answer in `reply`, or NOTHING."""
    kind, number = packet["kind"], packet["id"]
    answer = NOTHING
    if kind in (EV_PROBE, PORT_STATUS):
        _hear(end, passage.plane, now_ps)
        if kind == PORT_STATUS:
            on_port_status(end.sender, end.row, packet["port_status"])
        answer = EV_ANSWER if kind == EV_PROBE else PORT_ANSWER
        reply["kind"] = answer
        reply["id"] = number
        reply["verdict"] = VERDICT_SKIP_ONCE if passage.marked else VERDICT_NONE
    elif kind == PORT_ANSWER:
        on_port_answer(end.sender, end.row, number)
    elif kind == EV_ANSWER and number & REVERSE_ID:
        # Ids tell whose probe it was: the receiver's, of a reverse path, or the sender's, of a retired EV.
        if end.back >= 0:
            on_reverse_answer(end.sender, end.row, end.receiver, end.back, number)
    elif kind == EV_ANSWER and number != KEEP_ALIVE:
        on_ev_probe_answer(end.sender, end.row, number, packet["verdict"])
    said = packet["port_status"] if kind == PORT_STATUS else 0
    judged = packet["verdict"] if kind == EV_ANSWER else 0
    # The way that an answer took is nobody's concern.
    value, plane = (passage.value, passage.plane) if answer != NOTHING else (0, 0)
    note(
        end.journal, journal.OPERATION, end.number, now_ps,
        (kind, number, judged, said, value, plane, passage.marked, answer),
    )  # fmt: skip
    return answer


@rule
def operation_ev(end: PairEnd, number: int, passage: Passage, now_ps: int) -> int:
    """Return the EV for the answer to the endpoint operation `number`, or -1.

    An end to which data has come answers as it acknowledges, over all planes in turn; one that only sends has proved no
    such ways, and begins with the plane on which it was asked. Whether it is there at all is asked on every plane, and
    answered on the EV that the question took, so that it is heard if any of them is whole.
    """
    planes = end.sender.params[0]["planes"]
    found = -1
    if number == KEEP_ALIVE:
        found = way_it_came(end.sender, end.row, passage.value)
    elif end.back >= 0 and end.receiver.qp[end.back]["heard_ps"] >= 0:
        return reply_ev(end, now_ps)
    else:
        for step in range(planes):
            plane = (passage.plane + step) % planes
            if found < 0 and usable(end.sender, end.row, plane, -1):
                found = end.sender.planes[end.row, plane]["reverse"]
    values = (number, passage.value, passage.plane, found)
    note(end.journal, journal.OPERATION_EV, end.number, now_ps, values)
    return found


@rule
def reply_ev(end: PairEnd, now_ps: int) -> int:
    """Return the EV for the next SACK or NACK, or -1: rather of a plane on which the peer was heard lately.

    As published all planes take turns; where `heard_lately_ps` is set, one that has gone down silently would otherwise
    go on swallowing its share of the answers.
    """
    lately_ps = end.sender.params[0]["heard_lately_ps"]
    found = reverse_ev(end.sender, end.row, end.receiver, end.back)
    if lately_ps > 0 and found >= 0:
        found = _heard_lately(end, found, now_ps - lately_ps)
    note(end.journal, journal.REPLY_EV, end.number, now_ps, (found,))
    return found


@rule
def _heard_lately(end: PairEnd, first: int, since_ps: int) -> int:
    """Return `first`, or the next EV for answers on whose plane something has come since, if there is one."""
    found = first
    for _ in range(end.sender.params[0]["planes"]):
        if end.receiver.heard[end.back, end.sender.evs[end.row, found]["plane"]] >= since_ps:
            return found
        found = reverse_ev(end.sender, end.row, end.receiver, end.back)
        if found < 0:
            break
    return first


@rule
def next_sack(end: PairEnd, now_ps: int, reply: ReplyRow) -> int:
    """Fill `reply` with a SACK that is due and return SACK, or return NOTHING; call it until it does."""
    due = take_sack(end.receiver, end.back, reply)
    if due != NOTHING:
        note(
            end.journal, journal.TAKE_SACK, end.number, now_ps,
            (reply["cack_psn"], reply["ack_psn_offset"], reply["value"], reply["verdict"], reply["probe_response"],
             reply["sack_offset"], reply["bitmap_low"], reply["bitmap_high"]),
        )  # fmt: skip
    return due


@rule
def next_immediate(end: PairEnd, now_ps: int) -> int:
    """Return the next immediate that everything before it has landed for, or -1."""
    found = take_immediate(end.receiver, end.back)
    if found >= 0:
        note(end.journal, journal.TAKE_IMMEDIATE, end.number, now_ps, (found,))
    return found


@rule
def pass_time(end: PairEnd, now_ps: int) -> None:
    """Let time pass for the sending row."""
    on_timer(end.sender, end.row, now_ps)
    qp = end.sender.qp[end.row]
    note(end.journal, journal.TIMER, end.number, now_ps, (qp["error"], qp["timeouts"]))


@rule
def next_due(end: PairEnd, now_ps: int, out: SendRow) -> int:
    """Fill `out` with a control packet that is due and return its kind, or return NOTHING; call it until it does."""
    found = next_control(end.sender, end.row, now_ps, -1, out)
    if found == NOTHING:
        found = _probe_back(end, now_ps, out)
    _note_control(end, found, out, BOTH if end.back >= 0 else SENDING, now_ps)
    return found


@rule
def next_probe_back(end: PairEnd, now_ps: int, out: SendRow) -> int:
    """Do what `next_due` does where the sending row looks after itself: a probe of the reverse path may be due."""
    found = _probe_back(end, now_ps, out)
    _note_control(end, found, out, RECEIVING, now_ps)
    return found


@rule
def _probe_back(end: PairEnd, now_ps: int, out: SendRow) -> int:
    """Fill `out` with a probe of the reverse path where one is due."""
    if end.back < 0:
        return NOTHING
    return next_reverse_probe(end.sender, end.row, end.receiver, end.back, now_ps, out)


@rule
def _note_control(end: PairEnd, found: int, out: SendRow, asked: int, now_ps: int) -> None:
    """Note a control packet, or that there is none: then `out` still holds the packet before."""
    if found != NOTHING:
        note(end.journal, journal.NEXT_CONTROL, end.number, now_ps, (found, out["ev"], out["id"], asked))
    else:
        note(end.journal, journal.NEXT_CONTROL, end.number, now_ps, (found, 0, 0, asked))


@rule
def deadline(end: PairEnd) -> int:
    """Return when this end has something to do by itself: it may be early, never late."""
    back_ps = reverse_due_ps(end.receiver, end.back) if end.back >= 0 else NEVER
    return min(next_deadline(end.sender, end.row), back_ps)


@rule
def next_look_ps(params: SettingsRow, due_ps: int, now_ps: int) -> int:
    """Return when to look again at an end whose time was just served and that is due at `due_ps`."""
    # What is due cannot be sent: every plane is down. It is asked again a little later.
    return due_ps if due_ps > now_ps else now_ps + params["base_rtt_ps"]


@rule
def report_port(end: PairEnd, plane: int, up: int, now_ps: int) -> None:
    """Note that our port of `plane` went up (1) or down (0)."""
    port_changed(end.sender, end.row, plane, up, now_ps)
    note(end.journal, journal.PORT_CHANGED, end.number, now_ps, (plane, up))


@rule
def deny_ev(end: PairEnd, value: int, denied: int, now_ps: int) -> int:
    """Carry out the controller's word on the EV with the bits `value`; return how many it met."""
    met = deny(end.sender, end.row, value, denied)
    note(end.journal, journal.DENY, end.number, now_ps, (value, denied, met))
    return met
