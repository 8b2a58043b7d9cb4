"""The runs that the console shows: found below the folders that it was given, named by what was found.

A run is asked for by its id and looked up among what is there; no path is ever made of what a request says.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from weft import api
from weft.core.errors import UsageError, WeftError
from weft.core.provenance import digest
from weft.planning.report import step_row
from weft.specs import SiteSpec
from weft.training.compare import equal_prefix
from weft.training.run_columns import columns_of
from weft.training.run_dir import INCIDENTS, JOB, METRICS, RESULT, RunRecord

MOST_RUNS, MOST_INCIDENTS = 1000, 500
_COMPARED = 20
"""Runs that a run is compared with: the newest."""
USEFUL = ("compute", "exposed_communication", "bubble", "input")
"""Classes of time that a run without failures would have too."""


class NoSuchRunError(UsageError):
    """There is no run of that id."""


class RunLibrary:
    """All runs below some folders; every question reads what is there now."""

    def __init__(self, folders: Sequence[Path]) -> None:
        """Look for runs below `folders`; a folder may itself be a run."""
        self._folders = tuple(folders)
        self._kept: dict[Path, tuple[object, list[dict[str, Any]]]] = {}

    def records(self) -> dict[str, RunRecord]:
        """Return the runs by id, the newest last."""
        found = [each for folder in self._folders for each in _runs_of(folder)]
        found.sort(key=lambda path: (_changed_ns(path), path.name))
        several = len(self._folders) > 1
        named: dict[str, RunRecord] = {}
        for path in found[-MOST_RUNS:]:
            # Two folders may hold a run of the same name; a digest tells them apart and says nothing of the machine.
            name = f"{path.name}~{digest(str(path.parent))[:6]}" if several else path.name
            named[name] = RunRecord(path)
        return named

    def find(self, run: str) -> RunRecord:
        """Return one run by its id."""
        found = self.records().get(run)
        if found is None:
            raise NoSuchRunError(f"there is no run called {run[:80]!r} here")
        return found

    def listed(self) -> list[dict[str, Any]]:
        """Return a line for each run, the newest first."""
        return [self._line(name, record) for name, record in reversed(self.records().items())]

    def _line(self, name: str, record: RunRecord) -> dict[str, Any]:
        lines = self._steps(record)
        plain = {"id": name, "run": record.name, "folder": record.folder.parent.name, "error": None}
        try:
            job, state = record.job(), record.state()
        except WeftError as error:
            return {**plain, "error": str(error), "state": "unreadable"}
        return {
            **plain, "job": job.name, "state": state, "steps": lines[-1]["step"] if lines else 0,
            "steps_asked": job.steps, "loss": lines[-1]["loss"] if lines else None,
            "incidents": len(_incidents(record)), "changed_ms": _changed_ns(record.folder) // 10**6,
            "losses": [line["loss"] for line in lines[:: max(1, len(lines) // 60)]],
        }  # fmt: skip

    def shown(self, run: str) -> dict[str, Any]:
        """Return everything about one run that its page draws."""
        record = self.find(run)
        job, lines = record.job(), self._steps(record)
        result = record.result() or {}
        ranks = next((note["ranks"] for note in reversed(record.sessions()) if "ranks" in note), 1)
        seconds: Mapping[str, float] = (result.get("goodput") or {}).get("seconds") or record.seconds()
        return {
            "id": run, "run": record.name, "job": job.name, "state": record.state(), "steps_asked": job.steps,
            "description": job.description, "ranks": ranks, "columns": columns_of(lines),
            "evaluations": record.evaluations(), "incidents": _incidents(record)[-MOST_INCIDENTS:],
            "gpu_seconds": {kind: spent * ranks for kind, spent in seconds.items()}, "useful": list(USEFUL),
            "result": {key: result.get(key) for key in ("mfu", "tokens_per_s", "energy_j", "weights_digest")},
            "equal": self._equal(run, record), "provenance": record.provenance(),
        }  # fmt: skip

    def predicted(self, run: str, site: SiteSpec) -> dict[str, Any]:
        """Return what the planner says of a run's step on `site`, in the classes of time that are measured."""
        report = api.plan(self.find(run).job(), site)
        parts = step_row(report.chosen.times, 0)
        bubble = parts["bubble_s"]
        step_s = float(report.chosen.step_s[0])
        exposed = float(report.chosen.times.network_s[0])
        return {
            "site": report.site.name, "step_s": step_s, "tokens_per_s": float(report.chosen.tokens_per_s[0]),
            "mfu": float(report.chosen.mfu[0]),
            "seconds": {"compute": max(0.0, step_s - bubble - exposed), "exposed_communication": exposed,
                        "bubble": bubble},
        }  # fmt: skip

    def _equal(self, run: str, record: RunRecord) -> list[dict[str, Any]]:
        """Return up to which step the run is equal, bit for bit, to others here; most first."""
        found: list[dict[str, Any]] = []
        own = self._steps(record)
        others = [(name, other) for name, other in reversed(self.records().items()) if name != run]
        for name, other in others[:_COMPARED]:
            # Whatever else differs, such as the backend: a loss whose bits are equal is no chance.
            shared = equal_prefix(own, self._steps(other))
            if shared.step:
                found.append({"id": name, "run": other.name, "step": shared.step, "weights": shared.weights,
                              "parts": shared.parts})  # fmt: skip
        return sorted(found, key=lambda each: -each["step"])

    def _steps(self, record: RunRecord) -> list[dict[str, Any]]:
        """Return the lines of a run's steps, read anew where the file has changed."""
        path = record.folder / METRICS
        try:
            known = path.stat()
        except OSError:
            return []
        stamp = (known.st_size, known.st_mtime_ns, known.st_ino)
        kept = self._kept.get(path)
        if kept is None or kept[0] != stamp:
            kept = self._kept[path] = (stamp, record.steps())
        return kept[1]


def _runs_of(folder: Path) -> list[Path]:
    if (folder / JOB).is_file():
        return [folder]
    try:
        return [path for path in folder.iterdir() if (path / JOB).is_file()]
    except OSError:
        return []


def _changed_ns(folder: Path) -> int:
    newest = 0
    for name in (METRICS, RESULT, INCIDENTS, JOB):
        try:
            newest = max(newest, (folder / name).stat().st_mtime_ns)
        except OSError:
            continue
    return newest


def _incidents(record: RunRecord) -> list[dict[str, Any]]:
    """Return incidents as far as they have what a line about one needs: the file may be somebody else's."""
    return [line for line in record.incidents() if isinstance(line.get("step"), int) and "kind" in line]


def event(name: str, document: Any) -> bytes:
    """Return one server-sent event."""
    return f"event: {name}\ndata: {json.dumps(document, allow_nan=False)}\n\n".encode()
