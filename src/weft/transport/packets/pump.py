"""The loop of an endpoint's thread, as one compiled call that always comes back.

A call takes commands, receives, lets programs go on, sends, and sleeps in `ppoll` until a packet, a command or a
deadline comes; for a moment after it had something to do for a program it looks again instead. It returns when there
is an event for Python, when it was asked to stop, and in any case after a while.
"""

from weft.core.compile.rules import rule
from weft.mrc.columns import NEVER
from weft.mrc.rules.endpoint import deny_ev, report_port
from weft.transport.memory import layout, native, tables
from weft.transport.memory.layout import EndpointState, end_of
from weft.transport.messages.running import begin_program, run_programs
from weft.transport.messages.transfers import Write, expects, fail_members, post_write, run_transfers, say, sent
from weft.transport.packets.arrivals import acknowledge, receive_batch, receive_shared, report
from weft.transport.packets.departures import ask, flush, send_data, serve_time, set_deadline
from weft.transport.packets.shared import fall_asleep

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
def pump(state: EndpointState, rounds: int, wait_ns: int) -> int:
    """Drive the endpoint for at most `rounds` turns, sleeping up to `wait_ns` in all; return the turns taken."""
    hub = state.hub[0]
    begun_ns = _now_ns(state.clock)
    for turn in range(rounds):
        now_ns = _now_ns(state.clock)
        now_ps = (now_ns - hub["base_ns"]) * _PS
        # Arrivals before departures: what a SACK frees may go out in the same turn, and answers share a batch.
        work = _take_commands(state, now_ps)
        work += receive_batch(state, now_ps)
        work += receive_shared(state, now_ps)
        work += run_programs(state, now_ps)
        work += run_transfers(state, now_ps)
        work += _serve(state, now_ps)
        flush(state)
        if hub["events_head"] > hub["events_tail"] or hub["stop"] or now_ns - begun_ns >= wait_ns:
            return turn + 1
        if work > 0 and hub["programs"] > 0:
            hub["spin_ns"] = now_ns + _SPIN_NS if now_ns >= hub["crowded_ns"] else 0
        if hub["blocked"] or (work == 0 and now_ns >= hub["spin_ns"]):
            _sleep(state, min(begun_ns + wait_ns - now_ns, _next_ps(state) // _PS - (now_ps // _PS)))
        elif work == 0 and _now_ns(state.clock) - now_ns > _CROWDED_NS:
            hub["spin_ns"] = 0
            hub["crowded_ns"] = now_ns + _CROWDED_FOR_NS
    return rounds


@rule
def _sleep(state: EndpointState, wait_ns: int) -> None:
    """Sleep until a packet or a command comes, at most `wait_ns`."""
    hub = state.hub[0]
    if wait_ns <= 0:
        return
    hub["asleep"] = 1
    # Store, then look: without the fence both sides could miss each other, and a command would wait for a timeout.
    _fence()
    if fall_asleep(state, 1) or hub["posted"] > hub["taken"]:
        # Python, or a peer on this host, saw us awake and did not ring.
        fall_asleep(state, 0)
        hub["asleep"] = 0
        return
    hub["wakes"] += 1
    asked = _POLLIN | (_POLLOUT if hub["blocked"] else 0)
    # Two `pollfd` as two words: descriptor below, wanted events in bits 32 to 47, what happened from bit 48 on.
    state.polls[0] = hub["socket"] | asked << 32
    state.polls[1] = hub["bell"] | _POLLIN << 32
    state.clock[2] = wait_ns // _SECOND_NS
    state.clock[3] = wait_ns % _SECOND_NS
    _ppoll(state.tx_at[4], 2, state.tx_at[5] + 16, 0)
    fall_asleep(state, 0)
    hub["asleep"] = 0
    if (state.polls[1] >> 48) & _POLLIN:
        _read(hub["bell"], state.tx_at[5], 16)


@rule
def _next_ps(state: EndpointState) -> int:
    """Return when the next queue pair has something to do."""
    next_ps = NEVER
    # May be early, never late: whoever is woken too soon finds nothing to do and sleeps again.
    liveness_ps = state.hub[0]["liveness_ps"] // _ASKS
    for pair in range(state.hub[0]["queue_pairs"]):
        peer = state.peers[pair]
        if peer["open"] and peer["failed"] == 0:
            next_ps = min(next_ps, peer["deadline_ps"])
            if peer["watched"]:
                next_ps = min(next_ps, max(peer["heard_ps"], peer["asked_ps"]) + liveness_ps)
    return next_ps


@rule
def _serve(state: EndpointState, now_ps: int) -> int:
    """Let every queue pair send, keep time and settle; return how much was done."""
    _apart()
    hub = state.hub[0]
    work = 0
    count = hub["queue_pairs"]
    for step in range(count):
        # Another queue pair is first in every turn: the ring of headers may be full before all have had theirs.
        pair = (hub["turn"] + step) % count
        peer = state.peers[pair]
        if peer["open"] == 0:
            continue
        if peer["failed"] == 0:
            work += send_data(state, pair, now_ps, _BURST)
            if peer["deadline_ps"] <= now_ps:
                serve_time(state, pair, now_ps)
                work += 1
            acknowledge(state, pair, now_ps)
            if peer["dirty"]:
                peer["dirty"] = 0
                set_deadline(state, pair)
                _settle(state, pair)
            _watch(state, pair, now_ps)
        if peer["failed"] != 0 and peer["failed"] < NEVER:
            _fail(state, pair, now_ps)
            work += 1
    hub["turn"] = (hub["turn"] + 1) % count
    return work


@rule
def _settle(state: EndpointState, pair: int) -> None:
    """Leave word of the messages that have been acknowledged, and of a queue pair that has come to its end."""
    _apart()
    peer = state.peers[pair]
    hub = state.hub[0]
    sender = state.sender.qp[pair]
    mask = state.sender.params[0]["message_mask"]
    while peer["sent_reported"] < sender["msg_first"]:
        tag = state.tags[pair, peer["sent_reported"] & mask]
        if tag >= tables.OF_ENGINE:
            sent(state, tag)
        elif tag >= 0:
            # Room is kept for failures and ends of programs, which cannot wait for Python to catch up.
            if hub["events_head"] - hub["events_tail"] >= layout.EVENTS - 512:
                return
            report(state, layout.SENT, pair, tag, 0)
        peer["sent_reported"] += 1
    if sender["error"] != 0:
        peer["failed"] = sender["error"]
    elif state.receiver.qp[pair]["error"] != 0:
        peer["failed"] = state.receiver.qp[pair]["error"]


@rule
def _watch(state: EndpointState, pair: int, now_ps: int) -> None:
    """See whether the peer is still there, while anything is awaited from it."""
    _apart()
    peer = state.peers[pair]
    sender = state.sender.qp[pair]
    wanted = sender["una"] != sender["end"] or peer["watched"] > 1 or (peer["engine"] and expects(state, pair))
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
    limit_ps = state.hub[0]["liveness_ps"]
    if silent_ps >= limit_ps and peer["asks"] >= _ASKS - 1 and silent_ps >= _TIMES * _slowest_ps(state, pair):
        peer["failed"] = layout.GONE
    elif silent_ps >= limit_ps // _ASKS and now_ps - peer["asked_ps"] >= limit_ps // _ASKS:
        ask(state, pair, now_ps)


@rule
def _slowest_ps(state: EndpointState, pair: int) -> int:
    """Return within what time the peer was heard of in 99 of 100 cases."""
    total = 0
    for step in range(layout.GAP_BUCKETS):
        total += state.gaps[pair, step]
    seen = 0
    for step in range(layout.GAP_BUCKETS):
        seen += state.gaps[pair, step]
        if seen * _HUNDRED >= total * _P99:
            # Gaps are counted by powers of two of 2**20 ps, about a microsecond: the upper end of the bucket.
            return 1 << (20 + step) if step > 0 else 0
    return 0


@rule
def _fail(state: EndpointState, pair: int, now_ps: int) -> None:
    """End a queue pair, its programs, and tell everybody else whose peer it was."""
    _apart()
    peer = state.peers[pair]
    error = peer["failed"]
    fail_members(state, pair, error)
    report(state, layout.FAILED, pair, 0, error)
    # So it is reported once, and programs that start later still find the reason (modulo `NEVER`).
    peer["failed"] = NEVER + error
    if error != layout.GONE or peer["engine"] == 0:
        return
    for index in range(state.hub[0]["queue_pairs"]):
        other = state.peers[index]
        if index != pair and other["open"] and other["engine"] and other["failed"] == 0:
            say(state, index, tables.WORD_ABORT << tables.WORD_SHIFT | peer["rank"], now_ps)


@rule
def _take_commands(state: EndpointState, now_ps: int) -> int:
    """Take in what Python asks for; return how much that was."""
    _apart()
    hub = state.hub[0]
    done = 0
    while hub["taken"] < hub["posted"]:
        row = state.commands[hub["taken"] % layout.COMMANDS]
        kind, pair = row[0], row[1]
        if kind == layout.POST:
            post_write(state, pair, Write(row[2], row[3], row[4], row[5], row[6], row[7]), now_ps)
        elif kind == layout.BEGIN:
            begin_program(state, pair, row[2], row[3], row[4])
        elif kind == layout.PORT:
            _change_port(state, row[2], row[3], now_ps)
        elif kind == layout.DENY_EV:
            deny_ev(end_of(state, pair), row[2], row[3], now_ps)
        elif kind == layout.CLOSE:
            _say_goodbye(state, pair, now_ps)
        hub["taken"] += 1
        done += 1
    return done


@rule
def _change_port(state: EndpointState, plane: int, up: int, now_ps: int) -> None:
    """Tell every queue pair that our port of `plane` went up or down."""
    for pair in range(state.hub[0]["queue_pairs"]):
        if state.peers[pair]["open"]:
            report_port(end_of(state, pair), plane, up, now_ps)
            state.peers[pair]["dirty"] = 1


@rule
def _say_goodbye(state: EndpointState, pair: int, now_ps: int) -> None:
    """Tell the peer that we leave."""
    peer = state.peers[pair]
    if peer["open"] and peer["failed"] == 0 and peer["closing"] == 0:
        peer["closing"] = 1
        if peer["engine"]:
            say(state, pair, tables.WORD_BYE << tables.WORD_SHIFT, now_ps)
