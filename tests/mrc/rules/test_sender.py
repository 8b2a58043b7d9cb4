"""The requester by itself: posting, windows, opcodes, timers, NACKs and wrong acknowledgements."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.mrc.channel import LOSE, US, Channel, Script, small_spec

from weft.mrc import columns
from weft.mrc.columns import DATA, ERROR_NAMES, NOTHING
from weft.mrc.invariants import check_sender
from weft.mrc.rules import sender
from weft.mrc.rules.acks import on_nack, on_sack
from weft.mrc.rules.control import next_control
from weft.mrc.rules.evs import Paths
from weft.mrc.rules.recovery import LONGEST_TIMEOUT_PS, timeout_ps
from weft.mrc.rules.settings import settings
from weft.mrc.wire import packets


def made(first_seq: int = 0, paths: int = 16, **more: Any):
    s = columns.make_sender(settings(small_spec(**more), planes=2, rate_bps=10**11, payload=64), 1)
    sender.start_sender(s, 0, 7, first_seq, Paths(paths, paths, np.zeros(paths, np.int64)))
    return s, np.zeros(1, columns.SEND)[0]


def reply(**values: Any):
    made_row = np.zeros(1, columns.REPLY)[0]
    made_row["value"] = -1
    for name, value in values.items():
        made_row[name] = value
    return made_row


def sent(s: Any, out: Any, count: Any, now: Any = 0):
    rows = []
    for _ in range(count):
        assert sender.next_data(s, 0, now, -1, out) == DATA
        rows.append(out.copy())
    return rows


@pytest.mark.parametrize(
    ("length", "immediate", "answer"),
    [
        (0, -1, sender.POST_EMPTY),
        (-1, -1, sender.POST_EMPTY),
        (2**32, -1, sender.POST_TOO_LONG),
        (2**32 - 1, -1, sender.POSTED),
        (1, 5, sender.POSTED),
    ],
)
def test_posting_says_what_became_of_it(length: int, immediate: Any, answer: Any) -> None:
    s, _ = made()
    assert sender.post(s, 0, 0, 0, length, immediate) == answer


def test_queues_are_bounded() -> None:
    s, _ = made()
    assert [sender.post(s, 0, 0, 0, 1, 3) for _ in range(5)] == [sender.POSTED] * 4 + [sender.POST_IMMEDIATES_FULL]
    assert [sender.post(s, 0, 0, 0, 1, -1) for _ in range(13)] == [sender.POSTED] * 12 + [sender.POST_QUEUE_FULL]


def test_a_message_is_cut_into_addressed_packets() -> None:
    s, out = made()
    sender.post(s, 0, 1000, 9, 150, 6)
    sender.post(s, 0, 5000, 9, 10, -1)
    rows = sent(s, out, 4)
    assert [int(row["opcode"]) for row in rows] == [
        packets.FIRST,
        packets.MIDDLE,
        packets.LAST_IMMEDIATE,
        packets.ONLY,
    ]
    assert [int(row["address"]) for row in rows] == [1000, 1064, 1128, 5000]
    assert [int(row["length"]) for row in rows] == [64, 64, 22, 10]
    assert [int(row["immediate"]) for row in rows] == [-1, -1, 6, -1]
    assert [int(row["ack_request"]) for row in rows] == [0, 0, 1, 1]
    assert [int(row["msn"]) for row in rows] == [0, 0, 0, 1]


def test_the_window_holds_and_psns_wrap() -> None:
    s, out = made(first_seq=2**24 - 10)
    sender.post(s, 0, 0, 0, 64 * 200, -1)
    rows = sent(s, out, 128)
    assert sender.next_data(s, 0, 0, -1, out) == NOTHING
    assert [int(row["psn"]) for row in rows[8:12]] == [2**24 - 2, 2**24 - 1, 0, 1]
    on_sack(s, 0, reply(cack_psn=4, mpr=1), 10 * US)
    check_sender(s, 0)
    assert s.qp[0]["una"] == 2**24 + 5


def test_a_smaller_grant_is_kept_to() -> None:
    s, out = made()
    s.qp[0]["granted"] = 3
    sender.post(s, 0, 0, 0, 640, -1)
    sent(s, out, 3)
    assert sender.next_data(s, 0, 0, -1, out) == NOTHING


def test_a_trimmed_packet_goes_again_at_once_on_another_ev() -> None:
    s, out = made()
    sender.post(s, 0, 0, 0, 640, -1)
    rows = sent(s, out, 10)
    on_nack(s, 0, reply(reason=packets.TRIMMED, psn=4, value=rows[4]["value"]), 10 * US)
    check_sender(s, 0)
    assert s.evs[0, rows[4]["ev"]]["state"] == columns.SKIP
    again = sent(s, out, 1, now=10 * US)[0]
    assert (again["psn"], again["retransmission"], again["ack_request"]) == (4, 1, 1)
    assert again["ev"] != rows[4]["ev"]


@pytest.mark.parametrize("reason", [packets.TRIMMED_LASTHOP, packets.NO_RESOURCE, packets.NO_BITMAP])
def test_other_nacks_blame_no_path(reason: Any) -> None:
    s, out = made()
    sender.post(s, 0, 0, 0, 640, -1)
    rows = sent(s, out, 10)
    on_nack(s, 0, reply(reason=reason, psn=4, value=rows[4]["value"]), 10 * US)
    assert s.evs[0, rows[4]["ev"]]["state"] == columns.GOOD
    assert s.qp[0]["waiting"] == 1


def test_a_nack_of_an_older_transmission_changes_nothing() -> None:
    s, out = made()
    sender.post(s, 0, 0, 0, 640, -1)
    rows = sent(s, out, 10)
    nack = reply(reason=packets.TRIMMED, psn=4, value=rows[4]["value"])
    on_nack(s, 0, nack, 10 * US)
    sent(s, out, 1, now=10 * US)
    before = s.packets.tobytes()
    on_nack(s, 0, nack, 11 * US)
    assert s.packets.tobytes() == before


def test_a_fatal_nack_ends_the_pair_by_name() -> None:
    s, out = made()
    sender.post(s, 0, 0, 0, 640, -1)
    sent(s, out, 1)
    on_nack(s, 0, reply(reason=packets.UNEXP_EVENT), 0)
    assert ERROR_NAMES[int(s.qp[0]["error"])] == "PEER_FATAL"
    assert sender.next_data(s, 0, 0, -1, out) == NOTHING
    assert next_control(s, 0, 10**12, -1, out) == NOTHING
    assert sender.post(s, 0, 0, 0, 1, -1) == sender.POST_CLOSED


@given(
    st.integers(0, 2**24 - 1),
    st.integers(-(2**15), 2**15 - 1),
    st.integers(-(2**15), 2**15 - 1),
    st.integers(0, 2**32 - 1),
    st.integers(0, 2**32 - 1),
    st.integers(-1, 2**18),
)
def test_any_sack_leaves_a_whole_state(
    cack: Any, offset: Any, sack_offset: Any, low: Any, high: Any, value: int
) -> None:
    s, out = made()
    sender.post(s, 0, 0, 0, 64 * 100, -1)
    sent(s, out, 100)
    answer = reply(
        cack_psn=cack,
        ack_psn_offset=offset,
        sack_offset=sack_offset,
        bitmap_low=low,
        bitmap_high=high,
        value=value,
        verdict=1,
        mpr=1,
    )
    on_sack(s, 0, answer, 10 * US)
    check_sender(s, 0)


@given(st.integers(0, 2**24 - 1), st.sampled_from(packets.NACK_REASONS), st.integers(-1, 2**18))
def test_any_nack_leaves_a_whole_state(psn: Any, reason: Any, value: int) -> None:
    s, out = made()
    sender.post(s, 0, 0, 0, 64 * 100, -1)
    sent(s, out, 100)
    on_nack(s, 0, reply(reason=reason, psn=psn, value=value), 10 * US)
    check_sender(s, 0)


def test_timeouts_are_linear_then_exponential_then_bounded() -> None:
    params = settings(small_spec(), planes=2, rate_bps=10**11)[0]
    unit = 1_024_000 << 6
    assert [int(timeout_ps(params, k)) // unit for k in range(6)] == [1, 1, 1, 2, 4, 8]
    assert timeout_ps(params, 100) == LONGEST_TIMEOUT_PS


@pytest.mark.parametrize(("passed", "lost"), [(2, 0), (3, 1)])
def test_the_order_threshold_is_exact(passed: Any, lost: Any) -> None:
    s, out = made()
    sender.post(s, 0, 0, 0, 64 * 10, -1)
    sent(s, out, 1, now=0)
    for k in range(passed):
        sent(s, out, 1, now=20 * US + k)
    on_sack(s, 0, reply(cack_psn=2**24 - 1, sack_offset=1, bitmap_low=1 << passed, mpr=1), 40 * US)
    assert s.qp[0]["silent"] == lost


@pytest.mark.parametrize(("later_ps", "lost"), [(10 * US - 1, 0), (10 * US, 1)])
def test_the_time_threshold_is_exact(later_ps: Any, lost: Any) -> None:
    s, out = made()
    sender.post(s, 0, 0, 0, 64 * 10, -1)
    sent(s, out, 1, now=0)
    sent(s, out, 5, now=later_ps)
    on_sack(s, 0, reply(cack_psn=2**24 - 1, sack_offset=1, bitmap_low=0b111110, mpr=1), later_ps + 13 * US)
    assert s.qp[0]["silent"] == lost


@pytest.mark.parametrize("spread_us", [5, 10, 20])
def test_detection_time_follows_the_spread(spread_us: int) -> None:
    channel = Channel(small_spec(mpr=8), Script(data=[LOSE], pace_ps=100_000), [(64 * 2000, -1)])
    channel.s.params[0]["spread_ps"] = channel.s.qp[0]["spread_ps"] = spread_us * US
    while not channel.s.qp[0]["silent"]:
        channel.run(limit=channel.steps + 1)
    # A round trip of 10 us after the packet that left a spread later, and up to four packets that share a SACK.
    assert (10 + spread_us) * US <= channel.now <= (10 + spread_us) * US + 500_000
    assert channel.s.qp[0]["probes"] == 0
