"""All agents of a run as one `RankHost`: the coordinator's side of their connections.

A rank runs on the host of its failure domain; calls go to all hosts or one, and what a host says comes out of `hear`.
A host whose agent hangs up, or is silent for too long, is lost with its domains; one that comes (again) brings them
back empty. Callers who do not prove that they are of this run are turned away without a trace.
"""

import contextlib
import os
import socket
import threading
import time
from collections import deque
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any

from weft.cluster.recovery.events import HangEvidence
from weft.engines.supervisor.hosts.gang_folder import GangFolder
from weft.engines.supervisor.hosts.host_agent import HostAgent
from weft.engines.supervisor.hosts.host_words import ASKED, BEAT, BEAT_S, WIRE, Ending, Hello, Welcome
from weft.engines.supervisor.rank_host import DomainBack, DomainLost, DomainMemory, Heard, RankSaid, RankStart
from weft.training.launch.authenticated_channel import AuthenticatedChannel
from weft.training.launch.ranks import open_store
from weft.training.recovery.snapshot_keeper import Snapshot

_HANDSHAKES = 32
"""Callers whose proof is being waited for at the same time: more are turned away and call again."""
_FAREWELL_S = 3.0
_LATE_S = 1.0
"""How long a host that hung up is waited for before it counts as lost: its ranks see within this that it has gone."""


class GroupMemory:
    """The keepers of all hosts."""

    def __init__(self, group: "HostGroup") -> None:
        """Reach them through `group`."""
        self._group = group

    def start(self, node: int) -> None:
        """Start the keeper of `node`, with nothing in its memory."""
        self._at(node, "start", node)

    def use(self, disks: Path) -> None:
        """Take folders below `disks` as the nodes' local disks."""
        self._group.disks = str(disks)
        self._all("use", str(disks))

    def forget(self) -> None:
        """Clear all local disks."""
        self._all("forget")

    def addresses(self) -> dict[int, str]:
        """Return where the living keepers are reached."""
        return {node: where for found in self._all("addresses") for node, where in (found or {}).items()}

    def lose(self, node: int) -> None:
        """Lose a node: its memory and its disk."""
        self._at(node, "lose", node)

    def fence(self, generation: int) -> None:
        """Let no other generation put anything from now on."""
        self._all("fence", generation)

    def keep(self, snapshots: Iterable[Snapshot]) -> None:
        """Forget older snapshots everywhere."""
        for agent in self._group.living():
            agent.tell("memory.keep", list(snapshots))

    def spill(self, snapshot: Snapshot) -> list[int]:
        """Put a snapshot on the local disks; returns the nodes where that went well."""
        return [node for found in self._all("spill", snapshot) for node in found or ()]

    def damage(self, node: int, snapshot: Snapshot, key: str, bit: int) -> bool:
        """Flip a bit in a node's memory; returns whether the piece was there."""
        return self._at(node, "damage", node, snapshot, key, bit) is True

    def _all(self, name: str, *arguments: Any) -> list[Any]:
        return self._group.all(f"memory.{name}", *arguments)

    def _at(self, node: int, name: str, *arguments: Any) -> Any:
        agent = self._group.host_of(node)
        if agent is None:
            return None
        agent.ask(f"memory.{name}", *arguments)
        return agent.answer()


class HostGroup:
    """The hosts of a run."""

    def __init__(self, folder: GangFolder, epoch: int, layout: Sequence[tuple[int, ...]], owner: Any) -> None:
        """Expect a host for each part of `layout`, which has its failure domains; end when `owner` hangs up."""
        self.memory: DomainMemory = GroupMemory(self)
        self.disks = ""
        self.asked = False
        """Whether somebody wants the run to stop."""
        self.epoch = epoch
        """Of all coordinators only that of the highest one is obeyed."""
        self._folder, self._key, self._layout = folder, folder.key(), layout
        self._owner = owner
        self._agents: dict[int, HostAgent] = {}
        self._late: list[tuple[float, DomainLost]] = []
        self._where: dict[int, int] = {}
        self._callers: deque[tuple[AuthenticatedChannel, Hello]] = deque()
        self._handshakes = threading.Semaphore(_HANDSHAKES)
        self._listener = socket.create_server(("", 0), backlog=256)
        self._over = threading.Event()
        self._bell, self._ring = socket.socketpair()
        self._bell.setblocking(False)
        self._store: Any = None
        self.address = ""
        """Where ranks find the store."""
        for work in (self._beat, self._accept):
            threading.Thread(target=work, daemon=True).start()

    @property
    def port(self) -> int:
        """Return the port at which agents call."""
        return self._listener.getsockname()[1]

    def living(self) -> list[HostAgent]:
        """Return the agents that are there."""
        return [agent for _, agent in sorted(self._agents.items()) if not agent.gone]

    def host_of(self, node: int) -> HostAgent | None:
        """Return the agent that has a failure domain, where it is there."""
        return next((agent for agent in self.living() if node in agent.nodes), None)

    def all(self, name: str, *arguments: Any) -> list[Any]:
        """Have every host do something at the same time, and return their answers."""
        agents = self.living()
        for agent in agents:
            agent.ask(name, *arguments)
        answers = [agent.answer() for agent in agents]
        if any(agent.unread for agent in agents):
            # What was said meanwhile is heard without waiting for more.
            self._ring.send(b"!")
        return answers

    def gather(self, patience_s: float) -> list[int]:
        """Wait for all agents; returns the places of those that have not come."""
        begun = time.monotonic()
        while len(self.living()) < len(self._layout) and time.monotonic() - begun < patience_s and not self.asked:
            list(self.hear(wait(self.watched(), BEAT_S)))
        self._late.clear()
        there = {agent.hello.place for agent in self.living()}
        return [place for place in range(len(self._layout)) if place not in there]

    def hellos(self) -> list[Hello]:
        """Return how the agents that are there have presented themselves."""
        return [agent.hello for agent in self.living()]

    def open(self) -> tuple[str, int]:
        """Return where ranks meet."""
        self._store = open_store()
        return self.address, self._store.port

    def start(self, starts: Sequence[RankStart]) -> None:
        """Start ranks, each on the host of its failure domain."""
        by_host: dict[int, list[RankStart]] = {}
        for one in starts:
            self._where[one.rank] = node = one.orders.nodes[one.rank]
            agent = self.host_of(node)
            if agent is None:
                self._late.append((0.0, DomainLost(node, f"node {node} is on a host that is not there")))
            else:
                by_host.setdefault(agent.hello.place, []).append(one)
        for place, mine in by_host.items():
            self._agents[place].tell("start", mine)

    def watched(self) -> list[Any]:
        """Return what becomes ready when an agent speaks or calls."""
        return [self._bell, self._owner, *(agent.channel for agent in self.living())]

    def hear(self, ready: Collection[Any]) -> Iterator[Heard]:
        """Return what hosts have said, then which have gone, then which have come."""
        if self._owner in ready:
            # The agent that made this process has gone, and with it the host: another one takes over.
            os._exit(1)
        for agent in list(self._agents.values()):
            for word in agent.words() if not agent.gone else ():
                if isinstance(word, list):
                    yield from word
                self.asked = self.asked or word == ASKED
        yield from self._lost()
        yield from self._come()

    def _lost(self) -> Iterator[DomainLost]:
        now = time.monotonic()
        for place, agent in list(self._agents.items()):
            if agent.gone:
                del self._agents[place]
                agent.channel.close()
                text = f"host {place} is lost: its agent {agent.gone}"
                self._late += [(now + _LATE_S, DomainLost(node, text)) for node in agent.nodes]
        due = [word for time_, word in self._late if time_ <= now]
        self._late = [(time_, word) for time_, word in self._late if time_ > now]
        yield from due

    def _come(self) -> Iterator[DomainBack | DomainLost]:
        with contextlib.suppress(BlockingIOError):
            self._bell.recv(4096)
        while self._callers:
            channel, hello = self._callers.popleft()
            if not 0 <= hello.place < len(self._layout):
                channel.close()
                continue
            before = self._agents.pop(hello.place, None)
            if before is not None:
                before.channel.close()
            nodes = self._layout[hello.place]
            for node in nodes:
                if before is not None:
                    yield DomainLost(node, f"host {hello.place} has a new agent")
            self._late = [one for one in self._late if one[1].node not in nodes] + [
                (0.0, word) for _, word in self._late if word.node in nodes
            ]
            yield from self._lost()
            agent = HostAgent(channel, hello, nodes, time.monotonic())
            self._agents[hello.place] = agent
            agent.send(Welcome(self.epoch, nodes))
            if self.disks:
                agent.tell("memory.use", self.disks)
            yield from (DomainBack(node) for node in nodes)

    def _accept(self) -> None:
        """Hear whoever calls, beside everything else: most have no proof and say nothing."""
        while not self._over.is_set():
            try:
                connection, _ = self._listener.accept()
            except OSError:
                continue
            if self._handshakes.acquire(blocking=False):
                threading.Thread(target=self._greet, args=(connection,), daemon=True).start()
            else:
                connection.close()

    def _greet(self, connection: socket.socket) -> None:
        try:
            channel = AuthenticatedChannel.welcome(connection, self._key, WIRE)
            hello = channel.recv()
            if isinstance(hello, Hello):
                channel.trust()
                self._callers.append((channel, hello))
                self._ring.send(b"!")
            else:
                channel.close()
        except (OSError, ValueError):
            connection.close()
        finally:
            self._handshakes.release()

    def signal(self, rank: int, number: int) -> None:
        """Send a signal to a rank."""
        agent = self.host_of(self._where.get(rank, -1))
        if agent is not None:
            agent.tell("signal", rank, number)

    def evidence(self) -> tuple[HangEvidence, ...]:
        """Look at every rank."""
        found = [one for answer in self.all("evidence") for one in answer or ()]
        return tuple(sorted(found, key=lambda one: one.rank))

    def processes(self) -> Mapping[int, int]:
        """Return the process number of each rank, on its host."""
        return {rank: pid for answer in self.all("processes") for rank, pid in (answer or {}).items()}

    def end(self) -> list[RankSaid]:
        """Leave no rank behind on any host."""
        agents = self.living()
        said = [word for answer in self.all("end") for word in answer or ()]
        before: list[RankSaid] = []
        for agent in agents:
            # What an ended rank has said must not be taken for the words of the one that gets its number.
            words = [one for word in agent.unread if isinstance(word, list) for one in word]
            before += [one for one in words if isinstance(one, RankSaid)]
            rest = [one for one in words if isinstance(one, DomainLost)]
            agent.unread = [*(word for word in agent.unread if not isinstance(word, list)), rest]
        self._where.clear()
        return [*before, *said]

    def finish(self, grace_s: float) -> None:
        """Let ranks that are done go by themselves."""
        self.all("finish", grace_s)
        self._where.clear()

    def close(self) -> None:
        """Leave the keepers to their agents: they end with the run, or serve the next coordinator."""

    def conclude(self, ending: Ending) -> None:
        """Tell all agents how the run ended, and give them a moment to leave."""
        for agent in self.living():
            agent.send(ending)
        begun = time.monotonic()
        while self.living() and time.monotonic() - begun < _FAREWELL_S:
            list(self.hear(wait(self.watched()[2:], BEAT_S)))
        self._over.set()
        # A listener that is only closed leaves its thread in `accept`.
        self._listener.shutdown(socket.SHUT_RDWR)
        for one in (self._listener, self._bell, self._ring, *(agent.channel for agent in self._agents.values())):
            one.close()

    def keep(self, state: str) -> None:
        """Give all agents what this coordinator knows."""
        for agent in self.living():
            agent.tell("keep_state", state)

    def _beat(self) -> None:
        """Let agents hear that their coordinator is alive, whatever it waits for; end when there is a newer one."""
        while not self._over.wait(BEAT_S):
            if self._folder.highest() > self.epoch:
                os._exit(1)
            channels = [agent.channel for agent in list(self._agents.values())]
            for channel in [*channels, *(channel for channel, _ in list(self._callers))]:
                channel.send_if_free(BEAT)
