"""What leaves an endpoint: packets are put together in a ring of headers and go out many at a time.

A data packet is three pieces for the kernel to gather: its headers from the ring, its payload straight from the
registered memory, its check from the ring. Which packet goes and on which EV is the protocol's word. Faults that a test
or an exercise asks for (a cut plane, a share of loss) are done here, where a fabric would do them.
"""

from typing import Any

from weft.core.compile.rules import rule
from weft.mrc.columns import DATA, EV_PROBE, NEVER, NOTHING, PORT_STATUS, PROBE
from weft.mrc.rules.control import next_control, next_deadline, on_timer
from weft.mrc.rules.numbers import draw
from weft.mrc.rules.reverse import RECENT_ROUND_TRIPS, next_reverse_probe, reverse_ev
from weft.mrc.rules.sender import next_data
from weft.mrc.wire.icrc import ICRC_START
from weft.mrc.wire.inplace import pack_data, pack_probe, pack_reply, pack_request, pack_response, put16, put32
from weft.mrc.wire.packets import OPERATION_EV_PROBE, OPERATION_PORT_STATUS
from weft.transport.memory import native
from weft.transport.memory.journal import NEXT_CONTROL, NEXT_DATA, REVERSE_EV, REVERSE_PROBE, TIMER, note, note_all
from weft.transport.memory.layout import CAPTURE_BYTES, HEAD_BYTES, PREFIX, TRAILER_AT, TX_SLOTS

_crc_at, _move, _sendmmsg, _errno = native.crc_at, native.move, native.sendmmsg, native.errno
_apart = native.apart

EAGAIN, EINTR, ENOBUFS = 11, 4, 105
_DONT_WAIT = 0x40
_MESSAGE_BYTES = 64
_MILLION = 1_000_000
_CHANGEABLE = PREFIX + 4
_STAMP_SHIFT = 17
"""Stamps count 131 ns: the specification's 128 ns, near enough for what they are read for."""
REVERSE_EVERY_PS = 1_000_000_000
"""Least time between two probes of the way back. The protocol asks for one in a round trip, which is nothing for a NIC
and a fifth of a core here."""
LATELY_PS = 50_000_000_000
KEEP_ALIVE = 0x7FFF
"""Id of an EV probe that only asks whether the peer is there."""
_CONTEXT_REQUEST, _CONTEXT_RESPONSE = PREFIX + 12 + 6, PREFIX + 12 + 10
OUTWARD, INWARD = 0, 1


@rule
def stamp_of(now_ps: int) -> int:
    """Return the 16 bits of a timestamp."""
    return (now_ps >> _STAMP_SHIFT) & 0xFFFF


@rule
def flush(w: Any) -> None:
    """Hand the packets of the ring to the kernel; what it does not take now stays."""
    _apart()
    hub = w.hub[0]
    while hub["first"] < hub["staged"]:
        count = hub["staged"] - hub["first"]
        sent = _sendmmsg(hub["socket"], w.tx_at[2] + hub["first"] * _MESSAGE_BYTES, count, _DONT_WAIT)
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
    hub["first"] = 0
    hub["staged"] = 0
    hub["blocked"] = 0


@rule
def free_slot(w: Any) -> int:
    """Return a free place in the ring, or -1 where the kernel takes no more."""
    hub = w.hub[0]
    if hub["staged"] >= TX_SLOTS:
        flush(w)
    return hub["staged"] if hub["staged"] < TX_SLOTS else -1


@rule
def shim_loses(w: Any, plane: int) -> bool:
    """Return whether a fault that was asked for takes this packet away."""
    hub = w.hub[0]
    if hub["shim_on"] == 0:
        return False
    if hub["cut"] >> plane & 1:
        return True
    if w.shim[plane] == 0:
        return False
    hub["shim_draws"] += 1
    return draw(hub["shim_word"], hub["shim_draws"], _MILLION) < w.shim[plane]


@rule
def capture(w: Any, way: int, i: int, value: int, address: int, size: int, total: int, now_ps: int) -> None:
    """Keep the beginning of a packet for a pcap file, where that is on and has room."""
    _apart()
    hub = w.hub[0]
    at = hub["capture_at"]
    if at >= w.capture_rows.shape[0]:
        hub["capture_lost"] += 1
        return
    kept = min(size, CAPTURE_BYTES)
    _move(w.capture.ctypes.data + at * CAPTURE_BYTES, address, kept)
    row = w.capture_rows[at]
    row[0], row[1], row[2], row[3], row[4], row[5] = now_ps, way, i, value, kept, total
    hub["capture_at"] = at + 1


@rule
def launch(w: Any, i: int, e: int, k: int, end: int, payload: int, length: int, now_ps: int) -> None:
    """Finish the packet in place `k` whose headers end at `end`, with `length` bytes at `payload`, and queue it."""
    _apart()
    hub = w.hub[0]
    ev = w.s.evs[i, e]
    base = k * HEAD_BYTES
    heads = w.heads
    put32(heads, base, ev["value"])
    size = end - base
    check_at = base + TRAILER_AT if length > 0 else end
    check = 0
    if hub["check"]:
        heads[base + _CHANGEABLE] = 0xFF
        check = _crc_at(w.tx_at[0] + base, size, ICRC_START, w.scratch)
        heads[base + _CHANGEABLE] = 0
        if length > 0:
            check = _crc_at(payload, length, check, w.scratch)
    for at in range(4):
        heads[check_at + at] = (check >> (8 * at)) & 0xFF
    total = size + length + 4
    if hub["capture_on"]:
        capture(w, OUTWARD, i, ev["value"], w.tx_at[0] + base, size, total, now_ps)
    if shim_loses(w, ev["plane"]):
        hub["shim_out"] += 1
        return
    message, iov = w.tx_msg[k], w.tx_iov[k]
    message[0] = w.tx_at[3] + (i * w.names.shape[1] + e) * w.names.shape[2]
    message[1] = w.name_bytes[i]
    if length > 0:
        iov[0, 1] = size
        iov[1, 0] = payload
        iov[1, 1] = length
        message[3] = 3
    else:
        iov[0, 1] = size + 4
        message[3] = 1
    hub["staged"] += 1
    hub["packets_out"] += 1
    hub["bytes_out"] += total


@rule
def send_data(w: Any, i: int, now_ps: int, most: int) -> int:
    """Queue up to `most` data packets of queue pair `i`; return how many."""
    _apart()
    s = w.s
    out = w.out[0]
    sent = 0
    while sent < most:
        k = free_slot(w)
        if k < 0:
            break
        drawn = s.qp[i]["draws"]
        if next_data(s, i, now_ps, -1, out) != DATA:
            if s.qp[i]["draws"] != drawn:
                # No path can be used; looking for one has moved the rotation on.
                note(w, NEXT_DATA, i, now_ps, -1, 0, 0, 0)
            break
        note_all(
            w,
            NEXT_DATA,
            i,
            now_ps,
            out["seq"],
            out["ev"],
            out["value"],
            out["retransmission"],
            out["length"],
            0,
            0,
            0,
            0,
            0,
            0,
            0,
        )
        slot = out["seq"] & s.params[0]["slot_mask"]
        index = s.packets[i, slot]["message"]
        end = pack_data(w.heads, k * HEAD_BYTES + PREFIX, w.peers[i]["remote"], out, stamp_of(now_ps))
        source = w.source[i, index] + out["address"] - s.messages[i, index]["address"]
        path = w.paths[i, out["ev"]]
        path["sent"] += 1
        path["resent"] += out["retransmission"]
        path["bytes"] += out["length"]
        launch(w, i, out["ev"], k, end, source, out["length"], now_ps)
        sent += 1
    if sent > 0:
        w.peers[i]["dirty"] = 1
    return sent


@rule
def _way_back(w: Any, i: int, now_ps: int) -> int:
    """Return the EV for an answer: the protocol's next one, but rather of a plane on which the peer was heard lately.

    A plane that has died without a word would otherwise go on swallowing its share of the answers.
    """
    _apart()
    found = -1
    for _ in range(w.s.params[0]["planes"]):
        e = reverse_ev(w.s, i, w.r, i, -1)
        note(w, REVERSE_EV, i, now_ps, e, 0, 0, 0)
        if e < 0:
            break
        found = e if found < 0 else found
        if now_ps - w.heard_on[i, w.s.evs[i, e]["plane"]] <= LATELY_PS:
            return e
    return found


@rule
def _ev_of(w: Any, i: int, value: int) -> int:
    """Return which EV of a queue pair has `value`, or -1."""
    for e in range(w.s.params[0]["evs"]):
        if w.s.evs[i, e]["value"] == value:
            return e
    return -1


@rule
def send_reply(w: Any, i: int, now_ps: int) -> None:
    """Queue the SACK or NACK in `reply`, on a way back that is known to work."""
    _apart()
    e = _way_back(w, i, now_ps)
    k = free_slot(w)
    if e < 0 or k < 0:
        return
    end = pack_reply(w.heads, k * HEAD_BYTES + PREFIX, w.peers[i]["remote"], w.reply[0])
    launch(w, i, e, k, end, 0, 0, now_ps)


@rule
def send_answer(w: Any, i: int, operation: int, number: int, value: int, now_ps: int) -> None:
    """Queue the answer to an endpoint operation."""
    _apart()
    # Whether the peer is there is asked on every plane, so that an answer on the same one is heard if any is whole.
    e = _ev_of(w, i, value) if number == KEEP_ALIVE else _way_back(w, i, now_ps)
    k = free_slot(w)
    if e < 0 or k < 0:
        return
    base = k * HEAD_BYTES
    end = pack_response(w.heads, base + PREFIX, operation, number, 0, value, w.s.qp[i]["local_up"])
    put16(w.heads, base + _CONTEXT_RESPONSE, w.peers[i]["remote"] & 0xFFFF)
    launch(w, i, e, k, end, 0, 0, now_ps)


@rule
def _send_request(w: Any, i: int, e: int, operation: int, number: int, now_ps: int) -> None:
    """Queue an endpoint operation."""
    _apart()
    k = free_slot(w)
    if k < 0:
        return
    base = k * HEAD_BYTES
    end = pack_request(w.heads, base + PREFIX, operation, number, w.s.qp[i]["local_up"])
    put16(w.heads, base + _CONTEXT_REQUEST, w.peers[i]["remote"] & 0xFFFF)
    launch(w, i, e, k, end, 0, 0, now_ps)


@rule
def _send_control(w: Any, i: int, kind: int, now_ps: int) -> None:
    """Queue the control packet that stands in `out`."""
    _apart()
    out = w.out[0]
    if kind == PROBE:
        k = free_slot(w)
        if k >= 0:
            at = k * HEAD_BYTES + PREFIX
            end = pack_probe(w.heads, at, w.peers[i]["remote"], out["id"], stamp_of(now_ps))
            launch(w, i, out["ev"], k, end, 0, 0, now_ps)
    elif kind == EV_PROBE:
        _send_request(w, i, out["ev"], OPERATION_EV_PROBE, out["id"], now_ps)
    elif kind == PORT_STATUS:
        _send_request(w, i, out["ev"], OPERATION_PORT_STATUS, out["id"], now_ps)


@rule
def pass_time(w: Any, i: int, now_ps: int) -> None:
    """Let time pass for a queue pair whose deadline has come, and queue the control packets that are due."""
    _apart()
    peer = w.peers[i]
    on_timer(w.s, i, now_ps)
    note(w, TIMER, i, now_ps, w.s.qp[i]["error"], w.s.qp[i]["timeouts"], 0, 0)
    out = w.out[0]
    kind = next_control(w.s, i, now_ps, -1, out)
    while kind != NOTHING:
        note(w, NEXT_CONTROL, i, now_ps, kind, out["ev"], out["id"], 0)
        _send_control(w, i, kind, now_ps)
        kind = next_control(w.s, i, now_ps, -1, out)
    note(w, NEXT_CONTROL, i, now_ps, NOTHING, 0, 0, 0)
    if now_ps >= peer["reverse_ps"]:
        peer["reverse_ps"] = now_ps + REVERSE_EVERY_PS
        kind = next_reverse_probe(w.s, i, w.r, i, now_ps, -1, out)
        note(w, REVERSE_PROBE, i, now_ps, kind, out["ev"] if kind else 0, out["id"] if kind else 0, 0)
        if kind != NOTHING:
            _send_control(w, i, kind, now_ps)
    set_deadline(w, i)
    if peer["deadline_ps"] <= now_ps:
        # What is due can not be sent: every plane is down. It is asked again a little later.
        peer["deadline_ps"] = now_ps + w.s.params[0]["base_rtt_ps"]


@rule
def set_deadline(w: Any, i: int) -> None:
    """Work out when a queue pair has something to do by itself."""
    _apart()
    due_ps = next_deadline(w.s, i)
    q = w.r.qp[i]
    sender = w.s.qp[i]
    recent_ps = q["heard_ps"] + RECENT_ROUND_TRIPS * w.s.params[0]["base_rtt_ps"]
    if sender["una"] == sender["end"] and q["heard_ps"] >= 0 and q["reverse_probe_ps"] <= recent_ps:
        due_ps = min(due_ps, max(q["reverse_probe_ps"], w.peers[i]["reverse_ps"]))
    w.peers[i]["deadline_ps"] = due_ps


@rule
def ask(w: Any, i: int, now_ps: int) -> None:
    """Ask a silent peer whether it is there, on every plane at once and on another path of it each time."""
    _apart()
    peer = w.peers[i]
    stride = w.hub[0]["stride"]
    path = peer["asks"] % stride
    peer["asked_ps"] = now_ps
    peer["asks"] += 1
    for e in range(w.s.params[0]["evs"]):
        value = w.s.evs[i, e]["value"]
        if value >= 0 and value % stride == path:
            _send_request(w, i, e, OPERATION_EV_PROBE, KEEP_ALIVE, now_ps)


@rule
def never() -> int:
    """Return the time that does not come."""
    return NEVER
