"""The decision log: what each pass saw and what it said, so that any decision can be made again.

The first entry holds the whole snapshot; every later one only what changed since, and what was decided. Entries are
plain values, one JSON line each; who writes them to a disk is the engine's business. `replayed` reads a log, makes
every decision again and returns where it differs from what was written; sentences for people are not compared, so that
a log outlives better words.
"""

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from weft.cluster.plan import decide
from weft.cluster.records.actions import Action
from weft.cluster.records.encoding import action_as_plain, as_plain, from_plain
from weft.cluster.records.job import Job, Team
from weft.cluster.records.node import Node
from weft.cluster.records.snapshot import Snapshot
from weft.cluster.scheduling.state import ClusterState

_KINDS: dict[str, type[Job] | type[Node] | type[Team]] = {"job": Job, "node": Node, "team": Team}


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


class DecisionRecorder:
    """A state whose every change and decision becomes a line of a log; one owner."""

    def __init__(self, snapshot: Snapshot) -> None:
        """Open a state; take the first line with `opening`."""
        self.cluster = ClusterState(snapshot)
        self.opening = json.dumps({"snapshot": as_plain(snapshot)})
        """The log's first line."""
        self._changes: list[dict[str, Any]] = []

    def put(self, record: Job | Node | Team, now_ms: int) -> None:
        """Tell the state of a record, and remember it for the next line."""
        self._changes.append({"put": type(record).__name__.lower(), "at_ms": now_ms, "record": as_plain(record)})
        self.cluster.put(record, now_ms)

    def drop(self, job_id: str, now_ms: int) -> None:
        """Let the state forget a job, and remember that for the next line."""
        self._changes.append({"drop": job_id, "at_ms": now_ms})
        self.cluster.drop(job_id, now_ms)

    def decide(self, now_ms: int) -> tuple[tuple[Action, ...], str]:
        """Make a pass; return the actions and the log's next line."""
        actions = decide(self.cluster, now_ms)
        entry = {"at_ms": now_ms, "changes": self._changes, "actions": [action_as_plain(each) for each in actions]}
        self._changes = []
        return actions, json.dumps(entry)


def replayed(lines: Iterable[str]) -> Iterator[Difference]:
    """Make every decision of a log again and return those that come out otherwise."""
    entries = (json.loads(line) for line in lines)
    cluster = ClusterState(from_plain(Snapshot, next(entries)["snapshot"]))
    for number, entry in enumerate(entries):
        for change in entry["changes"]:
            if "drop" in change:
                cluster.drop(change["drop"], change["at_ms"])
            else:
                cluster.put(from_plain(_KINDS[change["put"]], change["record"]), change["at_ms"])
        # Through JSON and back, so that only what a reader of the log could see is compared.
        found = json.loads(json.dumps([action_as_plain(each) for each in decide(cluster, entry["at_ms"])]))
        if _without_words(found) != _without_words(entry["actions"]):
            yield Difference(number, entry["at_ms"], entry["actions"], found)


def _without_words(actions: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return actions without their sentences: what was decided stands in their codes."""
    return [{key: value for key, value in action.items() if key != "text"} for action in actions]
