"""Connections are few and short: who waits longest without a request goes first, and who is served stays."""

import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from weft.web.connection_guard import Lobbies, Lobby


class Guest:
    """A connection without a socket."""

    def __init__(self) -> None:
        self.dropped = self.is_served = self.sends_body = False

    def drop(self) -> None:
        self.dropped = True


def lobby_of(most: int) -> tuple[Any, list[float]]:
    now = [0.0]
    return Lobby(most, clock=lambda: now[0]), now


def test_the_one_that_waited_longest_goes_and_the_served_stay():
    lobby, _ = lobby_of(3)
    guests = [Guest() for _ in range(4)]
    for guest in guests[:3]:
        lobby.enter(guest)
    guests[0].is_served = True
    lobby.note(guests[0])
    lobby.enter(guests[3])
    assert [guest.dropped for guest in guests] == [False, True, False, False]
    for guest in (guests[2], guests[3]):
        guest.is_served = True
        lobby.note(guest)
    late = Guest()
    lobby.enter(late)
    assert late.dropped
    assert (lobby.open, lobby.dropped) == (3, 2)


def test_half_a_request_buys_no_time():
    lobby, now = lobby_of(9)
    guest = Guest()
    lobby.enter(guest)
    for _ in range(51):
        now[0] += 0.1
        lobby.note(guest)
    assert list(lobby.late()) == [guest]


@pytest.mark.parametrize(("sends_body", "patience_s"), [(True, 20.0), (False, 60.0)])
def test_a_body_and_an_answer_have_their_time_too(sends_body: bool, patience_s: float):
    lobby, now = lobby_of(9)
    guest = Guest()
    lobby.enter(guest)
    guest.is_served, guest.sends_body = True, sends_body
    lobby.note(guest)
    now[0] += patience_s
    assert list(lobby.late()) == []
    now[0] += 0.1
    assert list(lobby.late()) == [guest]
    lobby.note(guest)
    assert list(lobby.late()) == []


@given(seed=st.integers(0, 2**32))
@settings(deadline=None, max_examples=50)
def test_there_are_never_more_than_are_allowed(seed: int):
    die = random.Random(seed)
    lobby, now = lobby_of(die.randrange(1, 6))
    guests: list[Guest] = []
    for _ in range(200):
        now[0] += die.random()
        what = die.randrange(4)
        if what == 0 or not guests:
            guests.append(Guest())
            lobby.enter(guests[-1])
        guest = die.choice(guests)
        if what == 1:
            guest.is_served = not guest.is_served
            lobby.note(guest)
        if what == 2:
            lobby.leave(guest)
            guest.dropped = True
            guests.remove(guest)
        if what == 3:
            for late in list(lobby.late()):
                lobby.drop(late)
        guests = [each for each in guests if not each.dropped]
        assert lobby.open <= lobby.most
        assert {*lobby.waiting, *lobby.served} == set(guests)
        assert set(lobby.served) == {each for each in guests if each.is_served}


@pytest.mark.parametrize("files", [64, 1024, 8192, 10**6])
def test_the_owners_lane_is_its_own_and_files_are_left_for_the_rest(files: int):
    lobbies = Lobbies(files)
    assert lobbies.own.most > 0
    assert lobbies.others.most > 0
    assert lobbies.own.most + lobbies.others.most <= max(64, files - 512)
