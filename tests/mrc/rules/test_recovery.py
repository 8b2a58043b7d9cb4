"""What becomes of packets in flight: the two lists, presumed losses, the spread, timeouts and the retry budget."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.mrc.builders import acknowledge, reply_row, send, send_row, sender_of
from tests.mrc.channel import US

from weft.mrc.columns import DATA, ERROR_NO_PATH, ERROR_RETRIES, IN_FLIGHT, KEPT, LOST, NEVER, VANISHED, Sender
from weft.mrc.invariants import check_sender
from weft.mrc.rules.acks import on_sack
from weft.mrc.rules.control import on_timer
from weft.mrc.rules.ports import on_port_status
from weft.mrc.rules.recovery import (
    LONGEST_TIMEOUT_PS,
    count_retry,
    declare_lost,
    expire,
    infer_losses,
    note_late,
    note_passed,
    relax_spread,
    seq_of,
    spread_in_force,
    timeout_ps,
    was_not_lost,
)
from weft.mrc.rules.sender import next_data


def _walk(sender: Sender, first: int) -> list[int]:
    found = []
    while first >= 0:
        found.append(first)
        first = int(sender.packets[0, first]["newer"])
    return found


@given(st.permutations(range(8)), st.integers(0, 8), st.integers(0, 2**24))
def test_packets_are_lost_and_sent_again_in_the_order_of_their_loss(
    order: list[int], count: int, first_seq: int
) -> None:
    sender, out = sender_of(first_seq=first_seq), send_row()
    send(sender, 8)
    mask = int(sender.params[0]["slot_mask"])
    slots = [(first_seq + k) & mask for k in order[:count]]
    for slot in slots:
        declare_lost(sender, 0, slot, VANISHED)
        check_sender(sender, 0)
    assert _walk(sender, int(sender.qp[0]["lost_first"])) == slots
    kept = [(first_seq + k) & mask for k in range(8) if k not in order[:count]]
    assert _walk(sender, int(sender.qp[0]["oldest"])) == kept
    assert [int(seq_of(sender, 0, slot)) for slot in slots] == [first_seq + k for k in order[:count]]
    for slot in slots:
        before = int(sender.packets[0, slot]["before"])
        assert next_data(sender, 0, 1, -1, out) == DATA
        assert (out["seq"], out["retransmission"]) == (seq_of(sender, 0, slot), 1)
        assert out["ev"] != before, "never on the EV that it was lost on"
    assert _walk(sender, int(sender.qp[0]["oldest"])) == kept + slots
    check_sender(sender, 0)


@pytest.mark.parametrize("backoff", range(40))
def test_a_timeout_never_falls_and_never_passes_the_longest(backoff: int) -> None:
    params = sender_of().params[0]
    assert timeout_ps(params, backoff) <= timeout_ps(params, backoff + 1) <= LONGEST_TIMEOUT_PS
    if backoff <= params["linear_retries"]:
        assert timeout_ps(params, backoff) == params["timeout_ps"]
    elif timeout_ps(params, backoff + 1) < LONGEST_TIMEOUT_PS:
        assert timeout_ps(params, backoff + 1) == 2 * timeout_ps(params, backoff)


@given(st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 10**4)), min_size=1))
def test_the_newest_transmission_that_arrived_is_remembered(arrivals: list[tuple[int, int]]) -> None:
    sender = sender_of()
    for sent_ps, order in arrivals:
        note_passed(sender.qp[0], sent_ps, order)
    assert sender.qp[0]["passed_ps"] == max(sent_ps for sent_ps, _ in arrivals)
    assert sender.qp[0]["passed_order"] == max(order for _, order in arrivals)


@given(st.integers(-3, 3), st.integers(-3, 3))
def test_a_packet_is_lost_where_it_was_passed_by_both_limits(time_off: int, order_off: int) -> None:
    sender = sender_of()
    send(sender, 2)
    qp, params = sender.qp[0], sender.params[0]
    qp["passed_ps"] = qp["spread_ps"] + time_off
    qp["passed_order"] = params["passed_packets"] + order_off
    infer_losses(sender, 0)
    lost = [int(packet["state"]) == LOST for packet in sender.packets[0][:2]]
    assert lost == [time_off >= 0 and order_off >= k for k in range(2)]


@given(st.integers(0, 10**9), st.integers(-2, 2))
def test_a_packet_may_be_as_late_as_queues_have_lately_made_others(waited_ps: int, off: int) -> None:
    sender = sender_of()
    send(sender, 2)
    qp, params = sender.qp[0], sender.params[0]
    note_late(qp, waited_ps)
    allowed = min(int(qp["spread_ps"]) + waited_ps + waited_ps // 4, int(params["spread_max_ps"]))
    assert spread_in_force(params, qp) == allowed
    qp["passed_ps"], qp["passed_order"] = allowed + off, 1000
    infer_losses(sender, 0)
    assert (sender.packets[0]["state"][:2] == LOST).all() == (off >= 0)


@given(st.lists(st.integers(0, 10**9), min_size=1, max_size=40))
def test_long_waits_are_remembered_for_a_while_and_then_forgotten(waits: list[int]) -> None:
    qp = sender_of().qp[0]
    for waited_ps in waits:
        note_late(qp, waited_ps)
        assert qp["late_ps"] >= waited_ps
    assert qp["late_ps"] <= max(waits)
    for _ in range(20_000):
        note_late(qp, 0)
    assert qp["late_ps"] <= 256


def test_without_inference_silence_is_the_timers_business() -> None:
    sender = sender_of()
    sender.params[0]["infer"] = 0
    send(sender, 2)
    sender.qp[0]["passed_ps"], sender.qp[0]["passed_order"] = 10**12, 1000
    infer_losses(sender, 0)
    assert sender.qp[0]["silent"] == 0
    expire(sender, 0, int(sender.params[0]["timeout_ps"]))
    assert sender.qp[0]["silent"] == 2


def test_a_packet_that_arrives_after_all_doubles_the_spread_once_in_a_round_trip() -> None:
    sender = sender_of()
    send(sender, 3)
    qp, params = sender.qp[0], sender.params[0]
    rtt_ps, first = int(params["base_rtt_ps"]), int(qp["spread_ps"])
    for slot in range(3):
        declare_lost(sender, 0, slot, VANISHED)
    was_not_lost(sender, 0, 0, rtt_ps)
    was_not_lost(sender, 0, 0, 9 * rtt_ps)
    assert qp["spurious"] == 1, "the same loss is taken back once"
    was_not_lost(sender, 0, 1, rtt_ps + 1)
    assert (qp["spread_ps"], qp["spurious"]) == (min(2 * first, int(params["spread_max_ps"])), 2)
    was_not_lost(sender, 0, 2, 2 * rtt_ps)
    assert qp["spread_ps"] == min(4 * first, int(params["spread_max_ps"]))
    assert (sender.packets[0]["gone"][:3] == KEPT).all()


@given(st.integers(0, 12))
def test_a_quiet_time_halves_the_spread_down_to_where_it_began(rounds: int) -> None:
    sender = sender_of()
    qp, params = sender.qp[0], sender.params[0]
    least, decay_ps = int(params["spread_ps"]), int(params["spread_decay_ps"])
    qp["spread_ps"], qp["spread_at_ps"] = 8 * least, 0
    for k in range(1, rounds + 1):
        relax_spread(sender, 0, k * decay_ps - 1)
        relax_spread(sender, 0, k * decay_ps)
    assert qp["spread_ps"] == max(least, 8 * least >> rounds)


def test_the_budget_ends_the_pair_with_the_error_that_used_it_up() -> None:
    for error in (ERROR_RETRIES, ERROR_NO_PATH):
        sender = sender_of()
        budget = int(sender.params[0]["linear_retries"] + sender.params[0]["exponential_retries"])
        for _ in range(budget):
            count_retry(sender, 0, error)
        assert sender.qp[0]["error"] == 0
        count_retry(sender, 0, error)
        assert sender.qp[0]["error"] == error


def test_an_infinite_budget_is_never_used_up() -> None:
    sender = sender_of()
    sender.params[0]["exponential_retries"] = 25
    for _ in range(200):
        count_retry(sender, 0, ERROR_RETRIES)
    assert sender.qp[0]["error"] == 0


def test_packets_that_were_in_flight_together_make_one_timeout() -> None:
    sender = sender_of()
    rows = send(sender, 2)
    limit_ps = int(timeout_ps(sender.params[0], 0))
    expire(sender, 0, limit_ps - 1)
    assert sender.qp[0]["timeouts"] == 0
    expire(sender, 0, limit_ps)
    assert (sender.qp[0]["timeouts"], sender.qp[0]["backoff"], sender.qp[0]["waiting"]) == (1, 1, 2)
    assert (sender.evs[0]["losses"] == 0).all(), "nothing sent later has arrived: no path is to blame"
    acknowledge(sender, rows[1], now_ps=limit_ps + 1)
    assert (sender.qp[0]["backoff"], sender.qp[0]["retries"]) == (0, 0), "what arrives restores the budget"
    check_sender(sender, 0)


def test_a_pair_that_can_use_no_path_waits_a_timeout_for_each_retry() -> None:
    sender, out = sender_of(), send_row()
    send(sender, 1)
    on_sack(sender, 0, reply_row(cack_psn=0, sack_offset=1), 5)
    on_port_status(sender, 0, 0)
    send_again = int(sender.qp[0]["end"])
    sender.qp[0]["end"] = send_again + 1
    next_data(sender, 0, 10, -1, out)
    assert sender.qp[0]["stalled_ps"] == 10
    limit_ps = int(timeout_ps(sender.params[0], 0))
    on_timer(sender, 0, 10 + limit_ps - 1)
    assert sender.qp[0]["retries"] == 0
    on_timer(sender, 0, 10 + limit_ps)
    assert (sender.qp[0]["retries"], sender.qp[0]["stalled_ps"]) == (1, 10 + limit_ps)
    on_port_status(sender, 0, 0b11)
    assert sender.qp[0]["stalled_ps"] == NEVER


def test_a_timeout_blames_a_path_only_where_something_later_has_arrived() -> None:
    sender = sender_of()
    rows = send(sender, 1) + send(sender, 1, now_ps=US)
    # The second arrives, too soon after the first to show a loss by the spread.
    acknowledge(sender, rows[1], now_ps=2 * US, cack_psn=0xFFFFFF, ack_psn_offset=2, sack_offset=2, bitmap_low=1)
    assert sender.packets[0, 0]["state"] == IN_FLIGHT
    expire(sender, 0, int(timeout_ps(sender.params[0], 0)))
    assert sender.packets[0, 0]["state"] == LOST
    assert sender.qp[0]["silent"] == 1
    assert sender.qp[0]["retired"] == 1
