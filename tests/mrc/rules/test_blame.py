"""A plane in which nothing arrives is retired as a whole; one in which anything does is not, whatever is lost in it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.mrc.builders import sender_of

from weft.mrc.columns import ASSUMED_BAD, Sender
from weft.mrc.invariants import check_evs
from weft.mrc.rules.blame import ev_arrived, ev_delivers, ev_silent, note_fate
from weft.mrc.rules.evs import PROBED_CLEAR, ev_event

ENOUGH = 20
"""Losses in a row in one plane that no share of lost packets used here explains."""


def of_plane(sender: Sender, plane: int) -> list[int]:
    return [
        e for e in range(sender.evs.shape[1]) if sender.evs[0, e]["plane"] == plane and sender.evs[0, e]["value"] >= 0
    ]


def bad(sender: Sender, plane: int) -> int:
    return sum(sender.evs[0, e]["state"] == ASSUMED_BAD for e in of_plane(sender, plane))


def lose(sender: Sender, ev: int) -> None:
    note_fate(sender.qp[0], 1)
    ev_silent(sender, 0, ev)


def silenced(plane: int = 1) -> Sender:
    """Return a sender of which a plane has died: its losses come between deliveries in the other one."""
    sender = sender_of()
    evs, others = of_plane(sender, plane), of_plane(sender, 1 - plane)
    for k in range(ENOUGH):
        lose(sender, evs[0 if k % 2 else 1])
        for other in others[:3]:
            note_fate(sender.qp[0], 0)
            ev_delivers(sender, 0, other)
    return sender


@pytest.mark.parametrize("plane", [0, 1])
def test_a_plane_whose_packets_all_vanish_is_retired_by_few_of_its_evs(plane: int) -> None:
    sender = silenced(plane)
    assert bad(sender, plane) == len(of_plane(sender, plane))
    assert bad(sender, 1 - plane) == 0
    check_evs(sender, 0)


@given(st.lists(st.integers(0, 5), min_size=1, max_size=60))
def test_a_plane_that_delivers_loses_no_ev_that_lost_nothing(gaps: list[int]) -> None:
    sender = sender_of()
    evs = of_plane(sender, 0)
    lossy, working = evs[:2], evs[2:]
    for k, gap in enumerate(gaps):
        lose(sender, lossy[k % 2])
        for turn in range(gap + 1):
            note_fate(sender.qp[0], 0)
            ev_delivers(sender, 0, working[turn % len(working)])
    assert all(sender.evs[0, e]["state"] != ASSUMED_BAD for e in working)
    check_evs(sender, 0)


def test_packets_that_arrive_after_all_bring_a_retired_plane_back_and_few_do_not() -> None:
    sender = silenced()
    evs = of_plane(sender, 1)
    for _ in range(3):
        ev_arrived(sender, 0, evs[0])
    assert bad(sender, 1) == len(evs)
    ev_arrived(sender, 0, evs[0])
    assert bad(sender, 1) == 0
    check_evs(sender, 0)


def test_a_plane_that_came_back_can_be_retired_again() -> None:
    sender = silenced()
    evs = of_plane(sender, 1)
    ev_event(sender, 0, evs[0], PROBED_CLEAR)
    ev_event(sender, 0, evs[1], PROBED_CLEAR)
    assert bad(sender, 1) == len(evs) - 2
    for k in range(ENOUGH):
        lose(sender, evs[k % 2])
    assert bad(sender, 1) == len(evs)


def test_where_nothing_is_retired_silence_blames_nothing() -> None:
    sender = sender_of()
    sender.params[0]["retire"] = 0
    before = sender.evs.copy()
    for k in range(ENOUGH):
        lose(sender, of_plane(sender, 0)[k % 2])
    assert (sender.evs == before).all()
