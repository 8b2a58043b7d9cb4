"""From what was submitted to what is run: jobs of the queue, their commands and their environments.

Computes only; the engine writes and starts.
"""

import itertools
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from weft.cluster.records.job import Gang, Job, Kind, Placement
from weft.core.specfile import with_values
from weft.core.units import PICOSECONDS_PER_SECOND
from weft.specs.job import JobSpec
from weft.specs.submission import SubmissionSpec
from weft.training.parallel.auto_plan import planned

RESULT, METRICS = "result.json", "metrics.jsonl"
PROGRESS, JOB, FAULTS, RUNS = "progress.json", "job.json", "faults.json", "runs"
"""Names in a job's folder; the last four are a training's."""
_PS_PER_MS = PICOSECONDS_PER_SECOND // 1000
_GRACE_MS = 5_000
_TRAINING_GRACE_MS = 60_000
_HOST = "127.0.0.1"
_FIRST_PORT, _PORTS = 20_000, 20_000
_INHERITED = ("PATH", "HOME", "USER", "LANG", "TMPDIR")


@dataclass(frozen=True, slots=True)
class Launch:
    """How a job is run."""

    command: tuple[str, ...] = ()
    """Program and arguments; empty for a training."""
    training: Mapping[str, Any] | None = None
    """The job file of a training, as plain values."""
    faults: Mapping[str, Any] | None = None
    """What goes wrong in it on purpose."""
    environment: Mapping[str, str] = field(default_factory=dict)
    """Variables of its environment."""
    snapshot: str | None = None
    """Digest of its working folder."""
    sweep: Mapping[str, str] = field(default_factory=dict)
    """Its values in the array."""
    metric: str = "min:loss"
    """By what it is compared."""
    early_stop: int = 0
    """Step of the first rung at which the array's jobs are compared while they run; 0 for none."""
    keep_one_in: int = 3
    """One in this many goes on from each rung."""

    def as_plain(self) -> dict[str, Any]:
        """Return it as plain values."""
        return asdict(self)

    @classmethod
    def from_plain(cls, plain: Mapping[str, Any]) -> "Launch":
        """Return what was written down."""
        given: dict[str, Any] = {**plain, "command": tuple(plain["command"])}
        return cls(**given)


def prepared(submission: SubmissionSpec, now_ms: int) -> list[tuple[Job, Launch]]:
    """Return the jobs of a submission, named by their place in it: "" for a single one, ".0", ".1" for an array."""
    found: list[tuple[Job, Launch]] = []
    for number, values in enumerate(_combinations(submission.sweep)):
        job, launch = _one(submission, values, now_ms)
        suffix = f".{number}" if submission.sweep else ""
        found.append((replace(job, id=suffix), launch))
    return found


def _combinations(sweep: Mapping[str, Sequence[str]]) -> Iterator[dict[str, str]]:
    for values in itertools.product(*sweep.values()):
        yield dict(zip(sweep, values, strict=True))


def _one(submission: SubmissionSpec, values: Mapping[str, str], now_ms: int) -> tuple[Job, Launch]:
    launch = Launch(
        environment=dict(submission.environment), snapshot=submission.snapshot, sweep=dict(values),
        metric=submission.metric, early_stop=submission.early_stop, keep_one_in=submission.keep_one_in,
    )  # fmt: skip
    limit_ms = None if submission.time_limit is None else max(1, submission.time_limit // _PS_PER_MS)
    within, apart = submission.within or "", submission.apart or ""
    if submission.job is None:
        width = submission.slice_nodes
        gang = Gang(
            submission.nodes, submission.gpus_per_node, submission.min_nodes, max(1, width), within, width, apart
        )
        job = Job(
            "", gang, now_ms, submission.kind, submission.team, submission.priority, limit_ms, submission.after,
            array_at_once=submission.at_once, grace_ms=_GRACE_MS,
        )  # fmt: skip
        return job, replace(launch, command=_with_values(submission.command, values))
    training = planned(with_values(submission.job, values, f"{submission.job.name} with --sweep"))
    # A training may run as an experiment: one of many small ones that pass beside the large.
    kind: Kind = submission.kind
    limit_ms = None if training.time_limit is None else max(1, training.time_limit // _PS_PER_MS)
    gang = replace(_gang_of(training, submission.gpus_per_node), within=within, slice_nodes=submission.slice_nodes,
                   apart=apart)  # fmt: skip
    job = Job(
        "", gang, now_ms, kind, training.team, training.priority, limit_ms,
        submission.after, array_at_once=submission.at_once, grace_ms=_TRAINING_GRACE_MS,
    )  # fmt: skip
    faults = None if submission.faults is None else submission.faults.as_written()
    return job, replace(launch, training=training.as_written(), faults=faults)


def _gang_of(training: JobSpec, gpus_per_node: int) -> Gang:
    """Return the nodes of a training: its ranks and spares, as many on a node as was asked."""
    assert training.plan != "auto", "a training is planned before it is queued"
    places = training.plan.ranks + training.recovery.spares
    return Gang(-(-places // gpus_per_node), min(gpus_per_node, places))


def _with_values(command: Sequence[str], values: Mapping[str, str]) -> tuple[str, ...]:
    """Return a command with each {key} replaced; a key that stands nowhere is appended as an option."""
    words = list(command)
    more: list[str] = []
    for key, value in values.items():
        mark = "{" + key + "}"
        if any(mark in word for word in words):
            words = [word.replace(mark, value) for word in words]
        else:
            more += [f"--{key}", value]
    return (*words, *more)


def order_of(job: Job, launch: Launch, folder: Path, attempt: int, snapshots: Path) -> dict[str, Any]:
    """Return the order for the runner of one attempt; `folder` is the job's."""
    assert job.placement is not None, "a job that is started has nodes"
    argv = list(launch.command)
    nodes: Sequence[int] = job.placement.nodes
    if launch.training is not None:
        argv = [sys.executable, "-m", "weft.engines.local.training_process", str(folder), str(attempt)]
        nodes = nodes[:1]  # the supervisor starts the ranks of all nodes
    shared = _environment(job, launch, folder, attempt)
    if launch.training is not None:
        shared["PYTHONPATH"] = with_package(shared.get("PYTHONPATH", ""))
    return {
        "job": job.id, "attempt": attempt, "grace_s": job.grace_ms / 1000, "work": str(folder / "work"),
        "snapshot": str(snapshots / launch.snapshot) if launch.snapshot else None,
        "commands": [
            {"argv": argv, "environment": shared | _of_rank(job.placement, rank)} for rank in range(len(nodes))
        ],
    }  # fmt: skip


def with_package(paths: str) -> str:
    """Return a search path of Python modules with this package in it."""
    package = str(Path(__file__).parents[3])
    return os.pathsep.join(dict.fromkeys([package, *filter(None, paths.split(os.pathsep))]))


def _environment(job: Job, launch: Launch, folder: Path, attempt: int) -> dict[str, str]:
    assert job.placement is not None
    known = {key: os.environ[key] for key in _INHERITED if key in os.environ}
    port = _FIRST_PORT + sum(map(ord, job.id)) * 7919 % _PORTS
    return known | dict(launch.environment) | {
        "WEFT_JOB": job.id, "WEFT_ATTEMPT": str(attempt), "WEFT_RESULT": str(folder / RESULT),
        "WEFT_METRICS": str(folder / METRICS),
        "WEFT_NODES": " ".join(map(str, job.placement.nodes)),
        "WORLD_SIZE": str(len(job.placement.nodes)), "MASTER_ADDR": _HOST, "MASTER_PORT": str(port),
        "PYTHONUNBUFFERED": "1",
    }  # fmt: skip


def _of_rank(placement: Placement, rank: int) -> dict[str, str]:
    own = {"RANK": str(rank), "LOCAL_RANK": str(rank)}
    if placement.devices:
        own["WEFT_DEVICES"] = ",".join(map(str, placement.devices[rank]))
    return own
