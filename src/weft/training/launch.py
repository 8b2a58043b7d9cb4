"""Starts the ranks of a run on this machine and waits for them: a preloaded fork server, one store, no orphans.

The parent owns the rendezvous store, with a prefix for each generation of ranks, so that no rank's death takes it away
and no generation reads another's addresses. Ranks ignore Ctrl-C; the parent turns it into a request to stop that every
rank obeys at the same step. What the ranks do is a function named by the caller.
"""

import contextlib
import importlib
import multiprocessing
import os
import signal
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import timedelta
from multiprocessing.connection import Connection, wait
from typing import Any

from weft.core.errors import FailedError, UsageError, WeftError

_HOST = "127.0.0.1"
_PATIENCE = timedelta(minutes=10)
_GRACE_S = 5.0
_HEARING_S = 1.0
_ERRORS: dict[str, type[WeftError]] = {"UsageError": UsageError, "SpecError": UsageError}


@dataclass(frozen=True)
class Setting:
    """Where a rank stands, as the launcher tells it."""

    rank: int
    """Its number."""
    ranks: int
    """How many there are."""
    port: int
    """Port of the parent's store on this machine."""
    generation: int = 0
    """Counts the times that the ranks were started; each has addresses of its own."""


class Reporter:
    """How a rank speaks to its parent."""

    def __init__(self, pipe: Connection) -> None:
        """Speak into `pipe`."""
        self._pipe = pipe

    def send(self, kind: str, content: Any) -> None:
        """Say something; a parent that has gone is no reason to fail."""
        with contextlib.suppress(OSError):
            self._pipe.send((kind, content))


Target = Callable[..., Any]


def _named(target: str) -> Target:
    module, _, name = target.partition(":")
    return getattr(importlib.import_module(module), name)


def _rank_main(target: str, setting: Setting, pipe: Connection, arguments: dict[str, Any]) -> None:
    """Be one rank: join the group, do the work, say how it went."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    reporter = Reporter(pipe)
    status = 1
    try:
        join(setting)
        result = _named(target)(reporter=reporter, **arguments)
        reporter.send("done", result)
        status = 0
    except WeftError as error:
        reporter.send("failed", (type(error).__name__, str(error)))
        status = error.exit_status
    except BaseException:  # noqa: BLE001 - whatever it was, the parent must hear of it
        reporter.send("failed", ("", traceback.format_exc()))
    finally:
        pipe.close()
        # Threads of collectives that wait for dead ranks must not hold the process.
        os._exit(status)


def join(setting: Setting) -> None:
    """Join the group of ranks that `setting` describes."""
    import torch
    import torch.distributed as dist

    os.environ.update(RANK=str(setting.rank), WORLD_SIZE=str(setting.ranks), LOCAL_RANK=str(setting.rank))
    store = dist.TCPStore(_HOST, setting.port, is_master=False, timeout=_PATIENCE)
    dist.init_process_group(
        "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo",
        store=dist.PrefixStore(f"generation{setting.generation}/", store),
        rank=setting.rank,
        world_size=setting.ranks,
        timeout=_PATIENCE,
    )


@dataclass
class _Child:
    """One rank as its parent sees it."""

    process: Any
    pipe: Connection
    open: bool = True
    failed: bool = False


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
    on_message: Callable[[int, str, Any], None] | None = None
    """Called with (rank, kind, content) for everything that ranks report on the way."""
    results: dict[int, Any] = field(default_factory=dict)
    """What each rank returned."""

    def run(self) -> list[Any]:
        """Start the ranks, wait for them, and return what each returned; raise what one of them failed with."""
        import torch.distributed as dist

        store = dist.TCPStore(_HOST, 0, is_master=True, wait_for_workers=False, timeout=_PATIENCE)
        children = [self._start(rank, store.port) for rank in range(self.count)]
        try:
            with _stop_on_signal(children):
                self._listen(children)
        finally:
            _end(children)
        return [self.results[rank] for rank in range(self.count)]

    def _start(self, rank: int, port: int) -> _Child:
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(["weft.training.preload"])
        # Asking the CUDA runtime for GPUs in the fork server would spoil it for the ranks; NVML may be asked.
        os.environ.setdefault("PYTORCH_NVML_BASED_CUDA_CHECK", "1")
        ours, theirs = context.Pipe(duplex=False)
        setting = Setting(rank, self.count, port, self.generation)
        process = context.Process(target=_rank_main, args=(self.target, setting, theirs, self.arguments), daemon=True)
        process.start()
        theirs.close()
        return _Child(process, ours)

    def _listen(self, children: list[_Child]) -> None:
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
            raise min(failures, key=lambda failure: failure.order).error

    def _hear(self, rank: int, child: _Child) -> "_Failure | None":
        try:
            kind, content = child.pipe.recv()
        except (EOFError, OSError):
            child.open = False
            if rank in self.results or child.failed:
                return None
            child.process.join(_GRACE_S)
            return _Failure(1, FailedError(f"rank {rank} ended without a word ({_how(child.process.exitcode)})"))
        if kind == "failed":
            child.failed = True
            name, text = content
            if name:
                return _Failure(0, _ERRORS.get(name, FailedError)(text))
            # What torch says of a lost connection is an effect of another rank's end.
            return _Failure(3 if "connection" in text.lower() else 2, FailedError(f"rank {rank} failed\n{text}"))
        if kind == "done":
            self.results[rank] = content
        elif self.on_message is not None:
            self.on_message(rank, kind, content)
        return None


@dataclass(frozen=True)
class _Failure:
    """Why a rank failed, and how near that is to the cause: 0 for words, 1 for a sudden end, then errors."""

    order: int
    error: WeftError


def _how(code: int | None) -> str:
    if code is None:
        return "still running"
    return f"signal {signal.Signals(-code).name}" if code < 0 else f"status {code}"


@contextlib.contextmanager
def _stop_on_signal(children: list[_Child]) -> Iterator[None]:
    """Turn the first Ctrl-C into a request that the ranks stop after this step, the second into an end at once."""
    asked = False

    def ask(number: int, frame: object) -> None:
        nonlocal asked
        del frame
        if asked and number == signal.SIGINT:
            raise KeyboardInterrupt
        asked = True
        for child in children:
            if child.process.pid is not None and child.process.is_alive():
                os.kill(child.process.pid, signal.SIGTERM)

    try:
        before = {number: signal.signal(number, ask) for number in (signal.SIGINT, signal.SIGTERM)}
    except ValueError:
        # Not the main thread: signals are somebody else's business here.
        yield
        return
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _end(children: list[_Child]) -> None:
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
