"""What a sender learns from SACKs and NACKs, against a model that keeps sets."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.mrc.builders import PAYLOAD, acknowledge, reply_row, send, sender_of

from weft.mrc.columns import ACKED, IN_FLIGHT
from weft.mrc.invariants import check_sender
from weft.mrc.rules.acks import on_nack, on_sack, transmission
from weft.mrc.rules.recovery import declare_lost
from weft.mrc.wire.packets import NO_PKT_BUFFER, TRIMMED, TRIMMED_LASTHOP, VERDICT_SKIP_ONCE

COUNT = 40


def _sack(first_seq: int, cack: int, base: int, bits: int) -> Any:
    """Return a SACK up to packet `cack` of the message, with a bitmap from packet `base` on."""
    return reply_row(
        cack_psn=(first_seq + cack) & 0xFFFFFF,
        sack_offset=base - cack,
        bitmap_low=bits & 0xFFFFFFFF,
        bitmap_high=bits >> 32,
        mpr=1,
    )


SACKS = st.lists(
    st.tuples(st.integers(-1, COUNT - 1), st.integers(0, COUNT), st.integers(0, 2**64 - 1)), min_size=1, max_size=5
)


@given(st.integers(0, 2**25), SACKS)
def test_exactly_what_sacks_name_is_acknowledged_however_the_bitmap_lies(
    first_seq: int, sacks: list[tuple[int, int, int]]
) -> None:
    sender = sender_of(first_seq=first_seq)
    send(sender, COUNT)
    known: set[int] = set()
    for cack, base, bits in sacks:
        if cack < 0 and not known:
            continue
        reached = min(set(range(COUNT + 1)) - known)
        named = set(range(cack + 1)) | {base + k for k in range(64) if bits >> k & 1 and base + k < COUNT}
        fresh = {seq for seq in named if seq >= reached} - known
        acked = on_sack(sender, 0, _sack(first_seq, cack, base, bits), 20_000_000)
        known |= named
        assert acked == len(fresh) * PAYLOAD
        check_sender(sender, 0)
    states = sender.packets[0]["state"]
    mask = int(sender.params[0]["slot_mask"])
    una = int(sender.qp[0]["una"]) - first_seq
    assert una == min(set(range(COUNT + 1)) - known)
    for seq in range(una, COUNT):
        assert (states[(first_seq + seq) & mask] == ACKED) == (seq in known)


@given(st.integers(0, 2**25), st.integers(0, 100))
def test_a_sack_of_what_was_never_sent_is_counted_and_left(first_seq: int, beyond: int) -> None:
    sender = sender_of(first_seq=first_seq)
    send(sender, 4)
    before = sender.packets[0].copy()
    assert on_sack(sender, 0, _sack(first_seq, 4 + beyond, 5 + beyond, 2**64 - 1), 5) == 0
    assert sender.qp[0]["bad_acks"] == 1
    assert (sender.packets[0] == before).all()


def test_a_sack_that_comes_twice_acknowledges_once() -> None:
    sender = sender_of()
    rows = send(sender, 4)
    assert acknowledge(sender, rows[2], now_ps=20_000_000) == 3 * PAYLOAD
    assert acknowledge(sender, rows[2], now_ps=20_000_001) == 0
    assert sender.qp[0]["delivered_bytes"] == 3 * PAYLOAD


@given(st.integers(0, 7))
def test_the_ev_of_a_transmission_is_found_by_the_bits_that_it_went_out_with(seq: int) -> None:
    sender = sender_of()
    rows = send(sender, 8)
    row = rows[seq]
    assert transmission(sender, 0, seq, int(row["value"])) == row["ev"]
    assert transmission(sender, 0, seq, 10**6) == -1
    assert transmission(sender, 0, 8, int(row["value"])) == -1, "not sent yet"
    assert transmission(sender, 0, -1000, int(row["value"])) == -1, "long forgotten"
    declare_lost(sender, 0, seq, 1)
    assert transmission(sender, 0, seq, int(row["value"])) == row["ev"], "the one before is still known"


def test_messages_complete_in_order_with_their_last_packet() -> None:
    sender = sender_of()
    rows = [send(sender, 2), send(sender, 3)]
    acknowledge(sender, rows[0][1], now_ps=1, cack_psn=0, ack_psn_offset=1, sack_offset=2, bitmap_low=0b111)
    assert sender.qp[0]["completed"] == 0
    acknowledge(sender, rows[0][1], now_ps=2)
    assert sender.qp[0]["completed"] == 2, "what had arrived beyond the gap completes with it"
    assert sender.qp[0]["una"] == sender.qp[0]["end"]


@pytest.mark.parametrize(
    ("reason", "trims", "skipped"), [(TRIMMED, 1, True), (TRIMMED_LASTHOP, 1, False), (NO_PKT_BUFFER, 0, False)]
)
def test_a_nack_sends_again_and_only_a_trim_inside_the_fabric_skips_the_path(
    reason: int, trims: int, skipped: bool
) -> None:
    sender = sender_of()
    row = send(sender, 1)[0]
    on_nack(sender, 0, reply_row(reason=reason, psn=row["psn"], value=row["value"]), 5)
    assert (sender.qp[0]["waiting"], sender.qp[0]["trims"], sender.qp[0]["silent"]) == (1, trims, 0)
    assert (sender.qp[0]["skipping"] == 1) == skipped
    assert sender.qp[0]["retired"] == 0
    check_sender(sender, 0)


def test_a_nack_of_what_has_arrived_changes_no_packet() -> None:
    sender = sender_of()
    rows = send(sender, 2)
    acknowledge(sender, rows[0], now_ps=20_000_000)
    on_nack(sender, 0, reply_row(reason=TRIMMED, psn=rows[0]["psn"], value=rows[0]["value"]), 20_000_001)
    assert sender.qp[0]["waiting"] == 0
    assert sender.packets[0, 1]["state"] == IN_FLIGHT


def test_the_answer_to_data_proves_the_reverse_path_of_its_plane() -> None:
    sender = sender_of()
    row = send(sender, 1)[0]
    acknowledge(sender, row, now_ps=20_000_000)
    assert sender.planes[0, int(row["plane"])]["reverse"] == row["ev"]


@given(st.integers(0, 3))
def test_marks_are_counted_where_the_transmission_is_known(marks: int) -> None:
    sender = sender_of()
    rows = send(sender, 4)
    for k, row in enumerate(rows):
        verdict = VERDICT_SKIP_ONCE if k < marks else 0
        acknowledge(sender, row, now_ps=20_000_000 + k, verdict=verdict)
    assert sender.qp[0]["marks"] == marks
    assert sender.qp[0]["una"] == 4
