"""Where ranks run, as a supervisor sees it: this machine's fork server, or agents on other machines, by one protocol.

A host carries out and tells; it decides nothing. What its ranks say comes out of `hear` in the order in which it was
said, their ends last. The memory beside the ranks (keepers of failure domains) is reached through `memory`.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from weft.cluster.recovery.events import HangEvidence
from weft.training.recovery.orders import Orders
from weft.training.recovery.snapshot_keeper import Snapshot


@dataclass(frozen=True, slots=True)
class RankStart:
    """What a host needs to start one rank."""

    rank: int
    """Its number."""
    ranks: int
    """How many there are."""
    generation: int
    """Counts the starts of the ranks."""
    store: tuple[str, int]
    """Address and port of the store at which ranks find each other."""
    orders: Orders
    """The setting that the rank is given."""


@dataclass(frozen=True, slots=True)
class RankSaid:
    """A rank has said something."""

    rank: int
    """Who."""
    kind: str
    """What it is about."""
    content: Any
    """What it said."""


@dataclass(frozen=True, slots=True)
class RankEnded:
    """A rank's process has gone."""

    rank: int
    """Which."""
    code: int | None
    """Its exit code: negative for a signal, none where nobody knows."""


@dataclass(frozen=True, slots=True)
class RankStopped:
    """A rank's process has been stopped by a signal for longer than any pause of the machine."""

    rank: int
    """Which."""


@dataclass(frozen=True, slots=True)
class DomainLost:
    """A failure domain has gone, with its memory."""

    node: int
    """Which."""
    text: str
    """How, in words."""


@dataclass(frozen=True, slots=True)
class DomainBack:
    """A failure domain is there again, with nothing in its memory."""

    node: int
    """Which."""


@dataclass(frozen=True, slots=True)
class KeeperDied:
    """A keeper died by itself; its node is there, and so is another keeper in its place, with nothing in memory."""

    node: int
    """Whose."""
    text: str
    """What was done about it, in words."""


@dataclass(frozen=True, slots=True)
class SpareLost:
    """A spare could not get ready."""

    text: str
    """Why, in words."""


Heard = RankSaid | RankEnded | RankStopped | DomainLost | DomainBack | KeeperDied | SpareLost


class DomainMemory(Protocol):
    """The keepers of failure domains, with their local disks."""

    def start(self, node: int) -> None:
        """Start the keeper of `node`, with nothing in its memory."""
        ...

    def use(self, disks: Path) -> None:
        """Take folders below `disks` as the nodes' local disks."""
        ...

    def forget(self) -> None:
        """Clear all local disks."""
        ...

    def addresses(self) -> dict[int, str]:
        """Return where the living keepers are reached."""
        ...

    def lose(self, node: int) -> None:
        """Lose a node: its memory and its disk."""
        ...

    def fence(self, generation: int) -> None:
        """Let no other generation put anything from now on."""
        ...

    def keep(self, snapshots: Iterable[Snapshot]) -> None:
        """Forget older snapshots everywhere."""
        ...

    def spill(self, snapshot: Snapshot) -> list[int]:
        """Put a snapshot on the local disks; returns the nodes where that went well."""
        ...

    def damage(self, node: int, snapshot: Snapshot, key: str, bit: int) -> bool:
        """Flip a bit in a node's memory; returns whether the piece was there."""
        ...


class RankHost(Protocol):
    """Starts ranks, hears them, signals them, looks at them and ends them."""

    @property
    def memory(self) -> DomainMemory:
        """Return the memory of its failure domains."""
        ...

    def open(self) -> tuple[str, int]:
        """Get ready; returns address and port of a store at which ranks can meet."""
        ...

    def start(self, starts: Sequence[RankStart]) -> None:
        """Start ranks; those of other numbers that run go on."""
        ...

    def watched(self) -> list[Any]:
        """Return what `multiprocessing.connection.wait` finds ready when something can be heard."""
        ...

    def hear(self, ready: Collection[Any]) -> Iterator[Heard]:
        """Return what ranks have said, then which ended, then which domains have gone."""
        ...

    def signal(self, rank: int, number: int) -> None:
        """Send a signal to a rank that is there."""
        ...

    def evidence(self) -> tuple[HangEvidence, ...]:
        """Look at every rank: does it run, when was it heard, how far did it get."""
        ...

    def processes(self) -> Mapping[int, int]:
        """Return the process number of each rank."""
        ...

    def end(self) -> list[RankSaid]:
        """Leave no rank behind: kill all, wait for them, and return what they had still said."""
        ...

    def finish(self, grace_s: float) -> None:
        """Let ranks that are done go by themselves, and end those that do not."""
        ...

    def close(self) -> None:
        """End everything; what memory holds goes with it."""
        ...
