"""The agent of one pod: it starts its ranks on "go", ends them on "stop", and says how they fared."""

import asyncio
import contextlib
import json
from collections.abc import Callable
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from types import SimpleNamespace
from typing import Any

import pytest

from weft.engines.kubernetes.pod import members as module
from weft.engines.kubernetes.pod.members import GangPlace, Member
from weft.engines.kubernetes.pod.rendezvous import Rendezvous
from weft.testing.control_plane import _free_port


class _Process:
    """A rank that is not there."""

    pid: int | None = None

    def __init__(self) -> None:
        self.killed = False

    def kill(self) -> None:
        self.killed = True

    def join(self) -> None:
        pass

    def is_alive(self) -> bool:
        return not self.killed


class _Ranks:
    """Ranks that a test plays: the other end of their pipes, and what they were started with."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.settings: list[Any] = []
        self.pipes: list[Connection] = []
        self.processes: list[_Process] = []
        monkeypatch.setattr(module, "start_fork_server", lambda: None)
        monkeypatch.setattr(module, "spawn", self._spawn)
        monkeypatch.setattr(module, "_RETRY_S", 0.01)
        monkeypatch.setattr("weft.engines.kubernetes.pod.rendezvous._FAREWELL_S", 0.05)
        monkeypatch.setattr("weft.training.launch.ranks.open_store", lambda: SimpleNamespace(port=7))

    def _spawn(self, target: str, setting: Any, arguments: dict[str, Any]) -> Any:
        assert target == "weft.training.train:train"
        assert arguments == {"resume": True}
        mine, theirs = Pipe()
        self.settings.append(setting)
        self.pipes.append(mine)
        self.processes.append(_Process())
        return SimpleNamespace(process=self.processes[-1], pipe=theirs)


@pytest.fixture
def ranks(monkeypatch: pytest.MonkeyPatch) -> _Ranks:
    return _Ranks(monkeypatch)


async def _until(question: Callable[[], bool]) -> None:
    for _ in range(1500):
        if question():
            return
        await asyncio.sleep(0.01)
    raise AssertionError("not so after fifteen seconds")


def _members(port: int, nodes: int = 1, gpus: int = 2) -> list[Member]:
    return [Member(GangPlace("127.0.0.1", port, place, gpus, nodes), {"resume": True}) for place in range(nodes)]


@contextlib.asynccontextmanager
async def _gang(nodes: int = 1, gpus: int = 2) -> Any:
    port = _free_port()
    one = Rendezvous("127.0.0.1", port, nodes)
    members = _members(port, nodes, gpus)
    tasks = [asyncio.create_task(one.run()), *(asyncio.create_task(member.run()) for member in members)]
    try:
        yield members, tasks[1:]
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


@pytest.mark.parametrize(("nodes", "gpus"), [(1, 1), (1, 4), (3, 2)])
def test_every_pod_starts_its_ranks_and_all_end_well(ranks: _Ranks, nodes: int, gpus: int) -> None:
    async def life() -> None:
        async with _gang(nodes, gpus) as (members, tasks):
            await _until(lambda: len(ranks.pipes) == nodes * gpus)
            assert sorted(one.rank for one in ranks.settings) == list(range(nodes * gpus))
            assert {(one.generation, one.port, one.host) for one in ranks.settings} == {(1, 7, "127.0.0.1")}
            for pipe in ranks.pipes:
                pipe.send(("progress", 1))
                pipe.send(("done", {}))
            await asyncio.wait_for(asyncio.gather(*tasks), 10)
            assert [member.ending for member in members] == ["finished"] * nodes

    asyncio.run(life())


@pytest.mark.parametrize("how", ["says so", "vanishes"])
def test_one_rank_that_fails_ends_all_and_they_begin_again(ranks: _Ranks, how: str) -> None:
    async def life() -> None:
        async with _gang(2, 1) as (members, tasks):
            await _until(lambda: len(ranks.pipes) == 2)
            if how == "says so":
                ranks.pipes[0].send(("failed", "out of memory"))
            else:
                ranks.pipes[0].close()
            await _until(lambda: len(ranks.pipes) == 4)
            assert all(one.killed for one in ranks.processes[:2])
            assert {one.generation for one in ranks.settings[2:]} == {2}
            for pipe in ranks.pipes[2:]:
                pipe.send(("done", {}))
            await asyncio.wait_for(asyncio.gather(*tasks), 10)
            assert members[0].ending == "finished"

    asyncio.run(life())


def test_a_rank_that_is_done_may_close_its_line(ranks: _Ranks) -> None:
    async def life() -> None:
        async with _gang(1, 2) as (members, tasks):
            await _until(lambda: len(ranks.pipes) == 2)
            ranks.pipes[0].send(("done", {}))
            ranks.pipes[0].close()
            ranks.pipes[1].send(("done", {}))
            await asyncio.wait_for(asyncio.gather(*tasks), 10)
            assert members[0].ending == "finished"

    asyncio.run(life())


def test_a_pod_that_is_asked_to_stop_passes_it_on(ranks: _Ranks, monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[tuple[int, int]] = []
    monkeypatch.setattr(module.os, "kill", lambda pid, number: sent.append((pid, number)))

    async def life() -> None:
        async with _gang(1, 1) as (members, tasks):
            await _until(lambda: len(ranks.pipes) == 1)
            ranks.processes[0].pid = 12345
            members[0].ask()
            assert [pid for pid, _ in sent] == [12345]
            ranks.pipes[0].send(("done", {}))
            await asyncio.wait_for(asyncio.gather(*tasks), 10)
            assert members[0].ending == "stopped"

    asyncio.run(life())


@pytest.mark.usefixtures("ranks")
def test_a_pod_that_is_asked_before_it_began_stops_at_once() -> None:
    async def life() -> None:
        member = _members(_free_port())[0]
        task = asyncio.create_task(member.run())
        await asyncio.sleep(0.05)
        member.ask()
        await asyncio.wait_for(task, 10)
        assert member.ending == "stopped"

    asyncio.run(life())


@pytest.mark.usefixtures("ranks")
def test_a_pod_that_is_asked_while_it_waits_for_others_leaves_the_rendezvous() -> None:
    async def life() -> None:
        port = _free_port()
        one = asyncio.create_task(Rendezvous("127.0.0.1", port, 2).run())
        member = Member(GangPlace("127.0.0.1", port, 0, 1, 2), {"resume": True})
        task = asyncio.create_task(member.run())
        await _until(lambda: member._writer is not None)
        member.ask()
        await asyncio.wait_for(task, 10)
        assert member.ending == "stopped"
        one.cancel()

    asyncio.run(life())


def test_a_pod_that_nobody_meets_gives_up(ranks: _Ranks, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_PATIENCE_S", 0.05)

    async def life() -> None:
        member = _members(_free_port())[0]
        await asyncio.wait_for(member.run(), 10)
        assert member.ending == ""
        assert not ranks.pipes

    asyncio.run(life())


def test_a_rendezvous_that_says_nothing_or_nonsense_is_left_and_met_again(
    ranks: _Ranks, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_SILENCE_S", 0.05)
    monkeypatch.setattr(module, "_PATIENCE_S", 1.0)
    visits: list[str] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        word = json.loads(await reader.readline())
        assert word == {"place": 0, "say": "here"}
        visits.append(word["say"])
        match len(visits):
            case 1:
                writer.write(b"nonsense\n")
            case 2:
                await reader.read()
            case _:
                writer.write(b'{"say": "bye"}\n')
        await writer.drain()
        await reader.read()
        writer.close()

    async def life() -> None:
        port = _free_port()
        server = await asyncio.start_server(serve, "127.0.0.1", port)
        member = _members(port)[0]
        await asyncio.wait_for(member.run(), 10)
        assert len(visits) == 3
        assert member.ending == "finished"
        server.close()

    asyncio.run(life())
    assert not ranks.pipes
