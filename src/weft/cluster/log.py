"""The decision log: what each pass saw and what it said, so that any decision can be made again.

The first entry holds the whole snapshot; every later one only what changed since, and what was decided; where a state
is opened anew (a policy was changed, nodes were added), a snapshot begins again. Entries are
plain values, one JSON line each; who writes them to a disk is the engine's business. `replayed` reads a log, makes
every decision again and returns where it differs from what was written; sentences for people are not compared, so that
a log outlives better words.
"""

import contextlib
import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from typing_extensions import override

from weft.cluster.plan import decide
from weft.cluster.records.actions import Action
from weft.cluster.records.encoding import action_as_plain, as_plain, from_plain
from weft.cluster.records.job import Job, Team
from weft.cluster.records.node import Node
from weft.cluster.records.snapshot import Snapshot
from weft.cluster.records.wait_reasons import ROOM, Reason
from weft.cluster.scheduling.state import ClusterState

_KINDS: dict[str, type[Job] | type[Node] | type[Team]] = {"job": Job, "node": Node, "team": Team}

_ROOM_CODES = {reason.code for reason in ROOM}
_WORDS = {"text", "remedy", "blockers"}


@dataclass(frozen=True, slots=True)
class Difference:
    """A decision that came out otherwise the second time."""

    entry: int
    """Number of the entry, counted from 0."""
    at_ms: int
    written: list[Any]
    """What the log says."""
    found: list[Any]
    """What was decided now."""


class RecordedState(ClusterState):
    """A state that remembers how it was opened and what has changed since the last pass; one owner."""

    def __init__(self, snapshot: Snapshot, *, recording: bool = True) -> None:
        """Open a state; what it is opened with is no change. Without `recording` it remembers nothing."""
        self._remembers = self._recording = False
        self._changes: list[dict[str, Any]] = []
        super().__init__(snapshot)
        self._opening: Snapshot | None = snapshot if recording else None
        self._remembers = self._recording = recording

    @override
    def put(self, record: Job | Node | Team, now_ms: int) -> None:
        """Take in a record, and remember it for the next line."""
        if not self._recording:
            super().put(record, now_ms)
            return
        if self._remembers:
            self._changes.append({"put": type(record).__name__.lower(), "at_ms": now_ms, "record": record})
        # The base class drops what it puts.
        with self._silent():
            super().put(record, now_ms)

    @override
    def drop(self, job_id: str, now_ms: int) -> None:
        """Forget a job, and remember that for the next line."""
        if not self._recording:
            super().drop(job_id, now_ms)
            return
        if self._remembers:
            self._changes.append({"drop": job_id, "at_ms": now_ms})
        with self._silent():
            super().drop(job_id, now_ms)

    @override
    def forget_end(self, job_id: str) -> None:
        """Forget how a job ended, and remember that for the next line."""
        if self._remembers:
            self._changes.append({"forget": job_id, "at_ms": self.shares.at_ms})
        super().forget_end(job_id)

    def decided(self, now_ms: int) -> tuple[tuple[Action, ...], str]:
        """Make a pass; return the actions and the log's next lines: two where a log begins, none without recording."""
        if not self._recording:
            return decide(self, now_ms), ""
        with self._silent():
            actions = decide(self, now_ms)
        changes = [{**each, "record": as_plain(each["record"])} if "record" in each else each for each in self._changes]
        entry = {"at_ms": now_ms, "changes": changes, "actions": [action_as_plain(each) for each in actions]}
        line = json.dumps(entry)
        if self._opening is not None:
            line = f"{opening_of(self._opening)}\n{line}"
            self._opening = None
        self._changes = []
        return actions, line

    def begin_log(self) -> None:
        """Let the next lines begin a log: they hold the state as it is now."""
        self._opening = self.snapshot()
        self._changes = []
        self._recording = self._remembers = True

    @contextlib.contextmanager
    def _silent(self) -> Iterator[None]:
        before, self._remembers = self._remembers, False
        try:
            yield
        finally:
            self._remembers = before


def opening_of(snapshot: Snapshot) -> str:
    """Return the first line of a log: the whole state that its decisions begin with."""
    return json.dumps({"snapshot": as_plain(snapshot)})


def replayed(lines: Iterable[str]) -> Iterator[Difference]:
    """Make every decision of a log again and return those that come out otherwise."""
    cluster: ClusterState | None = None
    number = -1
    for entry in (json.loads(line) for line in lines):
        if "snapshot" in entry:
            cluster = ClusterState(from_plain(Snapshot, entry["snapshot"]))
            continue
        assert cluster is not None, "a log begins with a snapshot"
        number += 1
        for change in entry["changes"]:
            if "forget" in change:
                cluster.forget_end(change["forget"])
            elif "drop" in change:
                cluster.drop(change["drop"], change["at_ms"])
            else:
                cluster.put(from_plain(_KINDS[change["put"]], change["record"]), change["at_ms"])
        # Through JSON and back, so that only what a reader of the log could see is compared.
        found = json.loads(json.dumps([action_as_plain(each) for each in decide(cluster, entry["at_ms"])]))
        if not _same(entry["actions"], found):
            yield Difference(number, entry["at_ms"], entry["actions"], found)


def _same(written: list[dict[str, Any]], found: list[dict[str, Any]]) -> bool:
    """Return whether two passes decided alike; sentences are not compared."""
    return len(written) == len(found) and all(
        _bare(one) == _bare({**other, "code": one["code"]} if _told_as_one(one, other) else other)
        for one, other in zip(written, found, strict=True)
    )


def _told_as_one(written: dict[str, Any], found: dict[str, Any]) -> bool:
    """Return whether a log says "behind" where today the kind of room stands that a job lacks."""
    return written.get("code") == Reason.BEHIND.code and found.get("code") in _ROOM_CODES


def _bare(action: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in action.items() if key not in _WORDS}
