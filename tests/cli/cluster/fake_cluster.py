"""A cluster in memory that answers what commands ask, and remembers what they asked: no daemon, no sockets."""

from collections.abc import Mapping
from typing import Any

from weft.core.errors import UsageError

NOW_MS = 10_000_000


def job(name: str, state: str = "running", **changed: Any) -> dict[str, Any]:
    """Return a job as the HTTP interface describes one; `changed` replaces keys."""
    return {
        "id": name, "kind": "experiment", "team": "default", "priority": 100, "state": state, "nodes": 1,
        "gpus_per_node": 1, "on": ["slot-0"], "submit_ms": NOW_MS - 60_000, "start_ms": NOW_MS - 30_000,
        "ended_ms": None, "attempt": 1, "status": None, "text": "", "array": "", "sweep": {}, "score": None,
        "command": ["python", "train.py"], "training": None, "snapshot": None, "limit_ms": None, "after": [],
        "preemptions": 0, "result": None, "incidents": [],
        "history": [{"at_ms": NOW_MS - 60_000, "text": "submitted"}, {"at_ms": NOW_MS - 30_000, "text": "started"}],
    } | changed  # fmt: skip


def node(name: str, state: str = "healthy", **changed: Any) -> dict[str, Any]:
    """Return a node as the HTTP interface describes one."""
    return {
        "name": name, "gpus": 1, "usable_gpus": 1, "state": state, "since_ms": NOW_MS - 5_000, "jobs": [],
        "override": None, "override_by": "", "tested_ms": None, "evidence": [],
    } | changed  # fmt: skip


class FakeCluster:
    """Answers by path; what it does not know is the user's mistake, as with the real one."""

    def __init__(self, answers: Mapping[str, Any]) -> None:
        """Answer `answers`, by path without the version: "jobs", "jobs/a-1"; a list is given out item by item."""
        self.answers = dict(answers)
        self.asked: list[tuple[str, dict[str, Any]]] = []
        self.posted: list[tuple[str, dict[str, Any]]] = []
        self.submitted: list[dict[str, Any]] = []
        self.uploads = 0

    def get(self, *path: str, **query: Any) -> Any:
        """Return the answer of a path."""
        key = "/".join(path[1:])
        self.asked.append((key, query))
        if key not in self.answers:
            raise UsageError(f"there is no {key}")
        found = self.answers[key]
        return found.pop(0) if isinstance(found, list) else found

    def post(self, *path: str, body: Mapping[str, Any] | None = None) -> Any:
        """Remember what was asked for, and return the answer of a path."""
        key = "/".join(path[1:])
        self.posted.append((key, dict(body or {})))
        if key == "check":
            return {}
        if key not in self.answers:
            raise UsageError(f"there is no {key}")
        return self.answers[key]

    def submit(self, submission: Mapping[str, Any]) -> list[dict[str, Any]]:
        """Remember a submission and return its jobs."""
        self.submitted.append(dict(submission))
        return self.answers["submit"]

    def upload(self, packed: bytes) -> str:
        """Count an upload."""
        assert packed
        self.uploads += 1
        return "snapshot-1"
