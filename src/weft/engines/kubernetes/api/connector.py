"""Connections to an API server of which none outlives the client.

A watch that is given up over TLS says good-bye and waits for the server to say it too, and aiohttp forgets it at
once: a loop that ends before the answer of a busy server leaves the socket open. So every socket made here is
remembered, and those still open at the end are shut down, which ends their transports without a goodbye of the server.
"""

import asyncio
import contextlib
import socket
import time
import weakref
from typing import Any

import aiohttp
from typing_extensions import override

_PATIENCE_S = 2.0


class Connector(aiohttp.TCPConnector):
    """Opens connections, and closes all of them."""

    def __init__(self, **more: Any) -> None:
        """Prepare as aiohttp does."""
        self._made: weakref.WeakSet[socket.socket] = weakref.WeakSet()
        super().__init__(socket_factory=self._make, **more)

    def _make(self, address: tuple[Any, ...]) -> socket.socket:
        family, kind, protocol = address[:3]
        made = socket.socket(family, kind, protocol)
        self._made.add(made)
        return made

    @override
    async def close(self, *, abort_ssl: bool = False) -> None:
        """Close every connection, those that aiohttp has forgotten too."""
        await super().close(abort_ssl=abort_ssl)
        for one in self._open():
            with contextlib.suppress(OSError):  # The other side may have left first.
                one.shutdown(socket.SHUT_RDWR)
        # Transports hear of it, and let their sockets go, in the next rounds of the loop.
        until = time.monotonic() + _PATIENCE_S
        while self._open() and time.monotonic() < until:
            await asyncio.sleep(0.001)

    def _open(self) -> list[socket.socket]:
        return [one for one in self._made if one.fileno() >= 0]
