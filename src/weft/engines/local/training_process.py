"""A training as a job: the supervisor in a process of its own, with its state in the job's folder.

A lost rank is the supervisor's business and does not end the job. A job that is asked to leave writes a checkpoint and
ends with the status that means "try again"; the next attempt goes on from there, exactly. What it has done so far
stands in `progress.json`, for the engine to see.
"""

import json
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from weft.cluster.records.exit_status import TRY_AGAIN
from weft.core.errors import WeftError
from weft.core.specfile import validate
from weft.engines.local.atomic_files import read_document, write_document
from weft.engines.local.launches import FAULTS, JOB, PROGRESS, RESULT, RUNS
from weft.engines.supervisor import Supervisor
from weft.specs.faults import FaultsSpec
from weft.specs.job import JobSpec
from weft.training import run_dir

_EVERY_S = 1.0
_LINES = 20


class JobSupervisor(Supervisor):
    """A supervisor that shows which processes its slots are."""

    def slots(self) -> dict[int, int]:
        """Return the process number of each slot's rank."""
        if self._generation is None:
            return {}
        processes = self.host.processes()
        return {slot.number: processes[rank] for rank, slot in enumerate(self._generation.slots) if rank in processes}


class ProgressWriter:
    """Writes down how far a training is, now and then, and prints a line for people."""

    def __init__(self, folder: Path, job: JobSpec) -> None:
        """Write into `folder`."""
        self._folder, self._job = folder, job
        self._written = 0.0
        self._every = max(1, job.steps // _LINES)
        self.supervisor: JobSupervisor | None = None

    def __call__(self, line: Mapping[str, Any]) -> None:
        """Take in one line of the supervisor."""
        if "incident" in line:
            _say(f"after step {line['step']}: {str(line['incident']).splitlines()[0]}; recovering")
        elif "problem" in line:
            _say(str(line["problem"]))
        elif "loss" in line:
            step = line["step"]
            if step % self._every == 0 or step == self._job.steps:
                loss = "not finite" if line["loss"] is None else f"{line['loss']:.4f}"
                _say(f"step {step} of {self._job.steps}  loss {loss}")
            if time.monotonic() - self._written >= _EVERY_S:
                self.write(step)

    def write(self, step: int) -> None:
        """Write down that `step` steps are done."""
        self._written = time.monotonic()
        assert self.supervisor is not None, "only a supervisor's lines are written down"
        document = {"step": step, "steps": self._job.steps, "checkpoint_ms": self._checkpoint_ms(),
                    "slots": self.supervisor.slots(), "incidents": self.supervisor.records.incidents}  # fmt: skip
        write_document(self._folder / PROGRESS, document)

    def _checkpoint_ms(self) -> int | None:
        found = run_dir.latest(self._folder / RUNS, self._job)
        if found is None or not (kept := found.checkpoints()):
            return None
        return int(max(path.stat().st_mtime for path, _ in kept) * 1000)


def run(folder: Path, attempt: int) -> int:
    """Run the training in `folder` and return its exit status."""
    job = validate(read_document(folder / JOB) or {}, JobSpec, str(folder / JOB))
    broken = read_document(folder / FAULTS) if attempt == 1 else None
    faults = None if broken is None else validate(broken, FaultsSpec, str(folder / FAULTS))
    resume = run_dir.latest(folder / RUNS, job) is not None
    progress = ProgressWriter(folder, job)
    supervisor = JobSupervisor(job, folder / RUNS, resume=resume, faults=faults, on_line=progress)
    progress.supervisor = supervisor
    result = supervisor.run()
    write_document(folder / RESULT, json.loads(json.dumps(result, default=str)))
    progress.write(int(result.get("steps") or 0))
    return 0 if result.get("state") == "finished" else TRY_AGAIN


def main(folder: Path, attempt: int) -> int:
    """Run the training in `folder`; errors are sentences in the log."""
    try:
        return run(folder, attempt)
    except KeyboardInterrupt:
        return TRY_AGAIN
    except WeftError as error:
        _say(f"error: {error}")
        return error.exit_status


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), int(sys.argv[2])))
