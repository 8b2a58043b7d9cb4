"""One generation of ranks: where each runs, what they have said, and what that means as events."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from weft.cluster.recovery.events import Died, Raised, RankSlot, RecoveryEvent
from weft.engines.supervisor.rank_host import RankEnded, RankSaid, RankStopped
from weft.training.launch.ranks import how

_VICTIM = (
    "Connection closed by peer", "Connection reset", "Connection refused", "Broken pipe", "Timed out waiting",
    "DistBackendError", "DistNetworkError", "DistStoreError", "recvValue failed", "Application timeout",
    "is gone: its connection",
)  # fmt: skip
"""What a rank says when another one has gone."""
_FATAL = ("UsageError", "SpecError", "UnstoredError")


@dataclass
class Generation:
    """The ranks of one start."""

    number: int
    slots: tuple[RankSlot, ...]
    """Where each rank runs."""
    restored: dict[int, dict[str, Any]] = field(default_factory=dict)
    """What each rank has restored."""
    results: dict[int, Any] = field(default_factory=dict)
    """What each rank has returned."""
    _spoken: set[int] = field(default_factory=set)

    def events(self, word: RankSaid | RankEnded | RankStopped) -> Iterator[RecoveryEvent]:
        """Return what the last words of a rank mean, or its death without any."""
        if isinstance(word, RankStopped):
            yield Died(self.number, word.rank, "stopped", f"rank {word.rank} is stopped")
        elif isinstance(word, RankEnded):
            if word.rank not in self._spoken:
                kind = "killed" if word.code is None or word.code < 0 else "exited"
                yield Died(self.number, word.rank, kind, f"rank {word.rank} died ({how(word.code)})")
        elif word.kind in ("done", "failed"):
            self._spoken.add(word.rank)
            if word.kind == "failed":
                yield self._raised(word.rank, *word.content)

    def _raised(self, rank: int, name: str, text: str) -> Raised:
        """Return what an exception means: the last line of a traceback is what people need."""
        if name:
            return Raised(self.number, rank, text, fatal=name in _FATAL)
        last = text.strip().splitlines()[-1]
        return Raised(self.number, rank, f"rank {rank} failed\n{text}", victim=any(word in last for word in _VICTIM))
