"""Checkpoints that are whole or not there: written in the background, sharded, loadable under another mesh.

A `Store` is a folder of checkpoints. A save copies the state to the CPU, lets training go on, and writes in a thread:
every rank its shards into a hidden folder, then rank 0 the manifest with the digest of every file, and last the rename
that makes it visible. A load takes the newest whose every file matches its manifest and says which ones it had to skip
and why. How shards are cut and read back is `shards`'s business; when to save is the caller's.
"""

import contextlib
import fcntl
import os
import secrets
import shutil
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, Self

import torch.distributed as dist

from weft.core.errors import FailedError, UsageError
from weft.training.checkpoint import dcp
from weft.training.checkpoint.manifest import (
    MANIFEST,
    CheckpointManifest,
    Skipped,
    TensorEntry,
    broken,
    complete,
    problems,
)
from weft.training.launch.process_group import connecting

_PART = ".part"
_LOCK = ".writer"
_PATIENCE = timedelta(minutes=30)


@dataclass(frozen=True, slots=True)
class Loaded:
    """What a load has found."""

    step: int
    """Steps done when the checkpoint was taken."""
    extra: Mapping[str, Any]
    """The plain values that were saved with it."""
    path: Path
    """Its folder."""
    skipped: tuple[Skipped, ...]
    """Newer ones that could not be used; show them to the user."""


class HalfReadError(FailedError):
    """A checkpoint failed while it was being loaded: what was to be filled is neither old nor new."""


Make = Callable[[Mapping[str, TensorEntry]], dict[str, Any]]
"""Makes the tensors to fill from the list of those that are stored."""


class SaveHandle:
    """A save in flight."""

    def __init__(self, step: int) -> None:
        """Begin; `Store.save` makes these."""
        self.step = step
        self._ended = threading.Event()
        self._error: FailedError | None = None

    @property
    def done(self) -> bool:
        """Return whether it has ended, well or not."""
        return self._ended.is_set()

    @property
    def error(self) -> FailedError | None:
        """Return why it failed, where it has ended and failed."""
        return self._error

    def wait(self) -> None:
        """Return when the checkpoint is complete on every rank, or raise why it is not; the older ones are intact."""
        self._ended.wait()
        if self._error is not None:
            raise self._error

    def end(self, error: FailedError | None) -> None:
        """Say that it has ended; the writer calls this once."""
        self._error = error
        self._ended.set()


class CheckpointStore:
    """A folder of checkpoints.

    Making one is collective where torch.distributed is initialised (it forms a process group of its own, so that the
    writer's exchanges never mix with the training's); so are `save` and `load`: every rank calls them alike. Without
    torch.distributed it serves one process.
    """

    def __init__(self, folder: Path | str, keep: int = 2, patience: timedelta = _PATIENCE) -> None:
        """Use `folder`, which is made at the first save, and keep the `keep` newest complete checkpoints in it.

        `patience` is how long a rank waits for the slowest one's files before the save is given up.
        """
        if keep < 1:
            raise UsageError(f"a store keeps at least one checkpoint, not {keep}")
        self.folder = Path(folder)
        self._keep, self._patience = keep, patience
        self._ranks = dcp.RankGroup(_own_group(patience))
        self._staging = dcp.Staging()
        self._in_flight: SaveHandle | None = None
        self._unreported: list[SaveHandle] = []
        self._damaged: set[Path] = set()
        self.before_write: Callable[[], None] | None = None
        """Called before a checkpoint is opened for writing; what it raises fails the save."""
        self.after_write: Callable[[int], None] | None = None
        """Called on rank 0 with the step of a checkpoint that has just become complete."""

    def save(self, step: int, state: Mapping[str, Any], extra: Mapping[str, Any]) -> SaveHandle:
        """Begin to save `state` as it is now, after `step` steps, and return while it is being written.

        `state` maps names to tensors, DTensors, nested dictionaries or anything with `state_dict`; `extra` holds values
        that JSON can. A save that is still in flight is waited for first; its failure is in its own handle and in
        `failures`.
        """
        self.drain()
        manifest = CheckpointManifest(step, 0, extra, {}, {})
        manifest.encode()  # Values that JSON cannot hold are the caller's mistake: raise here, not in the thread.
        handle = SaveHandle(step)
        staged = self._staging.copy(state)
        self._in_flight = handle
        self._unreported.append(handle)
        threading.Thread(target=self._write, args=(handle, staged, dict(extra)), name="checkpoint", daemon=True).start()
        return handle

    def drain(self) -> None:
        """Return when no save is in flight; what it failed with is in `failures`."""
        if self._in_flight is not None:
            with contextlib.suppress(FailedError):
                self._in_flight.wait()

    def failures(self) -> list[FailedError]:
        """Return why saves failed that have ended since the last call, for callers that keep no handles."""
        ended = [handle for handle in self._unreported if handle.done]
        self._unreported = [handle for handle in self._unreported if handle not in ended]
        return [handle.error for handle in ended if handle.error is not None]

    def load(self, state: dict[str, Any] | Make, step: int | None = None) -> Loaded:
        """Fill `state` in place from the newest whole checkpoint, or from that of `step`.

        `state` may be a function that makes what is filled from the list of the checkpoint's tensors.
        The mesh may differ from the one that saved. Damaged ones are skipped and named in what is returned; where a
        `step` was asked for and is damaged, or where none is left, this raises.
        """
        self.drain()
        skipped: list[Skipped] = []
        for path, manifest in self._newest_first(skipped):
            if step is not None and manifest.step != step:
                continue
            bad = self._verified(path, manifest)
            if bad is None:
                self._fill(path, manifest, state)
                return Loaded(manifest.step, manifest.extra, path, tuple(skipped))
            skipped.append(Skipped(path, bad))
            self._damaged.add(path)
        raise FailedError(self._nothing_to_load(step, skipped))

    def _fill(self, path: Path, manifest: CheckpointManifest, state: dict[str, Any] | Make) -> None:
        try:
            made = state if isinstance(state, dict) else state(manifest.tensors)
        except FailedError as error:
            raise FailedError(f"{path} is whole but does not fit this training: {error}") from None
        answers = self._ranks.gather(dcp.attempt(lambda: dcp.read(path, made)))
        failed = next((one for one in answers if isinstance(one, dcp.Failure)), None)
        if failed is not None:
            raise HalfReadError(f"{path} is whole but does not fit what is to be loaded: {failed.reason}")

    def steps(self) -> list[int]:
        """Return the steps of the complete checkpoints, newest first; their files are not read here."""
        return [manifest.step for _, manifest in self.entries()]

    def entries(self) -> list[tuple[Path, CheckpointManifest]]:
        """Return folder and manifest of every complete checkpoint, newest first."""
        return complete(self.folder)

    def regroup(self) -> None:
        """Go on with the ranks that are there now; all of them call it together, none with a save in flight."""
        self._ranks = dcp.RankGroup(_own_group(self._patience))

    def close(self) -> None:
        """Wait for a save in flight and give the copy's memory back."""
        self.drain()
        self._staging.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _newest_first(self, skipped: list[Skipped]) -> list[tuple[Path, CheckpointManifest]]:
        """Return what rank 0 sees, so that every rank tries the same ones in the same order."""
        seen = None
        if self._ranks.rank == 0:
            seen = (complete(self.folder), broken(self.folder))
        entries, unreadable = self._ranks.from_first(seen)
        skipped += unreadable
        self._damaged.update(one.path for one in unreadable)
        return entries

    def _verified(self, path: Path, manifest: CheckpointManifest) -> str | None:
        """Return what is wrong with the files, or nothing; the ranks share the reading."""
        names = sorted(manifest.files)[self._ranks.rank :: self._ranks.size]
        found = [problem for part in self._ranks.gather(problems(path, manifest, names)) for problem in part]
        return "; ".join(found) or None

    def _nothing_to_load(self, step: int | None, skipped: list[Skipped]) -> str:
        what = "no complete checkpoint" if step is None else f"no complete checkpoint of step {step}"
        reasons = "".join(f"\n  {one}" for one in skipped)
        there = self.steps()
        others = ", ".join(str(one) for one in there if one != step)
        hint = f"; there are steps {others}" if step is not None and others else ""
        return f"{self.folder} holds {what}{hint}{reasons}"

    def _write(self, handle: SaveHandle, state: dict[str, Any], extra: dict[str, Any]) -> None:
        """Write one checkpoint; runs in the writer's thread on every rank."""
        error: FailedError | None = None
        outcome = dcp.attempt(lambda: self._write_whole(handle.step, state, extra))
        if isinstance(outcome, dcp.Failure):
            error = FailedError(
                f"{self.folder}: the checkpoint of step {handle.step} was not written: {outcome.reason}"
            )
        handle.end(error)

    def _write_whole(self, step: int, state: dict[str, Any], extra: dict[str, Any]) -> None:
        first = self._ranks.rank == 0
        with contextlib.ExitStack() as stack:
            opened = dcp.attempt(lambda: self._open_part(stack, step)) if first else None
            answer: Path | dcp.Failure = self._ranks.from_first(opened)
            part = dcp.fine(answer)
            if first:
                stack.callback(shutil.rmtree, part, ignore_errors=True)
            dcp.write(
                part,
                state,
                self._ranks,
                lambda files, tensors: self._complete(part, CheckpointManifest(step, 0, extra, files, tensors)),
            )

    def _open_part(self, stack: contextlib.ExitStack, step: int) -> Path:
        """Lock the store, clear what dead writers left, and make a hidden folder for a new checkpoint."""
        if self.before_write is not None:
            self.before_write()
        if not self.folder.exists():
            self.folder.mkdir(parents=True, exist_ok=True)
            dcp.sync_folder(self.folder.parent)
        stack.enter_context(_locked(self.folder))
        for stale in self.folder.glob(f".*{_PART}"):
            shutil.rmtree(stale, ignore_errors=True)
        part = self.folder / f".step-{step:08d}.{secrets.token_hex(4)}{_PART}"
        part.mkdir()
        return part

    def _complete(self, part: Path, manifest: CheckpointManifest) -> None:
        """Seal the checkpoint in `part`, make it visible in one step, and only then remove older ones."""
        entries = complete(self.folder)
        sequence = 1 + max((seen.sequence for _, seen in entries), default=0)
        sealed = CheckpointManifest(manifest.step, sequence, manifest.extra, manifest.files, manifest.tensors)
        with (part / MANIFEST).open("wb") as stream:
            stream.write(sealed.encode())
            stream.flush()
            os.fsync(stream.fileno())
        dcp.sync_folder(part)
        part.rename(_free_name(self.folder, manifest.step))
        dcp.sync_folder(self.folder)
        if self.after_write is not None:
            self.after_write(manifest.step)
        self._remove_old()

    def _remove_old(self) -> None:
        whole = [path for path, _ in complete(self.folder) if path not in self._damaged]
        for path in [*whole[self._keep :], *(path for path in self._damaged if path.exists())]:
            # Hidden by a rename first: a removal that is cut off must not leave a visible half.
            with contextlib.suppress(OSError):
                shutil.rmtree(path.rename(self.folder / f".{path.name}.old{_PART}"))
        self._damaged.clear()


def _free_name(folder: Path, step: int) -> Path:
    """Return a name for the checkpoint of `step`: a second one of the same step stands beside the first."""
    path, copy = folder / f"step-{step:08d}", 0
    while path.exists():
        copy += 1
        path = folder / f"step-{step:08d}.{copy}"
    return path


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Hold the writer's lock of a store; the kernel frees it when its holder dies, however it dies."""
    handle = os.open(folder / _LOCK, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise dcp.ShardError("another process is writing a checkpoint there") from None
        yield
    finally:
        os.close(handle)


def _own_group(patience: timedelta) -> dist.ProcessGroup | None:
    if not (dist.is_available() and dist.is_initialized()):
        return None
    with connecting():
        group = dist.new_group(backend="gloo", timeout=patience)
    assert isinstance(group, dist.ProcessGroup), "a group of all ranks has this one in it"
    return group
