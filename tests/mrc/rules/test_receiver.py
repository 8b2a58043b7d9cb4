"""The responder by itself: windows, duplicates, coalescing, immediates, trims, the reverse path."""

from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from tests.mrc.channel import small_spec

from weft.mrc import columns
from weft.mrc.columns import ERROR_NAMES, NACK, NOTHING, SACK
from weft.mrc.invariants import check_receiver
from weft.mrc.rules import receiver, reverse, sender
from weft.mrc.rules.evs import Paths
from weft.mrc.rules.receiver import DataHeader
from weft.mrc.rules.settings import settings
from weft.mrc.wire import packets


def made(first_seq: int = 0, **more: Any):
    params = settings(small_spec(**more), planes=2, rate_bps=10**11, payload=4096)
    r = columns.make_receiver(params, 1)
    receiver.start_receiver(r, 0, 3, first_seq)
    return r, np.zeros(1, columns.REPLY)[0]


def take(
    r: Any,
    seq: Any,
    *,
    value: int = 1,
    marked: Any = 0,
    again: Any = 0,
    ask: Any = 0,
    length: int = 4096,
    immediate: Any = -1,
):
    verdict = receiver.receive(r, 0, DataHeader(seq & 0xFFFFFF, value, marked, again, ask, length, immediate), 0)
    check_receiver(r, 0)
    return verdict


def covered(out: Any):
    """Return the sequence numbers below 2^23 that a SACK's bitmap names, beyond its cumulative part."""
    bits = int(out["bitmap_high"]) << 32 | int(out["bitmap_low"])
    base = int(out["cack_psn"]) + int(out["sack_offset"])
    return {base + k for k in range(64) if bits >> k & 1 and base + k > int(out["cack_psn"])}


@given(st.permutations(list(range(20))), st.integers(0, 2**24))
def test_any_order_is_accepted_once_and_moves_the_window(order: Any, first_seq: int) -> None:
    r, _ = made(first_seq)
    assert all(take(r, first_seq + k) == receiver.ACCEPTED for k in order)
    assert r.qp[0]["expected"] == first_seq + 20
    assert all(take(r, first_seq + k) == receiver.DUPLICATE for k in order)


ARRIVALS = st.lists(st.integers(1000, 1127), min_size=1, max_size=60)


@given(ARRIVALS)
def test_every_arrival_is_told_by_some_sack(arrivals: list[int]) -> None:
    r, out = made(1000)
    told: set[int] = set()
    for seq in arrivals:
        take(r, seq, ask=1)
        while receiver.take_sack(r, 0, out):
            told |= covered(out) | set(range(1000, int(out["cack_psn"]) + 1))
        assert seq in told
    assert told == set(arrivals)


@given(ARRIVALS)
def test_a_sack_never_names_what_did_not_come(arrivals: list[int]) -> None:
    r, out = made(1000)
    for place, seq in enumerate(arrivals):
        take(r, seq, ask=1)
        while receiver.take_sack(r, 0, out):
            assert covered(out) <= set(arrivals[: place + 1])


def test_a_packet_beyond_the_window_is_refused_with_a_nack() -> None:
    r, out = made()
    assert take(r, 127) == receiver.ACCEPTED
    assert take(r, 128) == receiver.OUTSIDE
    assert receiver.refusal(r, 0, receiver.OUTSIDE, 128, 5, out) == NACK
    assert (out["reason"], out["psn"], out["value"]) == (packets.PSN_OOR_WINDOW, 128, 5)


def test_sixteen_small_packets_or_four_large_ones_share_a_sack() -> None:
    r, out = made()
    answers = []
    r.params[0]["ack_bytes"] = 16384
    for seq in range(32):
        take(r, seq, length=64)
        answers.append(int(receiver.take_sack(r, 0, out)))
    # Each counts 1,024 of the 16,384 bytes that make a SACK due.
    assert answers == ([NOTHING] * 15 + [SACK]) * 2
    answers = []
    for seq in range(32, 40):
        take(r, seq, length=4096)
        answers.append(int(receiver.take_sack(r, 0, out)))
    assert answers == [NOTHING, NOTHING, NOTHING, SACK] * 2


def test_a_sack_tells_again_what_came_before() -> None:
    r, out = made()
    last = (0, 0, 0, 0)
    for seq in range(1, 101):
        take(r, seq, length=4096)
        while receiver.take_sack(r, 0, out) != NOTHING:
            last = int(out["cack_psn"]), int(out["sack_offset"]), int(out["bitmap_low"]), int(out["bitmap_high"])
    # Packet 0 is missing; the last one told of is 100, and 63 before it, whatever was told of them already.
    full = 2**32 - 1
    assert last == (2**24 - 1, 38, full, full)


@given(st.permutations(range(6)), st.integers(0, 3))
def test_the_end_of_a_message_is_answered_at_once_in_whatever_order_it_comes(order: list[int], more: int) -> None:
    r, out = made()
    r.params[0]["ack_bytes"] = 10**9
    told = -1
    for seq in order:
        take(r, seq, length=100, ask=int(seq == 5))
        while receiver.take_sack(r, 0, out) != NOTHING:
            told = int(out["cack_psn"])
    assert told == 5
    # What follows and asks for nothing waits for more.
    for seq in range(6, 6 + more):
        take(r, seq, length=100)
        assert receiver.take_sack(r, 0, out) == NOTHING


def test_marks_requests_retransmissions_and_duplicates_are_answered_at_once() -> None:
    for change in ({"marked": 1}, {"again": 1}, {"ask": 1}):
        r, out = made()
        take(r, 0, length=64, value=9, **change)
        assert receiver.take_sack(r, 0, out) == SACK
        assert (out["value"], out["verdict"]) == (9, 1 if "marked" in change else 0)
    r, out = made()
    take(r, 0, length=64)
    take(r, 0, length=64)
    assert receiver.take_sack(r, 0, out) == SACK


def test_a_mark_is_laid_on_the_path_that_it_came_on() -> None:
    r, out = made()
    take(r, 0, length=64, value=5, marked=1)
    take(r, 1, length=64, value=6)
    assert receiver.take_sack(r, 0, out) == SACK
    assert (out["value"], out["verdict"], out["cack_psn"] + out["ack_psn_offset"]) == (5, 1, 0)


def test_a_trimmed_packet_is_asked_for_and_a_known_one_is_not() -> None:
    r, out = made()
    assert receiver.receive_trimmed(r, 0, 3, 7, 0, out) == NACK
    assert (out["reason"], out["psn"], out["value"]) == (packets.TRIMMED, 3, 7)
    assert receiver.receive_trimmed(r, 0, 3, 7, 1, out) == NACK
    assert out["reason"] == packets.TRIMMED_LASTHOP
    take(r, 3)
    while receiver.take_sack(r, 0, out):
        pass
    assert receiver.receive_trimmed(r, 0, 3, 7, 0, out) == NOTHING
    assert receiver.take_sack(r, 0, out) == SACK
    assert out["value"] == -1


def test_immediates_wait_for_everything_before_them() -> None:
    r, _ = made()
    take(r, 2, immediate=22)
    take(r, 1, immediate=11)
    assert receiver.take_immediate(r, 0) == -1
    take(r, 0)
    assert [int(receiver.take_immediate(r, 0)) for _ in range(3)] == [11, 22, -1]


def test_too_many_immediates_end_the_pair_by_name() -> None:
    r, out = made()
    for seq in range(1, 5):
        assert take(r, seq, immediate=seq) == receiver.ACCEPTED
    assert take(r, 5, immediate=5) == receiver.REFUSED
    assert ERROR_NAMES[int(r.qp[0]["error"])] == "IMMEDIATE_OVERFLOW"
    assert receiver.refusal(r, 0, receiver.REFUSED, 5, 1, out) == NACK
    assert out["reason"] == packets.UNEXP_EVENT


def test_a_probe_is_answered_from_the_first_gap_on() -> None:
    r, out = made()
    for seq in (0, 1, 3):
        take(r, seq)
    while receiver.take_sack(r, 0, out):
        pass
    receiver.on_probe(r, 0, 99, 0, 5)
    assert receiver.take_sack(r, 0, out) == SACK
    assert (out["probe_response"], out["ack_psn_offset"], out["cack_psn"]) == (1, 99, 1)
    assert covered(out) == {3}


@given(st.integers(-100, 2**41), st.integers(0, 5000), st.integers(0, 5000))
def test_bytes_are_placed_inside_the_region_or_nowhere(address: Any, length: int, size: Any) -> None:
    at = receiver.placement(address, length, 1 << 40, size)
    inside = address >= 1 << 40 and address + length <= (1 << 40) + size
    assert at == (address - (1 << 40) if inside else -1)


def test_the_reverse_path_rotates_over_planes_and_learns_from_probes() -> None:
    r, out = made()
    s = columns.make_sender(r.params, 1)
    sender.start_sender(s, 0, 5, 0, Paths(16, 16, np.zeros(16, np.int64)))
    planes = [int(s.evs[0, reverse.reverse_ev(s, 0, r, 0)]["plane"]) for _ in range(4)]
    assert planes in ([0, 1, 0, 1], [1, 0, 1, 0])
    s.qp[0]["peer_up"] = 0b01
    assert {int(s.evs[0, reverse.reverse_ev(s, 0, r, 0)]["plane"]) for _ in range(4)} == {0}
    s.qp[0]["peer_up"] = 0b11
    probe = np.zeros(1, columns.SEND)[0]
    now = 0
    take(r, 0)
    assert reverse.next_reverse_probe(s, 0, r, 0, now, probe) == NOTHING, "nothing has gone back yet"
    r.qp[0]["due"] = 1
    receiver.take_sack(r, 0, reply := np.zeros(1, columns.REPLY)[0])
    assert reply["kind"] == SACK
    while not reverse.next_reverse_probe(s, 0, r, 0, now, probe):
        now += int(r.params[0]["base_rtt_ps"])
    later = now + int(r.params[0]["base_rtt_ps"])
    assert reverse.next_reverse_probe(s, 0, r, 0, later, probe) == NOTHING, "one probe for each reply at most"
    reverse.on_reverse_answer(s, 0, r, 0, int(probe["id"]))
    assert s.planes[0, int(probe["plane"])]["reverse"] == probe["ev"]
    s.qp[0]["end"] += 1
    assert reverse.next_reverse_probe(s, 0, r, 0, now + 10**9, probe) == NOTHING
    assert out["kind"] == 0


def test_with_few_paths_every_second_answer_goes_the_way_the_last_packet_came():
    r, _ = made()
    s = columns.make_sender(r.params, 1)
    sender.start_sender(s, 0, 5, 0, Paths(2, 16, np.zeros(16, np.int64)))
    values = [int(ev["value"]) for ev in s.evs[0] if ev["value"] >= 0]
    trusted = {int(s.evs[0, row["reverse"]]["value"]) for row in s.planes[0]}
    for came in values:
        receiver.on_probe(r, 0, 1, came, 5)
        used = [int(s.evs[0, reverse.reverse_ev(s, 0, r, 0)]["value"]) for _ in range(8)]
        assert used.count(came) >= 4
        assert set(used) <= trusted | {came}
