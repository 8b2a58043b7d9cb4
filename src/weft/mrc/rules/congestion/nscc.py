"""NSCC, the network-signal congestion control of Ultra Ethernet, in whole numbers.

Facts section 4.4 (UEC 1.0.3 section 3.6.13). Two signals, an ECN mark and the queueing delay against a target, make
four cases: grow in proportion (or fast), grow fairly, cut, or leave it to load balancing.

Scaling: `cwnd` in bytes; the increase `cc_inc` in bytes squared, since it is divided by the window when it is applied,
with the remainder kept; gains in bytes (`prop_gain` = 4 a b MTU, `fair_gain` = 5 a MTU), `fast_gain` in 1/1024; the
distance from the target and the depth of a cut in 1/1024, so that products stay below 2^63 at 800 Gb/s up to a round
trip of 10 ms. The average delay moves by 1/80 of the difference (0.0125) for each packet that is acknowledged, so that
it does not matter how many of them share an acknowledgement.
"""

from weft.core.compile.rules import rule
from weft.mrc.columns import SenderRow, SettingsRow

_FAST_DELAY_PS = 1_000_000
_ONE = 1024
_GAMMA = 819  # 0.8 of 1024
_DEEPEST_CUT = 512  # 0.5 of 1024
_AVERAGE_OVER = 80
_MOST_AVERAGED = 16
_PENALTIES = 128


@rule
def nscc_start(params: SettingsRow, qp: SenderRow) -> None:
    """Open the window to its maximum: a fresh pair sends at line rate.

    Writes `cwnd`, `cc_inc`, `cc_received`, `cc_achieved`, `cc_delay_ps`, `cc_fast`, `cc_fast_bytes`, `cc_ignore`,
    `cc_ignored`, `cc_trouble`, `cc_adjusted_ps`, `cc_adapt_ps` and `cc_cut_ps`.
    """
    qp["cwnd"] = params["window_max"]
    qp["cc_inc"] = qp["cc_received"] = qp["cc_achieved"] = qp["cc_delay_ps"] = 0
    qp["cc_fast"] = qp["cc_fast_bytes"] = qp["cc_ignore"] = qp["cc_ignored"] = qp["cc_trouble"] = 0
    qp["cc_adjusted_ps"] = qp["cc_adapt_ps"] = 0
    qp["cc_cut_ps"] = -params["base_rtt_ps"]


@rule
def nscc_ack(params: SettingsRow, qp: SenderRow, now_ps: int, acked: int, delay_ps: int, marked: int) -> None:
    """Take in one acknowledgement; `delay_ps` is -1 where it gives no clean sample.

    Writes `cc_achieved`, `cc_received` and `cc_ignored`.
    """
    qp["cc_achieved"] += acked
    qp["cc_received"] += acked
    # After quick adapt, what was in flight then still carries the marks of the old window.
    if qp["cc_ignored"] < qp["cc_ignore"]:
        qp["cc_ignored"] += acked
        if marked:
            return
    _quick_adapt(params, qp, now_ps)
    if delay_ps >= 0:
        _average(params, qp, acked, delay_ps, marked)
        _quadrant(params, qp, now_ps, acked, delay_ps, marked)
    elapsed_ps = now_ps - qp["cc_adjusted_ps"]
    if qp["cc_received"] >= params["adjust_bytes"] or elapsed_ps >= params["base_rtt_ps"]:
        _apply(params, qp, now_ps)
    _bound(params, qp)


@rule
def nscc_trim(params: SettingsRow, qp: SenderRow, now_ps: int, lost: int) -> None:
    """Take in a trimmed packet: it is a mark; quick adapt, or else the window shrinks by the packet.

    Writes `cc_trouble`, `cc_ignored` and `cwnd`.
    """
    qp["cc_trouble"] = 1
    if qp["cc_ignored"] < qp["cc_ignore"]:
        qp["cc_ignored"] += lost
        return
    if not _quick_adapt(params, qp, now_ps):
        qp["cwnd"] -= lost
    _bound(params, qp)


@rule
def nscc_loss(params: SettingsRow, qp: SenderRow, lost: int) -> None:
    """Take in a packet presumed lost: the window shrinks by it. Writes `cc_trouble` and `cwnd`."""
    qp["cc_trouble"] = 1
    qp["cwnd"] -= lost
    _bound(params, qp)


@rule
def nscc_penalty(params: SettingsRow, qp: SenderRow, acked: int, penalty: int) -> None:
    """Take in the receiver's penalty of `penalty`/128 of what was acknowledged: it is busy, not the network.

    Writes `cwnd`.
    """
    qp["cwnd"] = min(qp["cwnd"], qp["inflight_bytes"]) - penalty * acked // _PENALTIES
    _bound(params, qp)


@rule
def _quadrant(params: SettingsRow, qp: SenderRow, now_ps: int, acked: int, delay_ps: int, marked: int) -> None:
    """Act on one of the four cases of mark and delay. Writes `cc_fast`, `cc_fast_bytes` and `cc_inc`."""
    below = delay_ps < params["target_ps"]
    if not marked and below:
        _grow_in_proportion(params, qp, acked, delay_ps)
    elif not marked and not params["delay_cuts"]:
        qp["cc_fast"] = 0
        qp["cc_fast_bytes"] = 0
        qp["cc_inc"] += params["fair_gain"] * acked
    elif not below:
        _cut(params, qp, now_ps)
    # Marked but quick: the path is busy, not the destination; the EV is skipped and the window stays.


@rule
def _grow_in_proportion(params: SettingsRow, qp: SenderRow, acked: int, delay_ps: int) -> None:
    """Grow by how far the delay is below its target, or fast once a whole window saw none."""
    if delay_ps < _FAST_DELAY_PS:
        qp["cc_fast_bytes"] += acked
        if qp["cc_fast"] or qp["cc_fast_bytes"] > qp["cwnd"]:
            qp["cc_fast"] = 1
            qp["cwnd"] += params["fast_gain"] * acked // _ONE
            return
    else:
        qp["cc_fast_bytes"] = 0
    qp["cc_fast"] = 0
    room = (params["target_ps"] - delay_ps) * _ONE // params["target_ps"]
    qp["cc_inc"] += params["prop_gain"] * acked * room // _ONE


@rule
def _cut(params: SettingsRow, qp: SenderRow, now_ps: int) -> None:
    """Cut by how far the average delay is above its target, at most by half and once in a base round trip."""
    qp["cc_fast"] = 0
    qp["cc_fast_bytes"] = 0
    average_ps = qp["cc_delay_ps"]
    if average_ps <= params["target_ps"] or now_ps - qp["cc_cut_ps"] < params["base_rtt_ps"]:
        return
    keep = _ONE - _GAMMA * (average_ps - params["target_ps"]) // average_ps
    qp["cwnd"] = qp["cwnd"] * max(keep, _DEEPEST_CUT) // _ONE
    qp["cc_cut_ps"] = now_ps


@rule
def _average(params: SettingsRow, qp: SenderRow, acked: int, delay_ps: int, marked: int) -> None:
    """Move the average delay. Writes `cc_delay_ps`.

    Where every queue marks, a long delay without a mark was no queue's, and counts as a quarter round trip.
    """
    sample_ps = delay_ps
    if not marked and delay_ps > params["target_ps"] and not params["delay_cuts"]:
        sample_ps = params["base_rtt_ps"] // 4
    packets = min(max(acked // params["mtu"], 1), _MOST_AVERAGED)
    qp["cc_delay_ps"] += (sample_ps - qp["cc_delay_ps"]) * packets // _AVERAGE_OVER


@rule
def _quick_adapt(params: SettingsRow, qp: SenderRow, now_ps: int) -> bool:
    """Fall to what was delivered, once in a round trip and target, where packets were lost and little arrived."""
    if not params["quick_adapt"] or now_ps < qp["cc_adapt_ps"]:
        return False
    adapted = False
    achieved = qp["cc_achieved"]
    if qp["cc_adapt_ps"] > 0 and qp["cc_trouble"] and achieved < params["window_max"] >> params["qa_gate"]:
        qp["cwnd"] = max(achieved, params["mtu"])
        qp["cc_ignore"] = qp["inflight_bytes"]
        qp["cc_ignored"] = 0
        adapted = True
    qp["cc_achieved"] = 0
    qp["cc_trouble"] = 0
    qp["cc_adapt_ps"] = now_ps + params["base_rtt_ps"] + params["target_ps"]
    return adapted


@rule
def _apply(params: SettingsRow, qp: SenderRow, now_ps: int) -> None:
    """Add what was gathered, and once in a base round trip a little more, so that small windows meet."""
    grown = qp["cc_inc"] // qp["cwnd"]
    qp["cc_inc"] -= grown * qp["cwnd"]  # the remainder stays, or slow growth would be rounded away
    qp["cwnd"] += grown
    qp["cc_received"] = 0
    if now_ps - qp["cc_adjusted_ps"] >= params["base_rtt_ps"]:
        qp["cwnd"] += params["eta"]
        qp["cc_adjusted_ps"] = now_ps


@rule
def _bound(params: SettingsRow, qp: SenderRow) -> None:
    """Hold the window between one packet and its maximum. Writes `cwnd`."""
    qp["cwnd"] = min(max(qp["cwnd"], params["mtu"]), params["window_max"])
