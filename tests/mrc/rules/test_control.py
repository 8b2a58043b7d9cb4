"""Everything a sender does besides data: probes, their answers, and the times at which it wants to be asked."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.mrc.builders import acknowledge, reply_row, send, send_row, sender_of

from weft.mrc.columns import (
    ASSUMED_BAD,
    ERROR_RETRIES,
    EV_PROBE,
    GOOD,
    NEVER,
    NOTHING,
    PORT_STATUS,
    PROBE,
    SKIP,
    Sender,
)
from weft.mrc.invariants import check_sender
from weft.mrc.rules.acks import on_sack
from weft.mrc.rules.control import ID_MASK, next_control, next_deadline, on_ev_probe_answer, on_timer, tail_ps
from weft.mrc.rules.evs import MARK, SILENCE, ev_event
from weft.mrc.rules.ports import port_changed
from weft.mrc.wire.packets import VERDICT_ALWAYS_SKIP, VERDICT_NONE, VERDICT_SKIP_ONCE


def retired(count: int = 1) -> tuple[Sender, list[int]]:
    """Return a sender of which silence has retired so many EVs, and which they are."""
    sender = sender_of()
    which = [int(sender.rotation[0, k]) for k in range(count)]
    for index in which:
        assert ev_event(sender, 0, index, SILENCE) == ASSUMED_BAD
    return sender, which


def probe(sender: Sender, now_ps: int) -> tuple[int, int]:
    """Let an EV probe go that is due, and return its EV and its id."""
    out = send_row()
    assert next_control(sender, 0, now_ps, -1, out) == EV_PROBE
    return int(out["ev"]), int(out["id"])


def test_an_idle_pair_has_nothing_to_say_and_no_deadline() -> None:
    sender = sender_of()
    assert next_control(sender, 0, 10**15, -1, send_row()) == NOTHING
    assert next_deadline(sender, 0) == NEVER


@pytest.mark.parametrize("misses", range(10))
def test_each_probe_without_an_answer_doubles_the_wait_for_the_next(misses: int) -> None:
    sender, out = sender_of(), send_row()
    send(sender, 1)
    after_ps = int(sender.params[0]["probe_after_ps"])
    now_ps = 0
    for k in range(misses + 1):
        # The first is due as soon as the last packet of all should have been answered.
        due_ps = now_ps + (after_ps << min(k - 1, 6)) if k else int(tail_ps(sender.params[0]))
        assert next_control(sender, 0, due_ps - 1, -1, out) == NOTHING
        assert next_control(sender, 0, due_ps, -1, out) == PROBE
        now_ps = due_ps
    assert sender.qp[0]["probes"] == misses + 1
    assert sender.qp[0]["probe_misses"] == misses


def test_the_answer_to_the_last_probe_ends_the_misses_and_an_older_one_does_not() -> None:
    sender, out = sender_of(), send_row()
    send(sender, 1)
    after_ps = int(sender.params[0]["probe_after_ps"])
    ids = []
    for now_ps in (after_ps, 2 * after_ps):
        assert next_control(sender, 0, now_ps, -1, out) == PROBE
        ids.append(int(out["id"]))
    for number, misses in ((ids[0], 1), (ids[1], 0)):
        answer = reply_row(cack_psn=0xFFFFFF, probe_response=1, ack_psn_offset=number, sack_offset=1)
        on_sack(sender, 0, answer, 3 * after_ps)
        assert sender.qp[0]["probe_misses"] == misses
    assert sender.qp[0]["probe_open"] == 0
    check_sender(sender, 0)


def test_a_probe_shows_that_the_last_packet_of_a_message_is_lost() -> None:
    sender, out = sender_of(), send_row()
    send(sender, 1)
    late_ps = int(sender.params[0]["probe_after_ps"] + sender.params[0]["spread_ps"])
    assert next_control(sender, 0, late_ps, -1, out) == PROBE
    on_sack(sender, 0, reply_row(cack_psn=0xFFFFFF, probe_response=1, ack_psn_offset=out["id"], sack_offset=1), late_ps)
    assert sender.qp[0]["waiting"] == 1


def test_one_retired_ev_is_probed_at_a_time_all_in_turn() -> None:
    sender, which = retired(3)
    interval_ps, timeout_ps = (int(sender.params[0][f"ev_probe_{name}_ps"]) for name in ("interval", "timeout"))
    met, now_ps = [], 0
    for _ in range(6):
        index, _ = probe(sender, now_ps)
        met.append(index)
        assert next_control(sender, 0, now_ps, -1, send_row()) == NOTHING
        now_ps += max(interval_ps, timeout_ps)
        on_timer(sender, 0, now_ps)
    assert sorted(met[:3]) == sorted(which)
    assert met[3:] == met[:3]


@pytest.mark.parametrize(("verdict", "state"), [(VERDICT_NONE, GOOD), (VERDICT_SKIP_ONCE, SKIP)])
def test_enough_answers_in_a_row_readmit_an_ev(verdict: int, state: int) -> None:
    sender, (index,) = retired()
    needed = int(sender.params[0]["probes_to_readmit"])
    for k in range(needed):
        assert sender.evs[0, index]["state"] == ASSUMED_BAD
        found, number = probe(sender, k)
        assert found == index, "an answered EV is probed again at once"
        on_ev_probe_answer(sender, 0, number, verdict)
    assert sender.evs[0, index]["state"] == state
    assert (sender.qp[0]["bad"], sender.qp[0]["readmitted"]) == (0, 1)
    check_sender(sender, 0)


def test_a_peer_that_wants_an_ev_never_to_be_used_starts_the_count_again() -> None:
    sender, (index,) = retired()
    sender.params[0]["probes_to_readmit"] = 3
    for k, verdict in enumerate((VERDICT_NONE, VERDICT_NONE, VERDICT_ALWAYS_SKIP)):
        _, number = probe(sender, k * int(sender.params[0]["ev_probe_interval_ps"]))
        on_ev_probe_answer(sender, 0, number, verdict)
    assert (sender.evs[0, index]["probes"], sender.evs[0, index]["state"]) == (0, ASSUMED_BAD)


def test_an_answer_that_nobody_waits_for_changes_nothing() -> None:
    sender, (index,) = retired()
    _, number = probe(sender, 0)
    on_ev_probe_answer(sender, 0, number + 1 & ID_MASK, VERDICT_NONE)
    assert sender.qp[0]["ev_probe_ev"] == index
    on_timer(sender, 0, int(sender.params[0]["ev_probe_timeout_ps"]))
    on_ev_probe_answer(sender, 0, number, VERDICT_NONE)
    assert sender.evs[0, index]["probes"] == 0, "too late"


def test_news_of_ports_go_before_probes() -> None:
    sender, _ = retired()
    send(sender, 1)
    port_changed(sender, 0, 1, 0, 0)
    now_ps = 10 * int(sender.params[0]["probe_after_ps"] + sender.params[0]["remap_ps"])
    sender.qp[0]["ports_due_ps"] = 0
    sender.planes[0, 1]["due_ps"] = 0
    on_timer(sender, 0, 0)
    kinds = [int(next_control(sender, 0, now_ps, -1, send_row())) for _ in range(4)]
    assert kinds == [PORT_STATUS, PROBE, EV_PROBE, NOTHING]


def test_a_pair_that_has_ended_says_nothing_more() -> None:
    sender, _ = retired()
    send(sender, 1)
    sender.qp[0]["error"] = ERROR_RETRIES
    before = sender.qp[0].copy()
    on_timer(sender, 0, 10**15)
    assert next_control(sender, 0, 10**15, -1, send_row()) == NOTHING
    assert next_deadline(sender, 0) == NEVER
    assert sender.qp[0] == before


@given(st.integers(1, 6), st.integers(0, 3), st.lists(st.integers(0, 3), max_size=10))
def test_nothing_happens_before_the_deadline(packets: int, bad: int, steps: list[int]) -> None:
    sender, _ = retired(bad)
    rows = send(sender, packets)
    now_ps = 0
    for step in steps:
        due_ps = int(next_deadline(sender, 0))
        if due_ps >= NEVER:
            break
        early = sender.qp[0].copy()
        on_timer(sender, 0, max(now_ps, due_ps - 1))
        assert sender.qp[0] == early, "a deadline may be early, never late"
        if due_ps - 1 >= now_ps:
            assert next_control(sender, 0, due_ps - 1, -1, send_row()) == NOTHING
        now_ps = max(now_ps, due_ps)
        on_timer(sender, 0, now_ps)
        while next_control(sender, 0, now_ps, -1, send_row()):
            pass
        if step == 3 and rows:
            acknowledge(sender, rows.pop(0), now_ps=now_ps)
        check_sender(sender, 0)
        now_ps += step


@given(st.integers(2, 8), st.integers(0, 2**32 - 1), st.integers(1, 6), st.booleans())
def test_probes_of_a_full_window_soon_leave_the_path_that_holds_it(
    paths: int, word: int, sent: int, skipped: bool
) -> None:
    # The oldest packet's EV may be dead. Where the window is full, only a probe on another one can show it.
    sender = sender_of(paths=paths, word=word, planes=1)
    send(sender, sent)
    dead = int(sender.packets[0, int(sender.qp[0]["oldest"])]["ev"])
    for other in range(paths):
        if skipped and other != dead:
            ev_event(sender, 0, other, MARK)
            sender.evs[0, other]["skips"] = 30
    out, taken = send_row(), []
    for k in range(3):
        assert next_control(sender, 0, (k + 1) * 10**10, -1, out) == PROBE
        taken.append(int(out["ev"]))
    assert taken[0] != dead
    assert taken[2] != dead
    assert sender.qp[0]["reused_ev"] == 0


def test_probes_go_on_where_there_is_one_path_alone() -> None:
    sender = sender_of(paths=1, planes=1)
    send(sender, 1)
    for k in range(4):
        assert next_control(sender, 0, (k + 1) * 10**10, -1, send_row()) == PROBE


def test_an_answered_probe_of_a_retired_path_lets_the_window_be_asked_for_soon() -> None:
    # Everything in flight is on dead paths, and probes of it have become rare.
    sender, (bad,) = retired()
    send(sender, 1)
    now_ps, out = 0, send_row()
    for _ in range(6):
        now_ps += 10**10
        while next_control(sender, 0, now_ps, -1, out) != PROBE:
            pass
    assert sender.qp[0]["probe_misses"] == 5
    sender.qp[0]["ev_probe_ev"], sender.qp[0]["ev_probe_id"] = bad, 7
    now_ps += int(sender.params[0]["probe_after_ps"])
    assert next_control(sender, 0, now_ps, -1, out) != PROBE
    on_ev_probe_answer(sender, 0, 7, VERDICT_NONE)
    assert next_control(sender, 0, now_ps, -1, out) == PROBE
