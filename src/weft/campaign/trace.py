"""Traces: who asked for what and when, and how long it truly took. Read from CSV, checked whole, or made from a seed.

The true duration belongs to the simulated world. What the cluster's decisions get of a line is `request`, which has no
place for it.
"""

import csv
import io
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from weft.cluster.records.job import KINDS, LEVELS, Gang, Job, Kind, Level, Team
from weft.cluster.records.node import Node
from weft.cluster.scheduling.admission import HIGHEST_PRIORITY, admit
from weft.core.errors import Mistake, SpecError, UsageError
from weft.core.seeds import Seed

COLUMNS = ("submit_s", "duration_s", "time_limit_s", "nodes", "gpus_per_node", "team", "priority", "kind")
OPTIONAL = ("within", "slice_nodes", "apart")
"""Columns that a trace may have besides: what a gang requires of the topology."""
_MS = 1000
LONGEST_S = 10 * 365 * 86_400
_MOST_SHOWN = 10
_DAY_S = 86_400


@dataclass(frozen=True, slots=True)
class TraceJob:
    """One line of a trace; times in milliseconds."""

    submit_ms: int
    """When it was handed in."""
    duration_ms: int
    """How long its work takes on its nodes; decisions never see this."""
    limit_ms: int | None
    """What it declared; none where the column is empty."""
    nodes: int
    """Nodes that it needs."""
    gpus_per_node: int
    """GPUs on each."""
    team: str
    """Team whose quota is charged."""
    priority: int
    """Higher goes first."""
    kind: Kind
    within: Level = ""
    """What its nodes must share."""
    slice_nodes: int = 0
    """Nodes that must share it; 0 for all."""
    apart: Level = ""
    """What no two of its nodes may share."""

    def request(self, number: int, *, checkpoint_ms: int, grace_ms: int, min_run_ms: int) -> Job:
        """Return what the cluster sees of it; trainings write a checkpoint every `checkpoint_ms`."""
        training = self.kind == "training"
        return Job(
            f"job-{number:06d}", Gang(self.nodes, self.gpus_per_node, within=self.within, slice_nodes=self.slice_nodes,
                                      apart=self.apart), self.submit_ms, self.kind, self.team,
            self.priority, self.limit_ms, checkpoint_every_ms=checkpoint_ms if training else None, grace_ms=grace_ms,
            min_run_ms=min_run_ms,
        )  # fmt: skip


def _rows(text: str, name: str) -> Iterator[list[str]]:
    try:
        yield from csv.reader(io.StringIO(text))
    except csv.Error as error:
        raise UsageError(f"{name} is no table: {error}") from None


def read(text: str, name: str) -> list[TraceJob]:
    """Return the lines of a trace in order of submission; every mistake is named with its line."""
    rows = _rows(text, name)
    header = next(rows, None)
    if header is None or not any(header):
        raise UsageError(f"{name} is empty; a trace begins with {','.join(COLUMNS)}")
    missing = [column for column in COLUMNS if column not in header]
    unknown = [column for column in header if column not in (*COLUMNS, *OPTIONAL)]
    if missing or unknown:
        wrong = f"lacks {', '.join(missing)}" if missing else f"has a column {unknown[0]!r} that means nothing"
        raise UsageError(f"{name} {wrong}; the columns are {','.join(COLUMNS)}")
    places = [header.index(column) for column in COLUMNS]
    more = {column: header.index(column) for column in OPTIONAL if column in header}
    found: list[TraceJob] = []
    mistakes: list[Mistake] = []
    for number, row in enumerate(rows, start=2):
        if not row:
            continue
        try:
            line = _line([row[place] for place in places] if len(row) == len(header) else row)
            found.append(_with_topology(line, {column: row[place] for column, place in more.items()}))
        except _LineError as error:
            mistakes.append(Mistake(name, error.column, str(error), line=number))
    if mistakes:
        raise SpecError(mistakes[:_MOST_SHOWN])
    if not found:
        raise UsageError(f"{name} has no lines below its header; write at least one job")
    return sorted(found, key=lambda line: line.submit_ms)


def _with_topology(line: TraceJob, asked: dict[str, Any]) -> TraceJob:
    """Return a line with what it requires of the topology, where its file has columns for that."""
    for column in ("within", "apart"):
        if asked.get(column, "") not in ("", *LEVELS):
            raise _LineError(column, f"{asked[column]!r} is none of {', '.join(LEVELS)}")
    asked["slice_nodes"] = _whole("slice_nodes", asked.get("slice_nodes") or "0", 0, 10**7)
    return replace(line, **asked)


def written(lines: Iterable[TraceJob]) -> str:
    """Return lines as CSV."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    lines = list(lines)
    more = OPTIONAL if any(line.within or line.apart for line in lines) else ()
    writer.writerow((*COLUMNS, *more))
    for line in lines:
        limit = "" if line.limit_ms is None else f"{line.limit_ms / _MS:.3f}"
        writer.writerow(
            (f"{line.submit_ms / _MS:.3f}", f"{line.duration_ms / _MS:.3f}", limit, line.nodes, line.gpus_per_node,
             line.team, line.priority, line.kind, *(getattr(line, column) for column in more))
        )  # fmt: skip
    return out.getvalue()


def admit_all(lines: Sequence[TraceJob], nodes: Sequence[Node], teams: Sequence[Team], name: str) -> None:
    """Raise where a line asks for something that the site can never give; one line for each shape is looked at."""
    seen: set[tuple[str | int, ...]] = set()
    for number, line in enumerate(lines):
        shape = (line.nodes, line.gpus_per_node, line.team, line.priority, line.within, line.slice_nodes, line.apart)
        if shape in seen:
            continue
        seen.add(shape)
        try:
            admit(line.request(number, checkpoint_ms=1, grace_ms=0, min_run_ms=0), nodes, teams)
        except UsageError as error:
            raise UsageError(f"{name}: {error}") from None


def generated(jobs: int, nodes: int, gpus: int, seed: Seed, *, load: float = 0.8, teams: int = 4) -> list[TraceJob]:
    """Return a made-up trace of `jobs` jobs for a cluster of `nodes` nodes with `gpus` GPUs each.

    Many small experiments, fewer trainings with sizes in powers of two up to a quarter of the cluster, and a few gangs
    of half of it; durations are lognormal, limits are declared too long, as people do. Submissions follow the hour of
    the day. `load` is the share of the cluster's GPU time that the jobs ask for between the first and last submission.
    """
    draw = seed.stream("trace")
    kind_of = draw.random(jobs)
    most = max(0, int(math.log2(max(1, nodes // 4))))
    powers = np.minimum(draw.geometric(0.45, jobs) - 1, most)
    wide = (kind_of > 0.8) & (draw.random(jobs) < 0.2)  # noqa: PLR2004 - a fifth of the trainings spread wide
    powers = np.where(wide, draw.integers(0, most + 1, jobs), powers)
    small, training = kind_of <= 0.6, kind_of > 0.8  # noqa: PLR2004 - shares of the mixture, said above
    sizes = np.where(small, 1, 2**powers)
    huge = training & (draw.random(jobs) < 40 / max(40, jobs))
    sizes = np.where(huge, max(1, nodes // 2), sizes)
    parts = np.maximum(1, gpus // 2 ** draw.integers(0, 4, jobs))
    widths = np.where(small & (draw.random(jobs) < 0.5), parts, gpus)  # noqa: PLR2004 - half of the small ones
    medians = np.where(small, 1200.0, np.where(training, 10_800.0, 3600.0))
    durations = np.clip(medians * np.exp(draw.normal(0.0, 1.1, jobs)), 10, 7 * _DAY_S)
    slack = 1.1 + 2.5 * draw.random(jobs)
    asked = float((durations * sizes * widths).sum())
    span = asked / (load * nodes * gpus)
    submits = np.sort(_by_hour(draw.random(jobs), span))
    return [
        TraceJob(
            round(submits[row] * _MS), round(durations[row] * _MS),
            math.ceil(durations[row] * slack[row] / 300) * 300 * _MS, int(sizes[row]), int(widths[row]),
            f"team-{int(draw.integers(teams))}", 200 if draw.random() < 0.1 else 100,  # noqa: PLR2004 - one in ten is urgent
            "training" if training[row] else "experiment",
        )
        for row in range(jobs)
    ]  # fmt: skip


def _by_hour(uniform: np.ndarray, span_s: float) -> np.ndarray:
    """Return moments within a span, more of them by day than by night: three to one between noon and midnight."""
    grid = np.linspace(0, span_s, max(2, int(span_s / 600) + 1))
    rate = 1 - 0.5 * np.cos(2 * np.pi * grid / _DAY_S)
    reached = np.concatenate([[0.0], np.cumsum((rate[1:] + rate[:-1]) / 2)])
    return np.interp(uniform, reached / reached[-1], grid)


class _LineError(Exception):
    """What is wrong with one line."""

    def __init__(self, column: str, text: str) -> None:
        super().__init__(text)
        self.column = column


def _line(row: Sequence[str]) -> TraceJob:
    if len(row) != len(COLUMNS):
        raise _LineError("", f"{len(row)} values; write {len(COLUMNS)}: {','.join(COLUMNS)}")
    submit, duration, limit, nodes, gpus, team, priority, kind = (value.strip() for value in row)
    if kind not in KINDS:
        raise _LineError("kind", f"{kind!r} is no kind of job; write one of {', '.join(KINDS)}")
    if not team:
        raise _LineError("team", "no team; write a name")
    return TraceJob(
        _seconds("submit_s", submit, 0), _seconds("duration_s", duration, 0),
        _seconds("time_limit_s", limit, 1) if limit else None, _whole("nodes", nodes, 1, 10**7),
        _whole("gpus_per_node", gpus, 1, 10**4), team, _whole("priority", priority, 0, HIGHEST_PRIORITY), kind,
    )  # fmt: skip


def _seconds(column: str, text: str, least_ms: int) -> int:
    try:
        value = float(text)
    except ValueError:
        raise _LineError(column, f"{text!r} is no time; write seconds, such as 3600") from None
    if not math.isfinite(value) or not 0 <= value <= LONGEST_S or value * _MS < least_ms:
        raise _LineError(column, f"{text} s; write a time between 0 and ten years")
    return round(value * _MS)


def _whole(column: str, text: str, least: int, most: int) -> int:
    try:
        value = int(text)
    except ValueError:
        raise _LineError(column, f"{text!r} is no whole number; write one from {least} to {most:,}") from None
    if not least <= value <= most:
        raise _LineError(column, f"{value}; write a whole number from {least} to {most:,}")
    return value
