"""A queue pair as its user sees it: writes to the peer's memory, and the completions that come of them."""

import threading
import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from weft.core.errors import FailedError, UsageError
from weft.mrc.columns import ERROR_NAMES
from weft.transport.memory import layout
from weft.transport.memory.layout import EndpointState
from weft.transport.memory.tables import OVERFULL, REPORTED_GONE, WRONG_SIZE
from weft.transport.regions import Region

BROKEN = 104
"""The error of every queue pair of an endpoint whose columns contradict each other."""
_MOST_COMPLETIONS = 65_536

ENGINE_ERRORS = {
    layout.GONE: "SILENT",
    BROKEN: "BROKEN_INVARIANT",
    OVERFULL: "INBOX_OVERFLOW",
    WRONG_SIZE: "WRONG_SIZE",
    REPORTED_GONE: "REPORTED_GONE",
}


class PairOwner(Protocol):
    """What a queue pair asks of its endpoint."""

    lock: Any
    state: EndpointState

    def start_pair(self, pair: "QueuePair", card: Mapping[str, Any]) -> None:
        """Make a queue pair ready for packets."""
        ...

    def command(self, kind: int, *numbers: int) -> None:
        """Ask the thread for something."""
        ...

    def wake(self) -> None:
        """Wake the thread."""
        ...


class PeerGoneError(FailedError):
    """A queue pair has come to its end; the text names the peer and the reason."""


def error_name(code: int) -> str:
    """Return the name of the error that a queue pair ended in."""
    return ENGINE_ERRORS.get(code) or ERROR_NAMES[code]


@dataclass(frozen=True)
class Completion:
    """Something that has happened on a queue pair."""

    kind: str
    """"sent" for a write that has been acknowledged, "immediate" for one that has arrived here."""
    value: int
    """The number that `write` returned, or the immediate."""


class QueuePair:
    """One connection to a peer."""

    def __init__(self, endpoint: PairOwner, index: int, name: str, card: dict[str, Any]) -> None:
        """Belong to `endpoint`; made by `Endpoint.offer`."""
        self.endpoint, self.index, self.name, self.card = endpoint, index, name, card
        self.failure = 0
        self._done: deque[Completion] = deque()
        self._posted = self._settled = 0
        self._news = threading.Condition(endpoint.lock)

    def connect(self, card: Mapping[str, Any]) -> None:
        """Begin to talk to the peer that gave `card`."""
        self.endpoint.start_pair(self, card)

    def write(
        self, region: Region, offset: int, length: int, far_address: int, far_key: int, *, immediate: int | None = None
    ) -> int:
        """Write bytes of a region to the peer's memory; returns a number that its completion carries.

        Waits while the queue is full, which is `messages` writes that the peer has not acknowledged.
        """
        if not 0 <= offset <= offset + length <= region.size or length <= 0:
            raise UsageError(f"bytes {offset} to {offset + length} are not in a region of {region.size} bytes")
        most = int(self.endpoint.state.sender.params[0]["messages"])
        with self._news:
            while self._posted - self._settled >= most:
                self.check()
                self._news.wait(0.1)
            self.check()
            number = self._posted
            self._posted += 1
            self.endpoint.command(
                layout.POST, self.index, region.address + offset, far_address, far_key, length,
                -1 if immediate is None else immediate, number,
            )  # fmt: skip
        return number

    def check(self) -> None:
        """Raise the error that the queue pair has ended in, if it has."""
        if self.failure:
            raise PeerGoneError(f"{self.name} is gone: {error_name(self.failure)}")

    def wait(self, timeout_s: float | None = None) -> Completion | None:
        """Return the next completion; nothing after `timeout_s`; raises where the peer is gone."""
        limit = None if timeout_s is None else time.monotonic() + timeout_s
        with self._news:
            while not self._done:
                self.check()
                left = None if limit is None else limit - time.monotonic()
                if left is not None and left <= 0:
                    return None
                self._news.wait(left)
            return self._done.popleft()

    def expect(self, *, something: bool = True) -> None:
        """Say whether something is awaited from the peer, so that its silence counts even if nothing is sent to it."""
        self.endpoint.state.peers[self.index]["watched"] = 2 if something else 0
        self.endpoint.wake()

    def deny(self, ev: int, *, denied: bool = True) -> None:
        """Take an EV out of use, or allow it again: the controller's word."""
        self.endpoint.command(layout.DENY_EV, self.index, ev, int(denied))

    def took(self, kind: int, value: int, status: int) -> None:
        """Take in one event of the thread; the endpoint's lock is held."""
        if kind == layout.FAILED:
            self.failure = status
        elif kind == layout.SENT:
            self._settled += 1
            self._done.append(Completion("sent", value))
        else:
            self._done.append(Completion("immediate", value))
        if len(self._done) > _MOST_COMPLETIONS:
            self.failure = OVERFULL
        self._news.notify_all()
