"""What is in flight and what became of it: the two lists, presumed losses, timeouts and the retry budget.

Packets in flight form a list in order of their last transmission, so the head is always the one to doubt first; packets
to be sent again form another. The order of transmission and not the PSN is what tells loss from reordering:

- A packet is presumed lost when a transmission made at least a *spread* of time and `passed_packets` transmissions
  later is known to have arrived (an acknowledgement, a NACK, or the answer to a reliability probe). Paths may differ in
  delay by less than the spread without anything happening. A dead path is so known after a round trip and a spread.
- The longest wait in queues that was lately seen on any path is added to the spread, up to the most it may be: where
  queues stand, a packet may be as late as any other was, and nothing is wrong with its path.
- If a packet that was presumed lost arrives after all (the echoed EV shows which transmission it was), its EV is
  cleared and the spread doubles, once in a round trip; it halves again after a quiet time.
- The timer, 1.024 us x 2^t, is the last resort. It blames an EV only where something that was sent later has arrived:
  all else may be the reverse path. Packets that were in flight together make one timeout together. Where nothing at all
  was heard for so long, EVs that were blamed before are readmitted.

One budget per queue pair counts timeouts and repeated presumed losses of the oldest packet; it is restored when the
oldest packet arrives, and using it up ends the queue pair with RETRY_EXCEEDED. Trimmed packets do not count: the NACK
proves that the peer is there.
"""

from weft.core.compile.rules import rule
from weft.mrc.columns import (
    ERROR_NO_PATH,
    ERROR_RETRIES,
    IN_FLIGHT,
    KEPT,
    LOST,
    NEVER,
    VANISHED,
    Sender,
    SenderRow,
    SettingsRow,
)
from weft.mrc.rules.blame import ev_arrived, ev_silent, note_fate
from weft.mrc.rules.congestion import cc_loss
from weft.mrc.rules.evs import readmit_all, usable

LONGEST_TIMEOUT_PS = 1_024_000 << 24
"""The timeout of t = 24, the longest there is."""
_INFINITE = 25
_MOST_SHIFTS = 24
_LATE_SHIFT, _LATER_SHIFT = 8, 2


@rule
def seq_of(sender: Sender, pair: int, slot: int) -> int:
    """Return the sequence number of the packet in a used slot."""
    una = sender.qp[pair]["una"]
    # The window is no longer than the slots, so that a slot stands for one sequence number from `una` on.
    return una + ((slot - una) & sender.params[0]["slot_mask"])


@rule
def link_in_flight(sender: Sender, pair: int, slot: int) -> None:
    """Put a packet that was just sent at the end of those in flight.

    Writes `older`, `newer`, `newest`, `inflight`, `inflight_bytes`, `state` and `oldest`.
    """
    qp = sender.qp[pair]
    packet = sender.packets[pair, slot]
    packet["older"] = qp["newest"]
    packet["newer"] = -1
    if qp["newest"] >= 0:
        sender.packets[pair, qp["newest"]]["newer"] = slot
    else:
        qp["oldest"] = slot
    qp["newest"] = slot
    qp["inflight"] += 1
    qp["inflight_bytes"] += packet["bytes"]
    # Only `is_held` reads the count of an EV: without it, the row of the EV need not be touched.
    if sender.params[0]["even"]:
        sender.evs[pair, packet["ev"]]["inflight"] += 1
    packet["state"] = IN_FLIGHT


@rule
def unlink_in_flight(sender: Sender, pair: int, slot: int) -> None:
    """Take a packet out of those in flight.

    Writes `inflight`, `inflight_bytes`, `newer`, `oldest`, `older` and `newest`.
    """
    qp = sender.qp[pair]
    packet = sender.packets[pair, slot]
    older, newer = packet["older"], packet["newer"]
    if older >= 0:
        sender.packets[pair, older]["newer"] = newer
    else:
        qp["oldest"] = newer
    if newer >= 0:
        sender.packets[pair, newer]["older"] = older
    else:
        qp["newest"] = older
    qp["inflight"] -= 1
    qp["inflight_bytes"] -= packet["bytes"]
    if sender.params[0]["even"]:
        sender.evs[pair, packet["ev"]]["inflight"] -= 1


@rule
def link_lost(sender: Sender, pair: int, slot: int) -> None:
    """Put a packet at the end of those to be sent again.

    Writes `older`, `newer`, `lost_last`, `waiting`, `state` and `lost_first`.
    """
    qp = sender.qp[pair]
    packet = sender.packets[pair, slot]
    packet["older"] = qp["lost_last"]
    packet["newer"] = -1
    if qp["lost_last"] >= 0:
        sender.packets[pair, qp["lost_last"]]["newer"] = slot
    else:
        qp["lost_first"] = slot
    qp["lost_last"] = slot
    qp["waiting"] += 1
    packet["state"] = LOST


@rule
def unlink_lost(sender: Sender, pair: int, slot: int) -> None:
    """Take a packet out of those to be sent again. Writes `waiting`, `newer`, `lost_first`, `older` and `lost_last`."""
    qp = sender.qp[pair]
    packet = sender.packets[pair, slot]
    older, newer = packet["older"], packet["newer"]
    if older >= 0:
        sender.packets[pair, older]["newer"] = newer
    else:
        qp["lost_first"] = newer
    if newer >= 0:
        sender.packets[pair, newer]["older"] = older
    else:
        qp["lost_last"] = older
    qp["waiting"] -= 1


@rule
def declare_lost(sender: Sender, pair: int, slot: int, why: int) -> None:
    """Move a packet in flight to those to be sent again, and remember the EV that it must not take.

    Writes `before` and `gone`.
    """
    unlink_in_flight(sender, pair, slot)
    packet = sender.packets[pair, slot]
    packet["before"] = packet["ev"]
    packet["gone"] = why
    link_lost(sender, pair, slot)


@rule
def presume_lost(sender: Sender, pair: int, slot: int, blame: bool) -> None:
    """Treat a packet in flight as vanished; blame its EV unless its plane is out of use here or at the peer.

    Writes `silent`.
    """
    qp = sender.qp[pair]
    packet = sender.packets[pair, slot]
    ev_index = packet["ev"]  # read before: a lost packet's EV is `before`
    declare_lost(sender, pair, slot, VANISHED)
    qp["silent"] += 1
    note_fate(qp, 1)
    plane = sender.evs[pair, ev_index]["plane"]
    if blame and usable(sender, pair, plane, -1):
        ev_silent(sender, pair, ev_index)
    cc_loss(sender.params[0], qp, packet["bytes"])


@rule
def count_retry(sender: Sender, pair: int, error: int) -> None:
    """Take one from the retry budget; an empty one ends the queue pair. Writes `retries` and `error`."""
    params = sender.params[0]
    qp = sender.qp[pair]
    qp["retries"] += 1
    budget = params["linear_retries"] + params["exponential_retries"]
    if params["exponential_retries"] != _INFINITE and qp["retries"] > budget:
        qp["error"] = error


@rule
def note_passed(qp: SenderRow, sent_ps: int, order: int) -> None:
    """Note that the transmission of number `order` has arrived. Writes `passed_ps` and `passed_order`."""
    qp["passed_ps"] = max(qp["passed_ps"], sent_ps)
    qp["passed_order"] = max(qp["passed_order"], order)


@rule
def note_late(qp: SenderRow, waited_ps: int) -> None:
    """Note for how long a packet whose arrival caused a SACK has waited in queues. Writes `late_ps`."""
    # Forgotten over about as many SACKs as three round trips bring at line rate.
    qp["late_ps"] = max(waited_ps, qp["late_ps"] - (qp["late_ps"] >> _LATE_SHIFT))


@rule
def spread_in_force(params: SettingsRow, qp: SenderRow) -> int:
    """Return how much later something must have been sent: queues that stand make others as late, and more."""
    return min(qp["spread_ps"] + qp["late_ps"] + (qp["late_ps"] >> _LATER_SHIFT), params["spread_max_ps"])


@rule
def infer_losses(sender: Sender, pair: int) -> None:
    """Presume lost whatever has been passed by far enough."""
    params = sender.params[0]
    qp = sender.qp[pair]
    if params["infer"] == 0:
        return
    spread_ps = spread_in_force(params, qp)
    while qp["oldest"] >= 0 and qp["error"] == 0:
        slot = qp["oldest"]
        packet = sender.packets[pair, slot]
        # The list is in order of transmission, so the first that is not late ends the search.
        late = qp["passed_ps"] - packet["sent_ps"] >= spread_ps
        if not late or qp["passed_order"] - packet["order"] < params["passed_packets"]:
            return
        if seq_of(sender, pair, slot) == qp["una"] and packet["tries"] > 1:
            count_retry(sender, pair, ERROR_RETRIES)
        presume_lost(sender, pair, slot, True)


@rule
def was_not_lost(sender: Sender, pair: int, slot: int, now_ps: int) -> None:
    """Take back the presumed loss of the packet in `slot`: that transmission arrived after all.

    Writes `gone`, `spurious`, `spread_ps` and `spread_at_ps`.
    """
    qp = sender.qp[pair]
    packet = sender.packets[pair, slot]
    ev_index = packet["before"]
    if packet["gone"] != VANISHED or ev_index < 0:
        return
    packet["gone"] = KEPT
    params = sender.params[0]
    qp["spurious"] += 1
    # Packets of one round trip were judged by the same spread: together they are one mistake.
    if now_ps - qp["spread_at_ps"] >= params["base_rtt_ps"]:
        qp["spread_ps"] = min(2 * qp["spread_ps"], params["spread_max_ps"])
        qp["spread_at_ps"] = now_ps
    ev_arrived(sender, pair, ev_index)


@rule
def relax_spread(sender: Sender, pair: int, now_ps: int) -> None:
    """Halve a widened spread after a quiet time. Writes `spread_ps` and `spread_at_ps`."""
    params = sender.params[0]
    qp = sender.qp[pair]
    if qp["spread_ps"] > params["spread_ps"] and now_ps - qp["spread_at_ps"] >= params["spread_decay_ps"]:
        qp["spread_ps"] = max(qp["spread_ps"] // 2, params["spread_ps"])
        qp["spread_at_ps"] = now_ps


@rule
def timeout_ps(params: SettingsRow, backoff: int) -> int:
    """Return the timeout after `backoff` timeouts in a row: the same for the linear ones, then doubling."""
    doublings = min(max(backoff - params["linear_retries"], 0), _MOST_SHIFTS)
    return min(params["timeout_ps"] << doublings, LONGEST_TIMEOUT_PS)


@rule
def expire(sender: Sender, pair: int, now_ps: int) -> None:
    """Act on what has waited for a whole timeout: packets in flight, or a pair that can use no path.

    Writes `stalled_ps`, `backoff`, `expired_ps` and `timeouts`.
    """
    qp = sender.qp[pair]
    limit_ps = timeout_ps(sender.params[0], qp["backoff"])
    if qp["stalled_ps"] < NEVER and now_ps - qp["stalled_ps"] >= limit_ps:
        qp["stalled_ps"] = now_ps
        qp["backoff"] += 1
        count_retry(sender, pair, ERROR_NO_PATH)
    if qp["oldest"] < 0 or now_ps - sender.packets[pair, qp["oldest"]]["sent_ps"] < limit_ps:
        return
    # The retired EVs may be the good ones by now, and no probe can say so while nothing comes back.
    if qp["bad"] > 0 and now_ps - qp["heard_ps"] >= sender.params[0]["timeout_ps"]:
        readmit_all(sender, pair)
    again = sender.packets[pair, qp["oldest"]]["sent_ps"] >= qp["expired_ps"]
    while qp["oldest"] >= 0 and now_ps - sender.packets[pair, qp["oldest"]]["sent_ps"] >= limit_ps:
        blame = qp["passed_ps"] > sender.packets[pair, qp["oldest"]]["sent_ps"]
        presume_lost(sender, pair, qp["oldest"], blame)
    # What was sent before the last timeout belongs to it, whenever its own time is up.
    if again:
        qp["expired_ps"] = now_ps
        qp["timeouts"] += 1
        qp["backoff"] += 1
        count_retry(sender, pair, ERROR_RETRIES)
