"""Starts the ranks of a run on this machine and waits for them: a preloaded fork server, one store, no orphans.

The parent owns the rendezvous store, with a prefix for each generation of ranks, so that no rank's death takes it away
and no generation reads another's addresses. Ranks ignore Ctrl-C; the parent turns it into a request to stop that every
rank obeys at the same step. What the ranks do is a function named by the caller.
"""

import contextlib
import multiprocessing
import multiprocessing.forkserver
import os
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from typing import TYPE_CHECKING, Any

from weft.core.errors import FailedError, UsageError, WeftError
from weft.training.launch.child_process import ChildProcess
from weft.training.launch.rank_place import HOST, PATIENCE, RankSetting, Reporter
from weft.training.launch.rank_process import Target, rank_main

if TYPE_CHECKING:
    from weft.training.checked_collectives import Checks

_GRACE_S = 5.0
_HEARING_S = 1.0
_SUDDEN = 1
_ERRORS: dict[str, type[WeftError]] = {"UsageError": UsageError, "SpecError": UsageError}


@dataclass
class Child:
    """One rank as its parent sees it."""

    process: ChildProcess
    """Its process."""
    pipe: Connection
    """What it says."""
    open: bool = True
    """Whether it may still say something."""
    failed: bool = False
    """Whether it has said that it failed."""


def open_store() -> Any:
    """Return a rendezvous store that this process owns, with its `port`; ranks die, the store stays."""
    import torch.distributed as dist

    return dist.TCPStore(HOST, 0, is_master=True, wait_for_workers=False, timeout=PATIENCE)


def spawn(target: str | Target, setting: RankSetting, arguments: dict[str, Any]) -> Child:
    """Start one rank from the preloaded fork server."""
    context = fork_server()
    ours, theirs = context.Pipe()
    process = context.Process(target=rank_main, args=(target, setting, theirs, arguments), daemon=True)
    process.start()
    theirs.close()
    return Child(ChildProcess(process), ours)


def start_fork_server() -> None:
    """Start the server already, so that it loads torch while this process does."""
    fork_server()
    multiprocessing.forkserver.ensure_running()


def call(main: Callable[[str, str], Any], job: str, folder: str, reporter: Reporter) -> Any:
    """Call somebody's own training loop; its session speaks to the supervisor by itself."""
    del reporter
    return main(job, folder)


def fork_server() -> Any:
    """Return the start method whose processes have torch already, with its server started."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["weft.training.preload"])
    # Asking the CUDA runtime for GPUs in the fork server would spoil it for the ranks; NVML may be asked.
    os.environ.setdefault("PYTORCH_NVML_BASED_CUDA_CHECK", "1")
    return context


@dataclass
class Ranks:
    """The ranks of one generation."""

    target: str
    """What they run, "module:function"; it gets `reporter` and the arguments."""
    count: int
    """How many."""
    arguments: dict[str, Any]
    """What each of them is given."""
    generation: int = 0
    """Which start this is."""
    checks: "Checks | None" = None
    """How their collectives are checked, where they are."""
    backend: str = "auto"
    """What carries bytes between them, as the job says it."""
    on_message: Callable[[int, str, Any], None] | None = None
    """Called with (rank, kind, content) for everything that ranks report on the way."""
    results: dict[int, Any] = field(default_factory=dict)
    """What each rank returned."""

    def run(self) -> list[Any]:
        """Start the ranks, wait for them, and return what each returned; raise what one of them failed with."""
        store = open_store()
        children = [
            spawn(
                self.target,
                RankSetting(rank, self.count, store.port, self.generation, checks=self.checks, backend=self.backend),
                self.arguments,
            )
            for rank in range(self.count)
        ]
        try:
            with stop_on_signal(lambda: _ask(children)) as asked:
                self._listen(children, asked)
        finally:
            _end(children)
        return [self.results[rank] for rank in range(self.count)]

    def _listen(self, children: list[Child], asked: list[int]) -> None:
        """Hear everybody out; raise the first cause where some have failed."""
        failures: list[_Failure] = []
        deadline = None
        while any(child.open for child in children):
            left = None if deadline is None else max(0.0, deadline - time.monotonic())
            ready = wait([child.pipe for child in children if child.open], left)
            if not ready:
                break
            for rank, child in enumerate(children):
                if child.pipe in ready and (failure := self._hear(rank, child)) is not None:
                    failures.append(failure)
                    # One rank's end makes its neighbours fail too: the cause is among the first to be heard.
                    deadline = deadline or time.monotonic() + _HEARING_S
        if failures:
            cause = min(failures, key=lambda failure: failure.order)
            if asked and cause.order == _SUDDEN:
                # Ranks that were still starting up know no better way to stop.
                raise KeyboardInterrupt
            raise cause.error

    def _hear(self, rank: int, child: Child) -> "_Failure | None":
        try:
            kind, content = child.pipe.recv()
        except (EOFError, OSError):
            child.open = False
            if rank in self.results or child.failed:
                return None
            child.process.join(_GRACE_S)
            return _Failure(_SUDDEN, FailedError(f"rank {rank} died ({how(child.process.exitcode)})"))
        if kind == "failed":
            child.failed = True
            name, text = content
            if name:
                return _Failure(0, _ERRORS.get(name, FailedError)(text))
            # What torch says of a lost connection is an effect of another rank's end.
            return _Failure(3 if "connection" in text.lower() else 2, FailedError(f"rank {rank} failed\n{text}"))
        if kind == "done":
            self.results[rank] = content
        elif self.on_message is not None and kind != "joined":
            self.on_message(rank, kind, content)
        return None


@dataclass(frozen=True)
class _Failure:
    """Why a rank failed, and how near that is to the cause: 0 for words, 1 for a sudden end, then errors."""

    order: int
    error: WeftError


def how(code: int | None) -> str:
    """Return in words how a process ended."""
    if code is None:
        return "nobody knows how: its fork server has gone"
    return f"signal {signal.Signals(-code).name}" if code < 0 else f"status {code}"


def _ask(children: Sequence[Child]) -> None:
    """Ask ranks to stop after this step."""
    for child in children:
        child.process.signal(signal.SIGTERM)


@contextlib.contextmanager
def stop_on_signal(ask: Callable[[], None]) -> Iterator[list[int]]:
    """Turn the first Ctrl-C into a call of `ask`, the second into an end at once.

    What is yielded fills with the signals that came.
    """
    asked: list[int] = []

    def on_signal(number: int, frame: object) -> None:
        del frame
        if asked and number == signal.SIGINT:
            raise KeyboardInterrupt
        asked.append(number)
        ask()

    try:
        before = {number: signal.signal(number, on_signal) for number in (signal.SIGINT, signal.SIGTERM)}
    except ValueError:
        # Not the main thread: signals are somebody else's business here.
        yield asked
        return
    try:
        yield asked
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _end(children: list[Child]) -> None:
    """Leave no rank behind: each gets a moment to end by itself unless another has failed."""
    deadline = time.monotonic() + _GRACE_S
    for child in children:
        if child.open:
            child.process.kill()
        child.process.join(max(0.1, deadline - time.monotonic()))
        if child.process.is_alive():
            child.process.kill()
            child.process.join()
        child.pipe.close()
