"""What leaves an endpoint: packets are put together in a ring of headers and go out many at a time.

A data packet is three pieces for the kernel to gather: its headers from the ring, its payload straight from the
registered memory, its check from the ring. Which packet goes and on which EV is the protocol's decision. Faults that a
test or an exercise asks for (a cut plane, a share of loss) are injected here, where a fabric would have them.
"""

from typing import NamedTuple

from weft.core.compile.rules import rule
from weft.mrc.columns import DATA, EV_ANSWER, EV_PROBE, NOTHING, PORT_STATUS, PROBE
from weft.mrc.rules.control import KEEP_ALIVE
from weft.mrc.rules.endpoint import (
    Passage,
    deadline,
    next_due,
    next_look_ps,
    next_packet,
    operation_ev,
    pass_time,
    reply_ev,
)
from weft.mrc.rules.numbers import draw
from weft.mrc.wire.icrc import ICRC_BYTES, ICRC_START
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
from weft.mrc.wire.packets import OPERATION_EV_PROBE, OPERATION_PORT_STATUS
from weft.transport.memory import layout, native
from weft.transport.memory.layout import EndpointState, end_of
from weft.transport.packets.authentication import CHANGEABLE, sign, trailer_bytes
from weft.transport.packets.shared import is_shared, planes_for_data, put_shared, way_back

_crc_at, _move, _sendmmsg, _errno = native.crc_at, native.move, native.sendmmsg, native.errno
_apart = native.apart

EAGAIN, EINTR, ENOBUFS = 11, 4, 105
DONT_WAIT = 0x40
"""MSG_DONTWAIT of Linux."""
_MESSAGE_BYTES = 64
"""Size of the kernel's `mmsghdr`."""
_MESSAGE_HEAD_BYTES = 24
_MILLION = 1_000_000
_STAMP_SHIFT = 17
"""Timestamps count 131 ns: the specification's 128 ns, near enough for what they are read for."""
CONTEXT_REQUEST, CONTEXT_RESPONSE = layout.PREFIX + 12 + 6, layout.PREFIX + 12 + 10
"""Where endpoint operations carry the low 16 bits of the queue pair that they are for."""
OUTWARD, INWARD = 0, 1


class OutgoingPacket(NamedTuple):
    """A packet whose headers stand in the ring: what is still to be added, and the path that it takes."""

    path: int
    """Index of its EV in the queue pair's table."""
    slot: int
    """Its place in the ring."""
    end: int
    """Where its headers end."""
    payload: int
    """Address of its payload."""
    length: int
    """Bytes of its payload."""


class Frame(NamedTuple):
    """A packet as a capture keeps it."""

    way: int
    """`OUTWARD` or `INWARD`."""
    ev: int
    """Value of its EV."""
    address: int
    """Where its first bytes lie."""
    size: int
    """How many of them lie there."""
    total: int
    """Bytes of the whole packet."""


@rule
def stamp_of(now_ps: int) -> int:
    """Return the 16 bits of a timestamp."""
    return (now_ps >> _STAMP_SHIFT) & 0xFFFF


@rule
def flush(state: EndpointState) -> None:
    """Hand the packets of the ring to the kernel; what it does not take now stays."""
    _apart()
    hub = state.hub[0]
    while hub["first"] < hub["staged"]:
        count = hub["staged"] - hub["first"]
        sent = _sendmmsg(hub["socket"], state.tx_at[2] + hub["first"] * _MESSAGE_BYTES, count, DONT_WAIT)
        if sent > 0:
            hub["first"] += sent
            hub["batches_out"] += 1
            continue
        why = _errno()
        if why in (EAGAIN, ENOBUFS):
            hub["blocked"] = 1
            hub["sends_blocked"] += 1
            return
        if why != EINTR:
            # A path that the kernel refuses is a path that loses packets: the protocol goes round it.
            hub["send_errors"] += 1
            hub["last_errno"] = why
            hub["first"] += 1
    # The ring starts over only when it is empty, so a message never moves while the kernel still has to take it.
    hub["first"] = 0
    hub["staged"] = 0
    hub["blocked"] = 0


@rule
def free_slot(state: EndpointState) -> int:
    """Return a free place in the ring, or -1 where the kernel takes no more."""
    hub = state.hub[0]
    if hub["staged"] >= layout.TX_SLOTS:
        flush(state)
    return hub["staged"] if hub["staged"] < layout.TX_SLOTS else -1


@rule
def shim_loses(state: EndpointState, plane: int) -> bool:
    """Return whether an injected fault takes this packet away."""
    hub = state.hub[0]
    if hub["shim_on"] == 0:
        return False
    if hub["cut"] >> plane & 1:
        return True
    if state.shim[plane] == 0:
        return False
    # Counted draws from one word: the same packets are lost in every run with this seed and order.
    hub["shim_draws"] += 1
    return draw(hub["shim_word"], hub["shim_draws"], _MILLION) < state.shim[plane]


@rule
def capture(state: EndpointState, pair: int, frame: Frame, now_ps: int) -> None:
    """Keep the first bytes of a packet for a pcap file, where there is room."""
    _apart()
    hub = state.hub[0]
    at = hub["capture_at"]
    if at >= state.capture_rows.shape[0]:
        hub["capture_lost"] += 1
        return
    kept = min(frame.size, layout.CAPTURE_BYTES)
    _move(state.capture.ctypes.data + at * layout.CAPTURE_BYTES, frame.address, kept)
    row = state.capture_rows[at]
    row[0], row[1], row[2], row[3], row[4], row[5] = now_ps, frame.way, pair, frame.ev, kept, frame.total
    hub["capture_at"] = at + 1


@rule
def _check(state: EndpointState, packet: OutgoingPacket) -> None:
    """Add the ICRC to a packet, or zeros where there is none: behind its headers, or where its trailer goes."""
    base = packet.slot * layout.HEAD_BYTES
    check_at = base + layout.TRAILER_AT if packet.length > 0 else packet.end
    check = 0
    if state.hub[0]["check"]:
        state.heads[base + CHANGEABLE] = 0xFF
        check = _crc_at(state.tx_at[0] + base, packet.end - base, ICRC_START, state.scratch)
        state.heads[base + CHANGEABLE] = 0
        if packet.length > 0:
            # The payload is not copied: the check runs on over it where it lies, and the kernel gathers the pieces.
            check = _crc_at(packet.payload, packet.length, check, state.scratch)
    for at in range(ICRC_BYTES):
        state.heads[check_at + at] = (check >> (8 * at)) & 0xFF


@rule
def launch(state: EndpointState, pair: int, packet: OutgoingPacket, now_ps: int) -> None:
    """Give a packet its EV, its tags or check and its address, and queue it."""
    _apart()
    hub = state.hub[0]
    ev = state.sender.evs[pair, packet.path]
    base = packet.slot * layout.HEAD_BYTES
    heads = state.heads
    put32(heads, base, ev["value"])
    size = packet.end - base
    trailer = ICRC_BYTES
    through_memory = is_shared(state, pair, ev["plane"])
    if through_memory:
        trailer = 0
    # A tag proves more than an ICRC does and takes its place.
    elif hub["authenticate"]:
        end = sign(state, pair, (base, packet.end), packet.payload, packet.length)
        trailer = trailer_bytes(packet.length) - (end - packet.end)
        size = end - base
    else:
        _check(state, packet)
    total = size + packet.length + trailer
    if hub["capture_on"]:
        capture(state, pair, Frame(OUTWARD, ev["value"], state.tx_at[0] + base, size, total), now_ps)
    if shim_loses(state, ev["plane"]):
        hub["shim_out"] += 1
        return
    if through_memory:
        if put_shared(state, pair, state.tx_at[0] + base, size, packet.payload, packet.length):
            hub["packets_out"] += 1
            hub["bytes_out"] += total
        return
    message, iov = state.tx_msg[packet.slot], state.tx_iov[packet.slot]
    message[0] = state.tx_at[3] + (pair * state.names.shape[1] + packet.path) * state.names.shape[2]
    message[1] = state.name_bytes[pair]
    if packet.length > 0:
        iov[0, 1] = size
        iov[1, 0] = packet.payload
        iov[1, 1] = packet.length
        iov[2, 1] = trailer
        message[3] = 3
        message[4] = message[5] = 0
    else:
        # Without payload the check follows the headers in the ring, and one piece is the whole packet.
        iov[0, 1] = size + trailer
        message[3] = 1
        message[4], message[5] = state.tx_at[6], _MESSAGE_HEAD_BYTES
    # Counted last: until here the place in the ring is free, so a packet that the shim loses takes none.
    hub["staged"] += 1
    hub["packets_out"] += 1
    hub["bytes_out"] += total


@rule
def send_data(state: EndpointState, pair: int, now_ps: int, most: int) -> int:
    """Queue up to `most` data packets of a queue pair; return how many."""
    _apart()
    sender, ours = state.sender, end_of(state, pair)
    out = state.out[0]
    sent = 0
    while sent < most:
        slot = free_slot(state)
        if slot < 0:
            break
        room = planes_for_data(state, pair)
        if room == 0:
            break
        if next_packet(ours, -1, now_ps, room, out) != DATA:
            break
        index = sender.packets[pair, out["seq"] & sender.params[0]["slot_mask"]]["message"]
        end = pack_data(
            state.heads, slot * layout.HEAD_BYTES + layout.PREFIX, state.peers[pair]["remote"], out, stamp_of(now_ps)
        )
        # The protocol knows where bytes go at the peer; how far into the message that is, is how far it is here.
        source = state.source[pair, index] + out["address"] - sender.messages[pair, index]["address"]
        path = state.paths[pair, out["ev"]]
        path["sent"] += 1
        path["resent"] += out["retransmission"]
        path["bytes"] += out["length"]
        launch(state, pair, OutgoingPacket(out["ev"], slot, end, source, out["length"]), now_ps)
        sent += 1
    if sent > 0:
        state.peers[pair]["dirty"] = 1
    return sent


@rule
def send_reply(state: EndpointState, pair: int, now_ps: int) -> None:
    """Queue the SACK or NACK in `reply`: through shared memory, or on the path that the protocol says."""
    _apart()
    path = way_back(state, pair, now_ps)
    if path < 0:
        path = reply_ev(end_of(state, pair), now_ps)
    slot = free_slot(state)
    if path < 0 or slot < 0:
        return
    end = pack_reply(state.heads, slot * layout.HEAD_BYTES + layout.PREFIX, state.peers[pair]["remote"], state.reply[0])
    launch(state, pair, OutgoingPacket(path, slot, end, 0, 0), now_ps)


@rule
def send_answer(state: EndpointState, pair: int, passage: Passage, now_ps: int) -> None:
    """Queue the answer in `reply` to an endpoint operation that came by `passage`, which it names, too."""
    _apart()
    reply = state.reply[0]
    path = operation_ev(end_of(state, pair), reply["id"], passage, now_ps)
    slot = free_slot(state)
    if path < 0 or slot < 0:
        return
    base = slot * layout.HEAD_BYTES
    operation = OPERATION_EV_PROBE if reply["kind"] == EV_ANSWER else OPERATION_PORT_STATUS
    end = pack_response(
        state.heads,
        base + layout.PREFIX,
        EndpointResponse(operation, reply["id"], reply["verdict"], passage.value, state.sender.qp[pair]["local_up"]),
    )
    put16(state.heads, base + CONTEXT_RESPONSE, state.peers[pair]["remote"] & 0xFFFF)
    launch(state, pair, OutgoingPacket(path, slot, end, 0, 0), now_ps)


@rule
def _send_request(state: EndpointState, pair: int, path: int, operation: int, number: int, now_ps: int) -> None:
    """Queue an endpoint operation."""
    _apart()
    slot = free_slot(state)
    if slot < 0:
        return
    base = slot * layout.HEAD_BYTES
    end = pack_request(state.heads, base + layout.PREFIX, operation, number, state.sender.qp[pair]["local_up"])
    put16(state.heads, base + CONTEXT_REQUEST, state.peers[pair]["remote"] & 0xFFFF)
    launch(state, pair, OutgoingPacket(path, slot, end, 0, 0), now_ps)


@rule
def _send_control(state: EndpointState, pair: int, kind: int, now_ps: int) -> None:
    """Queue the control packet that stands in `out`."""
    _apart()
    out = state.out[0]
    if kind == PROBE:
        slot = free_slot(state)
        if slot >= 0:
            at = slot * layout.HEAD_BYTES + layout.PREFIX
            end = pack_probe(state.heads, at, state.peers[pair]["remote"], out["id"], stamp_of(now_ps))
            launch(state, pair, OutgoingPacket(out["ev"], slot, end, 0, 0), now_ps)
    elif kind == EV_PROBE:
        _send_request(state, pair, out["ev"], OPERATION_EV_PROBE, out["id"], now_ps)
    elif kind == PORT_STATUS:
        _send_request(state, pair, out["ev"], OPERATION_PORT_STATUS, out["id"], now_ps)


@rule
def serve_time(state: EndpointState, pair: int, now_ps: int) -> None:
    """Let time pass for a queue pair whose deadline has come, and queue the control packets that are due."""
    _apart()
    end, out = end_of(state, pair), state.out[0]
    pass_time(end, now_ps)
    kind = next_due(end, now_ps, out)
    while kind != NOTHING:
        _send_control(state, pair, kind, now_ps)
        kind = next_due(end, now_ps, out)
    state.peers[pair]["deadline_ps"] = next_look_ps(state.sender.params[0], deadline(end), now_ps)


@rule
def set_deadline(state: EndpointState, pair: int) -> None:
    """Work out when a queue pair has something to do by itself: it may be early, never late."""
    _apart()
    state.peers[pair]["deadline_ps"] = deadline(end_of(state, pair))


@rule
def ask(state: EndpointState, pair: int, now_ps: int) -> None:
    """Ask a silent peer whether it is there, on every plane at once and on another path of it each time."""
    _apart()
    peer = state.peers[pair]
    stride = state.hub[0]["stride"]
    turn = peer["asks"] % stride
    peer["asked_ps"] = now_ps
    peer["asks"] += 1
    for path in range(state.sender.params[0]["evs"]):
        value = state.sender.evs[pair, path]["value"]
        if value >= 0 and value % stride == turn:
            _send_request(state, pair, path, OPERATION_EV_PROBE, KEEP_ALIVE, now_ps)
