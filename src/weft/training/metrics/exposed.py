"""Where weft's own collectives say that they wait, so that the time is not taken for arithmetic.

A model's parallel forms exchange data in the middle of forward and backward, far from the run that keeps the ledger.
The run names its ledger here; an exchange enters its wait. On a GPU the host does not wait there, and backward runs in
another thread: nothing is entered then. What torch's own parts (DTensor, FSDP2) wait for inside forward and backward is
not seen and counts as compute.
"""

import contextlib
import threading
from collections.abc import Iterator

from weft.training.metrics.ledger import Ledger, TimeClass


class _Current:
    """Which ledger this process writes into, and from which thread."""

    ledger: Ledger | None = None
    thread: int = 0


def record_waits_in(ledger: Ledger | None) -> None:
    """Enter the waits of this thread into `ledger` from now on; none to stop."""
    _Current.ledger, _Current.thread = ledger, threading.get_ident()


@contextlib.contextmanager
def waiting() -> Iterator[None]:
    """Enter the time inside a `with` block as exposed communication."""
    if _Current.ledger is None or _Current.thread != threading.get_ident():
        yield
        return
    with _Current.ledger.spending(TimeClass.EXPOSED_COMMUNICATION):
        yield
