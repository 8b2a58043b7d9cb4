"""One generation of ranks: its processes, what they have said, and how they end."""

import contextlib
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any

from weft.cluster.recovery.events import Died, HangEvidence, Raised, RankSlot, RecoveryEvent
from weft.core.clock import Clock
from weft.core.units import Picoseconds
from weft.training.launch.ranks import Child, how

_STOPPED = ("T", "t")
_VICTIM = (
    "Connection closed by peer", "Connection reset", "Connection refused", "Broken pipe", "Timed out waiting",
    "DistBackendError", "DistNetworkError", "DistStoreError", "recvValue failed", "Application timeout",
    "is gone: its connection",
)  # fmt: skip
"""What a rank says when another one has gone."""
_FATAL = ("UsageError", "SpecError")

Hear = Callable[[int, str, Any], None]
"""Called with (rank, kind, content)."""


@dataclass
class Generation:
    """The ranks of one start."""

    number: int
    slots: tuple[RankSlot, ...]
    """Where each rank runs."""
    children: list[Child]
    """Their processes."""
    clock: Clock
    """When things were heard."""
    restored: dict[int, dict[str, Any]] = field(default_factory=dict)
    """What each rank has restored."""
    results: dict[int, Any] = field(default_factory=dict)
    """What each rank has returned."""
    _heard: dict[int, tuple[Picoseconds, tuple[int, int]]] = field(default_factory=dict)
    _spoken: set[int] = field(default_factory=set)
    _buried: set[int] = field(default_factory=set)

    def watched(self) -> list[Any]:
        """Return what becomes ready when a rank speaks or dies."""
        pipes = [child.pipe for child in self.children if child.open]
        return [
            *pipes,
            *(child.process.sentinel for rank, child in enumerate(self.children) if rank not in self._buried),
        ]

    def beat(self, rank: int, place: tuple[int, int]) -> None:
        """Note that a rank's heart was heard."""
        self._heard[rank] = (self.clock.now(), place)

    def hear(self, ready: set[Any], tell: Hear) -> Iterator[RecoveryEvent]:
        """Take in what ranks have said, then who has died without a message."""
        for rank, child in enumerate(self.children):
            if child.pipe in ready or child.process.sentinel in ready:
                yield from self._listen(rank, child, tell)
        for rank, child in enumerate(self.children):
            if rank not in self._buried and child.process.sentinel in ready:
                yield from self._bury(rank, child)

    def _listen(self, rank: int, child: Child, tell: Hear) -> Iterator[RecoveryEvent]:
        try:
            while child.open and child.pipe.poll():
                kind, content = child.pipe.recv()
                if kind == "failed":
                    self._spoken.add(rank)
                    yield self._raised(rank, *content)
                else:
                    if kind == "done":
                        self._spoken.add(rank)
                    tell(rank, kind, content)
        except (EOFError, OSError):
            child.open = False

    def _raised(self, rank: int, name: str, text: str) -> Raised:
        """Return what an exception means: the last line of a traceback is what people need."""
        if name:
            return Raised(self.number, rank, text, fatal=name in _FATAL)
        last = text.strip().splitlines()[-1]
        return Raised(self.number, rank, f"rank {rank} failed\n{text}", victim=any(word in last for word in _VICTIM))

    def _bury(self, rank: int, child: Child) -> Iterator[RecoveryEvent]:
        child.process.join()
        self._buried.add(rank)
        if rank not in self._spoken:
            code = child.process.exitcode
            kind = "killed" if code is not None and code < 0 else "exited"
            yield Died(self.number, rank, kind, f"rank {rank} died ({how(code)})")

    def evidence(self) -> tuple[HangEvidence, ...]:
        """Look at every rank: does it run, when was it heard, how far did it get."""
        now = self.clock.now()
        found: list[HangEvidence] = []
        for rank, child in enumerate(self.children):
            heard, place = self._heard.get(rank, (now, (0, 0)))
            found.append(HangEvidence(rank, _letter(child.process.pid) in _STOPPED, Picoseconds(now - heard), place))
        return tuple(found)

    def kill(self, rank: int) -> None:
        """End one rank at once."""
        self.children[rank].process.kill()

    def signal(self, rank: int, number: int) -> None:
        """Send a signal to a rank that is there."""
        pid = self.children[rank].process.pid
        if pid is not None and rank not in self._buried:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)

    def end(self, tell: Hear) -> None:
        """Leave no process behind: kill all, wait for them, then read what they had still said."""
        for child in self.children:
            child.process.kill()
        for child in self.children:
            child.process.join()
        for rank, child in enumerate(self.children):
            for _ in self._listen(rank, child, tell):
                pass
            child.open = False
            child.pipe.close()

    def finish(self, grace_s: float) -> None:
        """Let ranks that are done go by themselves, and end those that do not."""
        wait([child.process.sentinel for child in self.children], grace_s)
        for child in self.children:
            child.process.join(grace_s)
            if child.process.is_alive():
                child.process.kill()
                child.process.join()
            child.pipe.close()


def _letter(pid: int | None) -> str:
    """Return the state of a process as the kernel writes it, a question mark where it has gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0]
    except (OSError, IndexError):
        return "?"
