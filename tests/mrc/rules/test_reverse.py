"""The reverse path: on which EVs answers go, and how they are proved."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.mrc.builders import receiver_of, reply_row, send, send_row, sender_of

from weft.mrc.columns import EV_PROBE, NOTHING, Receiver, Sender
from weft.mrc.rules.evs import DENY, ev_event
from weft.mrc.rules.ports import on_port_status
from weft.mrc.rules.receiver import DataHeader, receive, take_sack
from weft.mrc.rules.reverse import (
    RECENT_ROUND_TRIPS,
    REVERSE_ID,
    next_reverse_probe,
    on_reverse_answer,
    reverse_ev,
)


def both(planes: int = 8, paths: int = 16) -> tuple[Sender, Receiver]:
    """Return the two directions of one queue pair that has received a packet and answered it."""
    sender, receiver = sender_of(planes=planes, paths=paths), receiver_of(planes=planes)
    receive(receiver, 0, DataHeader(0, 5, 0, 0, 1, 64, -1), 1000)
    take_sack(receiver, 0, reply_row())
    return sender, receiver


def planes_of(sender: Sender, receiver: Receiver, count: int) -> list[int]:
    return [int(sender.evs[0, int(reverse_ev(sender, 0, receiver, 0))]["plane"]) for _ in range(count)]


@pytest.mark.parametrize("planes", [4, 8])
def test_answers_take_the_planes_in_turn(planes: int) -> None:
    found = planes_of(*both(planes), 3 * planes)
    assert set(found) == set(range(planes))
    assert found[planes:] == found[:-planes]


@given(st.integers(1, 255))
def test_answers_avoid_planes_that_are_down(mask: int) -> None:
    sender, receiver = both()
    on_port_status(sender, 0, mask)
    up = {plane for plane in range(8) if mask >> plane & 1}
    assert set(planes_of(sender, receiver, 16)) == up


def test_where_no_plane_is_up_there_is_no_reverse_path() -> None:
    sender, receiver = both()
    on_port_status(sender, 0, 0)
    assert reverse_ev(sender, 0, receiver, 0) == -1


def test_a_probe_is_due_once_in_a_round_trip_and_after_an_answer_only() -> None:
    sender, receiver = both()
    out, rtt_ps = send_row(), int(sender.params[0]["base_rtt_ps"])
    assert next_reverse_probe(sender, 0, receiver, 0, 1000, out) == EV_PROBE
    assert out["id"] & REVERSE_ID
    assert next_reverse_probe(sender, 0, receiver, 0, 1000 + rtt_ps - 1, out) == NOTHING
    assert next_reverse_probe(sender, 0, receiver, 0, 1000 + rtt_ps, out) == NOTHING, "nothing was answered since"
    receive(receiver, 0, DataHeader(1, 5, 0, 0, 1, 64, -1), 1000 + rtt_ps)
    take_sack(receiver, 0, reply_row())
    assert next_reverse_probe(sender, 0, receiver, 0, 1000 + 2 * rtt_ps, out) == EV_PROBE


def test_a_pair_that_has_not_received_lately_probes_nothing() -> None:
    sender, receiver = both()
    late_ps = 1000 + RECENT_ROUND_TRIPS * int(sender.params[0]["base_rtt_ps"])
    assert next_reverse_probe(sender, 0, receiver, 0, late_ps + 1, send_row()) == NOTHING
    assert next_reverse_probe(sender, 0, receiver, 0, late_ps, send_row()) == EV_PROBE


def test_a_pair_that_sends_data_proves_its_path_by_that() -> None:
    sender, receiver = both()
    send(sender, 1)
    assert next_reverse_probe(sender, 0, receiver, 0, 1000, send_row()) == NOTHING


def test_the_ev_of_an_answered_probe_becomes_the_reverse_path_of_its_plane() -> None:
    sender, receiver = both()
    out = send_row()
    assert next_reverse_probe(sender, 0, receiver, 0, 1000, out) == EV_PROBE
    plane, index = int(out["plane"]), int(out["ev"])
    before = int(sender.planes[0, plane]["reverse"])
    on_reverse_answer(sender, 0, receiver, 0, int(out["id"]) ^ 1)
    assert sender.planes[0, plane]["reverse"] == before, "another probe's answer"
    on_reverse_answer(sender, 0, receiver, 0, int(out["id"]))
    assert sender.planes[0, plane]["reverse"] == index
    assert receiver.qp[0]["reverse_probe_ev"] == -1


@given(st.integers(1, 5))
def test_probes_reach_every_ev_that_exists_and_no_other(paths: int) -> None:
    sender, receiver = both(planes=2, paths=paths)
    out, rtt_ps = send_row(), int(sender.params[0]["base_rtt_ps"])
    denied = int(sender.rotation[0, 0])
    ev_event(sender, 0, denied, DENY)
    met: Counter[int] = Counter()
    for k in range(200):
        receiver.qp[0]["reverse_replies"] = -1
        receiver.qp[0]["heard_ps"] = k * rtt_ps
        if next_reverse_probe(sender, 0, receiver, 0, k * rtt_ps, out) == EV_PROBE:
            met[int(out["ev"])] += 1
    exists = {k for k, value in enumerate(sender.evs[0]["value"].tolist()) if value >= 0}
    assert set(met) == exists - {denied}


def test_few_planes_send_every_second_answer_the_way_the_packet_came_once_no_probe_was_answered() -> None:
    sender, receiver = both(planes=2, paths=64)
    came = int(sender.evs[0, 3]["value"])
    receiver.qp[0]["came_ev"] = came
    receiver.qp[0]["heard_ps"] = 3 * int(sender.params[0]["base_rtt_ps"])
    found = [int(sender.evs[0, int(reverse_ev(sender, 0, receiver, 0))]["value"]) for _ in range(8)]
    assert found[0::2] == [came] * 4
    assert found[1::2] != [came] * 4


@given(st.integers(2, 8), st.integers(0, 7), st.integers(0, 2**32 - 1))
def test_of_few_paths_the_one_by_which_packets_come_is_soon_probed(paths: int, came: int, word: int) -> None:
    sender = sender_of(planes=1, paths=paths, word=word)
    receiver = receiver_of(planes=1)
    value = int(sender.evs[0, came % paths]["value"])
    probed, now_ps, out = [], 0, send_row()
    for number in range(4):
        now_ps += int(sender.params[0]["base_rtt_ps"])
        receive(receiver, 0, DataHeader(number, value, 0, 0, 1, 64, -1), now_ps)
        take_sack(receiver, 0, reply_row())
        assert next_reverse_probe(sender, 0, receiver, 0, now_ps, out) == EV_PROBE
        probed.append(int(out["value"]))
    assert probed.count(value) >= 2
