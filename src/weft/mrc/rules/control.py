"""Everything a sender does besides data: reliability probes, EV probes, port status, and the passing of time.

`next_control` gives the next control packet that is due, `on_timer` acts on what has waited too long, `next_deadline`
says when to call either again. The answers come back through `on_ev_probe_answer` and `ports.on_port_answer`; the one
to a reliability probe is a SACK.
"""

from weft.core.compile.rules import rule
from weft.mrc.columns import ASSUMED_BAD, EV_PROBE, NEVER, NOTHING, PORT_STATUS, PROBE, Sender, SendRow, SettingsRow
from weft.mrc.rules.evs import PROBED_CLEAR, PROBED_MARKED, ev_event, pick_ev, reachable, usable
from weft.mrc.rules.ports import apply_ports
from weft.mrc.rules.recovery import expire, timeout_ps
from weft.mrc.rules.reverse import describe_control
from weft.mrc.wire.packets import VERDICT_ALWAYS_SKIP, VERDICT_SKIP_ONCE

ID_MASK = 0x7FFF
"""Ids of probes by the sender; the receiver's have the top bit of the 16 set."""
KEEP_ALIVE = 0x7FFF
"""Id of an EV probe that only asks whether the peer is there; those of retired EVs lie below."""
_MOST_SHIFTS = 6


@rule
def next_control(sender: Sender, pair: int, now_ps: int, room: int, out: SendRow) -> int:
    """Fill `out` with a control packet that is due and return its kind, or return NOTHING.

    Writes `ev_probe_due_ps`, `announced_ps`, `ev_probes`, `ev_probe_id`, `ev_probe_ev` and `ev_probe_sent_ps`.
    """
    qp = sender.qp[pair]
    if qp["error"] != 0:
        return NOTHING
    # Ports first: until the peer knows of one that is down, everything that it sends there is lost.
    if _announce_due_ps(sender, pair) <= now_ps:
        ev_index = pick_ev(sender, pair, -1, room)
        if ev_index >= 0:
            qp["announced_ps"] = now_ps
            return describe_control(sender, pair, PORT_STATUS, ev_index, qp["announce_id"], out)
    if _probe_due_ps(sender, pair) <= now_ps:
        ev_index = pick_ev(sender, pair, _in_doubt(sender, pair), room)
        if ev_index >= 0:
            return _probe(sender, pair, ev_index, now_ps, out)
    if _ev_probe_due_ps(sender, pair) <= now_ps:
        ev_index = _next_bad(sender, pair, room)
        qp["ev_probe_due_ps"] = now_ps + sender.params[0]["ev_probe_interval_ps"]
        if ev_index >= 0:
            qp["ev_probes"] += 1
            qp["ev_probe_id"] = (qp["ev_probe_id"] + 1) % KEEP_ALIVE
            qp["ev_probe_ev"] = ev_index
            qp["ev_probe_sent_ps"] = now_ps
            return describe_control(sender, pair, EV_PROBE, ev_index, qp["ev_probe_id"], out)
    return NOTHING


@rule
def _in_doubt(sender: Sender, pair: int) -> int:
    """Return the EV that a reliability probe is to avoid, that of the oldest packet in flight, or -1.

    Where few EVs are left that one may be dead, and a full window lets nothing else go out that would show it. It may
    as well be the only one that works: where the last probe was not answered, every other one avoids no EV.
    """
    qp = sender.qp[pair]
    unanswered = qp["probe_misses"] + qp["probe_open"]
    return -1 if unanswered & 1 else sender.packets[pair, qp["oldest"]]["ev"]


@rule
def _probe(sender: Sender, pair: int, ev_index: int, now_ps: int, out: SendRow) -> int:
    """Send a reliability probe: a transmission without a PSN that the peer answers with a SACK."""
    qp = sender.qp[pair]
    if qp["probe_open"]:  # the last one was not answered
        qp["probe_misses"] += 1
    qp["probe_open"] = 1
    qp["probe_id"] = (qp["probe_id"] + 1) & ID_MASK
    qp["probe_sent_ps"] = now_ps
    # It takes a number among transmissions, so that its answer shows which of them it has passed.
    qp["probe_order"] = qp["order"]
    qp["order"] += 1
    qp["probes"] += 1
    return describe_control(sender, pair, PROBE, ev_index, qp["probe_id"], out)


@rule
def _probe_due_ps(sender: Sender, pair: int) -> int:
    """Return when a reliability probe is due: after a quiet time with packets in flight, longer after misses.

    Where all is sent, the first is due as soon as the last packet should have been answered: nothing later passes it.
    """
    qp = sender.qp[pair]
    params = sender.params[0]
    if qp["inflight"] == 0 or not reachable(sender, pair):
        return NEVER
    quiet_since_ps = max(qp["heard_ps"], qp["active_ps"], qp["probe_sent_ps"])
    due_ps = quiet_since_ps + (params["probe_after_ps"] << min(qp["probe_misses"], _MOST_SHIFTS))
    if all_sent(sender, pair) and qp["probe_sent_ps"] < qp["active_ps"]:
        return min(due_ps, qp["active_ps"] + tail_ps(params))
    return due_ps


@rule
def all_sent(sender: Sender, pair: int) -> bool:
    """Return whether nothing waits to be sent, for the first time or again."""
    return sender.qp[pair]["next"] == sender.qp[pair]["end"] and sender.qp[pair]["lost_first"] < 0


@rule
def tail_ps(params: SettingsRow) -> int:
    """Return how long after the last packet of all its answer should be there."""
    return params["base_rtt_ps"] + params["spread_ps"]


@rule
def _ev_probe_due_ps(sender: Sender, pair: int) -> int:
    """Return when the next EV probe is due: one at a time, while an EV is retired."""
    qp = sender.qp[pair]
    if qp["bad"] == 0 or qp["ev_probe_ev"] >= 0:
        return NEVER
    return qp["ev_probe_due_ps"]


@rule
def _announce_due_ps(sender: Sender, pair: int) -> int:
    """Return when the state of our ports is to be announced to the peer."""
    qp = sender.qp[pair]
    if qp["ports_announced"] == qp["local_up"] or not reachable(sender, pair):
        return NEVER
    return qp["announced_ps"] + sender.params[0]["ev_probe_timeout_ps"]


@rule
def _next_bad(sender: Sender, pair: int, room: int) -> int:
    """Return the next retired EV whose plane is up, in turn, or -1. Writes `ev_probe_at`."""
    qp = sender.qp[pair]
    evs = sender.params[0]["evs"]
    for _ in range(evs):
        qp["ev_probe_at"] = (qp["ev_probe_at"] + 1) % evs
        ev = sender.evs[pair, qp["ev_probe_at"]]
        if ev["state"] == ASSUMED_BAD and usable(sender, pair, ev["plane"], room):
            return qp["ev_probe_at"]
    return -1


@rule
def on_ev_probe_answer(sender: Sender, pair: int, number: int, verdict: int) -> None:
    """Take in the answer to an EV probe: enough of them in a row bring the EV back.

    Writes `ev_probe_ev`, `probe_misses`, `probes`, `ev_probe_at` and `ev_probe_due_ps`.
    """
    qp = sender.qp[pair]
    ev_index = qp["ev_probe_ev"]
    if ev_index < 0 or number != qp["ev_probe_id"]:
        return
    qp["ev_probe_ev"] = -1
    # The peer is there and a way to it works: what is in flight is to be asked for again soon.
    qp["probe_misses"] = 0
    ev = sender.evs[pair, ev_index]
    if ev["state"] != ASSUMED_BAD:
        return
    if verdict == VERDICT_ALWAYS_SKIP:
        ev["probes"] = 0
        return
    ev["probes"] += 1
    if ev["probes"] >= sender.params[0]["probes_to_readmit"]:
        ev_event(sender, pair, ev_index, PROBED_MARKED if verdict == VERDICT_SKIP_ONCE else PROBED_CLEAR)
    else:
        # It may have lost one packet at random: the next probe follows at once, on the same EV.
        qp["ev_probe_at"] = ev_index - 1
        qp["ev_probe_due_ps"] = 0


@rule
def on_timer(sender: Sender, pair: int, now_ps: int) -> None:
    """Let time pass: port changes take effect, unanswered probes are given up, timeouts expire.

    Writes `probes` and `ev_probe_ev`.
    """
    qp = sender.qp[pair]
    if qp["error"] != 0:
        return
    if qp["ports_due_ps"] <= now_ps:
        apply_ports(sender, pair, now_ps)
    if qp["ev_probe_ev"] >= 0 and now_ps - qp["ev_probe_sent_ps"] >= sender.params[0]["ev_probe_timeout_ps"]:
        sender.evs[pair, qp["ev_probe_ev"]]["probes"] = 0
        qp["ev_probe_ev"] = -1
    expire(sender, pair, now_ps)


@rule
def next_deadline(sender: Sender, pair: int) -> int:
    """Return the next time at which `on_timer` or `next_control` may have something to do."""
    params = sender.params[0]
    qp = sender.qp[pair]
    if qp["error"] != 0:
        return NEVER
    # Every term may be early, never late: who asks again finds nothing due and asks for the next time.
    due_ps = min(
        qp["ports_due_ps"], _announce_due_ps(sender, pair), _probe_due_ps(sender, pair), _ev_probe_due_ps(sender, pair)
    )
    if qp["ev_probe_ev"] >= 0:
        due_ps = min(due_ps, qp["ev_probe_sent_ps"] + params["ev_probe_timeout_ps"])
    limit_ps = timeout_ps(params, qp["backoff"])
    if qp["stalled_ps"] < NEVER:
        due_ps = min(due_ps, qp["stalled_ps"] + limit_ps)
    if qp["oldest"] >= 0:
        due_ps = min(due_ps, sender.packets[pair, qp["oldest"]]["sent_ps"] + limit_ps)
    return due_ps
