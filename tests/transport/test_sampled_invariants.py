"""The endpoint holds its own columns to the protocol's invariants while it runs, one queue pair at a time."""

import pytest
from tests.transport.pairs import two

from weft.core.errors import FailedError
from weft.transport import endpoint as endpoint_module
from weft.transport.queue_pair import BROKEN, PeerGoneError


@pytest.fixture
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Check after every call of the thread."""
    monkeypatch.setattr(endpoint_module, "_CHECK_EVERY_NS", 0)


@pytest.mark.usefixtures("often")
def test_a_healthy_endpoint_is_checked_and_goes_on():
    with two(1 << 16, fast=False) as pair:
        for turn in range(3):
            pair.send(turn)
        assert pair.here._thread.is_alive()


@pytest.mark.usefixtures("often")
@pytest.mark.parametrize(
    ("side", "column", "value", "says"),
    [
        ("sender", "inflight", 5, "packets are counted wrongly"),
        ("sender", "cwnd", -1, "the congestion window is out of bounds"),
        ("sender", "bad", 3, "retired EVs are counted wrongly"),
        ("receiver", "highest", 2**40, "a packet beyond the window was taken"),
    ],
)
def test_a_broken_invariant_ends_the_endpoint_and_names_the_queue_pair(side, column, value, says):
    with two(64, fast=False) as pair:
        pair.send()
        getattr(pair.here.state, side).qp[pair.out.index][column] = value
        pair.here.wake()
        pair.here._thread.join(10)
        assert not pair.here._thread.is_alive(), "the thread has ended"
        with pytest.raises(PeerGoneError, match="there is gone: BROKEN_INVARIANT"):
            pair.out.wait(5)
        with pytest.raises(FailedError, match=f"broken invariant of the queue pair to there: {says}"):
            pair.here.register(pair.given)


@pytest.mark.usefixtures("often")
def test_programs_in_flight_end_with_it():
    ended: list[tuple[int, int, int]] = []
    with two(64, fast=False) as pair:
        with pair.here.lock:
            pair.here.on_program = lambda number, error, index: ended.append((number, error, index))
            pair.here.state.transfers.programs[9]["state"] = 2
            pair.here.state.sender.qp[pair.out.index]["bad"] = 3
        pair.here.wake()
        pair.here._thread.join(10)
    assert ended == [(9, BROKEN, pair.out.index)]


def test_checks_are_rare_enough_to_cost_nothing():
    assert endpoint_module._CHECK_EVERY_NS >= 500_000_000
