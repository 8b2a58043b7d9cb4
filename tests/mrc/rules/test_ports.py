"""A port that goes down takes its plane with it, after the remap delay, and the peer learns of it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.mrc.builders import send, send_row, sender_of
from tests.mrc.channel import US

from weft.mrc.columns import ASSUMED_BAD, GOOD, NEVER, NOTHING, PORT_STATUS
from weft.mrc.invariants import check_evs
from weft.mrc.rules.control import next_control, next_deadline, on_timer
from weft.mrc.rules.evs import SILENCE, ev_event, reachable
from weft.mrc.rules.ports import apply_ports, on_port_answer, on_port_status, port_changed

REMAP_PS = 100 * US


@given(st.lists(st.tuples(st.integers(0, 1), st.integers(0, 1), st.integers(0, 50)), max_size=12))
def test_a_port_is_what_was_last_said_of_it_a_delay_ago(changes: list[tuple[int, int, int]]) -> None:
    sender, now_ps = sender_of(), 0
    last = {0: (1, -NEVER), 1: (1, -NEVER)}
    for plane, up, pause_us in changes:
        now_ps += pause_us * US
        on_timer(sender, 0, now_ps)
        port_changed(sender, 0, plane, up, now_ps)
        last[plane] = (up, now_ps)
    on_timer(sender, 0, now_ps + REMAP_PS)
    assert sender.qp[0]["local_up"] == sum(up << plane for plane, (up, _) in last.items())
    assert sender.qp[0]["ports_due_ps"] == NEVER


@pytest.mark.parametrize("early_ps", [0, 1, REMAP_PS - 1])
def test_a_change_waits_for_the_remap_delay(early_ps: int) -> None:
    sender = sender_of()
    port_changed(sender, 0, 1, 0, 5)
    assert next_deadline(sender, 0) == 5 + REMAP_PS
    apply_ports(sender, 0, 5 + early_ps)
    assert sender.qp[0]["local_up"] == 3
    apply_ports(sender, 0, 5 + REMAP_PS)
    assert sender.qp[0]["local_up"] == 1


def test_packets_avoid_a_plane_that_is_down_here_or_there() -> None:
    for down_here in (True, False):
        sender = sender_of()
        if down_here:
            port_changed(sender, 0, 0, 0, 0)
            on_timer(sender, 0, REMAP_PS)
        else:
            on_port_status(sender, 0, 0b10)
        assert {int(row["plane"]) for row in send(sender, 12)} == {1}


def test_ports_are_announced_until_the_peer_answers_the_latest_announcement() -> None:
    sender, out = sender_of(), send_row()
    assert next_control(sender, 0, 0, -1, out) == NOTHING
    port_changed(sender, 0, 1, 0, 0)
    on_timer(sender, 0, REMAP_PS)
    interval_ps = int(sender.params[0]["ev_probe_timeout_ps"])
    ids = []
    for round_ in range(3):
        now_ps = REMAP_PS + round_ * interval_ps
        assert next_control(sender, 0, now_ps, -1, out) == PORT_STATUS
        assert (out["port_status"], out["plane"]) == (1, 0)
        assert next_control(sender, 0, now_ps, -1, out) == NOTHING, "once in an interval"
        ids.append(int(out["id"]))
    assert len(set(ids)) == 1
    on_port_answer(sender, 0, ids[0] + 1)
    assert sender.qp[0]["ports_announced"] == 3, "another announcement was answered"
    on_port_answer(sender, 0, ids[0])
    assert sender.qp[0]["ports_announced"] == 1
    assert next_control(sender, 0, 10 * interval_ps + REMAP_PS, -1, out) == NOTHING


def test_a_pair_without_any_plane_reaches_nothing_until_one_returns() -> None:
    sender = sender_of()
    on_port_status(sender, 0, 0)
    assert not reachable(sender, 0)
    on_port_status(sender, 0, 0b100)
    assert not reachable(sender, 0), "there is no third plane"
    on_port_status(sender, 0, 0b11)
    assert reachable(sender, 0)


@pytest.mark.parametrize("plane", [0, 1])
def test_a_plane_that_returns_clears_the_evs_that_its_silence_retired(plane: int) -> None:
    sender = sender_of()
    for index in range(int(sender.params[0]["evs"])):
        if index % 3 == 0:
            ev_event(sender, 0, index, SILENCE)
    on_port_status(sender, 0, 0b11 & ~(1 << plane))
    on_port_status(sender, 0, 0b11)
    evs = sender.evs[0]
    here = evs["plane"] == plane
    assert (evs["state"][here] == GOOD).all()
    assert (evs["state"][~here] == ASSUMED_BAD).any()
    check_evs(sender, 0)


def test_an_answer_to_an_announcement_that_was_overtaken_says_nothing() -> None:
    sender, out = sender_of(), send_row()
    port_changed(sender, 0, 1, 0, 0)
    on_timer(sender, 0, REMAP_PS)
    assert next_control(sender, 0, REMAP_PS, -1, out) == PORT_STATUS
    stale = int(out["id"])
    port_changed(sender, 0, 1, 1, REMAP_PS)
    on_timer(sender, 0, 2 * REMAP_PS)
    assert sender.qp[0]["announce_id"] != stale
    port_changed(sender, 0, 0, 0, 2 * REMAP_PS)
    on_timer(sender, 0, 3 * REMAP_PS)
    before = int(sender.qp[0]["ports_announced"])
    on_port_answer(sender, 0, stale)
    assert sender.qp[0]["ports_announced"] == before != sender.qp[0]["local_up"]
    assert next_control(sender, 0, 3 * REMAP_PS, -1, out) == PORT_STATUS, "the peer does not know yet"
