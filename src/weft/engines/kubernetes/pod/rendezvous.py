"""The rendezvous of a gang's agents: a small server in its first pod that says when to start and when to stop.

Lines of JSON over TCP. An agent says "here", "idle", "failed" and "done"; it answers "go" with a generation,
"stop", and "bye". It goes when all are here and idle, stops when one has failed or fallen silent, and begins again when
the missing one, or another in its place, is here. It starts no processes and knows nothing of training.
"""

import asyncio
import contextlib
import json
from dataclasses import dataclass, field
from typing import Any

_BEAT_S = 1.0
_SILENCE_S = 10.0
_FAREWELL_S = 2.0


@dataclass
class GangAgent:
    """One agent that has come."""

    writer: asyncio.StreamWriter
    state: str = "idle"
    heard: float = field(default=0.0)
    ending: str = ""


class Rendezvous:
    """Agrees on generations among `size` agents."""

    def __init__(self, address: str, port: int, size: int, first: int = 0) -> None:
        """Listen at `address`; generations count up from `first`."""
        self._address, self._port, self._size = address, port, size
        self.generation = first
        self._guests: dict[int, GangAgent] = {}
        self._store: Any = None
        self._over = asyncio.Event()

    async def run(self) -> None:
        """Serve until everybody is done."""
        server = await asyncio.start_server(self._hear, self._address, self._port)
        async with server:
            beat = asyncio.create_task(self._beat())
            try:
                await self._over.wait()
                self._tell_all({"say": "bye"})
                # The others leave when they have heard it; whoever does not is gone already.
                await asyncio.sleep(_FAREWELL_S)
            finally:
                beat.cancel()
                for guest in self._guests.values():
                    guest.writer.close()

    async def _hear(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        place = -1
        guest: GangAgent | None = None
        loop = asyncio.get_running_loop()
        try:
            while line := await reader.readline():
                word = json.loads(line)
                if guest is None:
                    place = int(word["place"])
                    self._leave(place, self._guests.get(place))
                    guest = self._guests[place] = GangAgent(writer)
                guest.heard = loop.time()
                self._take(guest, word)
        except (OSError, ValueError, KeyError):
            pass
        finally:
            self._leave(place, guest)
            writer.close()

    def _take(self, guest: GangAgent, word: dict[str, Any]) -> None:
        match word["say"]:
            case "idle":
                guest.state = "idle"
            case "failed":
                guest.state = "idle"
                self._stop()
            case "done":
                guest.state, guest.ending = "done", word.get("state", "")
            case _:
                pass
        self._look()

    def _look(self) -> None:
        """Go, or end, if everybody is ready for it."""
        if len(self._guests) < self._size:
            return
        states = {guest.state for guest in self._guests.values()}
        if states == {"done"}:
            self._over.set()
        elif states == {"idle"}:
            self._go()

    def _go(self) -> None:
        from weft.training.launch.ranks import open_store

        if self._store is None:
            self._store = open_store()
        self.generation += 1
        for guest in self._guests.values():
            guest.state = "running"
        self._tell_all({"say": "go", "generation": self.generation, "port": self._store.port})

    def _stop(self) -> None:
        self._tell_all({"say": "stop"})

    def _leave(self, place: int, guest: GangAgent | None) -> None:
        """Go on without an agent that has gone; the rest waits for another in its place."""
        if guest is None or self._guests.get(place) is not guest:
            return
        del self._guests[place]
        guest.writer.close()
        if not self._over.is_set():
            self._stop()

    def _tell_all(self, word: dict[str, Any]) -> None:
        line = json.dumps(word).encode() + b"\n"
        for guest in list(self._guests.values()):
            with contextlib.suppress(OSError):
                guest.writer.write(line)

    async def _beat(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(_BEAT_S)
            self._tell_all({"say": "beat"})
            for place, guest in list(self._guests.items()):
                if loop.time() - guest.heard > _SILENCE_S:
                    self._leave(place, guest)
