"""The rendezvous of a gang: it goes when all are there, stops when one is lost, and ends when all are done."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest

from weft.engines.kubernetes.pod import rendezvous as module
from weft.engines.kubernetes.pod.rendezvous import Rendezvous
from weft.testing.control_plane import _free_port


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_FAREWELL_S", 0.01)
    monkeypatch.setattr("weft.training.launch.ranks.open_store", lambda: SimpleNamespace(port=4242))


@dataclass
class _Agent:
    """One agent, as the rendezvous sees it."""

    place: int
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    heard: list[dict[str, Any]] = field(default_factory=list)

    def say(self, say: str, **more: Any) -> None:
        self.writer.write(json.dumps({"place": self.place, "say": say, **more}).encode() + b"\n")

    async def hear(self, say: str) -> dict[str, Any]:
        """Return the next word of a kind; beats in between are answered."""
        async with asyncio.timeout(10):
            while line := await self.reader.readline():
                word = json.loads(line)
                self.heard.append(word)
                if word["say"] == say:
                    return word
                if word["say"] == "beat":
                    self.say("beat")
        raise AssertionError(f"the line was closed before {say!r}")


@contextlib.asynccontextmanager
async def _gang(size: int, first: int = 0) -> AsyncIterator[tuple[Any, Rendezvous, int, asyncio.Task[None]]]:
    port = _free_port()
    one = Rendezvous("127.0.0.1", port, size, first)
    task = asyncio.create_task(one.run())
    writers: list[asyncio.StreamWriter] = []

    async def join(place: int) -> _Agent:
        for _ in range(500):
            with contextlib.suppress(OSError):
                reader, writer = await asyncio.open_connection("127.0.0.1", port)
                agent = _Agent(place, reader, writer)
                writers.append(writer)
                agent.say("here")
                return agent
            await asyncio.sleep(0.01)
        raise AssertionError("nobody listens")

    try:
        yield join, one, port, task
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        for writer in writers:
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()


@pytest.mark.parametrize("size", [1, 2, 5])
def test_it_goes_when_everybody_is_here_and_ends_when_everybody_is_done(size: int) -> None:
    async def life() -> None:
        async with _gang(size, 1000) as (join, _, _, task):
            agents = [await join(place) for place in range(size)]
            for agent in agents:
                assert await agent.hear("go") == {"say": "go", "generation": 1001, "port": 4242}
            for agent in agents:
                agent.say("done", state="finished")
            for agent in agents:
                await agent.hear("bye")
            await asyncio.wait_for(task, 10)

    asyncio.run(life())


def test_it_does_not_go_before_everybody_is_here() -> None:
    async def life() -> None:
        async with _gang(2) as (join, one, _, _):
            first = await join(0)
            await asyncio.sleep(0.1)
            assert one.generation == 0
            second = await join(1)
            assert (await first.hear("go"))["generation"] == (await second.hear("go"))["generation"] == 1

    asyncio.run(life())


def test_a_failed_rank_stops_all_and_the_next_generation_follows() -> None:
    async def life() -> None:
        async with _gang(2) as (join, _, _, _):
            agents = [await join(place) for place in range(2)]
            for agent in agents:
                await agent.hear("go")
            agents[1].say("failed")
            for agent in agents:
                await agent.hear("stop")
                agent.say("idle")
            assert [(await agent.hear("go"))["generation"] for agent in agents] == [2, 2]

    asyncio.run(life())


def test_a_lost_agent_is_waited_for_and_its_successor_completes_the_gang() -> None:
    async def life() -> None:
        async with _gang(2) as (join, _, _, _):
            stays, goes = await join(0), await join(1)
            await stays.hear("go")
            goes.writer.close()
            await stays.hear("stop")
            stays.say("idle")
            another = await join(1)
            assert (await stays.hear("go"))["generation"] == (await another.hear("go"))["generation"] == 2

    asyncio.run(life())


def test_an_agent_that_comes_again_takes_its_own_place() -> None:
    async def life() -> None:
        async with _gang(2) as (join, one, _, _):
            first = await join(0)
            await asyncio.sleep(0.05)
            again = await join(0)
            assert await first.reader.read() is not None
            await asyncio.sleep(0.05)
            assert one.generation == 0, "one place is not two"
            second = await join(1)
            await again.hear("go")
            await second.hear("go")

    asyncio.run(life())


def test_an_agent_that_says_nothing_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_BEAT_S", 0.01)
    monkeypatch.setattr(module, "_SILENCE_S", 0.2)

    async def life() -> None:
        async with _gang(2) as (join, _, _, _):
            speaks, silent = await join(0), await join(1)
            await speaks.hear("go")
            word = await speaks.hear("stop")
            assert word == {"say": "stop"}
            assert {"say": "beat"} in speaks.heard
            with contextlib.suppress(ConnectionError):
                await silent.reader.read()

    asyncio.run(life())


@pytest.mark.parametrize("nonsense", [b"not json\n", b"{}\n", b'{"place": "x"}\n', b""])
def test_whoever_speaks_nonsense_is_shown_the_door(nonsense: bytes) -> None:
    async def life() -> None:
        async with _gang(1) as (join, _, port, _):
            agent = await join(0)
            await agent.hear("go")
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(nonsense)
            writer.write_eof()
            assert await reader.read() == b""
            writer.close()
            agent.say("done")
            await agent.hear("bye")

    asyncio.run(life())
