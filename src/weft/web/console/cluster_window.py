"""The cluster of this machine as the console shows it: its state by its own interface, its past from the decision log.

Nothing is decided here: status, reasons and changes are the engine's, asked for as the command line does.
"""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from weft.cluster.records.encoding import from_plain
from weft.cluster.records.snapshot import Power
from weft.core.errors import WeftError
from weft.engines.local.client import LocalClient
from weft.engines.local.home import Home

_MOST_LOG_BYTES, _MOST_ENTRIES, _MOST_SPANS = 8 << 20, 2000, 2000
_MOST_WHY = 20
_RUNNING = frozenset({"starting", "running", "asked", "stopping"})


class ClusterWindow:
    """What can be seen of one cluster."""

    def __init__(self, home: Home) -> None:
        """Look at the cluster in `home`, whether or not it is up."""
        self._home, self._client = home, LocalClient(home)

    def post(self, *path: str, body: Mapping[str, Any] | None = None) -> Any:
        """Ask the engine for a change."""
        return self._client.post(*path, body=body)

    def shown(self) -> dict[str, Any]:
        """Return the state, the queue with its reasons, and the past as far as the log goes back."""
        try:
            if not self._home.folder.is_dir() or self._client.process() is None:
                return _down("no cluster is up on this machine; weft cluster up starts one")
            status = self._client.get("v1", "status")
            jobs = self._client.get("v1", "jobs", state="all")["jobs"]
            why = {job["id"]: self._why(job["id"]) for job in _waiting(jobs)[:_MOST_WHY]}
        except WeftError as error:
            return _down(str(error))
        past = past_of(self._entries())
        return {"up": True, "problem": None, "status": status, "jobs": jobs, "why": why, **past}

    def _why(self, job: str) -> dict[str, Any]:
        try:
            found = self._client.get("v1", "jobs", job, "why")
        except WeftError as error:
            # It may have ended meanwhile.
            return {"text": str(error), "expected_ms": None, "early_ms": None, "late_ms": None, "before": []}
        return {key: found[key] for key in ("text", "expected_ms", "early_ms", "late_ms", "before")}

    def _entries(self) -> list[dict[str, Any]]:
        """Return the newest entries of the decision log."""
        folder = self._home.decisions
        names = sorted(folder.glob("*.jsonl")) if folder.is_dir() else []
        found: list[dict[str, Any]] = []
        for path in names[-2:]:
            found += list(_read(path))
        return found


def _down(problem: str) -> dict[str, Any]:
    return {"up": False, "problem": problem, "status": None, "jobs": [], "why": {}, "spans": [], "decisions": [],
            "node_states": [], "names": [], "power": _Past().power()}  # fmt: skip


def _waiting(jobs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [job for job in jobs if job["state"] == "waiting"]


def _read(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the lines of a log's end; where its beginning is cut, the first whole line is the first."""
    try:
        with path.open("rb") as stream:
            stream.seek(max(0, path.stat().st_size - _MOST_LOG_BYTES))
            if stream.tell():
                stream.readline()
            for raw in stream:
                try:
                    line = json.loads(raw)
                except ValueError:
                    continue
                if isinstance(line, dict):
                    yield line
    except OSError:
        return


def past_of(entries: list[dict[str, Any]]) -> dict[str, Any]:
    """Return from a decision log who ran where and when, how nodes changed, and what was decided when."""
    past = _Past()
    for entry in entries:
        if "snapshot" in entry:
            past.open(entry["snapshot"])
        else:
            past.take(entry)
    return {
        "spans": past.spans[-_MOST_SPANS:] + list(past.running.values()),
        "node_states": past.node_states[-_MOST_SPANS:],
        "decisions": past.decisions[-_MOST_ENTRIES:], "names": past.names, "power": past.power(),
    }  # fmt: skip


class _Past:
    """A log, read entry by entry."""

    def __init__(self) -> None:
        self.names: list[str] = []
        self.running: dict[str, dict[str, Any]] = {}
        self.spans: list[dict[str, Any]] = []
        self.node_states: list[dict[str, Any]] = []
        self.decisions: list[dict[str, Any]] = []
        self._budget = Power()
        self._watts: dict[str, int] = {}
        self._draw: list[tuple[int, int]] = []

    def open(self, snapshot: Mapping[str, Any]) -> None:
        """Begin with a whole state."""
        self._budget = from_plain(Power, snapshot.get("power") or {})
        self.names = [str(node.get("name", node["number"])) for node in snapshot.get("nodes", ())]
        for record in snapshot.get("jobs", ()):
            if record.get("start_ms") is not None:
                self._job(record, record["start_ms"])

    def take(self, entry: Mapping[str, Any]) -> None:
        """Take one pass: what it saw, and what it said."""
        at_ms = entry["at_ms"]
        for change in entry["changes"]:
            if change.get("put") == "job":
                self._job(change["record"], change["at_ms"])
            elif change.get("put") == "node":
                self._node(change["record"], change["at_ms"])
            elif "drop" in change:
                self._end(change["drop"], change["at_ms"])
        if entry["actions"]:
            said = [{"do": each.get("do", ""), "job": each.get("job", ""), "text": self._sentence(each)}
                    for each in entry["actions"]]  # fmt: skip
            self.decisions.append({"at_ms": at_ms, "actions": said})

    def _job(self, record: Mapping[str, Any], at_ms: int) -> None:
        name, nodes = record["id"], (record.get("placement") or {}).get("nodes", [])
        if record.get("state", "waiting") not in _RUNNING or not nodes:
            self._end(name, at_ms)
            return
        known = self.running.get(name)
        if known is None or known["nodes"] != nodes:
            self._end(name, at_ms)
            began_ms, team = record.get("start_ms") or at_ms, record.get("team", "default")
            self.running[name] = {"job": name, "nodes": nodes, "from_ms": began_ms, "to_ms": None, "team": team}
            if not self._draw:
                self._draw.append((at_ms, self._drawn_w()))
            declared = record.get("watts_per_gpu")
            gpu_w = self._budget.gpu_rise_w if declared is None else declared
            self._watts[name] = len(nodes) * record["placement"].get("gpus_per_node", 1) * gpu_w
            self._draw.append((at_ms, self._drawn_w()))

    def _end(self, name: str, at_ms: int) -> None:
        known = self.running.pop(name, None)
        if known is not None:
            self.spans.append({**known, "to_ms": at_ms})
            self._watts.pop(name, None)
            self._draw.append((at_ms, self._drawn_w()))

    def _drawn_w(self) -> int:
        return len(self.names) * self._budget.node_idle_w + sum(self._watts.values())

    def power(self) -> dict[str, Any]:
        """Return the draw over time, as jobs and policy declare it, and what may be drawn."""
        budget = self._budget
        return {
            "site_w": budget.site_w, "ramp_w_per_s": budget.ramp_w_per_s, "now_w": self._drawn_w(),
            "draw": self._draw[-_MOST_SPANS:],
        }  # fmt: skip

    def _node(self, record: Mapping[str, Any], at_ms: int) -> None:
        self.node_states.append({"node": record["number"], "state": record.get("state", "healthy"), "at_ms": at_ms})

    def _sentence(self, action: Mapping[str, Any]) -> str:
        """Return what was decided, in words."""
        on = ", ".join(self._name(number) for number in (action.get("placement") or {}).get("nodes", [])[:8])
        subject = action.get("job") or (self._name(action["node"]) if "node" in action else "")
        detail = action.get("text") or action.get("reason") or action.get("why") or action.get("program") or ""
        place = f" on {on}" if on else ""
        return f"{action.get('do', '')} {subject}{place}" + (f": {detail}" if detail else "")

    def _name(self, number: int) -> str:
        return self.names[number] if 0 <= number < len(self.names) else f"node {number}"
