"""What is under way and what became of it: the two lists, presumed losses, timeouts and the retry budget.

Packets under way form a list in order of their last transmission, so the head is always the one to doubt first; packets
to be sent again form another. The order of transmission and not the PSN is what tells loss from reordering:

- A packet is presumed lost when a transmission made at least a *spread* of time and `passed_packets` transmissions
  later is known to have arrived (an acknowledgement, a NACK, or the answer to a reliability probe). Paths may differ in
  delay by less than the spread without anything happening. A dead path is so known after a round trip and a spread.
- If a packet that was presumed lost arrives after all (the echoed EV shows which transmission it was), its EV is
  cleared and the spread doubles, once in a round trip; it halves again after a quiet time.
- The timer, 1.024 us x 2^t, is the last resort. It blames an EV only where something that was sent later has arrived:
  all else may be the way back. Packets that were under way together make one timeout together. Where nothing at all was
  heard for so long, EVs that were blamed before are forgiven.

One budget per queue pair counts timeouts and repeated presumed losses of the oldest packet; it is restored when the
oldest packet arrives, and using it up ends the queue pair with RETRY_EXCEEDED. Trimmed packets do not count: the NACK
proves that the peer is there.
"""

from typing import Any

from weft.core.compile.rules import rule
from weft.mrc.columns import ERROR_NO_PATH, ERROR_RETRIES, IN_FLIGHT, KEPT, LOST, NEVER, VANISHED
from weft.mrc.rules.congestion import cc_loss
from weft.mrc.rules.evs import ARRIVED, ev_event, ev_silent, forgive, note_fate, usable

LONGEST_TIMEOUT_PS = 1_024_000 << 24
"""The timeout of t = 24, the longest there is."""
_INFINITE = 25
_MOST_SHIFTS = 24


@rule
def seq_of(s: Any, i: int, slot: int) -> int:
    """Return the sequence number of the packet in a used slot."""
    una = s.qp[i]["una"]
    return una + ((slot - una) & s.params[0]["slot_mask"])


@rule
def link_flying(s: Any, i: int, slot: int) -> None:
    """Put a packet that was just sent at the end of those under way."""
    q = s.qp[i]
    p = s.packets[i, slot]
    p["older"] = q["newest"]
    p["newer"] = -1
    if q["newest"] >= 0:
        s.packets[i, q["newest"]]["newer"] = slot
    else:
        q["oldest"] = slot
    q["newest"] = slot
    q["inflight"] += 1
    q["inflight_bytes"] += p["bytes"]
    if s.params[0]["even"]:
        s.evs[i, p["ev"]]["flying"] += 1
    p["state"] = IN_FLIGHT


@rule
def unlink_flying(s: Any, i: int, slot: int) -> None:
    """Take a packet out of those under way."""
    q = s.qp[i]
    p = s.packets[i, slot]
    older, newer = p["older"], p["newer"]
    if older >= 0:
        s.packets[i, older]["newer"] = newer
    else:
        q["oldest"] = newer
    if newer >= 0:
        s.packets[i, newer]["older"] = older
    else:
        q["newest"] = older
    q["inflight"] -= 1
    q["inflight_bytes"] -= p["bytes"]
    if s.params[0]["even"]:
        s.evs[i, p["ev"]]["flying"] -= 1


@rule
def link_lost(s: Any, i: int, slot: int) -> None:
    """Put a packet at the end of those to be sent again."""
    q = s.qp[i]
    p = s.packets[i, slot]
    p["older"] = q["lost_last"]
    p["newer"] = -1
    if q["lost_last"] >= 0:
        s.packets[i, q["lost_last"]]["newer"] = slot
    else:
        q["lost_first"] = slot
    q["lost_last"] = slot
    q["waiting"] += 1
    p["state"] = LOST


@rule
def unlink_lost(s: Any, i: int, slot: int) -> None:
    """Take a packet out of those to be sent again."""
    q = s.qp[i]
    p = s.packets[i, slot]
    older, newer = p["older"], p["newer"]
    if older >= 0:
        s.packets[i, older]["newer"] = newer
    else:
        q["lost_first"] = newer
    if newer >= 0:
        s.packets[i, newer]["older"] = older
    else:
        q["lost_last"] = older
    q["waiting"] -= 1


@rule
def declare_lost(s: Any, i: int, slot: int, why: int) -> None:
    """Move a packet under way to those to be sent again, and remember the EV that it must not take."""
    unlink_flying(s, i, slot)
    p = s.packets[i, slot]
    p["before"] = p["ev"]
    p["gone"] = why
    link_lost(s, i, slot)


@rule
def presume_lost(s: Any, i: int, slot: int, blame: bool) -> None:
    """Treat a packet under way as vanished; blame its EV unless its plane's port is known to be down, here or there."""
    q = s.qp[i]
    p = s.packets[i, slot]
    e = p["ev"]
    declare_lost(s, i, slot, VANISHED)
    q["silent"] += 1
    note_fate(q, 1)
    plane = s.evs[i, e]["plane"]
    if blame and s.planes[i, plane]["up"] and usable(s, i, plane, -1):
        ev_silent(s, i, e)
    cc_loss(s.params[0], q, p["bytes"])


@rule
def count_retry(s: Any, i: int, error: int) -> None:
    """Take one from the retry budget; an empty one ends the queue pair."""
    params = s.params[0]
    q = s.qp[i]
    q["retries"] += 1
    budget = params["linear_retries"] + params["exponential_retries"]
    if params["exponential_retries"] != _INFINITE and q["retries"] > budget:
        q["error"] = error


@rule
def note_passed(q: Any, sent_ps: int, order: int) -> None:
    """Note that the transmission of number `order` has arrived."""
    q["passed_ps"] = max(q["passed_ps"], sent_ps)
    q["passed_order"] = max(q["passed_order"], order)


@rule
def infer_losses(s: Any, i: int) -> None:
    """Presume lost whatever has been passed by far enough."""
    params = s.params[0]
    q = s.qp[i]
    while q["oldest"] >= 0 and q["error"] == 0:
        slot = q["oldest"]
        p = s.packets[i, slot]
        late = q["passed_ps"] - p["sent_ps"] >= q["spread_ps"]
        if not late or q["passed_order"] - p["order"] < params["passed_packets"]:
            return
        if seq_of(s, i, slot) == q["una"] and p["tries"] > 1:
            count_retry(s, i, ERROR_RETRIES)
        presume_lost(s, i, slot, True)


@rule
def was_not_lost(s: Any, i: int, slot: int, now_ps: int) -> None:
    """Take back the presumed loss of the packet in `slot`: that transmission arrived after all."""
    q = s.qp[i]
    p = s.packets[i, slot]
    e = p["before"]
    if p["gone"] != VANISHED or e < 0:
        return
    p["gone"] = KEPT
    params = s.params[0]
    q["spurious"] += 1
    # Packets of one round trip were judged by the same spread: together they are one mistake.
    if now_ps - q["spread_at_ps"] >= params["base_rtt_ps"]:
        q["spread_ps"] = min(2 * q["spread_ps"], params["spread_max_ps"])
        q["spread_at_ps"] = now_ps
    ev_event(s, i, e, ARRIVED)


@rule
def relax_spread(s: Any, i: int, now_ps: int) -> None:
    """Halve a widened spread after a quiet time."""
    params = s.params[0]
    q = s.qp[i]
    if q["spread_ps"] > params["spread_ps"] and now_ps - q["spread_at_ps"] >= params["spread_decay_ps"]:
        q["spread_ps"] = max(q["spread_ps"] // 2, params["spread_ps"])
        q["spread_at_ps"] = now_ps


@rule
def timeout_ps(params: Any, backoff: int) -> int:
    """Return the timeout after `backoff` timeouts in a row: the same for the linear ones, then doubling."""
    doublings = min(max(backoff - params["linear_retries"], 0), _MOST_SHIFTS)
    return min(params["timeout_ps"] << doublings, LONGEST_TIMEOUT_PS)


@rule
def expire(s: Any, i: int, now_ps: int) -> None:
    """Act on what has waited for a whole timeout: packets under way, or a pair that can use no path."""
    q = s.qp[i]
    limit_ps = timeout_ps(s.params[0], q["backoff"])
    if q["stalled_ps"] < NEVER and now_ps - q["stalled_ps"] >= limit_ps:
        q["stalled_ps"] = now_ps
        q["backoff"] += 1
        count_retry(s, i, ERROR_NO_PATH)
    if q["oldest"] < 0 or now_ps - s.packets[i, q["oldest"]]["sent_ps"] < limit_ps:
        return
    if q["bad"] > 0 and now_ps - q["heard_ps"] >= s.params[0]["timeout_ps"]:
        forgive(s, i)
    again = s.packets[i, q["oldest"]]["sent_ps"] >= q["expired_ps"]
    while q["oldest"] >= 0 and now_ps - s.packets[i, q["oldest"]]["sent_ps"] >= limit_ps:
        blame = q["passed_ps"] > s.packets[i, q["oldest"]]["sent_ps"]
        presume_lost(s, i, q["oldest"], blame)
    # What was sent before the last timeout belongs to it, whenever its own time is up.
    if again:
        q["expired_ps"] = now_ps
        q["timeouts"] += 1
        q["backoff"] += 1
        count_retry(s, i, ERROR_RETRIES)
