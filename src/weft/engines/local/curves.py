"""What members of a sweep report as they go: steps and values, read from the lines that they append to files.

A training writes them into its run folder; a command appends them to `$WEFT_METRICS`. Reads what is new, once.
"""

import contextlib
import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from weft.cluster.early_stopping import HalvingRules, Outpaced, at_rungs, outpaced
from weft.engines.local.home import Home
from weft.engines.local.launches import METRICS, RUNS
from weft.engines.local.store import StoredJob
from weft.training.run_dir import EVALUATIONS


class Curves:
    """The curves of jobs; one owner."""

    def __init__(self, home: Home) -> None:
        """Know none yet."""
        self._home = home
        self._read: dict[Path, int] = {}
        self._points: dict[str, list[tuple[int, float]]] = {}

    def outpaced(self, members: list[StoredJob]) -> list[Outpaced]:
        """Return which members of a sweep go no further."""
        launch = members[0].launch
        rules = HalvingRules(launch.early_stop, launch.keep_one_in, launch.metric.startswith("max:"))
        return outpaced({each.job.id: at_rungs(self._of(each), rules) for each in members}, rules)

    def _of(self, entry: StoredJob) -> list[tuple[int, float]]:
        folder, name = self._home.job(entry.job.id), entry.launch.metric.rpartition(":")[2]
        points = self._points.setdefault(entry.job.id, [])
        runs = folder / RUNS
        for path in [folder / METRICS, *sorted(runs.glob(f"*/{METRICS}")), *sorted(runs.glob(f"*/{EVALUATIONS}"))]:
            for line in self._new_lines(path):
                with contextlib.suppress(ValueError):
                    points += _point(json.loads(line), name)
        return points

    def _new_lines(self, path: Path) -> list[bytes]:
        """Return the whole lines that were not read before; of a file that became shorter, all."""
        try:
            with path.open("rb") as file:
                size = file.seek(0, 2)
                begin = self._read.get(path, 0)
                file.seek(begin if begin <= size else 0)
                found = file.read()
                whole = found.rfind(b"\n") + 1
                self._read[path] = file.tell() - len(found) + whole
                return found[:whole].splitlines()
        except OSError:
            return []


def _point(line: Any, name: str) -> list[tuple[int, float]]:
    """Return what a line says of the metric; what JSON has no word for (null) is no number."""
    if not isinstance(line, Mapping) or type(line.get("step")) is not int or name not in line:
        return []
    value = line[name]
    good = isinstance(value, int | float) and not isinstance(value, bool)
    return [(line["step"], float(value) if good else math.nan)]
