"""All hosts as one: calls reach the right ones, lost hosts are told, and nobody without proof is heard."""

import contextlib
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from multiprocessing import Pipe
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any

import pytest

from weft.cluster.recovery.events import HangEvidence
from weft.core.units import Picoseconds
from weft.engines.supervisor.hosts import host_agent
from weft.engines.supervisor.hosts.gang_folder import GangFolder
from weft.engines.supervisor.hosts.host_group import HostGroup
from weft.engines.supervisor.hosts.host_words import ASKED, BEAT, WIRE, Ending, Hello, HostAnswer, HostCall, Welcome
from weft.engines.supervisor.rank_host import DomainBack, DomainLost, Heard, RankEnded, RankSaid, RankStart, RankStopped
from weft.training.launch.authenticated_channel import AuthenticatedChannel, ChannelError
from weft.training.recovery.orders import Orders

LAYOUT = ((0, 1), (2, 3))


class Actor:
    """An agent that a test plays: it notes what it is called for, and answers as it is told."""

    def __init__(self, stage: "Stage", place: int, answers: dict[str, Any] | None = None) -> None:
        self.calls: list[tuple[str, tuple[Any, ...]]] = []
        self.endings: list[Ending] = []
        self.answers = dict(answers or {})
        stage.actors.append(self)
        self.before: dict[str, list[Heard]] = {}
        """What it says of its ranks just before it answers a call."""
        self.channel = AuthenticatedChannel.dial(("127.0.0.1", stage.group.port), stage.folder.key(), WIRE)
        self.channel.trust()
        self.channel.send(Hello(place, f"actor-{place}", "here"))
        threading.Thread(target=self._play, daemon=True).start()

    def _play(self) -> None:
        with contextlib.suppress(OSError, ValueError):
            while True:
                word = self.channel.recv() if wait([self.channel.fileno()], 0.05) else BEAT
                if isinstance(word, HostCall):
                    self.calls.append((word.name, word.arguments))
                    if word.name in self.before:
                        self.channel.send(self.before[word.name])
                    if word.answered:
                        self.channel.send(HostAnswer(self.answers.get(word.name)))
                elif isinstance(word, Welcome):
                    self.welcome = word
                elif isinstance(word, Ending):
                    self.endings.append(word)
                    self.channel.close()


class Stage:
    """A group and the folder behind it."""

    def __init__(self, folder: Path) -> None:
        self.folder = GangFolder(folder)
        self.folder.claim(1)
        self.owner, self._theirs = Pipe()
        self.group = HostGroup(self.folder, 1, LAYOUT, self._theirs)
        self.actors: list[Actor] = []

    def close(self) -> None:
        self.group.conclude(Ending("over"))
        for one in (self.owner, self._theirs, *(actor.channel for actor in self.actors)):
            one.close()

    def until(self, question: Callable[[list[Heard]], bool], patience_s: float = 10.0) -> list[Heard]:
        """Hear hosts until the answer is yes."""
        heard: list[Heard] = []
        deadline = time.monotonic() + patience_s
        while not question(heard):
            assert time.monotonic() < deadline, heard
            heard += self.group.hear(wait(self.group.watched(), 0.05))
        return heard

    def both(self, **answers: Any) -> tuple[Actor, Actor]:
        actors = Actor(self, 0, answers), Actor(self, 1, answers)
        assert self.group.gather(10.0) == []
        return actors


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    one = Stage(tmp_path)
    yield one
    one.close()


def start(rank: int, nodes: tuple[int, ...] = (0, 1, 2, 3)) -> RankStart:
    return RankStart(rank, len(nodes), 7, ("127.0.0.1", 1), Orders(nodes, {}, 0, ()))


def test_each_host_is_welcomed_with_its_domains_and_ranks_start_where_their_domain_is(stage: Stage):
    first, second = stage.both(processes={0: 100})
    stage.group.start([start(rank) for rank in range(4)])
    stage.group.signal(3, 9)
    assert stage.group.processes() == {0: 100}
    assert [actor.welcome for actor in (first, second)] == [Welcome(1, (0, 1)), Welcome(1, (2, 3))]
    assert [one.rank for one in first.calls[0][1][0]] == [0, 1]
    assert [one.rank for one in second.calls[0][1][0]] == [2, 3]
    assert ("signal", (3, 9)) in second.calls
    assert not [call for call in first.calls if call[0] == "signal"]


def test_answers_of_all_hosts_are_put_together(stage: Stage):
    first, second = stage.both()
    found = [HangEvidence(rank, frozen=rank == 1, silent_ps=Picoseconds(5), place=(3, 1)) for rank in range(4)]
    first.answers["evidence"], second.answers["evidence"] = (found[1], found[3]), (found[0], found[2])
    assert stage.group.evidence() == tuple(found)


def test_memory_is_asked_for_where_it_is(stage: Stage):
    first, second = stage.both(**{"memory.addresses": {9: "there"}, "memory.spill": [0], "memory.damage": True})
    memory = stage.group.memory
    assert memory.damage(2, (7, 3), "key", 5)
    assert memory.spill((7, 3)) == [0, 0]
    assert memory.addresses() == {9: "there"}
    memory.lose(0)
    memory.keep([(7, 3)])
    memory.fence(8)
    assert ("memory.damage", (2, (7, 3), "key", 5)) in second.calls
    assert "memory.damage" not in dict(first.calls)
    assert ("memory.lose", (0,)) in first.calls
    assert all(("memory.fence", (8,)) in actor.calls for actor in (first, second))


def test_what_ranks_say_is_heard_in_order_and_ends_are_too(stage: Stage):
    first, _ = stage.both()
    words: list[Heard] = [RankSaid(1, "stepped", 4), RankSaid(1, "done", {"loss": 0.5}), RankEnded(1, 0)]
    first.channel.send(words)
    assert stage.until(lambda heard: len(heard) == 3) == words


def test_words_of_an_ended_generation_are_not_taken_for_those_of_the_next(stage: Stage):
    first, _ = stage.both(end=[RankSaid(0, "failed", ("", "last"))])
    first.before["end"] = [RankSaid(0, "stepped", 4), RankEnded(0, -9), DomainLost(1, "its keeper has died")]
    assert stage.group.end() == [
        RankSaid(0, "stepped", 4), RankSaid(0, "failed", ("", "last")), RankSaid(0, "failed", ("", "last")),
    ]  # fmt: skip
    assert stage.until(bool) == [DomainLost(1, "its keeper has died")]


@pytest.mark.parametrize(
    "word",
    [RankSaid(3, "beat", (1, 2)), RankEnded(0, None), RankStopped(2), DomainLost(1, "gone"), DomainBack(1)],
)
def test_everything_that_a_host_can_say_travels(word: Heard):
    assert WIRE.decode(WIRE.encode([word])) == [word]


def test_a_host_whose_agent_hangs_up_is_lost_and_another_in_its_place_brings_it_back(stage: Stage):
    _, second = stage.both()
    second.channel.close()
    lost = stage.until(lambda heard: len(heard) == 2)
    assert [one.node for one in lost if isinstance(one, DomainLost)] == [2, 3]
    assert stage.group.host_of(2) is None
    stage.group.start([start(2)])
    again = stage.until(bool)
    assert again == [DomainLost(2, "node 2 is on a host that is not there")]
    Actor(stage, 1)
    assert stage.until(lambda heard: len(heard) == 2) == [DomainBack(2), DomainBack(3)]


def test_a_host_that_says_nothing_is_given_up(stage: Stage, monkeypatch: pytest.MonkeyPatch):
    stage.both()
    monkeypatch.setattr(host_agent, "SILENCE_S", 0.3)
    lost = stage.until(lambda heard: len(heard) == 4)
    assert {one.node for one in lost if isinstance(one, DomainLost)} == {0, 1, 2, 3}
    assert all("silent" in one.text for one in lost if isinstance(one, DomainLost))


def test_a_host_that_does_not_answer_is_lost_and_the_others_answers_count(stage: Stage):
    first, second = stage.both(processes={1: 5})
    second.answers.clear()
    second.channel.close()
    assert stage.group.processes() == {1: 5}
    assert first.calls[-1][0] == "processes"
    assert len(stage.until(lambda heard: len(heard) == 2)) == 2


def test_a_wish_to_stop_is_heard_and_an_ending_reaches_everybody(stage: Stage):
    first, second = stage.both()
    second.channel.send(ASKED)
    stage.until(lambda _: stage.group.asked)
    for agent in stage.group.living():
        agent.send(Ending("UsageError", "no such corpus"))
    stage.until(lambda _: len(first.endings) == len(second.endings) == 1)
    assert first.endings == second.endings == [Ending("UsageError", "no such corpus")]


def test_whoever_has_no_proof_or_no_place_is_turned_away(stage: Stage):
    stage.both()
    address = ("127.0.0.1", stage.group.port)
    for length in (1, 24, 5000):
        with socket.create_connection(address) as caller:
            caller.sendall(os.urandom(length))
    strangers = [AuthenticatedChannel.dial(address, os.urandom(32), WIRE)]
    strangers += [AuthenticatedChannel.dial(address, stage.folder.key(), WIRE) for _ in range(2)]
    strangers[0].send(Hello(1, "stranger", "here"))
    strangers[1].send(Hello(7, "of another run", "here"))
    strangers[2].send(HostCall("signal", (0, 9), answered=False))
    stage.until(lambda _: True)
    deadline = time.monotonic() + 1.0
    while time.monotonic() < deadline:
        assert not list(stage.group.hear(wait(stage.group.watched(), 0.05)))
    for stranger in strangers:
        with pytest.raises(ChannelError, match=r"hung up|nothing"):
            stranger.recv()
        stranger.close()
    assert len(stage.group.living()) == 2


def test_hosts_that_do_not_come_are_named(stage: Stage):
    Actor(stage, 1)
    assert stage.group.gather(0.5) == [0]
