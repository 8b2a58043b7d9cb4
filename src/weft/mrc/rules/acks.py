"""What a sender learns from SACKs and NACKs.

A SACK says four things: everything up to a PSN arrived; these of 64 others arrived; this packet caused it, on this EV,
with this verdict; and how far the receive window reaches. The PSN and EV of the cause together name one transmission,
so a round trip is measured only where it is certain which of two copies arrived.
"""

from typing import Any

from weft.core.compile.rules import rule
from weft.mrc.columns import ACKED, ERROR_PEER, ERROR_RETRIES, FREE, IN_FLIGHT, LOST, LOW32, RETURNED
from weft.mrc.rules.congestion import cc_ack, cc_penalty, cc_trim
from weft.mrc.rules.evs import ALWAYS_SKIP, TRIM, ev_delivers, ev_event, ev_marked, note_fate
from weft.mrc.rules.numbers import lowest_bit, seq_near
from weft.mrc.rules.recovery import (
    count_retry,
    declare_lost,
    infer_losses,
    note_passed,
    relax_spread,
    unlink_flying,
    unlink_lost,
    was_not_lost,
)
from weft.mrc.rules.sender import grant
from weft.mrc.rules.skipping import ev_clear
from weft.mrc.wire.packets import (
    TRIMMED,
    TRIMMED_LASTHOP,
    UNEXP_EVENT,
    VERDICT_ALWAYS_SKIP,
    VERDICT_SKIP_ONCE,
)

_ID_MASK = 0xFFFF
_WORD_BITS, _WORD_SHIFT, _WORD_MASK = 32, 5, 31


@rule
def on_sack(s: Any, i: int, reply: Any, now_ps: int) -> int:
    """Take in one SACK and return how many payload bytes it newly acknowledged."""
    q = s.qp[i]
    cack = seq_near(reply["cack_psn"], q["una"])
    if q["error"] != 0 or cack >= q["next"]:
        q["bad_acks"] += 1
        return 0
    q["heard_ps"] = now_ps
    before = q["delivered_bytes"]
    delay_ps = -1
    cause = -1 if reply["probe_response"] else cack + reply["ack_psn_offset"]
    if reply["probe_response"]:
        _probe_answered(s, i, reply["ack_psn_offset"])
    else:
        delay_ps = _cause(s, i, cause, reply["value"], reply["verdict"], now_ps)
    acked = 0
    for seq in range(q["una"], cack + 1):
        acked += _acknowledge(s, i, seq, cause, now_ps)
    base = cack + reply["sack_offset"]
    acked += _selective(s, i, base, reply["bitmap_low"], reply["bitmap_high"], cause, now_ps)
    _advance(s, i)
    grant(s, i, reply["mpr"])
    if acked > 0:
        q["backoff"] = 0
        q["probe_misses"] = 0
    cc_ack(s.params[0], q, now_ps, acked, delay_ps, reply["verdict"] == VERDICT_SKIP_ONCE)
    cc_penalty(s.params[0], q, acked, reply["penalty"])
    relax_spread(s, i, now_ps)
    infer_losses(s, i)
    return q["delivered_bytes"] - before


@rule
def transmission(s: Any, i: int, seq: int, value: int) -> int:
    """Return the EV on which packet `seq` went out with EV bits `value`, or -1 where that is not known any more."""
    q = s.qp[i]
    if seq >= q["next"] or seq < q["next"] - s.params[0]["slot_mask"] - 1:
        return -1
    p = s.packets[i, seq & s.params[0]["slot_mask"]]
    if p["ev"] >= 0 and s.evs[i, p["ev"]]["value"] == value:
        return p["ev"]
    if p["before"] >= 0 and s.evs[i, p["before"]]["value"] == value:
        return p["before"]
    return -1


@rule
def _cause(s: Any, i: int, seq: int, value: int, verdict: int, now_ps: int) -> int:
    """Learn from the packet that caused a SACK; return its queueing delay, or -1 where it gives none."""
    q = s.qp[i]
    e = transmission(s, i, seq, value)
    if e < 0:
        return -1
    p = s.packets[i, seq & s.params[0]["slot_mask"]]
    delay_ps = -1
    current = e == p["ev"] and p["state"] != LOST
    if current:
        note_passed(q, p["sent_ps"], p["order"])
        delay_ps = max(0, now_ps - p["sent_ps"] - s.params[0]["base_rtt_ps"])
        s.planes[i, s.evs[i, e]["plane"]]["reverse"] = e
    else:
        was_not_lost(s, i, seq & s.params[0]["slot_mask"], now_ps)
    ev_delivers(s, i, e)
    if verdict == VERDICT_SKIP_ONCE:
        q["marks"] += 1
        ev_marked(s, i, e)
    elif verdict == VERDICT_ALWAYS_SKIP:
        ev_event(s, i, e, ALWAYS_SKIP)
    elif current:
        ev_clear(s, i, e)
    return delay_ps


@rule
def _probe_answered(s: Any, i: int, probe_id: int) -> None:
    """Learn from the answer to a reliability probe: whatever was sent long before it has been passed."""
    q = s.qp[i]
    if q["probe_open"] and (probe_id & _ID_MASK) == q["probe_id"]:
        q["probe_open"] = 0
        q["probe_misses"] = 0
        # The probe alone must be able to show a loss at the end of a message, where no packets follow.
        note_passed(q, q["probe_sent_ps"], q["probe_order"] + s.params[0]["passed_packets"])


@rule
def _acknowledge(s: Any, i: int, seq: int, cause: int, now_ps: int) -> int:
    """Note that packet `seq` has arrived, told by a SACK for `cause`; return its bytes, or 0 where that was known."""
    params = s.params[0]
    q = s.qp[i]
    slot = seq & params["slot_mask"]
    p = s.packets[i, slot]
    if p["state"] == IN_FLIGHT:
        unlink_flying(s, i, slot)
        if p["tries"] == 1:
            note_passed(q, p["sent_ps"], p["order"])
            ev_delivers(s, i, p["ev"])
            # Marks are told at once, by a SACK of their own: what several packets share says that they had none.
            if seq != cause:
                ev_clear(s, i, p["ev"])
        elif now_ps - p["sent_ps"] < params["base_rtt_ps"] // 2:
            # Too soon to be the answer to the last transmission: the one before it arrived.
            was_not_lost(s, i, slot, now_ps)
    elif p["state"] == LOST:
        unlink_lost(s, i, slot)
        was_not_lost(s, i, slot, now_ps)
    else:
        return 0
    p["state"] = ACKED
    note_fate(q, 0)
    s.arrived[i, slot >> _WORD_SHIFT] |= 1 << (slot & _WORD_MASK)
    q["delivered_bytes"] += p["bytes"] - params["overhead"]
    return p["bytes"]


@rule
def _selective(s: Any, i: int, base: int, low: int, high: int, cause: int, now_ps: int) -> int:
    """Acknowledge those of the 64 packets from `base` on whose bits are set; return their bytes."""
    shift = base & _WORD_MASK
    start = base - shift
    acked = _selective_word(s, i, start, (low << shift) & LOW32, cause, now_ps)
    middle = ((low >> (_WORD_BITS - shift)) | (high << shift)) & LOW32
    acked += _selective_word(s, i, start + _WORD_BITS, middle, cause, now_ps)
    return acked + _selective_word(s, i, start + 2 * _WORD_BITS, high >> (_WORD_BITS - shift), cause, now_ps)


@rule
def _selective_word(s: Any, i: int, start: int, bits: int, cause: int, now_ps: int) -> int:
    """Acknowledge packets by one aligned word of 32 bits; return their bytes."""
    q = s.qp[i]
    acked = 0
    if bits == 0 or start + _WORD_BITS <= q["una"] or start >= q["next"]:
        return acked
    fresh = bits & ~s.arrived[i, (start & s.params[0]["slot_mask"]) >> _WORD_SHIFT] & LOW32
    while fresh:
        seq = start + lowest_bit(fresh)
        fresh &= fresh - 1
        if q["una"] <= seq < q["next"]:
            acked += _acknowledge(s, i, seq, cause, now_ps)
    return acked


@rule
def _advance(s: Any, i: int) -> None:
    """Move the oldest unacknowledged packet on over all that have arrived, and complete their messages."""
    params = s.params[0]
    q = s.qp[i]
    while q["una"] < q["next"]:
        slot = q["una"] & params["slot_mask"]
        p = s.packets[i, slot]
        if p["state"] != ACKED:
            return
        p["state"] = FREE
        s.arrived[i, slot >> _WORD_SHIFT] &= ~(1 << (slot & _WORD_MASK))
        m = s.messages[i, q["msg_first"] & params["message_mask"]]
        if q["una"] == m["first"] + m["packets"] - 1:
            q["msg_first"] += 1
            q["completed"] += 1
            if m["immediate"] >= 0:
                q["immediates"] -= 1
        q["una"] += 1
        q["retries"] = 0


@rule
def on_nack(s: Any, i: int, reply: Any, now_ps: int) -> None:
    """Take in one NACK: send the packet again, skip a path that trimmed, blame none for anything else."""
    q = s.qp[i]
    reason = reply["reason"]
    if q["error"] != 0:
        return
    if reason == UNEXP_EVENT:
        q["error"] = ERROR_PEER
        return
    seq = seq_near(reply["psn"], q["una"])
    e = transmission(s, i, seq, reply["value"])
    if e < 0:
        q["bad_acks"] += 1
        return
    q["heard_ps"] = now_ps
    trimmed = reason in (TRIMMED, TRIMMED_LASTHOP)
    if trimmed:
        q["trims"] += 1
    if reason == TRIMMED:
        ev_event(s, i, e, TRIM)
    p = s.packets[i, seq & s.params[0]["slot_mask"]]
    if seq < q["una"] or p["state"] != IN_FLIGHT or e != p["ev"]:
        return
    if not trimmed:
        # It reached the peer, so it tells about those sent before it like an acknowledgement does. A trimmed header
        # does not: it travels in the control class and overtakes whole packets that wait in the same queues.
        note_passed(q, p["sent_ps"], p["order"])
    declare_lost(s, i, seq & s.params[0]["slot_mask"], RETURNED)
    if trimmed:
        q["backoff"] = 0
        cc_trim(s.params[0], q, now_ps, p["bytes"])
    elif seq == q["una"]:
        count_retry(s, i, ERROR_RETRIES)
    infer_losses(s, i)
