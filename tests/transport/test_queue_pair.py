"""A queue pair as its user sees it, with an endpoint that only takes notes."""

import threading
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.transport.columns import state_of

from weft.core.errors import UsageError
from weft.mrc.columns import ERROR_NAMES
from weft.transport.memory import layout, tables
from weft.transport.queue_pair import BROKEN, Completion, PeerGoneError, QueuePair, error_name
from weft.transport.regions import Region

REGION = Region(key=5, address=1000, size=100)


class Owner:
    """Takes the place of an endpoint."""

    def __init__(self) -> None:
        self.lock, self.state = threading.RLock(), state_of()
        self.commands: list[tuple[int, ...]] = []
        self.woken = 0

    def start_pair(self, pair: QueuePair, card: Any) -> None:
        self.commands.append((-1,))

    def command(self, kind: int, *numbers: int) -> None:
        self.commands.append((kind, *numbers))

    def wake(self) -> None:
        self.woken += 1


def took(one: QueuePair, kind: int, value: int, status: int = 0) -> None:
    """Give a queue pair an event as the thread does: under the lock."""
    with one.endpoint.lock:
        one.took(kind, value, status)


def pair() -> tuple[QueuePair, Owner]:
    owner = Owner()
    return QueuePair(owner, 0, "rank 3", {}), owner


@given(st.integers(-10, 110), st.integers(-10, 110))
def test_only_bytes_of_the_region_are_written(offset, length):
    one, owner = pair()
    inside = offset >= 0 and length > 0 and offset + length <= 100
    if inside:
        assert one.write(REGION, offset, length, 5000, 9) == 0
        assert owner.commands == [(layout.POST, 0, 1000 + offset, 5000, 9, length, -1, 0)]
    else:
        with pytest.raises(UsageError, match="are not in a region of 100 bytes"):
            one.write(REGION, offset, length, 5000, 9)
        assert owner.commands == []


def test_writes_are_numbered_and_carry_their_immediates():
    one, owner = pair()
    assert [one.write(REGION, 0, 1, 5000, 9, immediate=value) for value in (0, 7, None)] == [0, 1, 2]
    assert [row[6:] for row in owner.commands] == [(0, 0), (7, 1), (-1, 2)]


def test_completions_come_in_order_and_then_nothing():
    one, _ = pair()
    took(one, layout.SENT, 4)
    took(one, layout.IMMEDIATE, 9)
    assert [one.wait(0), one.wait(0), one.wait(0)] == [Completion("sent", 4), Completion("immediate", 9), None]


def test_what_came_before_the_end_can_still_be_read():
    one, _ = pair()
    took(one, layout.IMMEDIATE, 9)
    took(one, layout.FAILED, 0, layout.GONE)
    assert one.wait(0) == Completion("immediate", 9)
    with pytest.raises(PeerGoneError, match="rank 3 is gone: SILENT"):
        one.wait(0)


@pytest.mark.parametrize(
    ("code", "name"),
    [(layout.GONE, "SILENT"), (tables.OVERFULL, "INBOX_OVERFLOW"), (tables.WRONG_SIZE, "WRONG_SIZE"),
     (tables.REPORTED_GONE, "REPORTED_GONE"), (BROKEN, "BROKEN_INVARIANT"), *enumerate(ERROR_NAMES)],
)  # fmt: skip
def test_every_end_has_a_name(code, name):
    assert error_name(code) == name


@pytest.mark.parametrize("code", [1, 2, layout.GONE, tables.REPORTED_GONE, BROKEN])
def test_a_queue_pair_that_has_ended_refuses_writes_and_names_the_peer(code):
    one, owner = pair()
    took(one, layout.FAILED, 0, code)
    for ask in (one.check, lambda: one.write(REGION, 0, 1, 5000, 9), lambda: one.wait(0)):
        with pytest.raises(PeerGoneError, match=f"rank 3 is gone: {error_name(code)}"):
            ask()
    assert owner.commands == []


def test_a_full_queue_waits_for_an_acknowledgement():
    one, owner = pair()
    owner.state.sender.params[0]["messages"] = 2
    for _ in range(2):
        one.write(REGION, 0, 1, 5000, 9)
    third = threading.Thread(target=one.write, args=(REGION, 0, 1, 5000, 9))
    third.start()
    while not one._news._waiters:  # pyrefly: ignore[missing-attribute]
        pass
    assert len(owner.commands) == 2
    took(one, layout.SENT, 0)
    third.join(10)
    assert len(owner.commands) == 3


def test_completions_that_nobody_reads_end_the_queue_pair():
    one, _ = pair()
    for value in range(65_537):
        one._done.append(Completion("immediate", value))
    took(one, layout.IMMEDIATE, 1)
    assert one.failure == tables.OVERFULL


@pytest.mark.parametrize("something", [True, False])
def test_expecting_something_makes_silence_count_and_wakes_the_thread(something):
    one, owner = pair()
    one.expect(something=something)
    assert owner.state.peers[0]["watched"] == (2 if something else 0)
    assert owner.woken == 1


@pytest.mark.parametrize("denied", [True, False])
def test_a_denied_ev_is_the_threads_to_take_out(denied):
    one, owner = pair()
    one.deny(3, denied=denied)
    assert owner.commands == [(layout.DENY_EV, 0, 3, int(denied))]
