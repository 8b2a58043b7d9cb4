"""Every invariant notices the state that it forbids, and none complains about a good one."""

from collections.abc import Callable
from typing import Any

import pytest
from tests.mrc.builders import acknowledge, receiver_of, send, sender_of

from weft.mrc.columns import ACKED, FREE, IN_FLIGHT, LOST, SKIP, SPARE, Receiver, Sender
from weft.mrc.invariants import check_evs, check_receiver, check_sender
from weft.mrc.rules.receiver import DataHeader, receive


def busy_sender() -> Sender:
    """Return a sender with packets that have arrived out of order and others in flight."""
    sender = sender_of()
    rows = send(sender, 8)
    acknowledge(sender, rows[1], now_ps=20_000_000, bitmap_low=0b100)
    check_sender(sender, 0)
    return sender


def busy_receiver() -> Receiver:
    """Return a receiver with a gap and two immediates that wait for it."""
    receiver = receiver_of()
    for seq in (0, 2, 3):
        receive(receiver, 0, DataHeader(seq, 1, 0, 0, 0, 64, seq if seq > 1 else -1), 0)
    check_receiver(receiver, 0)
    return receiver


def _put(column: str, value: Any) -> Callable[[Any], None]:
    def change(state: Any) -> None:
        state.qp[0][column] = value(int(state.qp[0][column])) if callable(value) else value

    return change


def _packet(slot: int, column: str, value: int) -> Callable[[Sender], None]:
    def change(sender: Sender) -> None:
        sender.packets[0, slot][column] = value

    return change


def _ev(column: str, value: int) -> Callable[[Sender], None]:
    def change(sender: Sender) -> None:
        sender.evs[0, int(sender.rotation[0, 0])][column] = value

    return change


def _plane(column: str) -> Callable[[Sender], None]:
    def change(sender: Sender) -> None:
        sender.planes[0, 1][column] += 1

    return change


SENDER_FAULTS = [
    (_put("una", lambda una: una + 9), "runs backwards"),
    (_put("end", 1), "runs backwards"),
    (_packet(60, "state", IN_FLIGHT), "outside the window is kept"),
    (_packet(6, "state", FREE), "of the window is missing"),
    (_packet(2, "state", ACKED), "should have moved on"),
    (_packet(6, "state", LOST), "the list of packets in flight"),
    (_packet(6, "older", 3), "a list is torn"),
    (_put("newest", 5), "has lost its end"),
    (_put("waiting", 1), "packets are counted wrongly"),
    (_put("inflight", lambda count: count + 1), "packets are counted wrongly"),
    (_put("inflight_bytes", lambda count: count - 1), "bytes in flight are counted wrongly"),
    (_put("cwnd", 0), "congestion window is out of bounds"),
    (_put("msg_next", -1), "messages"),
    (_put("skipping", 1), "EVs in SKIP are counted wrongly"),
    (_put("bad", 1), "retired EVs are counted wrongly"),
    (_put("cursor", 1000), "cursor is outside"),
    (_put("active", lambda count: count - 1), "rotation and the roles differ"),
    (_ev("role", SPARE), "rotation and the roles differ"),
    (_ev("state", SKIP), "EVs in SKIP are counted wrongly"),
    (_plane("active"), "active EVs of a plane are counted wrongly"),
    (_plane("spare"), "spare EVs of a plane are counted wrongly"),
]


@pytest.mark.parametrize(("fault", "message"), SENDER_FAULTS, ids=[message for _, message in SENDER_FAULTS])
def test_a_sender_that_is_damaged_is_noticed(fault: Callable[[Sender], None], message: str) -> None:
    sender = busy_sender()
    fault(sender)
    with pytest.raises(AssertionError, match=message):
        check_sender(sender, 0)


def test_a_bitmap_that_forgets_an_arrival_is_noticed() -> None:
    sender = busy_sender()
    sender.arrived[0, 0] = 0
    with pytest.raises(AssertionError, match="bitmap of what arrived"):
        check_sender(sender, 0)


def test_transmissions_out_of_order_are_noticed() -> None:
    sender = busy_sender()
    sender.packets[0, 6]["order"] = 0
    with pytest.raises(AssertionError, match="out of order"):
        check_sender(sender, 0)


def test_an_ev_that_stands_twice_in_the_rotation_is_noticed() -> None:
    sender = busy_sender()
    sender.rotation[0, 1] = sender.rotation[0, 0]
    with pytest.raises(AssertionError, match="twice in the rotation"):
        check_evs(sender, 0)


RECEIVER_FAULTS = [
    (_put("highest", 10_000), "beyond the window"),
    (_put("highest", 2), "not the highest"),
    (_put("expected", 2), "should have moved on"),
    (_put("immediates", 4), "out of order"),
]


@pytest.mark.parametrize(("fault", "message"), RECEIVER_FAULTS, ids=[message for _, message in RECEIVER_FAULTS])
def test_a_receiver_that_is_damaged_is_noticed(fault: Callable[[Receiver], None], message: str) -> None:
    receiver = busy_receiver()
    fault(receiver)
    with pytest.raises(AssertionError, match=message):
        check_receiver(receiver, 0)
