"""Keeps a long run on disk between two slots, and takes it up again: every column, the flows and the records.

A checkpoint is a folder of plain arrays and a JSON file of small things, written beside the last one and then renamed:
a run that is cut off while writing keeps the checkpoint before it. It belongs to one scenario, seed and version:
another one is refused. Nothing in it is code; but its columns are taken as they are, as this program's own memory.
"""

import json
import os
import shutil
import signal
import threading
import time
from contextlib import contextmanager
from copy import copy
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from weft.core.errors import UsageError
from weft.core.input_files import json_of, read_bytes
from weft.netsim.kernel.kept_values import as_json, from_json

if TYPE_CHECKING:
    from collections.abc import Iterator

    from weft.netsim.kernel.compiled_simulator import CompiledSimulator

_EVERY_S = 120.0
_SMALL, _RECEIVED = "small.json", "received"
_BLOCK_BYTES = 1 << 20
_DAMAGE = (OSError, EOFError, ValueError, TypeError, LookupError, RecursionError)
"""What reading a file that was cut or written over may raise."""


class Keep:
    """Where a run is kept, and how often."""

    def __init__(self, folder: Path, every_s: float = _EVERY_S) -> None:
        self.folder, self.every_s = folder, every_s
        self._last_s = time.monotonic()
        self._stopping = False
        self.trouble = ""
        """Why the last attempt kept nothing."""

    def now_and_then(self, world: "CompiledSimulator") -> None:
        """Keep the run where the last time is long enough ago; keep and end it where it was interrupted."""
        if self._stopping or time.monotonic() - self._last_s >= self.every_s:
            self.trouble = ""
            try:
                save(world, self.folder)
            except OSError as error:
                # The run is worth more than its copy, and the copy before this one is still there.
                shutil.rmtree(_part_of(self.folder), ignore_errors=True)
                self.trouble = f"nothing could be kept in {self.folder}: {error.strerror}"
            self._last_s = time.monotonic()
        if self._stopping:
            raise KeyboardInterrupt

    @contextmanager
    def through_interrupts(self) -> "Iterator[None]":
        """Let an interrupt wait, as long as this lasts, until the run can be kept; a second one does not wait."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return

        def stop(_number: int, _frame: Any) -> None:
            if self._stopping:
                raise KeyboardInterrupt
            self._stopping = True

        before = signal.signal(signal.SIGINT, stop)
        try:
            yield
        finally:
            signal.signal(signal.SIGINT, before)

    def check(self) -> None:
        """Raise where nothing can be kept, or where something else would be lost by it: before a long run begins."""
        is_new = not self.folder.exists() or (self.folder.is_dir() and not any(self.folder.iterdir()))
        if not is_new and not (self.folder / _SMALL).is_file():
            raise UsageError(f"{self.folder} is no kept run; name a new folder")
        part = _part_of(self.folder)
        try:
            part.mkdir(parents=True, exist_ok=True)
            part.rmdir()
        except OSError as error:
            raise UsageError(f"nothing can be kept in {self.folder}: {error.strerror}; name another folder") from None

    def remove(self) -> None:
        """Remove what was kept of a run that is over; what is no kept run stays."""
        if (self.folder / _SMALL).is_file():
            shutil.rmtree(self.folder, ignore_errors=True)

    def take_up(self, world: "CompiledSimulator") -> None:
        """Go on where a kept run stopped, if there is one."""
        if (self.folder / _SMALL).is_file():
            load(world, self.folder)


def _arrays(value: Any, name: str) -> dict[str, Any]:
    """Return every array in nested named tuples, by a name."""
    if isinstance(value, np.ndarray):
        return {name: value}
    if isinstance(value, int):
        return {}
    found: dict[str, Any] = {}
    for field, each in zip(value._fields, value, strict=True):
        found |= _arrays(each, f"{name}-{field}")
    return found


def _columns(world: "CompiledSimulator") -> dict[str, Any]:
    found = {"busy": world.busy, **{f"flows-{name}": column for name, column in world.board.columns().items()}}
    for name, value in (
        ("fabric", world.fabric),
        ("wires", world.wires),
        ("queues", world.queues),
        ("hosts", world.endpoints.host_state),
        *((f"shard{place}", shard) for place, shard in enumerate(world.shards)),
    ):
        found |= _arrays(value, name)
    return found


def _part_of(folder: Path) -> Path:
    """Return where a run is written before it takes the place of the one kept before."""
    return folder.with_name(f".{folder.name}.part")


def save(world: "CompiledSimulator", folder: Path) -> None:
    """Write everything that a run is made of into `folder`."""
    part = _part_of(folder)
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir(parents=True)
    for name, column in _columns(world).items():
        # What was never used of the stores of packets is not worth keeping.
        _write(part / f"{name}.npy", column[: world.used(name, len(column))])
    small = world.small_state()
    _write(part / f"{_RECEIVED}.npy", np.array(small.records.received, np.int64))
    # What every pair has received by every bin is an array already, and too much for text.
    records = copy(small.records)
    records.received = []
    (part / _SMALL).write_text(json.dumps(as_json(small._replace(records=records))), encoding="utf-8")
    old = folder.with_name(f".{folder.name}.old")
    shutil.rmtree(old, ignore_errors=True)
    if folder.exists():
        folder.rename(old)
    part.rename(folder)
    shutil.rmtree(old, ignore_errors=True)


def _blocks(column: Any) -> "Iterator[slice]":
    """Cut a column into pieces of about a mebibyte."""
    rows = max(1, _BLOCK_BYTES // max(1, column[:1].nbytes))
    return (slice(first, min(first + rows, len(column))) for first in range(0, len(column), rows))


def _has_any(block: Any) -> bool:
    return bool(np.ascontiguousarray(block).view(np.uint8).any())


def _write(path: Path, column: Any) -> None:
    """Write a column; what is nothing but zeros, most of what is reserved, becomes a hole in the file."""
    with path.open("wb") as file:
        np.lib.format.write_array_header_1_0(file, np.lib.format.header_data_from_array_1_0(column))
        for piece in _blocks(column):
            block = column[piece]
            if _has_any(block):
                file.write(np.ascontiguousarray(block).tobytes())
            else:
                file.seek(block.nbytes, os.SEEK_CUR)
        # A hole at the end is no part of a file until its length says so.
        file.truncate()


def _read(kept: Any, column: Any) -> None:
    """Read a column into memory, which is not touched where both are nothing but zeros."""
    for piece in _blocks(kept):
        if _has_any(kept[piece]) or _has_any(column[piece]):
            column[piece] = kept[piece]


def load(world: "CompiledSimulator", folder: Path) -> None:
    """Bring a world that was made from the same scenario to where the kept one stopped."""
    # There is a world by now, so this loads nothing new; the top of this module must not load the simulator.
    from weft.netsim.kernel.compiled_simulator import SmallState

    try:
        small = from_json(SmallState, json_of(read_bytes(folder / _SMALL)))
        world.make_like(small)
        for name, column in _columns(world).items():
            kept = np.load(folder / f"{name}.npy", mmap_mode="r", allow_pickle=False)
            if kept.dtype != column.dtype or kept.shape[1:] != column.shape[1:] or len(kept) > len(column):
                raise UsageError(f"{folder} keeps another scenario; name an empty folder, or remove it")
            _read(kept, column)
        small.records.received = list(np.load(folder / f"{_RECEIVED}.npy", allow_pickle=False))
        if len(small.records.received) != len(small.records.bin_ends_ps):
            raise ValueError("bins are missing")
        world.set_small_state(small)
    except _DAMAGE as error:
        raise UsageError(f"the run kept in {folder} is damaged ({error}); remove it, or name a new folder") from None
