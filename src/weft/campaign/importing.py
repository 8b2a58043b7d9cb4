"""From other projects' job traces to ours: which format a file has, and what a cluster of nodes makes of its jobs.

GPUs are packed onto nodes of a given width, times count from the first submission, names of teams become names that a
cluster takes. What a job did not declare stays undeclared. What is left out is counted by its reason, never silently.
"""

import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace

from weft.campaign.readers.acme import AcmeReader
from weft.campaign.readers.alibaba_2020 import AlibabaPaiReader
from weft.campaign.readers.alibaba_2023 import AlibabaPodReader
from weft.campaign.readers.base import BrokenLineError, ForeignJob, ForeignTrace, LeftOut, TraceReader
from weft.campaign.readers.helios import HeliosReader
from weft.campaign.readers.philly import PhillyReader
from weft.campaign.readers.sacct import SacctReader
from weft.campaign.readers.swf import SwfReader
from weft.campaign.trace import COLUMNS, LONGEST_S, TraceJob, read
from weft.core.errors import UsageError

READERS: tuple[Callable[[], TraceReader], ...] = (
    SacctReader, HeliosReader, AcmeReader, AlibabaPodReader, AlibabaPaiReader, PhillyReader, SwfReader,
)  # fmt: skip
"""Helios before Acme: a log that names virtual clusters has better teams than users."""
OWN = "weft"
_MS = 1000
_PRIORITY = 100
_ANYBODY = "all"


@dataclass(slots=True)
class Imported:
    """A trace that was read, and what of it was left out."""

    lines: list[TraceJob]
    format: str
    left_out: Counter[str] = field(default_factory=Counter)
    """Jobs that are not replayed, by reason."""


def import_trace(trace: ForeignTrace, name: str, node_gpus: int) -> Imported:
    """Return the jobs of a trace of any known format, packed onto nodes of `node_gpus` GPUs."""
    if not trace.text.strip() or set(COLUMNS) & set(trace.columns[:2]):
        return Imported(read(trace.text, name), OWN)
    reader = next((found for make in READERS if (found := make()).recognises(trace)), None)
    if reader is None:
        known = ", ".join(make().name for make in READERS)
        raise UsageError(f"{name} is no trace that is known here: a table with {','.join(COLUMNS)}, or one of {known}")
    jobs: list[ForeignJob] = []
    left_out: Counter[str] = Counter()
    try:
        for each in reader.jobs(trace):
            if isinstance(each, LeftOut):
                left_out[each.why] += 1
            else:
                _check(each)
                jobs.append(each)
    except BrokenLineError as error:
        line, text = error.args
        raise UsageError(f"{name}:{line} is broken ({reader.name}): {text}") from None
    if not jobs:
        reasons = ", ".join(f"{count:,} {why}" for why, count in left_out.most_common())
        raise UsageError(f"{name} ({reader.name}) has no job that could be replayed{': ' if reasons else ''}{reasons}")
    begin_s = min(job.submit_s for job in jobs)
    teams = _team_names(job.team for job in jobs)
    lines = [_line(job, begin_s, teams[job.team], node_gpus) for job in jobs]
    return Imported(sorted(lines, key=lambda line: line.submit_ms), reader.name, left_out)


def shape(gpus: int, pieces: int, node_gpus: int) -> tuple[int, int]:
    """Return how many nodes, and GPUs on each, hold `pieces` of `gpus` GPUs: as few nodes as can be, all alike.

    As many pieces share a node as fit; one that is wider than a node is spread over several.
    """
    if gpus > node_gpus:
        nodes = -(-gpus * pieces // node_gpus)
        return nodes, -(-gpus * pieces // nodes)
    nodes = -(-pieces // (node_gpus // gpus))
    return nodes, -(-pieces // nodes) * gpus


def at_load(lines: Sequence[TraceJob], gpus: int, load: float) -> list[TraceJob]:
    """Return the jobs with their submissions drawn apart or together so that they ask for `load` of so many GPUs."""
    asked_ms = sum(line.duration_ms * line.nodes * line.gpus_per_node for line in lines)
    first_ms, last_ms = lines[0].submit_ms, lines[-1].submit_ms
    if not asked_ms or last_ms == first_ms:
        raise UsageError("a load needs jobs that last, and more than one moment at which they are submitted")
    factor = asked_ms / (load * gpus) / (last_ms - first_ms)
    if (last_ms - first_ms) * factor > LONGEST_S * _MS:
        raise UsageError(f"at a load of {load:g} these jobs would be submitted over more than ten years")
    return [replace(line, submit_ms=round((line.submit_ms - first_ms) * factor)) for line in lines]


def _check(job: ForeignJob) -> None:
    """Raise where a job is beyond anything that can be replayed."""
    for what, value in (("run time", job.duration_s), ("limit", job.limit_s or 0)):
        if not math.isfinite(value) or value > LONGEST_S:
            raise BrokenLineError(job.line, f"its {what} is {value:g} s; ten years is the most that is replayed")
    if not math.isfinite(job.submit_s) or job.gpus * job.pieces > 10**7:
        raise BrokenLineError(job.line, f"it asks for {job.gpus * job.pieces:,} GPUs; ten million is the most")


def _line(job: ForeignJob, begin_s: float, team: str, node_gpus: int) -> TraceJob:
    if job.submit_s - begin_s > LONGEST_S:
        raise UsageError(f"line {job.line}: it was submitted more than ten years after the first")
    nodes, each = shape(job.gpus, job.pieces, node_gpus)
    limit_ms = None if job.limit_s is None else max(1, round(job.limit_s * _MS))
    kind = "service" if job.service else "training" if nodes > 1 else "experiment"
    return TraceJob(
        round((job.submit_s - begin_s) * _MS), round(job.duration_s * _MS), limit_ms, nodes, each, team, _PRIORITY, kind
    )


def _team_names(given: Iterable[str]) -> dict[str, str]:
    """Return a name that a cluster takes for each name, no two alike."""
    found: dict[str, str] = {}
    used: set[str] = set()
    for name in dict.fromkeys(given):
        plain = re.sub(r"[^a-z0-9._-]", "-", name.lower())[:56].strip("-._") or _ANYBODY
        number, unique = 2, plain
        while unique in used:
            unique = f"{plain}-{number}"
            number += 1
        used.add(unique)
        found[name] = unique
    return found
