"""Everything a sender does besides data: reliability probes, EV probes, port status, and the passing of time.

`next_control` gives the next control packet that is due, `on_timer` acts on what has waited too long, `next_deadline`
says when to call either again. The answers come back through `on_ev_probe_answer` and `ports.on_port_answer`; the one
to a reliability probe is a SACK.
"""

from typing import Any

from weft.core.compile.rules import rule
from weft.mrc.columns import ASSUMED_BAD, EV_PROBE, NEVER, NOTHING, PORT_STATUS, PROBE
from weft.mrc.rules.evs import PROBED_CLEAR, PROBED_MARKED, ev_event, pick_ev, reachable, usable
from weft.mrc.rules.ports import apply_ports
from weft.mrc.rules.recovery import expire, timeout_ps
from weft.mrc.wire.packets import VERDICT_ALWAYS_SKIP, VERDICT_SKIP_ONCE

ID_MASK = 0x7FFF
"""Ids of probes by the sending half; the receiving half's have the top bit of the 16 set."""
_MOST_SHIFTS = 6


@rule
def next_control(s: Any, i: int, now_ps: int, room: int, out: Any) -> int:
    """Fill `out` with a control packet that is due and return its kind, or return NOTHING."""
    q = s.qp[i]
    if q["error"] != 0:
        return NOTHING
    if _tell_due_ps(s, i) <= now_ps:
        e = pick_ev(s, i, -1, room)
        if e >= 0:
            q["tell_sent_ps"] = now_ps
            return _describe(s, i, PORT_STATUS, e, q["tell_id"], out)
    if _probe_due_ps(s, i) <= now_ps:
        e = pick_ev(s, i, -1, room)
        if e >= 0:
            return _probe(s, i, e, now_ps, out)
    if _ev_probe_due_ps(s, i) <= now_ps:
        e = _next_bad(s, i, room)
        q["ev_probe_due_ps"] = now_ps + s.params[0]["ev_probe_interval_ps"]
        if e >= 0:
            q["ev_probes"] += 1
            q["ev_probe_id"] = (q["ev_probe_id"] + 1) & ID_MASK
            q["ev_probe_ev"] = e
            q["ev_probe_sent_ps"] = now_ps
            return _describe(s, i, EV_PROBE, e, q["ev_probe_id"], out)
    return NOTHING


@rule
def _describe(s: Any, i: int, kind: int, e: int, number: int, out: Any) -> int:
    """Write a control packet into `out` and return its kind."""
    ev = s.evs[i, e]
    out["kind"] = kind
    out["ev"] = e
    out["value"] = ev["value"]
    out["plane"] = ev["plane"]
    out["id"] = number
    out["port_status"] = s.qp[i]["local_up"]
    return kind


@rule
def _probe(s: Any, i: int, e: int, now_ps: int, out: Any) -> int:
    """Send a reliability probe: a transmission without a PSN that the peer answers with a SACK."""
    q = s.qp[i]
    if q["probe_open"]:
        q["probe_misses"] += 1
    q["probe_open"] = 1
    q["probe_id"] = (q["probe_id"] + 1) & ID_MASK
    q["probe_sent_ps"] = now_ps
    q["probe_order"] = q["order"]
    q["order"] += 1
    q["probes"] += 1
    return _describe(s, i, PROBE, e, q["probe_id"], out)


@rule
def _probe_due_ps(s: Any, i: int) -> int:
    """Return when a reliability probe is due: after a quiet time with packets under way, longer after misses."""
    q = s.qp[i]
    if q["inflight"] == 0 or not reachable(s, i):
        return NEVER
    quiet_since_ps = max(q["heard_ps"], q["active_ps"], q["probe_sent_ps"])
    return quiet_since_ps + (s.params[0]["probe_after_ps"] << min(q["probe_misses"], _MOST_SHIFTS))


@rule
def _ev_probe_due_ps(s: Any, i: int) -> int:
    """Return when the next EV probe is due: one at a time, while an EV is retired."""
    q = s.qp[i]
    if q["bad"] == 0 or q["ev_probe_ev"] >= 0:
        return NEVER
    return q["ev_probe_due_ps"]


@rule
def _tell_due_ps(s: Any, i: int) -> int:
    """Return when the peer is to be told of our ports."""
    q = s.qp[i]
    if q["told"] == q["local_up"] or not reachable(s, i):
        return NEVER
    return q["tell_sent_ps"] + s.params[0]["ev_probe_timeout_ps"]


@rule
def _next_bad(s: Any, i: int, room: int) -> int:
    """Return the next retired EV whose plane is up, in turn, or -1."""
    q = s.qp[i]
    evs = s.params[0]["evs"]
    for _ in range(evs):
        q["ev_probe_at"] = (q["ev_probe_at"] + 1) % evs
        ev = s.evs[i, q["ev_probe_at"]]
        if ev["state"] == ASSUMED_BAD and usable(s, i, ev["plane"], room):
            return q["ev_probe_at"]
    return -1


@rule
def on_ev_probe_answer(s: Any, i: int, number: int, verdict: int) -> None:
    """Take in the answer to an EV probe: enough of them in a row bring the EV back."""
    q = s.qp[i]
    e = q["ev_probe_ev"]
    if e < 0 or number != q["ev_probe_id"]:
        return
    q["ev_probe_ev"] = -1
    ev = s.evs[i, e]
    if ev["state"] != ASSUMED_BAD:
        return
    if verdict == VERDICT_ALWAYS_SKIP:
        ev["probes"] = 0
        return
    ev["probes"] += 1
    if ev["probes"] >= s.params[0]["probes_to_readmit"]:
        ev_event(s, i, e, PROBED_MARKED if verdict == VERDICT_SKIP_ONCE else PROBED_CLEAR)
    else:
        # It may have lost one packet by chance: the next probe follows at once, on the same EV.
        q["ev_probe_at"] = e - 1
        q["ev_probe_due_ps"] = 0


@rule
def on_timer(s: Any, i: int, now_ps: int) -> None:
    """Let time pass: port changes take effect, unanswered probes are given up, timeouts expire."""
    q = s.qp[i]
    if q["error"] != 0:
        return
    if q["ports_due_ps"] <= now_ps:
        apply_ports(s, i, now_ps)
    if q["ev_probe_ev"] >= 0 and now_ps - q["ev_probe_sent_ps"] >= s.params[0]["ev_probe_timeout_ps"]:
        s.evs[i, q["ev_probe_ev"]]["probes"] = 0
        q["ev_probe_ev"] = -1
    expire(s, i, now_ps)


@rule
def next_deadline(s: Any, i: int) -> int:
    """Return the next time at which `on_timer` or `next_control` may have something to do."""
    params = s.params[0]
    q = s.qp[i]
    if q["error"] != 0:
        return NEVER
    due_ps = min(q["ports_due_ps"], _tell_due_ps(s, i), _probe_due_ps(s, i), _ev_probe_due_ps(s, i))
    if q["ev_probe_ev"] >= 0:
        due_ps = min(due_ps, q["ev_probe_sent_ps"] + params["ev_probe_timeout_ps"])
    limit_ps = timeout_ps(params, q["backoff"])
    if q["stalled_ps"] < NEVER:
        due_ps = min(due_ps, q["stalled_ps"] + limit_ps)
    if q["oldest"] >= 0:
        due_ps = min(due_ps, s.packets[i, q["oldest"]]["sent_ps"] + limit_ps)
    return due_ps
