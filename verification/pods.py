"""A training on several pods as process groups of this machine, and what it came to."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from weft.engines.supervisor.hosts.gang_folder import CoordinatorAddress, GangFolder
from weft.specs.job import JobSpec
from weft.training.run_dir import RunRecord, records

_PROGRAM = "from weft.cli.main import run; run()"
_PATIENCE_S = 240.0


@dataclass
class Gang:
    """The pods of one training."""

    folder: Path
    job: JobSpec
    hosts: int = 2
    attempt: int = 1
    pods: dict[int, subprocess.Popen[bytes]] = field(default_factory=dict)

    def start(self, place: int) -> None:
        """Start the pod of a place."""
        plan = self.job.plan
        assert plan != "auto"
        told = {
            "job": "gang", "space": "space", "uid": "0123456789abcdef", "attempt": self.attempt, "node": f"n{place}",
            "place": place, "nodes": self.hosts, "gpus": plan.ranks // self.hosts, "address": "127.0.0.1", "port": 9,
            "devices": [],
        }  # fmt: skip
        training = json.dumps(self.job.as_written())
        given = {"WEFT_POD": json.dumps(told), "WEFT_RUNS": str(self.folder), "WEFT_TRAINING": training}
        with self.log(place).open("ab") as log:
            self.pods[place] = subprocess.Popen(  # noqa: S603 - our own program
                [sys.executable, "-c", _PROGRAM, "pod"],
                env={**os.environ, **given}, stdout=log, stderr=log, start_new_session=True,
            )  # fmt: skip

    def log(self, place: int) -> Path:
        """Return what a pod has printed."""
        return self.folder / f"pod-{place}.log"

    @property
    def runs(self) -> Path:
        """Return the folder of its runs."""
        return self.folder / "gang-01234567"

    def coordinator(self) -> CoordinatorAddress:
        """Return where the newest coordinator is, as soon as there is one."""
        shared = GangFolder(self.runs)
        until(lambda: shared.address(shared.highest()) is not None)
        address = shared.address(shared.highest())
        assert address is not None
        return address

    def steps(self) -> int:
        """Return how many steps are written down."""
        with contextlib.suppress(Exception):
            return len(self.record().steps())
        return 0

    def record(self) -> RunRecord:
        """Return the only run."""
        (found,) = records(self.runs)
        return found

    def lose(self, place: int) -> None:
        """End a pod's program at once, and what it leaves behind as the end of a container would."""
        self.pods[place].kill()
        self.pods[place].wait()

    def statuses(self) -> dict[int, int]:
        """Wait for every pod and return how each ended."""
        deadline = time.monotonic() + _PATIENCE_S
        found = {place: pod.wait(max(1.0, deadline - time.monotonic())) for place, pod in self.pods.items()}
        for place in self.pods:
            # What a test shows of a failure.
            sys.stdout.write(f"--- pod {place} ended with {found[place]}\n{self.log(place).read_text()[-4000:]}\n")
        return found

    def result(self) -> Mapping[str, Any]:
        """Return what it came to."""
        found = self.record().result()
        assert found is not None, {place: self.log(place).read_text()[-2000:] for place in self.pods}
        return found


@contextlib.contextmanager
def gang(folder: Path, job: JobSpec, hosts: int = 2) -> Iterator[Gang]:
    """Start the pods of a training and leave none behind."""
    folder.mkdir(parents=True, exist_ok=True)
    one = Gang(folder, job, hosts)
    try:
        for place in range(hosts):
            one.start(place)
        yield one
    finally:
        for pod in one.pods.values():
            with contextlib.suppress(ProcessLookupError):
                os.killpg(pod.pid, signal.SIGKILL)
            pod.wait()


def until(question: Callable[[], bool], patience_s: float = 120.0) -> None:
    """Wait for a yes."""
    deadline = time.monotonic() + patience_s
    while not question():
        assert time.monotonic() < deadline, "not so in time"
        time.sleep(0.05)
