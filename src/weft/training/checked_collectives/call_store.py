"""Calls of all ranks in the rendezvous store, used so that no rank ever waits for another there.

For every call a rank writes its status (a message without an answer) and compares its call with that of the first rank
that made the same numbered one (one atomic compare-and-set). The first arrival's call is the reference; whoever comes
later and differs is refused before it enters, and writes why for those who already wait. Keys are reused in a ring, so
the store does not grow. One round trip a call, whatever the number of ranks; no call is delayed by a late peer.
"""

import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from weft.core.errors import FailedError, LimitReachedError
from weft.training.checked_collectives.calls import CallStatus, CollectiveCall, hang, mismatch

_RING = 64
_VERDICT = "verdict"
_GROUPS = "groups"
_TRANSFER = "/transfer"


def _place(call: CollectiveCall) -> str:
    """Return where the standing of `call`'s rank is kept: one place for collectives, one for sends and receives."""
    return f"at/{call.group}/{call.rank}{_TRANSFER if call.place else ''}"


class MismatchError(FailedError):
    """Two ranks of a group called different things; the text names both."""


class PayloadError(FailedError):
    """Two ranks hold different results of a collective that gives everybody the same."""


class HungError(LimitReachedError):
    """A call did not end before its deadline; the text says who waits where for whom."""


@dataclass
class CallStore:
    """The window of one rank to the calls of the others."""

    store: Any
    """Shared by all ranks of this generation; a connection of its own, since others may block in theirs."""
    rank: int
    """This rank, counted over all ranks."""
    _references: dict[tuple[str, str, int], str] = field(default_factory=dict)
    _newest: dict[str, CollectiveCall] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def announce(self, group: str, members: Sequence[int]) -> None:
        """Tell that `group` exists, so that a hang can be explained over all groups."""
        line = f"{group}:{','.join(str(rank) for rank in members)};"
        if members and self.rank == members[0]:
            self.store.append(_GROUPS, line)

    def enter(self, call: CollectiveCall, *, compare: bool) -> None:
        """Leave word that this rank enters `call`; raises where another rank called something else there."""
        self._leave_word(call, inside=True)
        if not compare:
            return
        theirs = self._reference(f"call/{call.group}/{call.place}", call.number, call.written())
        other = CollectiveCall.read(theirs)
        if other.number == call.number and other.rank != call.rank and not call.matches(other):
            text = mismatch(call, other)
            self.store.set(f"{_VERDICT}/{call.group}", text)
            raise MismatchError(text)

    def agree(self, call: CollectiveCall, digest: int) -> None:
        """Compare the digest of what `call` gave this rank with the first rank's; raises where they differ."""
        mine = f"{call.number} {call.rank} {digest:016x}"
        theirs = self._reference(f"payload/{call.group}", call.number, mine)
        number, rank, other = theirs.split()
        if int(number) == call.number and other != f"{digest:016x}":
            text = (
                f"ranks {rank} and {call.rank} got different results from {call}:"
                f" digests {other} and {digest:016x}; one of them computes or receives wrongly"
            )
            self.store.set(f"{_VERDICT}/{call.group}", text)
            raise PayloadError(text)

    def leave(self, call: CollectiveCall) -> None:
        """Leave word that this rank has left `call`, unless it has entered another since."""
        if self._newest.get(_place(call)) is call:
            self._leave_word(call, inside=False)

    def _leave_word(self, call: CollectiveCall, *, inside: bool) -> None:
        self._newest[_place(call)] = call
        self.store.set(_place(call), CallStatus(call, inside, time.time()).written())

    def _reference(self, sequence: str, number: int, mine: str) -> str:
        """Return the first rank's word for call `number` of a sequence; this rank's own where it is the first."""
        slot = (sequence, "ring", number % _RING)
        with self._lock:
            before = self._references.get(slot, "")
        theirs = self.store.compare_set(f"{sequence}/{number % _RING}", before, mine).decode()
        with self._lock:
            self._references[slot] = theirs
        return theirs

    def verdict(self, group: str) -> str | None:
        """Return what another rank found wrong on `group`, if anything."""
        key = f"{_VERDICT}/{group}"
        return self.store.get(key).decode() if self.store.check([key]) else None

    def standings(self) -> tuple[list[CallStatus], dict[str, list[int]]]:
        """Return where every rank was last seen on every group, and the members of the groups."""
        members: dict[str, list[int]] = {}
        if self.store.check([_GROUPS]):
            for line in self.store.get(_GROUPS).decode().split(";"):
                group, _, ranks = line.rpartition(":")
                if group:
                    members[group] = [int(rank) for rank in ranks.split(",")]
        found: list[CallStatus] = []
        for group, ranks in members.items():
            places = [f"at/{group}/{rank}{kind}" for rank in ranks for kind in ("", _TRANSFER)]
            found += [CallStatus.read(self.store.get(key).decode()) for key in places if self.store.check([key])]
        return found, members

    def explained(self, call: CollectiveCall, waited_s: float) -> str:
        """Return who waits where for whom, as seen by a rank that has waited too long in `call`."""
        found, members = self.standings()
        hang_sentence = hang(found, members).sentence(found, time.time())
        return f"rank {call.rank} has waited {waited_s:.1f} s in {call}; {hang_sentence}"
