"""`weft submit`: hand a command, a training or a sweep to the cluster; the working folder goes along as it is now."""

import os
import time
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from cyclopts import Parameter

from weft.cli.cluster.local import HomeOption, OnOption, client_of
from weft.cli.cluster.queue import follow, print_array
from weft.cli.output import JsonFlag, print_json, say
from weft.core.errors import FailedError, UsageError
from weft.core.specfile import read_table, validate
from weft.engines.local.client import Speaker
from weft.specs import JOBS, JobSpec, load_job
from weft.specs.faults import FaultsSpec
from weft.specs.submission import Shared, SubmissionSpec

_FORWARDED = ("PATH", "HOME", "USER", "SHELL", "LANG", "LC_ALL", "TMPDIR", "VIRTUAL_ENV", "CONDA_PREFIX", "PYTHONPATH")
"""Environment variables that every job gets from its submitter."""
_LOOK_S = 0.2
_ENDED = ("done", "failed", "cancelled")


@dataclass(frozen=True)
class Request:
    """What a job asks of the scheduler."""

    name: Annotated[str | None, Parameter(help="Short name; default: the program's or the job's.")] = None
    team: Annotated[str | None, Parameter(help="Team whose quota is charged.")] = None
    priority: Annotated[int | None, Parameter(help="0 to 1000; higher goes first.")] = None
    time_limit: Annotated[str | None, Parameter(help="Longest run time, as '10 min'.")] = None
    nodes: Annotated[int, Parameter(help="Nodes of a command's gang; it is started on each.")] = 1
    gpus: Annotated[int, Parameter(help="GPUs on each node.")] = 1
    within: Annotated[Shared | None, Parameter(help="Place that its nodes must share.")] = None
    slice_nodes: Annotated[int, Parameter(name="--slice", help="Nodes that must share it; 0 for all.")] = 0
    apart: Annotated[Shared | None, Parameter(help="Place that no two of its nodes share.")] = None
    kind: Annotated[Literal["experiment", "service"], Parameter(help="One that ends, or a server.")] = "experiment"
    after: Annotated[tuple[str, ...], Parameter(negative="", help="A job that must be done before.")] = ()


@dataclass(frozen=True)
class SweepOptions:
    """One job for each combination of values, and how they are compared."""

    sweep: Annotated[tuple[str, ...], Parameter(negative="", help="One job for each value: KEY=A,B,C.")] = ()
    at_once: Annotated[int, Parameter(help="Jobs of a sweep that run concurrently; 0 for all.")] = 0
    metric: Annotated[str, Parameter(help="Metric that ranks a sweep: min:loss, max:accuracy.")] = "min:loss"
    early_stop: Annotated[int, Parameter(help="Step of the first comparison that stops the worse jobs.")] = 0
    keep_one_in: Annotated[int, Parameter(help="One job in this many goes on from each comparison.")] = 3


@dataclass(frozen=True)
class TrainingOptions:
    """What is changed in a training before it is submitted."""

    set: Annotated[tuple[str, ...], Parameter(negative="", help="Change a job's key: KEY=VALUE.")] = ()
    faults: Annotated[str | None, Parameter(help="Inject the faults described in FILE.")] = None


@dataclass(frozen=True)
class WorkingFolder:
    """Where a job runs, and what it gets from here."""

    env: Annotated[tuple[str, ...], Parameter(negative="", help="Variable to pass: NAME or NAME=VALUE.")] = ()
    directory: Annotated[Path | None, Parameter(help="Working folder; default: this one.")] = None
    snapshot: Annotated[bool, Parameter(help="Copy the working folder to the job.")] = True


@dataclass(frozen=True)
class PodOptions:
    """What a submission to Kubernetes needs beside the job."""

    image: Annotated[str | None, Parameter(help="With --on: container image of its pods.")] = None
    volume: Annotated[tuple[str, ...], Parameter(negative="", help="With --on: PATH=CLAIM to mount.")] = ()
    render: Annotated[Literal["jobset", "kueue"] | None, Parameter(help="Print these objects instead.")] = None


_FLAT = Parameter(name="*")
_REQUEST, _SWEEP, _TRAINING, _FOLDER, _PODS = (
    Request(),
    SweepOptions(),
    TrainingOptions(),
    WorkingFolder(),
    PodOptions(),
)


def submit(
    *words: Annotated[str, Parameter(help="A job file or built-in job; or, after --, a command.",
                                     allow_leading_hyphen=True)],
    request: Annotated[Request, _FLAT] = _REQUEST,
    sweep: Annotated[SweepOptions, _FLAT] = _SWEEP,
    training: Annotated[TrainingOptions, _FLAT] = _TRAINING,
    folder: Annotated[WorkingFolder, _FLAT] = _FOLDER,
    wait: Annotated[bool, Parameter(negative="", help="Show the output and wait for the end.")] = False,
    home: HomeOption = None,
    on: OnOption = None,
    pods: Annotated[PodOptions, _FLAT] = _PODS,
    json: JsonFlag = False,
) -> None:  # fmt: skip
    """Submit a training (a job file) or any command (after --) to the cluster.

    The working folder is copied as it is now, without what git ignores. A command reports numbers by writing a JSON
    object into $WEFT_RESULT, or as its last line.
    """
    table: dict[str, Any] = {
        "kind": request.kind, "nodes": request.nodes, "gpus_per_node": request.gpus, "after": list(request.after),
        "at_once": sweep.at_once, "metric": sweep.metric, "early_stop": sweep.early_stop,
        "keep_one_in": sweep.keep_one_in, "sweep": dict(_sweep(text) for text in sweep.sweep),
        "environment": _environment(folder.env), "key": str(uuid.uuid4()), "within": request.within,
        "slice_nodes": request.slice_nodes, "apart": request.apart,
    }  # fmt: skip
    given = {key: getattr(request, key) for key in ("name", "team", "priority", "time_limit")}
    own = {key: value for key, value in given.items() if value is not None}
    if _is_job(words):
        job = _job(words[0], own, training.set)
        table |= {"kind": "training", "job": job.as_written()}
        if training.faults is not None:
            table["faults"] = validate(read_table(training.faults), FaultsSpec, training.faults).as_written()
    else:
        if training.set or training.faults is not None:
            raise UsageError("--set and --faults are for trainings; a command takes its own options")
        table |= {"command": list(words), "name": _name_of(words)} | own
    validate(table, SubmissionSpec, "the submission")
    if pods.render is not None:
        from weft.cli.cluster.kubernetes import print_rendered

        print_rendered(table, pods.render, pods.image, pods.volume)
        return
    client = client_of(home) if on is None else remote_of(on, pods.image, pods.volume)
    client.post("v1", "check", body=table)
    if folder.snapshot:
        from weft.engines.local.archive import pack

        table["snapshot"] = client.upload(pack((folder.directory or Path.cwd()).absolute()))
    _answer(client, client.submit(table), wait=wait, json=json)


def remote_of(on: str, image: str | None, volumes: tuple[str, ...]) -> Speaker:
    """Return a way to a Kubernetes cluster, with what its pods need."""
    from weft.cli.cluster.kubernetes import remote

    return remote(on, image, volumes)


def _answer(client: Speaker, jobs: list[dict[str, Any]], *, wait: bool, json: bool) -> None:
    array = jobs[0]["array"]
    if wait:
        _wait(client, jobs, quiet=json)
        jobs = [client.get("v1", "jobs", job["id"]) for job in jobs]
    if json:
        print_json({"jobs": jobs, "array": array or None})
    elif array and wait:
        print_array(client.get("v1", "arrays", array))
    elif array:
        say(f"submitted {array}: {len(jobs)} jobs; weft jobs {array} compares them")
    elif not wait:
        say(f"submitted {jobs[0]['id']}; weft logs -f {jobs[0]['id']} follows it")
    failed = [job["id"] for job in jobs if wait and job["state"] != "done"]
    if failed:
        ending = next(job for job in jobs if job["id"] == failed[0])
        raise FailedError(f"{failed[0]} {ending['state']}: {ending['text']}")


def _wait(client: Speaker, jobs: list[dict[str, Any]], *, quiet: bool) -> None:
    """Wait for the end of jobs, showing the output of a single one."""
    if len(jobs) == 1 and not quiet:
        follow(client, jobs[0]["id"], rank=0)
        return
    for job in jobs:
        while client.get("v1", "jobs", job["id"])["state"] not in _ENDED:
            time.sleep(_LOOK_S)


def _is_job(words: tuple[str, ...]) -> bool:
    if not words:
        raise UsageError("name a job file, or write a command after --: weft submit -- python experiment.py")
    return len(words) == 1 and (words[0].endswith(".toml") or words[0] in JOBS.names())


def _job(reference: str, own: dict[str, Any], changes: tuple[str, ...]) -> JobSpec:
    """Return the training with its plan settled and its data found from anywhere."""
    from weft.cli.training.train import changed
    from weft.training.parallel.auto_plan import planned

    job = load_job(reference)
    if own:
        job = validate({**job.as_written(), **own}, JobSpec, f"{reference} with options")
    return findable(planned(changed(job, changes, reference)))


def findable(job: JobSpec) -> JobSpec:
    """Return a training whose texts are found from any working folder."""
    corpus = Path(job.data.corpus)
    if not corpus.exists() or corpus.is_absolute():
        return job
    return job.model_copy(update={"data": job.data.model_copy(update={"corpus": str(corpus.absolute())})})


def _name_of(words: tuple[str, ...]) -> str:
    """Return a name for a command: the script of an interpreter, or the program."""
    scripts = [word for word in words if word.endswith((".py", ".sh"))]
    stem = Path(scripts[0] if scripts else words[0]).stem.lower()
    kept = "".join(letter if letter.isascii() and (letter.isalnum() or letter in "._-") else "-" for letter in stem)
    return kept.strip("._-")[:40] or "job"


def _sweep(text: str) -> tuple[str, list[str]]:
    key, equals, values = text.partition("=")
    if not equals or not key or not all(values.split(",")):
        raise UsageError(f"--sweep {text}: write KEY=A,B,C, such as --sweep lr=1e-4,3e-4")
    return key, values.split(",")


def _environment(asked: tuple[str, ...]) -> dict[str, str]:
    found = {key: os.environ[key] for key in _FORWARDED if key in os.environ}
    for text in asked:
        key, equals, value = text.partition("=")
        if not equals and key not in os.environ:
            raise UsageError(f"--env {text}: there is no such variable here; write {text}=VALUE")
        found[key] = value if equals else os.environ[key]
    return found
