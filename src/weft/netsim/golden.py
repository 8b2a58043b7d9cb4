"""Recorded results run again: a folder of htsim's inputs with the completion times that somebody recorded for them.

A case is a matrix `NAME.cm` with its times `NAME.fct`, a topology (`NAME.topo`, or the only one of its folder) and
settings (`NAME.toml`, or `settings.toml`; a scenario, of which the traffic is not used). Who is right is not judged.
"""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from weft.core.errors import UsageError
from weft.core.input_files import read_text
from weft.netsim.run import run
from weft.netsim.setup import set_up_files, transports_of
from weft.specs import load_scenario, load_site

SHARES = (0.05, 0.10)
"""Errors below which results are counted."""
DEFAULT_SETTINGS = "htsim-permutation"
"""The scenario that lends its settings where a folder has none."""
_PRINTED = re.compile(r"finished at ([\d.]+)")
_WRITTEN = re.compile(r"^(?:[^,\s]+,)?([\d.]+)$")
_PS_PER_US = 10**6


@dataclass(frozen=True)
class RecordedCase:
    """One case of a folder: where its inputs are."""

    name: str
    """Path of its matrix in the folder, without the ending."""
    matrix: Path
    """htsim's connection matrix."""
    topology: Path
    """htsim's topology."""
    settings: str
    """Name or path of the scenario that says how it is sent."""
    times: Path
    """What was recorded."""


@dataclass(frozen=True)
class GoldenRow:
    """One case beside what was recorded; times are microseconds from the start of the run."""

    name: str
    """Which."""
    transport: str
    """What it was run with."""
    flows: int
    """Flows recorded."""
    recorded_mean_us: float
    """Mean of the times that were recorded."""
    mean_us: float
    """Mean of ours."""
    recorded_last_us: float
    """The last one recorded."""
    last_us: float
    """The last one of ours."""
    within: tuple[float, ...]
    """Share of the times, first to last, that are off by at most each of `SHARES`."""

    @property
    def mean_error(self) -> float:
        """Return by which share our mean is off."""
        return self.mean_us / self.recorded_mean_us - 1

    @property
    def last_error(self) -> float:
        """Return by which share our last time is off."""
        return self.last_us / self.recorded_last_us - 1

    def as_json(self) -> dict[str, Any]:
        """Return it as plain values (docs/json.md)."""
        return {
            "case": self.name,
            "transport": self.transport,
            "flows": self.flows,
            "recorded_us": {"mean": self.recorded_mean_us, "last": self.recorded_last_us},
            "found_us": {"mean": self.mean_us, "last": self.last_us},
            "error": {"mean": self.mean_error, "last": self.last_error},
            "flows_within": list(self.within),
        }


def cases_of(folder: Path) -> tuple[RecordedCase, ...]:
    """Return the cases of a folder and those below it, or raise with what is missing."""
    found = tuple(_case(folder, matrix) for matrix in sorted(folder.rglob("*.cm")))
    if not found:
        raise UsageError(f"{folder} holds no recorded case; one is NAME.cm with NAME.topo and NAME.fct, its times")
    return found


def _case(folder: Path, matrix: Path) -> RecordedCase:
    topology, times, settings = (matrix.with_suffix(ending) for ending in (".topo", ".fct", ".toml"))
    if not topology.is_file():
        all_of_them = sorted(matrix.parent.glob("*.topo"))
        if len(all_of_them) != 1:
            raise UsageError(f"{matrix} has no topology: neither {topology.name} nor a single .topo beside it; add one")
        topology = all_of_them[0]
    if not times.is_file():
        raise UsageError(
            f"{matrix} has no recorded times; write {times.name}: what htsim printed, or a time in us a line"
        )
    shared = matrix.parent / "settings.toml"
    chosen = next((str(file) for file in (settings, shared) if file.is_file()), DEFAULT_SETTINGS)
    return RecordedCase(str(matrix.relative_to(folder).with_suffix("")), matrix, topology, chosen, times)


def times_of(text: str, name: str) -> list[float]:
    """Return the times of a record in order, us: what htsim printed, or `US` or `FLOW,US` a line after # comments."""
    printed = [float(each) for each in _PRINTED.findall(text)]
    if printed:
        return sorted(printed)
    found: list[float] = []
    for number, line in enumerate(text.splitlines(), 1):
        said = line.split("#")[0].strip()
        match = _WRITTEN.match(said)
        if said and match is None:
            raise UsageError(f"{name}:{number}: {said!r} is no time; write microseconds, or FLOW,MICROSECONDS")
        if match is not None:
            found.append(float(match[1]))
    if not found or min(found) <= 0:
        raise UsageError(f"{name} holds no times above 0; write one in microseconds for each flow")
    return sorted(found)


def compare(case: RecordedCase, seed: int | None = None) -> GoldenRow:
    """Run a case and return it beside what was recorded."""
    recorded = np.array(times_of(read_text(case.times), case.times.name))
    scenario = load_scenario(case.settings)
    setup = set_up_files(scenario, load_site(scenario.site), (case.matrix, case.topology), seed)
    (transport,) = transports_of(setup)[:1]
    report = run(setup, transport)
    ours = np.array(sorted(flow.acknowledged_ps for flow in report.flows), np.float64) / _PS_PER_US
    if len(ours) != len(recorded):
        raise UsageError(
            f"{case.times} has {len(recorded):,} times, but the matrix {len(ours):,} flows; record them all"
        )
    if ours[0] < 0:
        raise UsageError(f"{case.name}: flows did not complete here; look at it with weft simulate --matrix --topology")
    off = np.abs(ours / recorded - 1)
    return GoldenRow(
        case.name, transport.name, len(ours), float(recorded.mean()), float(ours.mean()), float(recorded[-1]),
        float(ours[-1]), tuple(float((off <= share).mean()) for share in SHARES),
    )  # fmt: skip


def compared(
    folder: Path, seed: int | None = None, watch: Callable[[str, int, int], None] | None = None
) -> Iterator[GoldenRow]:
    """Run every case of a folder, one after the other."""
    cases = cases_of(folder)
    for place, case in enumerate(cases):
        yield compare(case, seed)
        if watch is not None:
            watch("golden", place + 1, len(cases))


def shares_of(rows: tuple[GoldenRow, ...]) -> dict[str, tuple[float, ...]]:
    """Return which share of the cases has its mean, and its last time, within each of `SHARES`."""
    errors = {"mean": [abs(row.mean_error) for row in rows], "last": [abs(row.last_error) for row in rows]}
    return {
        name: tuple(sum(x <= share for x in found) / len(rows) for share in SHARES) for name, found in errors.items()
    }
