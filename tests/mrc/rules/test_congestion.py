"""NSCC by hand: every quadrant, the cut's limits, fast increase, quick adapt, the bounds."""

from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from weft.mrc import columns
from weft.mrc.rules.congestion import cc_ack, cc_allows, cc_loss, cc_penalty, cc_start, cc_trim
from weft.mrc.rules.settings import settings
from weft.specs.transport import MrcSpec

US = 10**6
RTT, TARGET, MTU = 13 * US, 9_750_000, 4184


def made(algorithm: Any = "nscc", **more: Any):
    # As Ultra Ethernet has it.
    table = {"algorithm": algorithm, "max_window": 1.5, "delay_cuts": False, **more}
    spec = MrcSpec.model_validate({"congestion": table})
    params = settings(spec, planes=8, rate_bps=800 * 10**9)[0]
    q = np.zeros(1, columns.SENDER)[0]
    cc_start(params, q)
    return params, q


def test_the_constants_follow_from_rate_and_round_trip() -> None:
    params, q = made()
    # BDP = 800e9 * 13e-6 / 8; a = BDP / 150,000 = 8.667; b = 9.75 / 12 = 0.8125.
    assert params["bdp"] == 1_300_000
    assert params["window_max"] == q["cwnd"] == 1_950_000
    assert params["target_ps"] == TARGET
    assert params["prop_gain"] == round(4 * (1_300_000 / 150_000) * 0.8125 * MTU)
    assert params["fair_gain"] == round(5 * (1_300_000 / 150_000) * MTU)
    assert params["eta"] == round(0.15 * (1_300_000 / 150_000) * MTU)


def test_clear_and_quick_grows_in_proportion() -> None:
    params, q = made()
    q["cwnd"], q["cc_adjusted_ps"] = 500_000, 100 * US
    cc_ack(params, q, 100 * US, MTU, TARGET // 2, 0)
    assert q["cc_inc"] == int(params["prop_gain"]) * MTU * 512 // 1024
    assert q["cwnd"] == 500_000


def test_what_was_gathered_is_applied_after_eight_packets() -> None:
    params, q = made()
    q["cwnd"], q["cc_adjusted_ps"] = 500_000, 100 * US
    for _ in range(8):
        cc_ack(params, q, 100 * US, MTU, TARGET // 2, 0)
    total = 8 * (int(params["prop_gain"]) * MTU * 512 // 1024)
    assert q["cwnd"] == 500_000 + total // 500_000
    assert q["cc_inc"] == total % 500_000


def test_clear_and_slow_grows_fairly() -> None:
    params, q = made()
    q["cwnd"], q["cc_adjusted_ps"] = 500_000, 100 * US
    cc_ack(params, q, 100 * US, MTU, TARGET, 0)
    assert q["cc_inc"] == int(params["fair_gain"]) * MTU


def test_marked_and_quick_is_left_to_load_balancing() -> None:
    params, q = made()
    q["cwnd"], q["cc_adjusted_ps"] = 500_000, 100 * US
    cc_ack(params, q, 100 * US, MTU, TARGET - 1, 1)
    assert (q["cwnd"], q["cc_inc"]) == (500_000, 0)


def test_marked_and_slow_cuts_by_the_distance_from_the_target() -> None:
    params, q = made()
    q["cwnd"], q["cc_adjusted_ps"], q["cc_delay_ps"] = 1_000_000, 100 * US, 2 * TARGET
    cc_ack(params, q, 100 * US, MTU, 2 * TARGET, 1)
    # avg = 2 x target: keep = 1 - 0.8 / 2 = 0.6; in 1/1024: 1024 - 819 // 2 = 615.
    assert q["cwnd"] == 1_000_000 * 615 // 1024


@given(st.integers(0, 20 * TARGET), st.integers(0, 20 * TARGET), st.integers(1, 64))
def test_where_delay_cuts_a_long_one_counts_with_or_without_a_mark(
    delay_ps: int, average_ps: int, packets: int
) -> None:
    after = []
    for marked in (0, 1):
        params, q = made(delay_cuts=True)
        q["cwnd"], q["cc_adjusted_ps"], q["cc_delay_ps"] = 1_000_000, 100 * US, average_ps
        cc_ack(params, q, 100 * US, packets * MTU, max(TARGET, delay_ps), marked)
        after.append((int(q["cwnd"]), int(q["cc_delay_ps"])))
    assert after[0] == after[1]
    assert after[0][0] <= 1_000_000


def test_a_cut_is_at_most_a_half_and_once_in_a_round_trip() -> None:
    params, q = made()
    q["cwnd"], q["cc_adjusted_ps"], q["cc_delay_ps"] = 1_000_000, 100 * US, 100 * TARGET
    cc_ack(params, q, 100 * US, 0, 100 * TARGET, 1)
    assert q["cwnd"] == 500_000
    q["cc_adjusted_ps"] = 112 * US
    cc_ack(params, q, 112 * US, 0, 100 * TARGET, 1)
    assert q["cwnd"] == 500_000
    q["cc_adjusted_ps"] = 113 * US
    cc_ack(params, q, 113 * US, 0, 100 * TARGET, 1)
    assert q["cwnd"] == 250_000


def test_no_cut_while_the_average_is_below_the_target() -> None:
    params, q = made()
    q["cwnd"], q["cc_adjusted_ps"] = 1_000_000, 100 * US
    cc_ack(params, q, 100 * US, 0, 2 * TARGET, 1)
    assert q["cwnd"] == 1_000_000


def test_a_whole_window_without_delay_grows_fast() -> None:
    params, q = made()
    q["cwnd"], q["cc_adjusted_ps"], q["cc_fast_bytes"] = 100_000, 100 * US, 100_000
    cc_ack(params, q, 100 * US, MTU, 0, 0)
    assert q["cc_fast"] == 1
    assert q["cwnd"] == 100_000 + int(params["fast_gain"]) * MTU // 1024
    cc_ack(params, q, 100 * US, MTU, 2 * US, 0)
    assert (q["cc_fast"], q["cc_fast_bytes"]) == (0, 0)


def test_eta_comes_once_in_a_round_trip() -> None:
    params, q = made()
    q["cwnd"], q["cc_adjusted_ps"] = 500_000, 100 * US
    cc_ack(params, q, 100 * US + RTT, 0, -1, 0)
    assert q["cwnd"] == 500_000 + params["eta"]


def test_trims_and_losses_shrink_by_the_packet() -> None:
    params, q = made(quick_adapt=False)
    cc_trim(params, q, 100 * US, MTU)
    assert q["cwnd"] == 1_950_000 - MTU
    cc_loss(params, q, MTU)
    assert q["cwnd"] == 1_950_000 - 2 * MTU


def test_quick_adapt_falls_to_what_was_delivered_and_ignores_what_was_in_flight() -> None:
    params, q = made()
    q["cc_adapt_ps"], q["cc_achieved"], q["inflight_bytes"] = 100 * US, 50_000, 900_000
    cc_trim(params, q, 100 * US, MTU)
    assert (q["cwnd"], q["cc_ignore"], q["cc_ignored"]) == (50_000, 900_000, 0)
    assert q["cc_adapt_ps"] == 100 * US + RTT + TARGET
    cc_ack(params, q, 101 * US, MTU, 3 * TARGET, 1)
    cc_trim(params, q, 101 * US, MTU)
    assert q["cwnd"] == 50_000


def test_quick_adapt_leaves_a_pair_alone_that_delivers_enough() -> None:
    params, q = made()
    q["cc_adapt_ps"], q["cc_achieved"] = 100 * US, 1_950_000 >> 3
    cc_trim(params, q, 100 * US, MTU)
    assert q["cwnd"] == 1_950_000 - MTU


def test_a_fixed_window_never_moves() -> None:
    params, q = made("fixed")
    cc_ack(params, q, 100 * US, MTU, 5 * TARGET, 1)
    cc_trim(params, q, 100 * US, MTU)
    cc_loss(params, q, MTU)
    assert q["cwnd"] == 1_950_000


def test_a_packet_goes_only_where_it_fits() -> None:
    _, q = made()
    q["cwnd"], q["inflight_bytes"] = 10_000, 6_000
    assert cc_allows(q, 4_000)
    assert not cc_allows(q, 4_001)


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 200_000), st.integers(-1, 200 * US), st.booleans())))
def test_the_window_stays_between_one_packet_and_its_maximum(events: Any) -> None:
    params, q = made()
    now = 0
    for kind, size, delay, marked in events:
        now += size * 100
        if kind == 0:
            cc_ack(params, q, now, size, delay, int(marked))
        elif kind == 1:
            cc_trim(params, q, now, MTU)
        else:
            cc_loss(params, q, MTU)
        assert MTU <= q["cwnd"] <= 1_950_000
        assert q["cc_inc"] >= 0


def test_a_busy_receiver_takes_its_share_off_what_is_in_flight() -> None:
    params, q = made()
    q["inflight_bytes"] = 100_000
    cc_penalty(params, q, 12_800, 0)
    assert q["cwnd"] == 1_950_000
    cc_penalty(params, q, 12_800, 10)
    assert q["cwnd"] == 100_000 - 1_000
    cc_penalty(params, q, 12_800_000, 127)
    assert q["cwnd"] == MTU
