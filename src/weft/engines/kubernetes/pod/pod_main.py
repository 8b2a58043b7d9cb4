"""The program inside a pod: it unpacks the submitter's folder, then runs the command, or its part of a training.

A training on one pod has the supervisor whole. On several, every pod is an agent (`engines.supervisor.hosts`), and one
of them makes the supervisor; so what happens to ranks, pods and jobs is decided as on one machine. Agents find each
other by the folder of runs, which the gang shares.
"""

import hashlib
import io
import json
import os
import socket
import sys
import tarfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from weft.cluster.records.exit_status import STOPPED, TRY_AGAIN
from weft.core.errors import FailedError, UsageError
from weft.core.specfile import validate
from weft.engines.kubernetes.pod.pod_variables import variables_of
from weft.engines.kubernetes.pod.preflight import preflight
from weft.engines.kubernetes.pod.reporting import reporting
from weft.specs import JobSpec

_ARCHIVE = "folder.tar.gz"


@dataclass(frozen=True)
class PodSettings:
    """What a pod's environment says."""

    job: str
    uid: str
    place: int
    nodes: int
    gpus: int
    attempt: int
    address: str
    port: int
    runs: Path
    training: JobSpec | None
    folder: Path | None
    work: Path | None
    digest: str


def spelled_out(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the environment with what a pod gets in one variable under the names that programs read."""
    if "WEFT_POD" not in environment:
        return dict(environment)
    return {**environment, **variables_of(json.loads(environment["WEFT_POD"]))}


def read(environment: Mapping[str, str]) -> PodSettings:
    """Return what the environment of a pod says."""
    try:
        text = environment.get("WEFT_TRAINING", "")
        folder, work = environment.get("WEFT_FOLDER"), environment.get("WEFT_WORK")
        return PodSettings(
            job=environment["WEFT_JOB"],
            uid=environment["WEFT_JOB_UID"],
            place=int(environment["WEFT_NODE_RANK"]),
            nodes=int(environment["WEFT_NODES"]),
            gpus=int(environment["WEFT_GPUS_PER_NODE"]),
            attempt=int(environment["WEFT_ATTEMPT"]),
            address=environment["MASTER_ADDR"],
            port=int(environment["MASTER_PORT"]),
            runs=Path(environment["WEFT_RUNS"]),
            training=validate(json.loads(text), JobSpec, "WEFT_TRAINING") if text else None,
            folder=None if folder is None else Path(folder),
            work=None if work is None else Path(work),
            digest=environment.get("WEFT_FOLDER_DIGEST", ""),
        )
    except (KeyError, ValueError) as error:
        raise UsageError(f"this is the program inside a pod of weft; its environment lacks {error}") from None


def unpack(folder: Path | None, work: Path | None, expected: str) -> Path | None:
    """Unpack the submitter's folder and return where it is."""
    if folder is None or work is None:
        return None
    archive = (folder / _ARCHIVE).read_bytes()
    digest = hashlib.sha256(archive).hexdigest()
    if not digest.startswith(expected):
        raise FailedError(f"the archive of the submitted folder is damaged: {digest[:16]}, not {expected[:16]}")
    work.mkdir(parents=True, exist_ok=True)
    with tarfile.open(fileobj=io.BytesIO(archive), mode="r:gz") as packed:
        packed.extractall(work, filter="data")
    return work


def unpack_only(environment: Mapping[str, str]) -> None:
    """Unpack the submitter's folder for a container that has no weft in it."""
    try:
        folder, work = Path(environment["WEFT_FOLDER"]), Path(environment["WEFT_WORK"])
    except KeyError as error:
        raise UsageError(f"this is the program that unpacks a folder; its environment lacks {error}") from None
    unpack(folder, work, environment.get("WEFT_FOLDER_DIGEST", ""))


def run(command: tuple[str, ...], environment: Mapping[str, str]) -> int:
    """Be the program of a pod; returns its exit status."""
    if "WEFT_UNPACK_ONLY" in environment:
        unpack_only(environment)
        return 0
    if "WEFT_PREFLIGHT" in environment:
        return preflight(environment)
    try:
        environment = spelled_out(environment)
    except (KeyError, ValueError, TypeError):
        raise UsageError("this is the program inside a pod of weft; its variable WEFT_POD cannot be read") from None
    around = read(environment)
    work = unpack(around.folder, around.work, around.digest)
    if work is not None:
        os.chdir(work)
    if command:
        try:
            os.execvpe(command[0], command, environment)  # noqa: S606 - the job's own command, in the job's own pod
        except OSError as error:
            raise FailedError(f"{command[0]} cannot be run: {error.strerror}") from None
    if around.training is None:
        raise UsageError("a pod needs a command or a training")
    folder = around.runs / f"{around.job}-{around.uid[:8]}"
    folder.mkdir(parents=True, exist_ok=True)
    about = {
        "job": f"{environment['WEFT_NAMESPACE']}/{around.job}",
        "uid": around.uid,
        "node": environment["WEFT_NODE"],
    }
    with reporting(environment.get("WEFT_AGGREGATOR", ""), about, folder):
        if around.nodes == 1:
            return _supervised(around.training, folder)
        return _in_a_gang(around, around.training, folder)


def _supervised(job: JobSpec, folder: Path) -> int:
    from weft.engines.supervisor import Supervisor

    result = Supervisor(job, folder, resume=True).run()
    return 0 if result["state"] == "finished" else STOPPED


def _in_a_gang(around: PodSettings, job: JobSpec, folder: Path) -> int:
    """Be one host of a training on several pods."""
    from weft.engines.supervisor.hosts.agent import served
    from weft.engines.supervisor.hosts.coordinator import GangTask

    task = GangTask(job, folder, around.nodes, around.place, own_address(around.address, around.port), around.attempt)
    ending = served(task)
    if ending.text:
        sys.stderr.write(f"{ending.text}\n")
    return {"finished": 0, "stopped": STOPPED}.get(ending.kind, TRY_AGAIN)


def own_address(towards: str, port: int) -> str:
    """Return the address of this machine on the way to another one: nothing is sent."""
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as way:
            way.connect((towards, port))
            return way.getsockname()[0]
    except OSError as error:
        raise FailedError(f"there is no way to the first pod at {towards}: {error}") from None
