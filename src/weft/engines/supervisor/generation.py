"""One generation of ranks: where each runs, what they have said, and what that means as events."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from weft.cluster.recovery.events import Died, Raised, RankSlot, RecoveryEvent, Released
from weft.engines.supervisor.rank_host import RankEnded, RankSaid, RankStopped
from weft.training.launch.rank_place import speaks_of_another
from weft.training.launch.ranks import how

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
    replaced: int | None = None
    """The rank whose place is being given to another, where one's is."""
    _released: set[int] = field(default_factory=set)
    _ended: set[int] = field(default_factory=set)
    _spoken: set[int] = field(default_factory=set)

    def events(self, word: RankSaid | RankEnded | RankStopped) -> Iterator[RecoveryEvent]:
        """Return what the last words of a rank mean, or its death without any."""
        if isinstance(word, RankStopped):
            yield Died(self.number, word.rank, "stopped", f"rank {word.rank} is stopped")
        elif isinstance(word, RankEnded):
            self._ended.add(word.rank)
            yield from self._free()
            if word.rank not in self._spoken:
                kind = "killed" if word.code is None or word.code < 0 else "exited"
                yield Died(self.number, word.rank, kind, f"rank {word.rank} died ({how(word.code)})")
        elif word.kind in ("done", "failed"):
            self._spoken.add(word.rank)
            if word.kind == "failed":
                yield self._raised(word.rank, *word.content)
        elif word.kind == "stranded":
            yield Raised(
                self.number, word.rank, f"rank {word.rank} failed\n{word.content}", victim=True, stands_by=True
            )
        elif word.kind == "released":
            self._released.add(word.rank)
            yield from self._free()

    def _free(self) -> Iterator[Released]:
        """Say that a place can be given away: who had it is gone, with its locks, and the others have let go."""
        if self.replaced in self._ended and len({*self._released, self.replaced}) == len(self.slots):
            yield Released(self.number)

    def _raised(self, rank: int, name: str, text: str) -> Raised:
        """Return what an exception means: the last line of a traceback is what people need."""
        if name:
            return Raised(self.number, rank, text, fatal=name in _FATAL)
        return Raised(self.number, rank, f"rank {rank} failed\n{text}", victim=speaks_of_another(text))
