"""The process around one attempt of one job: it outlives the engine and writes down how the job ended.

Started with the folder of the attempt, which holds the engine's `order.json`. Whoever writes `claim.json` first runs
the attempt; a second runner of the same attempt leaves at once, so an engine that cannot know whether its start
succeeded may simply start again. SIGTERM asks the job to end, SIGUSR1 ends it. Standard library only.
"""

import contextlib
import ctypes
import errno
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from weft.cluster.records.exit_status import BY_SIGNAL, NOT_FOUND, NOT_STARTED
from weft.engines.local.atomic_files import PASSING, claim, is_passing, patiently, read_document, write_document
from weft.engines.local.processes import Identity

ORDER, CLAIM, CHILDREN, EXIT = "order.json", "claim.json", "children.json", "exit.json"
_DEATH_SIGNAL = 1
_LEAST_GRACE_S = 0.1
_PIPE_BYTES = 65_536
_LOOK_S, _LINGER_S = 0.05, 1.0
_LIBC = ctypes.CDLL(None)


class Runner:
    """Runs the processes of one attempt, one for each node, as a gang: all end with the first that fails."""

    def __init__(self, folder: Path, order: Mapping[str, Any]) -> None:
        """Prepare to carry out `order` in `folder`."""
        self._folder, self._order = folder, order
        self._children: dict[int, int] = {}
        self._outputs: list[OutputLog] = []
        self._asked, self._killed = False, False
        self._status: int | None = None
        self._rank: int | None = None
        self._woken = -1

    def listen(self) -> None:
        """Hear signals from now on; called before the claim, so that none ends the runner unheard.

        Python runs a handler when its main thread comes back from a system call. One that comes just before the call,
        or to another thread, does not end it: so each also leaves a byte in a pipe, on which the main thread waits.
        """
        self._woken, wake = os.pipe()
        os.set_blocking(wake, False)
        signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.signal(signal.SIGTERM, lambda *_: self._ask())
        signal.signal(signal.SIGUSR1, lambda *_: self._end())
        signal.signal(signal.SIGALRM, lambda *_: self._kill())
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGHUP, signal.SIG_IGN)

    def run(self) -> None:
        """Run the job to its end and write down how it was."""
        begun = time.time_ns() // 1_000_000
        try:
            work = patiently(self._work)
            for rank, command in enumerate(self._order["commands"]):
                if self._status is None and not self._asked:
                    self._start(rank, command, work)
            if self._asked or self._status is not None:
                # A signal may have come between a child's start and its being known.
                self._signal(signal.SIGKILL if self._killed else signal.SIGTERM)
                self._later()
            patiently(self._note)
            for output in self._outputs:
                output.start()
            self._wait()
        except OSError as error:
            self._say(0, f"weft: the job could not be started: {error}")
            self._status = NOT_STARTED
            self._kill()
        for output in self._outputs:
            output.finish()
        status = self._status
        if status is None:
            status = BY_SIGNAL + signal.SIGTERM if self._asked else 0
        exit_record = {"status": status, "rank": self._rank, "asked": self._asked, "begun_ms": begun,
                       "ended_ms": time.time_ns() // 1_000_000}  # fmt: skip
        # Without this word the job would be taken for lost, however well it went: a full disk is waited out.
        patiently(lambda: write_document(self._folder / EXIT, exit_record))

    def _work(self) -> Path:
        """Return the job's working folder; the first attempt makes it, from the snapshot where there is one."""
        work = Path(self._order["work"])
        if not work.exists():
            part = work.with_name(f".{work.name}.{os.getpid()}.part")
            shutil.rmtree(part, ignore_errors=True)
            if self._order.get("snapshot"):
                _copied(self._order["snapshot"], part)
            else:
                part.mkdir(parents=True)
            part.rename(work)
        return work

    def _start(self, rank: int, command: Mapping[str, Any], work: Path) -> None:
        output = OutputLog(self._folder / f"log-{rank}")
        try:
            child = subprocess.Popen(  # noqa: S603 - running what was submitted is the purpose
                command["argv"], cwd=work, env=command["environment"], stdin=subprocess.DEVNULL, stdout=output.end,
                stderr=subprocess.STDOUT, process_group=0, preexec_fn=_die_with_parent,  # noqa: PLW1509 - one thread
            )  # fmt: skip
        except (OSError, ValueError, subprocess.SubprocessError) as error:
            self._say(rank, f"weft: {command['argv'][0]} could not be started: {error}")
            self._fail(rank, NOT_FOUND if isinstance(error, FileNotFoundError) else NOT_STARTED)
            return
        finally:
            output.close_end()
        self._outputs.append(output)
        # Fetched by number below: the object must not fetch it by itself.
        child.returncode = 0
        self._children[child.pid] = rank

    def _note(self) -> None:
        known = [Identity.of(pid) for pid in self._children]
        found = [identity.as_plain() for identity in known if identity is not None]
        write_document(self._folder / CHILDREN, {"children": found})

    def _wait(self) -> None:
        """Fetch the children one by one; what they have left behind in their groups ends with them."""
        while self._children:
            pid, how = os.waitpid(-1, os.WNOHANG)
            if pid not in self._children:
                if pid == 0:
                    os.read(self._woken, _PIPE_BYTES)
                continue
            code = os.waitstatus_to_exitcode(how)
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(pid, signal.SIGKILL)
            rank = self._children.pop(pid)
            if code != 0:
                self._fail(rank, code if code > 0 else BY_SIGNAL - code)

    def _fail(self, rank: int, status: int) -> None:
        if self._status is None:
            self._status, self._rank = status, rank
        self._signal(signal.SIGTERM)
        self._later()

    def _ask(self) -> None:
        self._asked = True
        self._signal(signal.SIGTERM)
        self._later()

    def _end(self) -> None:
        self._asked, self._killed = True, True
        self._kill()

    def _kill(self) -> None:
        self._signal(signal.SIGKILL)

    def _later(self) -> None:
        if self._children:
            signal.setitimer(signal.ITIMER_REAL, max(_LEAST_GRACE_S, float(self._order["grace_s"])))

    def _signal(self, number: int) -> None:
        for pid in list(self._children):
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(pid, number)

    def _say(self, rank: int, text: str) -> None:
        # A message is not worth what waits for it.
        with contextlib.suppress(OSError), (self._folder / f"log-{rank}").open("a", encoding="utf-8") as log:
            log.write(text + "\n")


class OutputLog:
    """What the processes of a rank print, written to its log; a full disk makes them wait instead of fail."""

    def __init__(self, log: Path) -> None:
        """Make a pipe whose other end, `end`, a child is given."""
        self._file = patiently(lambda: os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644))
        self._source, self.end = os.pipe()
        self._thread = threading.Thread(target=self._pump, daemon=True)
        self._waits = False
        """Whether the disk is what the output waits for."""

    def close_end(self) -> None:
        """Let go of the child's end, so that the pipe ends with the child."""
        os.close(self.end)

    def start(self) -> None:
        """Write from now on; no process may be started after this, because a fork knows one thread."""
        self._thread.start()

    def finish(self) -> None:
        """Write what is left; a process that has left the job's group and holds the pipe open is not waited for."""
        if self._thread.ident is None:
            self._thread.start()
        left_s = _LINGER_S
        while self._thread.is_alive() and left_s > 0:
            self._thread.join(_LOOK_S)
            if not self._waits:
                left_s -= _LOOK_S

    def _pump(self) -> None:
        while found := os.read(self._source, _PIPE_BYTES):
            with contextlib.suppress(OSError):
                self._write(found)

    def _write(self, found: bytes) -> None:
        """Write to the log; what can never be written, such as more than a limit of the system allows, is dropped."""
        while found:
            try:
                # Part of it may fit.
                found = found[os.write(self._file, found) :]
                self._waits = False
            except OSError as error:
                self._waits = is_passing(error)
                if not self._waits:
                    raise
                time.sleep(_LOOK_S)


def _copied(snapshot: str, part: Path) -> None:
    """Copy a working folder; raises the operating system's own error, which `copytree` hides in a list of texts."""
    try:
        shutil.copytree(snapshot, part, symlinks=True)
    except shutil.Error as error:
        text = str(error.args[0][0][2])
        number = next((number for number in sorted(PASSING) if f"[Errno {number}]" in text), errno.EINVAL)
        raise OSError(number, f"its working folder could not be copied: {text}") from None


def _die_with_parent() -> None:
    """Ask the kernel to end this process when its parent ends: nothing runs that nobody knows of."""
    _LIBC.prctl(_DEATH_SIGNAL, signal.SIGKILL)


def main(folder: Path) -> int:
    """Run the attempt in `folder`, unless somebody else does."""
    order = patiently(lambda: read_document(folder / ORDER))
    myself = Identity.of(os.getpid())
    if order is None or myself is None:
        return 2
    runner = Runner(folder, order)
    runner.listen()
    word = json.dumps(myself.as_plain()) + "\n"
    if not patiently(lambda: claim(folder / CLAIM, word)):
        return 0
    runner.run()
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
