"""How long a marked EV is passed over: alone it is left to others, among others that are marked too it is not."""

from collections import Counter
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from weft.mrc import columns
from weft.mrc.columns import GOOD, SKIP
from weft.mrc.rules import evs, skipping
from weft.mrc.rules.evs import Paths
from weft.mrc.rules.sender import start_sender
from weft.mrc.rules.settings import settings
from weft.specs.transport import MrcSpec

MOST = 32


def made(active: Any = 16, seed: int = 1, **more: Any):
    table = {"ev": {"active": active, "backup": 0, "min_active": 1, "most_skips": MOST}, **more}
    s = columns.make_sender(settings(MrcSpec.model_validate(table), planes=1, rate_bps=10**11), 1)
    start_sender(s, 0, seed, 0, Paths(64, 128, np.zeros(64, np.int64)))
    s.qp[0]["end"] = 10**6
    return s


def sent(s: Any, marked: dict[int, float], packets: int = 8000) -> list[int]:
    """Send packets whose answers come at once, marked by chance on some EVs; return the EV of each."""
    rng = np.random.default_rng(1)
    used = []
    for _ in range(packets):
        e = int(evs.pick_ev(s, 0, -1, -1))
        used.append(e)
        if rng.random() < marked.get(e, 0.0):
            evs.ev_event(s, 0, e, evs.MARK)
        else:
            skipping.ev_clear(s, 0, e)
    return used


def shares(s: Any, marked: dict[int, float]) -> Counter[int]:
    """Return how many packets every EV carries once their marks are known."""
    return Counter(sent(s, marked)[4000:])


@pytest.mark.parametrize("active", [2, 4, 16])
def test_the_only_path_that_is_always_full_is_left_to_others(active: int) -> None:
    used = shares(made(active), {0: 1.0})
    assert 0 < used[0] * (MOST // 2) < min(used[e] for e in range(1, active))


def test_skipping_once_still_sends_every_other_packet_of_its_turn_to_a_full_path() -> None:
    s = made()
    s.params[0]["most_skips"] = 1
    used = shares(s, {0: 1.0})
    assert used[0] == pytest.approx(used[1] / 2, rel=0.1)


@pytest.mark.parametrize("share", [0.1, 0.2, 0.4])
@pytest.mark.parametrize("active", [4, 32])
def test_paths_that_are_all_marked_alike_stay_in_an_even_rotation(share: float, active: int) -> None:
    carried = sent(made(active), dict.fromkeys(range(active), share))[4000:]
    rounds = np.reshape(carried[: len(carried) // (4 * active) * 4 * active], (-1, 4 * active))
    counts = np.array([np.bincount(each, minlength=active) for each in rounds])
    # Packets that go to EVs at random have a variance as large as their mean.
    assert counts.var() < 0.5 * counts.mean()


def test_a_path_marked_far_more_often_than_busy_others_is_left_to_them() -> None:
    used = shares(made(32), {0: 1.0} | dict.fromkeys(range(1, 32), 0.1))
    assert used[0] * 8 < min(used[e] for e in range(1, 32))


def test_a_path_that_was_full_is_used_again_soon_once_it_is_not() -> None:
    s = made()
    sent(s, {0: 1.0}, 2000)
    assert s.evs[0, 0]["patience"] == MOST * 8
    used = shares(s, {})
    assert used[0] == pytest.approx(used[1], rel=0.05)


def test_no_mark_is_longer_remembered_than_what_came_after_it() -> None:
    s = made()
    sent(s, dict.fromkeys(range(16), 1.0), 400)
    assert s.qp[0]["mark_share"] > 900
    sent(s, {}, 400)
    assert s.qp[0]["mark_share"] < 50


@given(st.lists(st.tuples(st.integers(0, 7), st.booleans()), max_size=200), st.integers(1, 64))
def test_any_marks_keep_patience_within_its_bounds(steps: list[tuple[int, bool]], most: int) -> None:
    s = made(8, ev={"active": 8, "backup": 0, "min_active": 1, "most_skips": most})
    for e, marked in steps:
        if marked:
            evs.ev_event(s, 0, e, evs.MARK)
        else:
            skipping.ev_clear(s, 0, e)
        assert 1 <= s.evs[0, e]["patience"] <= 8 * most
        assert 0 <= s.qp[0]["mark_share"] <= 1024
        evs.pick_ev(s, 0, -1, -1)
        in_rotation = s.evs[0][s.rotation[0, : s.qp[0]["active"]]]
        assert s.qp[0]["skipping"] == int((in_rotation["state"] == SKIP).sum())


def test_a_late_arrival_is_no_mark() -> None:
    s = made()
    evs.ev_event(s, 0, 0, evs.MARK)
    before = int(s.evs[0, 0]["patience"])
    assert evs.ev_event(s, 0, 0, evs.ARRIVED) == SKIP
    assert s.evs[0, 0]["patience"] == before


@pytest.mark.parametrize(("inflight", "skipped"), [(0, False), (15, False), (16, True), (64, True)])
def test_a_mark_skips_only_where_the_turn_of_its_ev_comes_within_a_round_trip(inflight: int, skipped: bool) -> None:
    s = made(16)
    s.qp[0]["inflight"] = inflight
    evs.ev_marked(s, 0, 0)
    assert (s.evs[0, 0]["state"] == SKIP) == skipped
    assert s.evs[0, 0]["patience"] == 2


def test_a_path_that_is_marked_again_and_again_is_skipped_however_late_its_turn_comes() -> None:
    s = made(16)
    states = []
    for _ in range(3):
        evs.ev_marked(s, 0, 0)
        states.append(int(s.evs[0, 0]["state"]))
    assert states == [GOOD, GOOD, SKIP]


def test_where_nothing_is_skipped_marks_leave_no_trace() -> None:
    s = made(16, skip=False)
    evs.ev_marked(s, 0, 0)
    assert (int(s.evs[0, 0]["state"]), int(s.qp[0]["mark_share"])) == (GOOD, 0)


@given(st.integers(2, 8), st.integers(0, 200), st.integers(2, 40))
def test_marks_of_packets_that_were_in_flight_together_count_once(active: int, inflight: int, rounds: int) -> None:
    s = made(active)
    s.qp[0]["inflight"] = active * inflight
    s.evs[0, 0]["inflight"] = inflight
    together = max(1, min(inflight, 128))
    doublings = []
    for _ in range(rounds * together):
        evs.ev_marked(s, 0, 0)
        doublings.append(int(s.evs[0, 0]["patience"]))
    expected = [min(2 ** (k + 1), MOST * 8) for k in range(rounds) for _ in range(together)]
    assert doublings == expected


@given(st.integers(2, 40), st.integers(0, 38))
def test_a_packet_without_a_mark_is_one_less_of_those_in_flight_together(inflight: int, clear: int) -> None:
    s = made(2)
    s.evs[0, 0]["inflight"] = inflight
    evs.ev_marked(s, 0, 0)
    for _ in range(min(clear, inflight - 1)):
        skipping.ev_clear(s, 0, 0)
    assert s.evs[0, 0]["stale"] == max(inflight - 1 - clear, 0)
    assert s.evs[0, 1]["stale"] == 0
