import threading
from collections.abc import Iterator

import pytest

from weft.core.units import Picoseconds
from weft.training.metrics.exposed import record_waits_in, waiting
from weft.training.metrics.ledger import Ledger, TimeClass


class Ticks:
    """A clock that moves on by one second whenever it is read."""

    def __init__(self) -> None:
        self._now = 0

    def now(self) -> Picoseconds:
        self._now += 10**12
        return Picoseconds(self._now)


@pytest.fixture
def ledger() -> Iterator[Ledger]:
    made = Ledger(Ticks())
    record_waits_in(made)
    yield made
    record_waits_in(None)


def exposed(ledger: Ledger) -> float:
    return ledger.total().seconds().get(TimeClass.EXPOSED_COMMUNICATION.value, 0.0)


def test_a_wait_is_taken_from_what_surrounds_it(ledger: Ledger):
    with ledger.spending(TimeClass.COMPUTE), waiting():
        pass
    assert exposed(ledger) == 1.0


def test_waits_of_another_thread_are_not_this_ones(ledger: Ledger):
    def wait() -> None:
        with waiting():
            pass

    thread = threading.Thread(target=wait)
    thread.start()
    thread.join()
    assert exposed(ledger) == 0.0


def test_after_the_run_waits_go_nowhere(ledger: Ledger):
    record_waits_in(None)
    with waiting():
        pass
    assert exposed(ledger) == 0.0


def test_a_wait_that_raises_is_left(ledger: Ledger):
    with pytest.raises(ZeroDivisionError), ledger.spending(TimeClass.COMPUTE), waiting():
        raise ZeroDivisionError
    assert exposed(ledger) == 1.0
