"""Keeps connections few and short: who says nothing is dropped first, and the owner has a way in that others have not.

uvicorn bounds neither how long a client may take over its request nor how many may do so. Here a connection has so
many seconds for a request, for the next piece of a body and for taking the answer, and when there are too many, that
one goes which has waited longest without a request. The socket in the cluster's folder, which only its owner can reach,
is counted by itself. What a request says is `cluster`'s business.
"""

import asyncio
import resource
import socket
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from typing_extensions import override
from uvicorn.protocols.http.h11_impl import H11Protocol

MOST_HEADER_BYTES = 16_384
_MOST_FILES = 8192
_MOST_OPEN = 2048
_OWN_LANE = 1024
_FILES_LEFT = 512
"""Files that the rest of the daemon may need."""
_REQUEST_S, _BODY_S, _ANSWER_S = 5.0, 20.0, 60.0
_LOOK_S = 0.5


def raise_file_limit() -> int:
    """Allow this process as many open files as it may need; return how many it has."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _MOST_FILES if hard == resource.RLIM_INFINITY else min(_MOST_FILES, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        return wanted
    return soft if soft != resource.RLIM_INFINITY else _MOST_FILES


@dataclass
class Lobby:
    """Every connection of one kind of address."""

    most: int
    """Connections at once."""
    clock: Callable[[], float] = time.monotonic
    waiting: "OrderedDict[GuardedProtocol, float]" = field(default_factory=OrderedDict)
    """Those without a whole request, since when, the longest first."""
    served: "dict[GuardedProtocol, float]" = field(default_factory=dict)
    """Those with one, and when anything last came or went."""
    dropped: int = 0
    """Connections that were ended because they took too long or were too many."""

    @property
    def open(self) -> int:
        """Return how many connections there are."""
        return len(self.waiting) + len(self.served)

    def enter(self, guest: "GuardedProtocol") -> None:
        """Take in a connection; where there are too many, the one that has waited longest goes."""
        if self.open >= self.most:
            # Where everybody is being served, it is the newcomer that goes.
            self.drop(next(iter(self.waiting), guest))
        if not guest.dropped:
            self.waiting[guest] = self.clock()

    def leave(self, guest: "GuardedProtocol") -> None:
        """Forget a connection that has ended."""
        self.waiting.pop(guest, None)
        self.served.pop(guest, None)

    def note(self, guest: "GuardedProtocol") -> None:
        """Note that a connection has sent something, or has been answered."""
        if guest.dropped:
            return
        if guest.is_served:
            self.waiting.pop(guest, None)
            self.served[guest] = self.clock()
        elif guest in self.served:
            del self.served[guest]
            self.waiting[guest] = self.clock()
        # What else a guest without a whole request sends buys it no time.

    def drop(self, guest: "GuardedProtocol") -> None:
        """End a connection at once."""
        self.leave(guest)
        self.dropped += 1
        guest.drop()

    def late(self) -> Iterator["GuardedProtocol"]:
        """Return the connections that have taken too long."""
        now = self.clock()
        yield from [guest for guest, since in self.waiting.items() if now - since > _REQUEST_S]
        for guest, since in list(self.served.items()):
            if now - since > (_BODY_S if guest.sends_body else _ANSWER_S):
                yield guest


class GuardedProtocol(H11Protocol):
    """One connection."""

    lobbies: "Lobbies"
    """Set by `protocol_of`."""
    dropped = False
    """Whether it was ended from here."""
    _lobby: Lobby

    @property
    def is_served(self) -> bool:
        """Return whether a whole request head has come that is not answered yet."""
        cycle: Any = self.cycle
        return cycle is not None and not cycle.response_complete

    @property
    def sends_body(self) -> bool:
        """Return whether the rest of a body is still to come."""
        return self.is_served and bool(self.cycle.more_body)

    @override
    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        address = transport.get_extra_info("socket")
        own = address is not None and address.family == socket.AF_UNIX
        self._lobby = self.lobbies.own if own else self.lobbies.others
        self._lobby.enter(self)

    @override
    def connection_lost(self, exc: Exception | None) -> None:
        self._lobby.leave(self)
        super().connection_lost(exc)

    @override
    def data_received(self, data: bytes) -> None:
        if not self.dropped:
            super().data_received(data)
            self._lobby.note(self)

    @override
    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._lobby.note(self)

    def drop(self) -> None:
        """End it at once: who is dropped was not listening."""
        self.dropped = True
        self.transport.abort()


class Lobbies:
    """The connections of a daemon: its owner's, and everybody else's."""

    def __init__(self, files: int) -> None:
        """Allow as many connections as `files` open files leave room for."""
        room = max(64, files - _FILES_LEFT)
        self.own = Lobby(min(_OWN_LANE, room // 3))
        self.others = Lobby(min(_MOST_OPEN, room - self.own.most))

    def protocol(self) -> type[GuardedProtocol]:
        """Return the protocol whose connections are counted here."""
        return type("CountedProtocol", (GuardedProtocol,), {"lobbies": self})

    async def sweep(self) -> None:
        """Drop who takes too long, for ever."""
        while True:
            await asyncio.sleep(_LOOK_S)
            for lobby in (self.own, self.others):
                for guest in list(lobby.late()):
                    lobby.drop(guest)

    def health(self) -> dict[str, int]:
        """Return how many connections there are, and how many were dropped."""
        return {
            "connections": self.own.open + self.others.open,
            "connections_dropped": self.own.dropped + self.others.dropped,
        }
