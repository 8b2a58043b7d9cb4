"""What a sender learns from SACKs and NACKs.

A SACK says four things: everything up to a PSN arrived; these of 64 others arrived; this packet caused it, on this EV,
with this verdict; and how far the receive window reaches. The PSN and EV of the cause together name one transmission,
so a round trip is measured only where it is certain which of two copies arrived.
"""

from weft.core.compile.rules import rule
from weft.mrc.columns import (
    ACKED,
    DENIED,
    ERROR_PEER,
    ERROR_RETRIES,
    FREE,
    IN_FLIGHT,
    LOST,
    LOW32,
    RETURNED,
    ReplyRow,
    Sender,
)
from weft.mrc.rules.blame import ev_delivers, note_fate, note_trimmed
from weft.mrc.rules.congestion import cc_ack, cc_penalty, cc_trim
from weft.mrc.rules.evs import ALWAYS_SKIP, TRIM, ev_event, ev_marked
from weft.mrc.rules.numbers import lowest_bit, seq_near
from weft.mrc.rules.recovery import (
    count_retry,
    declare_lost,
    infer_losses,
    note_late,
    note_passed,
    relax_spread,
    unlink_in_flight,
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
def on_sack(sender: Sender, pair: int, reply: ReplyRow, now_ps: int) -> int:
    """Take in one SACK and return how many payload bytes it newly acknowledged.

    Writes `heard_ps`, `bad_acks`, `backoff` and `probe_misses`.
    """
    qp = sender.qp[pair]
    cack = seq_near(reply["cack_psn"], qp["una"])
    if qp["error"] != 0 or cack >= qp["next"]:
        qp["bad_acks"] += 1
        return 0
    qp["heard_ps"] = now_ps
    before = qp["delivered_bytes"]
    delay_ps = -1
    cause = -1 if reply["probe_response"] else cack + reply["ack_psn_offset"]
    if reply["probe_response"]:
        _probe_answered(sender, pair, reply["ack_psn_offset"])
    else:
        delay_ps = _cause(sender, pair, cause, reply["value"], reply["verdict"], now_ps)
    acked = 0
    for seq in range(qp["una"], cack + 1):
        acked += _acknowledge(sender, pair, seq, cause, now_ps)
    base = cack + reply["sack_offset"]
    acked += _selective(sender, pair, base, reply, cause, now_ps)
    _advance(sender, pair)
    grant(sender, pair, reply["mpr"])
    if acked > 0:
        qp["backoff"] = 0
        qp["probe_misses"] = 0
    cc_ack(sender.params[0], qp, now_ps, acked, delay_ps, reply["verdict"] == VERDICT_SKIP_ONCE)
    cc_penalty(sender.params[0], qp, acked, reply["penalty"])
    relax_spread(sender, pair, now_ps)
    infer_losses(sender, pair)
    return qp["delivered_bytes"] - before


@rule
def transmission(sender: Sender, pair: int, seq: int, value: int) -> int:
    """Return the EV on which packet `seq` went out with EV bits `value`, or -1 where that is not known any more."""
    qp = sender.qp[pair]
    if seq >= qp["next"] or seq < qp["next"] - sender.params[0]["slot_mask"] - 1:
        return -1
    packet = sender.packets[pair, seq & sender.params[0]["slot_mask"]]
    if packet["ev"] >= 0 and sender.evs[pair, packet["ev"]]["value"] == value:
        return packet["ev"]
    if packet["before"] >= 0 and sender.evs[pair, packet["before"]]["value"] == value:
        return packet["before"]
    return -1


@rule
def _cause(sender: Sender, pair: int, seq: int, value: int, verdict: int, now_ps: int) -> int:
    """Learn from the packet that caused a SACK; return its queueing delay, or -1 where it gives none."""
    qp = sender.qp[pair]
    ev_index = transmission(sender, pair, seq, value)
    if ev_index < 0:
        return -1
    packet = sender.packets[pair, seq & sender.params[0]["slot_mask"]]
    delay_ps = -1
    current = ev_index == packet["ev"] and packet["state"] != LOST
    if current:
        note_passed(qp, packet["sent_ps"], packet["order"])
        delay_ps = max(0, now_ps - packet["sent_ps"] - sender.params[0]["base_rtt_ps"])
        # What else this SACK acknowledges may have waited for it at the peer, not in queues.
        note_late(qp, delay_ps)
        if sender.evs[pair, ev_index]["state"] != DENIED:
            sender.planes[pair, sender.evs[pair, ev_index]["plane"]]["reverse"] = ev_index
    else:
        was_not_lost(sender, pair, seq & sender.params[0]["slot_mask"], now_ps)
    ev_delivers(sender, pair, ev_index)
    if verdict == VERDICT_SKIP_ONCE:
        qp["marks"] += 1
        ev_marked(sender, pair, ev_index)
    elif verdict == VERDICT_ALWAYS_SKIP:
        ev_event(sender, pair, ev_index, ALWAYS_SKIP)
    elif current:
        ev_clear(sender, pair, ev_index)
    return delay_ps


@rule
def _probe_answered(sender: Sender, pair: int, probe_id: int) -> None:
    """Learn from the answer to a reliability probe: whatever was sent long before it has been passed."""
    qp = sender.qp[pair]
    if qp["probe_open"] and (probe_id & _ID_MASK) == qp["probe_id"]:
        qp["probe_open"] = 0
        qp["probe_misses"] = 0
        # The probe alone must be able to show a loss at the end of a message, where no packets follow.
        note_passed(qp, qp["probe_sent_ps"], qp["probe_order"] + sender.params[0]["passed_packets"])


@rule
def _acknowledge(sender: Sender, pair: int, seq: int, cause: int, now_ps: int) -> int:
    """Note that packet `seq` has arrived, as a SACK for `cause` says; return its bytes, or 0 where that was known."""
    params = sender.params[0]
    qp = sender.qp[pair]
    slot = seq & params["slot_mask"]
    packet = sender.packets[pair, slot]
    if packet["state"] == IN_FLIGHT:
        unlink_in_flight(sender, pair, slot)
        if packet["tries"] == 1:
            note_passed(qp, packet["sent_ps"], packet["order"])
            ev_delivers(sender, pair, packet["ev"])
            # Marks are reported at once, by a SACK of their own: what several packets share says that they had none.
            if seq != cause:
                ev_clear(sender, pair, packet["ev"])
        elif now_ps - packet["sent_ps"] < params["base_rtt_ps"] // 2:
            # Too soon to be the answer to the last transmission: the one before it arrived.
            was_not_lost(sender, pair, slot, now_ps)
    elif packet["state"] == LOST:
        unlink_lost(sender, pair, slot)
        was_not_lost(sender, pair, slot, now_ps)
    else:
        return 0
    packet["state"] = ACKED
    note_fate(qp, 0)
    sender.arrived[pair, slot >> _WORD_SHIFT] |= 1 << (slot & _WORD_MASK)
    qp["delivered_bytes"] += packet["bytes"] - params["overhead"]
    return packet["bytes"]


@rule
def _selective(sender: Sender, pair: int, base: int, reply: ReplyRow, cause: int, now_ps: int) -> int:
    """Acknowledge those of the 64 packets from `base` on whose bits are set; return their bytes."""
    low, high = reply["bitmap_low"], reply["bitmap_high"]
    # The 64 bits lie over three aligned words of `arrived`: each is compared at once with what is known.
    shift = base & _WORD_MASK
    start = base - shift
    acked = _selective_word(sender, pair, start, (low << shift) & LOW32, cause, now_ps)
    middle = ((low >> (_WORD_BITS - shift)) | (high << shift)) & LOW32
    acked += _selective_word(sender, pair, start + _WORD_BITS, middle, cause, now_ps)
    return acked + _selective_word(sender, pair, start + 2 * _WORD_BITS, high >> (_WORD_BITS - shift), cause, now_ps)


@rule
def _selective_word(sender: Sender, pair: int, start: int, bits: int, cause: int, now_ps: int) -> int:
    """Acknowledge packets by one aligned word of 32 bits; return their bytes."""
    qp = sender.qp[pair]
    acked = 0
    if bits == 0 or start + _WORD_BITS <= qp["una"] or start >= qp["next"]:
        return acked
    # Only what is new is walked over, lowest bit first; `fresh & (fresh - 1)` clears that bit.
    fresh = bits & ~sender.arrived[pair, (start & sender.params[0]["slot_mask"]) >> _WORD_SHIFT] & LOW32
    while fresh:
        seq = start + lowest_bit(fresh)
        fresh &= fresh - 1
        if qp["una"] <= seq < qp["next"]:
            acked += _acknowledge(sender, pair, seq, cause, now_ps)
    return acked


@rule
def _advance(sender: Sender, pair: int) -> None:
    """Move the oldest unacknowledged packet on over all that have arrived, and complete their messages."""
    params = sender.params[0]
    qp = sender.qp[pair]
    while qp["una"] < qp["next"]:
        slot = qp["una"] & params["slot_mask"]
        packet = sender.packets[pair, slot]
        if packet["state"] != ACKED:
            return
        packet["state"] = FREE
        sender.arrived[pair, slot >> _WORD_SHIFT] &= ~(1 << (slot & _WORD_MASK))
        message = sender.messages[pair, qp["msg_first"] & params["message_mask"]]
        if qp["una"] == message["first"] + message["packets"] - 1:
            qp["msg_first"] += 1
            qp["completed"] += 1
            if message["immediate"] >= 0:
                qp["immediates"] -= 1
        qp["una"] += 1
        qp["retries"] = 0


@rule
def on_nack(sender: Sender, pair: int, reply: ReplyRow, now_ps: int) -> None:
    """Take in one NACK: send the packet again, skip a path that trimmed, blame none for anything else.

    Writes `heard_ps`, `error`, `bad_acks`, `trims` and `backoff`.
    """
    qp = sender.qp[pair]
    reason = reply["reason"]
    if qp["error"] != 0:
        return
    if reason == UNEXP_EVENT:
        qp["error"] = ERROR_PEER
        return
    seq = seq_near(reply["psn"], qp["una"])
    ev_index = transmission(sender, pair, seq, reply["value"])
    if ev_index < 0:
        qp["bad_acks"] += 1
        return
    qp["heard_ps"] = now_ps
    trimmed = reason in (TRIMMED, TRIMMED_LASTHOP)
    if trimmed:
        qp["trims"] += 1
        note_trimmed(sender, pair, ev_index)
    if reason == TRIMMED:
        ev_event(sender, pair, ev_index, TRIM)
    packet = sender.packets[pair, seq & sender.params[0]["slot_mask"]]
    if seq < qp["una"] or packet["state"] != IN_FLIGHT or ev_index != packet["ev"]:
        return
    if not trimmed:
        # It reached the peer, so it tells about those sent before it like an acknowledgement does. A trimmed header
        # does not: it travels in the control class and overtakes whole packets that wait in the same queues.
        note_passed(qp, packet["sent_ps"], packet["order"])
    declare_lost(sender, pair, seq & sender.params[0]["slot_mask"], RETURNED)
    if trimmed:
        qp["backoff"] = 0
        cc_trim(sender.params[0], qp, now_ps, packet["bytes"])
    elif seq == qp["una"]:
        count_retry(sender, pair, ERROR_RETRIES)
    infer_losses(sender, pair)
