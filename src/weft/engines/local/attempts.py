"""Attempts to run jobs: the files and processes of each, whoever started them.

An attempt is a folder. The engine writes `order.json` and starts a runner; the runner claims the attempt and at the end
writes `exit.json`. Everything here can be done twice, and by another engine than the one that began it.
"""

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal

from weft.cluster.lifecycle import ProcessEnd
from weft.cluster.records.exit_status import BY_SIGNAL, NOT_FOUND
from weft.cluster.records.job import Job, JobState
from weft.engines.local import runner
from weft.engines.local.atomic_files import read_document, write_document
from weft.engines.local.home import Home
from weft.engines.local.launches import FAULTS, JOB, RESULT, order_of, with_package
from weft.engines.local.processes import Identity
from weft.engines.local.store import StoredJob

_STARTS = 3
_LARGEST_RESULT_BYTES = 2**20
_TAIL_BYTES = 16_384
_TOP_BITS, _CONTINUED = 0xC0, 0x80
"""A byte of UTF-8 with these two top bits continues a character."""


class Attempts:
    """Starts, watches and ends runners."""

    def __init__(self, home: Home, pulse: Callable[[str], None]) -> None:
        """Work below `home`."""
        self._home, self._pulse = home, pulse
        self._children: dict[tuple[str, int], subprocess.Popen[bytes]] = {}
        self._starts: dict[tuple[str, int], int] = {}
        self._claims: dict[tuple[str, int], Identity] = {}
        self._signalled: set[tuple[str, int, int]] = set()

    def prepare(self, job: Job, entry: StoredJob) -> None:
        """Write the order of a job's next attempt; nothing starts yet."""
        folder = self._folder(entry)
        folder.mkdir(parents=True, exist_ok=True)
        order = order_of(job, entry.launch, self._home.job(job.id), entry.attempt, self._home.snapshots)
        if entry.launch.training is not None:
            write_document(self._home.job(job.id) / JOB, entry.launch.training)
            if entry.launch.faults is not None:
                write_document(self._home.job(job.id) / FAULTS, entry.launch.faults)
        write_document(folder / runner.ORDER, order)

    def begin(self, entry: StoredJob) -> None:
        """Start a runner for the attempt; if there is one already, the new one leaves at once."""
        place = (entry.job.id, entry.attempt)
        self._pulse("begin")
        with (self._folder(entry) / "runner.log").open("ab") as log:
            self._children[place] = subprocess.Popen(  # noqa: S603 - our own module
                [sys.executable, "-m", runner.__name__, str(self._folder(entry))],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True, env=_runner_environment(),
            )  # fmt: skip
        self._starts[place] = self._starts.get(place, 0) + 1
        self._pulse("begun")

    def resume(self, entry: StoredJob) -> None:
        """Go on with an attempt that an earlier engine recorded, or this one: start it if nobody is about to run it."""
        child = self._children.get((entry.job.id, entry.attempt))
        if child is not None and child.poll() is None:
            return
        if self._claimed(entry) is None and not (self._folder(entry) / runner.EXIT).exists():
            self.begin(entry)

    def look(self, entry: StoredJob) -> ProcessEnd | Literal["runs"] | None:
        """Return what is new about an attempt: that it runs, that it has ended, or nothing."""
        folder = self._folder(entry)
        if (done := read_document(folder / runner.EXIT)) is not None:
            return self._ended(entry, done)
        claimed = self._claimed(entry)
        if claimed is None:
            return self._unclaimed(entry)
        if not claimed.alive():
            # It may have written its last word between our two looks.
            done = read_document(folder / runner.EXIT)
            return self._ended(entry, done) if done is not None else self._lost(entry)
        return "runs" if entry.job.state is JobState.STARTING else None

    def ask(self, entry: StoredJob) -> None:
        """Ask the job to end; its runner makes it, after the grace that was ordered."""
        self._signal(entry, signal.SIGTERM)

    def end(self, entry: StoredJob) -> None:
        """End the job now."""
        self._signal(entry, signal.SIGUSR1)

    def close(self) -> None:
        """Let go of the runners: they go on."""
        for child in self._children.values():
            # Python would complain of a process that nobody has waited for; outliving us is the purpose.
            child.returncode = 0
        self._children.clear()

    def reap(self) -> None:
        """Fetch runners that have ended, so that they do not linger."""
        for place, child in list(self._children.items()):
            if child.poll() is not None:
                del self._children[place]

    def result(self, entry: StoredJob) -> dict[str, Any] | None:
        """Return what the job has reported: its result file, or the last line of its log where that is an object."""
        path = self._home.job(entry.job.id) / RESULT
        with contextlib.suppress(OSError):
            if path.stat().st_size <= _LARGEST_RESULT_BYTES and (found := read_document(path)) is not None:
                return found
        text, _ = self.log(entry.job.id, entry.attempt, 0, -_TAIL_BYTES, _TAIL_BYTES)
        lines = [line for line in text.splitlines() if line.strip()]
        with contextlib.suppress(ValueError):
            found = json.loads(lines[-1]) if lines else None
            return found if isinstance(found, dict) else None
        return None

    def log(self, name: str, attempt: int, rank: int, offset: int, most: int) -> tuple[str, int]:
        """Return up to `most` bytes of a job's output from `offset` on, and where it goes on; below 0 from the end."""
        path = self._home.attempt(name, attempt) / f"log-{rank}"
        try:
            with path.open("rb") as file:
                size = file.seek(0, os.SEEK_END)
                start = min(size, max(0, size + offset if offset < 0 else offset))
                file.seek(start)
                found = file.read(most)
        except OSError:
            return "", 0
        # A character is not cut in two: what is left of it comes with the next part.
        whole = _whole_characters(found) if len(found) == most else found
        return whole.decode("utf-8", errors="replace"), start + len(whole)

    def _folder(self, entry: StoredJob) -> Path:
        return self._home.attempt(entry.job.id, entry.attempt)

    def _claimed(self, entry: StoredJob) -> Identity | None:
        place = (entry.job.id, entry.attempt)
        if place not in self._claims and (found := read_document(self._folder(entry) / runner.CLAIM)) is not None:
            self._claims[place] = Identity.from_plain(found)
        return self._claims.get(place)

    def _unclaimed(self, entry: StoredJob) -> ProcessEnd | None:
        """Start an attempt again whose runner ended before it could claim it."""
        place = (entry.job.id, entry.attempt)
        child = self._children.get(place)
        if child is not None and child.poll() is None:
            return None
        if self._claimed(entry) is not None:
            return None
        if self._starts.get(place, 0) >= _STARTS:
            return ProcessEnd(
                runner.NOT_STARTED, f"its runner could not be started; see {self._folder(entry) / 'runner.log'}"
            )
        self.begin(entry)
        return None

    def _ended(self, entry: StoredJob, done: Mapping[str, Any]) -> ProcessEnd:
        self._forget(entry)
        return ProcessEnd(int(done["status"]), _how(int(done["status"]), done.get("rank")))

    def _lost(self, entry: StoredJob) -> ProcessEnd:
        """End what a vanished runner may have left behind."""
        known = read_document(self._folder(entry) / runner.CHILDREN) or {"children": []}
        for child in known["children"]:
            Identity.from_plain(child).signal_group(signal.SIGKILL)
        self._forget(entry)
        return ProcessEnd(128 + signal.SIGKILL, "its runner was killed, or the machine was started anew", lost=True)

    def _forget(self, entry: StoredJob) -> None:
        place = (entry.job.id, entry.attempt)
        self._claims.pop(place, None)
        self._starts.pop(place, None)
        self._signalled = {word for word in self._signalled if word[:2] != place}

    def _signal(self, entry: StoredJob, number: int) -> None:
        # Once each: a second request to end means "now" to many programs.
        word = (entry.job.id, entry.attempt, number)
        claimed = self._claimed(entry)
        if claimed is not None and word not in self._signalled and claimed.signal(number):
            self._signalled.add(word)


def _runner_environment() -> dict[str, str]:
    """Return the environment of a runner: ours, with this package to be found."""
    return {**os.environ, "PYTHONPATH": with_package(os.environ.get("PYTHONPATH", ""))}


def _how(status: int, rank: int | None) -> str:
    where = "" if not rank else f" on rank {rank}"
    if status == 0:
        return "done"
    if status == NOT_FOUND:
        return f"its command was not found{where}"
    if status > BY_SIGNAL:
        with contextlib.suppress(ValueError):
            return f"ended by {signal.Signals(status - BY_SIGNAL).name}{where}"
    return f"ended with status {status}{where}"


def _whole_characters(found: bytes) -> bytes:
    for cut in range(1, min(4, len(found)) + 1):
        if found[-cut] & _TOP_BITS != _CONTINUED:
            # The last character begins here; keep it if it is complete.
            try:
                found[-cut:].decode("utf-8")
            except UnicodeDecodeError:
                return found[:-cut]
            return found
    return found
