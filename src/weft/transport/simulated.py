"""Simulation against sockets: what came to the ends of a simulated run comes to those of an endpoint, as bytes.

A journal of `weft.netsim` says what packets came, when time passed, when there was room and what was posted. Here each
of those is done to the columns of an endpoint: packets are written as datagrams into its receive ring and read by its
thread's code, and what that decides is noted in its own journal. Nothing is sent. Both journals must be equal.
"""

import numpy as np

from weft.core.compile.rules import compiled, rule
from weft.mrc import journal
from weft.mrc.columns import EV_ANSWER, EV_PROBE, PORT_ANSWER, PORT_STATUS, Receiver, Sender
from weft.mrc.journal import END, FIRST, TIME
from weft.mrc.rules.endpoint import deny_ev, report_port
from weft.mrc.wire.icrc import ICRC_BYTES
from weft.mrc.wire.inplace import (
    EndpointResponse,
    pack_data,
    pack_probe,
    pack_reply,
    pack_request,
    pack_response,
    put16,
    put32,
)
from weft.mrc.wire.packets import (
    ECN_MARKED,
    ONLY,
    OPERATION_EV_PROBE,
    OPERATION_PORT_STATUS,
    TRIMMED_DSCP,
    TRIMMED_LAST_HOP_DSCP,
    TRIMMED_LASTHOP,
)
from weft.transport.memory.layout import PREFIX, EndpointState, address_of, end_of, make_state
from weft.transport.memory.tables import make_transfers
from weft.transport.messages.transfers import Write, post_write
from weft.transport.packets.arrivals import acknowledge, take_packet
from weft.transport.packets.departures import CONTEXT_REQUEST, CONTEXT_RESPONSE, send_data, serve_time

_NUMBER, _KEY = 0x5000, 0


def stand_in(params: np.ndarray, ends: tuple[Sender, Receiver], *, paths: int, rows: int) -> EndpointState:
    """Return the columns of an endpoint whose queue pairs begin as `ends`, with a journal of so many rows."""
    sender, receiver = ends
    count = len(sender.qp)
    state = make_state(params, queue_pairs=count, transfers=make_transfers(count), journal_rows=rows, capture_rows=0)
    state = state._replace(sender=sender, receiver=receiver)
    state.hub[0]["stride"] = paths
    state.peers["open"] = 1
    state.peers["number"] = state.peers["remote"] = _NUMBER + np.arange(count)
    # All bytes land in one place: what they are is not the protocol's.
    region = state.regions[_KEY]
    region["open"], region["key"] = 1, _KEY
    region["address"], region["size"] = address_of(state.rx) + state.rx_iov[1, 1], int(params[0]["payload"])
    return state


def replay_simulated(state: EndpointState, rows: np.ndarray, *, fast: bool = False) -> int:
    """Do to an endpoint what a simulation's journal says; return how many of its rows came out equal, from the first.

    For pairs that carry data one way: where both ways share an end, a simulation asks its halves at times of their own.
    """
    (compiled(do_all) if fast else do_all)(state, rows)
    here = journal.written(state.journal)
    count = min(len(here), len(rows))
    differs = here[:count] != rows[:count]
    # Which rows were asked is no decision: an end that receives nothing has an idle row here.
    differs[rows[:count, journal.CALL] == journal.NEXT_CONTROL, FIRST + 3] = False
    wrong = np.flatnonzero(differs.any(axis=1))
    return int(wrong[0]) if len(wrong) else count


@rule
def do_all(state: EndpointState, rows: np.ndarray) -> None:
    """Do everything that `rows` say came from outside, in order; the rest must follow from it."""
    for at in range(rows.shape[0]):
        do_one(state, rows[at])
        # What is queued is what the journal says; it goes nowhere.
        state.hub[0]["first"] = state.hub[0]["staged"] = 0


@rule
def do_one(state: EndpointState, row: np.ndarray) -> None:
    """Do what one row says came from outside, if it does."""
    call, pair, now_ps = row[journal.CALL], row[END], row[TIME]
    if call == journal.POST:
        post_write(state, pair, Write(0, row[FIRST], row[FIRST + 1], row[FIRST + 2], row[FIRST + 3], -1), now_ps)
    elif call == journal.NEXT_DATA:
        state.hub[0]["room"] = row[FIRST + 5]
        send_data(state, pair, now_ps, 1)
    elif call == journal.TIMER:
        serve_time(state, pair, now_ps)
    elif call == journal.PORT_CHANGED:
        report_port(end_of(state, pair), row[FIRST], row[FIRST + 1], now_ps)
    elif call == journal.DENY:
        deny_ev(end_of(state, pair), row[FIRST], row[FIRST + 1], now_ps)
    elif call in (journal.RECEIVE, journal.REFUSE):
        _bring_data(state, row)
    elif call in (journal.ON_SACK, journal.ON_NACK, journal.ON_PROBE, journal.OPERATION):
        _bring_control(state, row)


@rule
def _land(state: EndpointState, row: np.ndarray, value: int, size: int, traffic_class: int) -> None:
    """Let the thread take in the datagram that stands at the beginning of the ring."""
    put32(state.rx, 0, value)
    state.hub[0]["traffic_class"] = traffic_class
    take_packet(state, 0, size, row[TIME])
    acknowledge(state, row[END], row[TIME])


@rule
def _bring_data(state: EndpointState, row: np.ndarray) -> None:
    """Bring a data packet, whole or cut to its headers; what is refused without being cut follows from the former."""
    cut = row[FIRST + 2] if row[journal.CALL] == journal.REFUSE else 0
    if row[journal.CALL] == journal.REFUSE and cut == 0:
        return
    send = state.out[0]
    send["opcode"], send["psn"], send["msn"], send["immediate"] = ONLY, row[FIRST], 0, -1
    send["address"], send["key"] = state.regions[_KEY]["address"], _KEY
    send["retransmission"] = send["ack_request"] = 0
    send["length"] = 1
    if cut == 0:
        send["retransmission"], send["ack_request"], send["length"] = row[FIRST + 2], row[FIRST + 3], row[FIRST + 4]
    end = pack_data(state.rx, PREFIX, state.peers[row[END]]["number"], send, 0)
    if cut > 0:
        dscp = TRIMMED_LAST_HOP_DSCP if cut == TRIMMED_LASTHOP else TRIMMED_DSCP
        _land(state, row, row[FIRST + 1], end, dscp << 2)
    else:
        _land(state, row, row[FIRST + 1], end + send["length"] + ICRC_BYTES, ECN_MARKED if row[FIRST + 7] else 0)


@rule
def _bring_control(state: EndpointState, row: np.ndarray) -> None:
    """Bring a control packet."""
    call, number = row[journal.CALL], state.peers[row[END]]["number"]
    value, marked = 0, 0
    if call == journal.ON_PROBE:
        end = pack_probe(state.rx, PREFIX, number, row[FIRST], 0)
        value = row[FIRST + 1]
    elif call == journal.OPERATION:
        end = _write_operation(state, row)
        value, marked = row[FIRST + 4], row[FIRST + 6]
    else:
        end = _write_reply(state, row)
    _land(state, row, value, end + ICRC_BYTES, ECN_MARKED if marked else 0)


@rule
def _write_reply(state: EndpointState, row: np.ndarray) -> int:
    """Write a SACK or a NACK into the ring; return where it ends."""
    reply = state.reply[0]
    reply["reason"] = reply["received_units"] = reply["ooo_count"] = reply["stamp"] = reply["penalty"] = 0
    if row[journal.CALL] == journal.ON_NACK:
        reply["reason"], reply["psn"], reply["value"] = row[FIRST], row[FIRST + 1], row[FIRST + 2]
    else:
        reply["cack_psn"], reply["ack_psn_offset"], reply["value"] = row[FIRST], row[FIRST + 1], row[FIRST + 2]
        reply["verdict"], reply["probe_response"], reply["mpr"] = row[FIRST + 3], row[FIRST + 4], row[FIRST + 5]
        reply["sack_offset"], reply["bitmap_low"] = row[FIRST + 6], row[FIRST + 7]
        reply["bitmap_high"], reply["penalty"] = row[FIRST + 8], row[FIRST + 9]
    return pack_reply(state.rx, PREFIX, state.peers[row[END]]["number"], reply)


@rule
def _write_operation(state: EndpointState, row: np.ndarray) -> int:
    """Write an endpoint operation, or the answer to one, into the ring; return where it ends."""
    kind, context = row[FIRST], state.peers[row[END]]["number"] & 0xFFFF
    operation = OPERATION_EV_PROBE if kind in (EV_PROBE, EV_ANSWER) else OPERATION_PORT_STATUS
    if kind in (EV_PROBE, PORT_STATUS):
        end = pack_request(state.rx, PREFIX, operation, row[FIRST + 1], row[FIRST + 3])
        put16(state.rx, CONTEXT_REQUEST, context)
        return end
    assert kind in (EV_ANSWER, PORT_ANSWER)
    end = pack_response(state.rx, PREFIX, EndpointResponse(operation, row[FIRST + 1], row[FIRST + 2], 0, 0))
    put16(state.rx, CONTEXT_RESPONSE, context)
    return end
