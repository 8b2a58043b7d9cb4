"""Ranks on this machine: processes of the preloaded fork server, heard through pipes.

Processes are killed, never asked to abort: a collective in flight does not hear.
"""

import contextlib
import signal
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any

from weft.cluster.recovery.events import HangEvidence
from weft.cluster.recovery.limits import STOPPED_PS
from weft.core.clock import Clock
from weft.core.units import PICOSECONDS_PER_SECOND, Picoseconds
from weft.engines.supervisor.failure_domains import Domains
from weft.engines.supervisor.rank_host import (
    Heard,
    KeeperDied,
    RankEnded,
    RankSaid,
    RankStart,
    RankStopped,
    SpareLost,
)
from weft.training.launch.rank_place import LET_GO, TAKE, RankSetting
from weft.training.launch.rank_process import Target
from weft.training.launch.ranks import Child, open_store, spawn, start_fork_server

_STOPPED = ("T", "t")
_LOOK_PS = PICOSECONDS_PER_SECOND
"""Between looks at the state of all processes."""


@dataclass(frozen=True)
class RankProgram:
    """What every rank runs, and over what."""

    target: str | Target
    """The function."""
    arguments: Mapping[str, Any]
    """What it gets."""
    backend: str = "auto"
    """What carries bytes between ranks, as the job says it."""
    checks: Any = None
    """How collectives are checked, where they are."""


@dataclass
class _Rank:
    """One rank that was started."""

    child: Child
    heard_ps: Picoseconds
    """When its heart was last heard."""
    place: tuple[int, int] = (0, 0)
    """Its last step, and how far it got in it."""
    buried: bool = False
    stopped_ps: Picoseconds | None = None
    """Since when it is seen stopped."""


@dataclass
class ForkServerHost:
    """Ranks as processes of this machine, domains as keeper processes beside them."""

    program: RankProgram
    """What ranks run."""
    domains: Sequence[int]
    """Numbers of the failure domains here."""
    clock: Clock
    """When things were heard."""
    key: bytes | None = None
    """Opens the keepers to ranks of the same run on other machines; they are reached from here alone without one."""
    _ranks: dict[int, _Rank] = field(default_factory=dict)
    _looked_ps: int = 0
    _spare: _Rank | None = None
    _store: Any = None
    _memory: Domains | None = None

    @property
    def memory(self) -> Domains:
        """Return the memory of its failure domains."""
        assert self._memory is not None, "a host is opened first"
        return self._memory

    def get_ready(self) -> None:
        """Start fork server and keepers."""
        start_fork_server()
        self._memory = Domains(self.domains, self.key)

    def open(self) -> tuple[str, int]:
        """Get ready; returns where ranks meet."""
        self.get_ready()
        self._store = open_store()
        return "127.0.0.1", self._store.port

    def start(self, starts: Sequence[RankStart]) -> None:
        """Start ranks; those of other numbers that run go on."""
        for one in starts:
            self._ranks[one.rank] = self._spawned(self._setting(one))

    def _setting(self, one: RankStart) -> RankSetting:
        host, port = one.store
        return RankSetting(
            one.rank, one.ranks, port, one.generation, self.program.checks, one.orders, self.program.backend, host
        )

    def _spawned(self, setting: RankSetting) -> _Rank:
        return _Rank(spawn(self.program.target, setting, dict(self.program.arguments)), self.clock.now())

    def make_ready(self, start: RankStart) -> None:
        """Have a spare process that does beforehand what needs no place."""
        if self._spare is None:
            self._spare = self._spawned(replace(self._setting(start), spare=True))

    def let_go(self, rank: int) -> None:
        """Tell a rank to give its process groups up."""
        self._tell(self._ranks[rank], LET_GO, None)

    def replace(self, start: RankStart, kept: Sequence[RankStart]) -> None:
        """Give the place of `start` to the spare, or to a new process, and tell `kept` where they stand next."""
        self.make_ready(start)
        assert self._spare is not None
        self._ranks[start.rank].child.pipe.close()
        self._ranks[start.rank], self._spare = self._spare, None
        for one in (start, *kept):
            self._tell(self._ranks[one.rank], TAKE, self._setting(one))

    def _tell(self, one: _Rank, kind: str, content: object) -> None:
        # One that has gone meanwhile is heard of in another way.
        with contextlib.suppress(OSError):
            one.child.pipe.send((kind, content))

    def watched(self) -> list[Any]:
        """Return what becomes ready when a rank speaks or dies, or a keeper dies."""
        known = [*self._ranks.values(), *([self._spare] if self._spare else [])]
        pipes = [one.child.pipe for one in known if one.child.open]
        sentinels = [one.child.process.sentinel for one in known if not one.buried]
        return [*pipes, *sentinels, *self._keepers()]

    def _keepers(self) -> dict[int, int]:
        return {} if self._memory is None else self._memory.sentinels()

    def hear(self, ready: Collection[Any]) -> Iterator[Heard]:
        """Return what ranks have said, then which died, then which keepers."""
        for rank, one in sorted(self._ranks.items()):
            if one.child.pipe in ready or one.child.process.sentinel in ready:
                yield from self._listen(rank, one)
        for rank, one in sorted(self._ranks.items()):
            if not one.buried and one.child.process.sentinel in ready:
                one.child.process.join()
                one.buried = True
                yield RankEnded(rank, one.child.process.exitcode)
        yield from self._stopped()
        for sentinel, node in self._keepers().items():
            if sentinel in ready:
                yield self._revived(node)
        if self._spare is not None:
            yield from self._hear_spare(self._spare, ready)

    def _revived(self, node: int) -> KeeperDied:
        """Replace a keeper that has died by itself: the copies in its memory are lost, no hardware."""
        assert self._memory is not None, "only keepers that were started die"
        begun = self.clock.now()
        what = "replaced" if self._memory.revive(node) else "given up, since it dies again and again"
        seconds = (self.clock.now() - begun) / PICOSECONDS_PER_SECOND
        text = f"the keeper of node {node} died and was {what}, {seconds:.2f} s; its copies in memory are gone"
        return KeeperDied(node, text)

    def _hear_spare(self, spare: _Rank, ready: Collection[Any]) -> Iterator[SpareLost]:
        failed = [word.content for word in self._listen(-1, spare) if word.kind == "failed"]
        if failed or spare.child.process.sentinel in ready:
            self._end_spare()
            text = failed[0][1].strip().splitlines()[-1] if failed else "it died"
            yield SpareLost(f"a spare could not get ready: {text}")

    def _end_spare(self) -> None:
        spare, self._spare = self._spare, None
        if spare is not None:
            spare.child.process.kill()
            spare.child.process.join()
            spare.child.pipe.close()

    def _stopped(self) -> Iterator[RankStopped]:
        """Return the ranks that have been stopped for too long."""
        now = self.clock.now()
        if now - self._looked_ps < _LOOK_PS:
            return
        self._looked_ps = now
        for rank, one in sorted(self._ranks.items()):
            if one.buried or _letter(one.child.process.pid) not in _STOPPED:
                one.stopped_ps = None
            elif one.stopped_ps is None:
                one.stopped_ps = now
            elif now - one.stopped_ps > STOPPED_PS:
                yield RankStopped(rank)

    def _listen(self, rank: int, one: _Rank) -> Iterator[RankSaid]:
        try:
            while one.child.open and one.child.pipe.poll():
                kind, content = one.child.pipe.recv()
                if kind == "beat":
                    one.heard_ps, one.place = self.clock.now(), content
                else:
                    yield RankSaid(rank, kind, content)
        except (EOFError, OSError):
            one.child.open = False

    def signal(self, rank: int, number: int) -> None:
        """Send a signal to a rank that is there."""
        one = self._ranks.get(rank)
        if one is not None:
            one.child.process.signal(number)

    def evidence(self) -> tuple[HangEvidence, ...]:
        """Look at every rank: does it run, when was it heard, how far did it get."""
        now = self.clock.now()
        return tuple(
            HangEvidence(
                rank, _letter(one.child.process.pid) in _STOPPED, Picoseconds(now - one.heard_ps), one.place
            )
            for rank, one in sorted(self._ranks.items())
        )  # fmt: skip

    def processes(self) -> Mapping[int, int]:
        """Return the process number of each rank."""
        return {rank: one.child.process.pid for rank, one in self._ranks.items()}

    def end(self) -> list[RankSaid]:
        """Leave no rank behind: kill all, wait for them, then read what they had still said."""
        self._end_spare()
        for one in self._ranks.values():
            one.child.process.kill()
        for one in self._ranks.values():
            one.child.process.join()
        said = [word for rank, one in sorted(self._ranks.items()) for word in self._listen(rank, one)]
        for one in self._ranks.values():
            one.child.pipe.close()
        self._ranks.clear()
        return said

    def finish(self, grace_s: float) -> None:
        """Let ranks that are done go by themselves, and end those that do not."""
        self._end_spare()
        wait([one.child.process.sentinel for one in self._ranks.values()], grace_s)
        for one in self._ranks.values():
            one.child.process.join(grace_s)
            if one.child.process.is_alive():
                one.child.process.kill()
                one.child.process.join()
            one.child.pipe.close()
        self._ranks.clear()

    def close(self) -> None:
        """End the keepers; what they hold goes with them."""
        for rank in self._ranks:
            self.signal(rank, signal.SIGKILL)
        if self._memory is not None:
            self._memory.close()


def _letter(pid: int | None) -> str:
    """Return the state of a process as the kernel writes it, a question mark where it has gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0]
    except (OSError, IndexError):
        return "?"
