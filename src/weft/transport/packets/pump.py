"""The loop of an endpoint's thread, as one compiled call that always comes back.

A call takes commands, receives, lets programs go on, sends, and sleeps in `ppoll` until a packet, a command or a
deadline comes; for a moment after it had something to do for a program it looks again instead. It returns when there
is word for Python, when it was asked to stop, and in any case after a while.
"""

from typing import Any

from weft.core.compile.rules import rule
from weft.mrc.columns import NEVER
from weft.mrc.rules.evs import deny
from weft.mrc.rules.ports import port_changed
from weft.transport.memory import native
from weft.transport.memory.journal import DENY, PORT_CHANGED, note
from weft.transport.memory.layout import (
    BEGIN,
    CLOSE,
    COMMANDS,
    DENY_EV,
    EVENTS,
    FAILED,
    GAP_BUCKETS,
    GONE,
    PORT,
    POST,
    SENT,
)
from weft.transport.messages.running import begin_program, run_programs
from weft.transport.messages.tables import OF_ENGINE, WORD_ABORT, WORD_BYE, WORD_SHIFT
from weft.transport.messages.transfers import expects, fail_members, post_write, run_transfers, say, sent
from weft.transport.packets.arrivals import acknowledge, receive_batch, tell
from weft.transport.packets.departures import ask, flush, pass_time, send_data, set_deadline

_apart, _ppoll, _read, _now_ns = native.apart, native.ppoll, native.read, native.now_ns
_fence = native.fence

_BURST = 16
_PS = 1000
_SECOND_NS = 1_000_000_000
_POLLIN, _POLLOUT = 1, 4
_SPIN_NS = 30_000
"""How long the thread looks again before it sleeps: about what waking it takes. It does not give way meanwhile: who
yields is charged for its whole slice of time and waits long once others want the processor."""
_CROWDED_NS, _CROWDED_FOR_NS = 500_000, 100_000_000
"""Where one look takes so long, others had the processor meanwhile: for a while the thread sleeps without looking."""
_ASKS = 6
"""Parts of the time for which a peer may be silent; it is asked at the end of each but the last. A thread that did not
run has not asked, and so does not take its own absence for the peer's."""
_P99 = 99
_TIMES = 5
_HUNDRED = 100


@rule
def pump(w: Any, rounds: int, wait_ns: int) -> int:
    """Drive the endpoint for at most `rounds` turns, sleeping up to `wait_ns` in all; return the turns taken."""
    hub = w.hub[0]
    begun_ns = _now_ns(w.clock)
    for turn in range(rounds):
        now_ns = _now_ns(w.clock)
        now_ps = (now_ns - hub["base_ns"]) * _PS
        work = _take_commands(w, now_ps)
        work += receive_batch(w, now_ps)
        work += run_programs(w, now_ps)
        work += run_transfers(w, now_ps)
        work += _serve(w, now_ps)
        flush(w)
        if hub["told"] > hub["heard_of"] or hub["stop"] or now_ns - begun_ns >= wait_ns:
            return turn + 1
        if work > 0 and hub["programs"] > 0:
            hub["spin_ns"] = now_ns + _SPIN_NS if now_ns >= hub["crowded_ns"] else 0
        if hub["blocked"] or (work == 0 and now_ns >= hub["spin_ns"]):
            _sleep(w, min(begun_ns + wait_ns - now_ns, _next_ps(w) // _PS - (now_ps // _PS)))
        elif work == 0 and _now_ns(w.clock) - now_ns > _CROWDED_NS:
            hub["spin_ns"] = 0
            hub["crowded_ns"] = now_ns + _CROWDED_FOR_NS
    return rounds


@rule
def _sleep(w: Any, wait_ns: int) -> None:
    """Sleep until a packet or a command comes, at most `wait_ns`."""
    hub = w.hub[0]
    if wait_ns <= 0:
        return
    hub["asleep"] = 1
    _fence()
    if hub["posted"] > hub["taken"]:
        # Python saw us awake and did not write to the eventfd.
        hub["asleep"] = 0
        return
    hub["wakes"] += 1
    asked = _POLLIN | (_POLLOUT if hub["blocked"] else 0)
    w.polls[0] = hub["socket"] | asked << 32
    w.polls[1] = hub["eventfd"] | _POLLIN << 32
    w.clock[2] = wait_ns // _SECOND_NS
    w.clock[3] = wait_ns % _SECOND_NS
    _ppoll(w.tx_at[4], 2, w.tx_at[5] + 16, 0)
    hub["asleep"] = 0
    if (w.polls[1] >> 48) & _POLLIN:
        _read(hub["eventfd"], w.tx_at[5], 8)


@rule
def _next_ps(w: Any) -> int:
    """Return when the next queue pair has something to do."""
    next_ps = NEVER
    liveness_ps = w.hub[0]["liveness_ps"] // _ASKS
    for i in range(w.hub[0]["queue_pairs"]):
        peer = w.peers[i]
        if peer["open"] and peer["failed"] == 0:
            next_ps = min(next_ps, peer["deadline_ps"])
            if peer["watched"]:
                next_ps = min(next_ps, max(peer["heard_ps"], peer["asked_ps"]) + liveness_ps)
    return next_ps


@rule
def _serve(w: Any, now_ps: int) -> int:
    """Let every queue pair send, keep time and settle; return how much was done."""
    _apart()
    hub = w.hub[0]
    work = 0
    count = hub["queue_pairs"]
    for k in range(count):
        i = (hub["turn"] + k) % count
        peer = w.peers[i]
        if peer["open"] == 0:
            continue
        if peer["failed"] == 0:
            work += send_data(w, i, now_ps, _BURST)
            if peer["deadline_ps"] <= now_ps:
                pass_time(w, i, now_ps)
                work += 1
            acknowledge(w, i, now_ps)
            if peer["dirty"]:
                peer["dirty"] = 0
                set_deadline(w, i)
                _settle(w, i)
            _watch(w, i, now_ps)
        if peer["failed"] != 0 and peer["failed"] < NEVER:
            _fail(w, i, now_ps)
            work += 1
    hub["turn"] = (hub["turn"] + 1) % count
    return work


@rule
def _settle(w: Any, i: int) -> None:
    """Leave word of the messages that have been acknowledged, and of a queue pair that has come to its end."""
    _apart()
    peer = w.peers[i]
    hub = w.hub[0]
    q = w.s.qp[i]
    mask = w.s.params[0]["message_mask"]
    while peer["told_sent"] < q["msg_first"]:
        tag = w.tags[i, peer["told_sent"] & mask]
        if tag >= OF_ENGINE:
            sent(w, tag)
        elif tag >= 0:
            if hub["told"] - hub["heard_of"] >= EVENTS - 512:
                return
            tell(w, SENT, i, tag, 0)
        peer["told_sent"] += 1
    if q["error"] != 0:
        peer["failed"] = q["error"]
    elif w.r.qp[i]["error"] != 0:
        peer["failed"] = w.r.qp[i]["error"]


@rule
def _watch(w: Any, i: int, now_ps: int) -> None:
    """See whether the peer is still there, while anything is awaited from it."""
    _apart()
    peer = w.peers[i]
    q = w.s.qp[i]
    wanted = q["una"] != q["end"] or peer["watched"] > 1 or (peer["engine"] and expects(w, i))
    if not wanted:
        peer["watched"] = 0
        return
    if peer["watched"] == 0:
        # Silence counts from when something was wanted: before that there was no reason to speak.
        peer["watched"] = 1
        peer["heard_ps"] = max(peer["heard_ps"], now_ps)
        peer["asks"] = 0
        return
    silent_ps = now_ps - peer["heard_ps"]
    limit_ps = w.hub[0]["liveness_ps"]
    if silent_ps >= limit_ps and peer["asks"] >= _ASKS - 1 and silent_ps >= _TIMES * _slowest_ps(w, i):
        peer["failed"] = GONE
    elif silent_ps >= limit_ps // _ASKS and now_ps - peer["asked_ps"] >= limit_ps // _ASKS:
        ask(w, i, now_ps)


@rule
def _slowest_ps(w: Any, i: int) -> int:
    """Return within what time the peer was heard of in 99 of 100 cases."""
    total = 0
    for k in range(GAP_BUCKETS):
        total += w.gaps[i, k]
    seen = 0
    for k in range(GAP_BUCKETS):
        seen += w.gaps[i, k]
        if seen * _HUNDRED >= total * _P99:
            return 1 << (20 + k) if k > 0 else 0
    return 0


@rule
def _fail(w: Any, i: int, now_ps: int) -> None:
    """End a queue pair, its programs, and tell everybody else whose peer it was."""
    _apart()
    peer = w.peers[i]
    error = peer["failed"]
    fail_members(w, i, error)
    tell(w, FAILED, i, 0, error)
    peer["failed"] = NEVER + error
    if error != GONE or peer["engine"] == 0:
        return
    for j in range(w.hub[0]["queue_pairs"]):
        other = w.peers[j]
        if j != i and other["open"] and other["engine"] and other["failed"] == 0:
            say(w, j, WORD_ABORT << WORD_SHIFT | peer["rank"], now_ps)


@rule
def _take_commands(w: Any, now_ps: int) -> int:
    """Take in what Python asks for; return how much that was."""
    _apart()
    hub = w.hub[0]
    done = 0
    while hub["taken"] < hub["posted"]:
        row = w.commands[hub["taken"] % COMMANDS]
        kind, i = row[0], row[1]
        if kind == POST:
            post_write(w, i, row[2], row[3], row[4], row[5], row[6], row[7], now_ps)
        elif kind == BEGIN:
            begin_program(w, i, row[2], row[3], row[4])
        elif kind == PORT:
            _change_port(w, row[2], row[3], now_ps)
        elif kind == DENY_EV:
            deny(w.s, i, row[2], row[3])
            note(w, DENY, i, now_ps, row[2], row[3], 0, 0)
        elif kind == CLOSE:
            _say_goodbye(w, i, now_ps)
        hub["taken"] += 1
        done += 1
    return done


@rule
def _change_port(w: Any, plane: int, up: int, now_ps: int) -> None:
    """Tell every queue pair that our port of `plane` went up or down."""
    for i in range(w.hub[0]["queue_pairs"]):
        if w.peers[i]["open"]:
            port_changed(w.s, i, plane, up, now_ps)
            note(w, PORT_CHANGED, i, now_ps, plane, up, 0, 0)
            w.peers[i]["dirty"] = 1


@rule
def _say_goodbye(w: Any, i: int, now_ps: int) -> None:
    """Tell the peer that we leave."""
    peer = w.peers[i]
    if peer["open"] and peer["failed"] == 0 and peer["closing"] == 0:
        peer["closing"] = 1
        if peer["engine"]:
            say(w, i, WORD_BYE << WORD_SHIFT, now_ps)
