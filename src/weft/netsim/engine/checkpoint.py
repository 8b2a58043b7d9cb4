"""Keeps a long run on disk between two slots, and takes it up again: every column, the flows and the records.

A checkpoint is a folder of plain arrays and one pickle of small things, written beside the last one and then renamed:
a run that is cut off while writing keeps the checkpoint before it. It belongs to one scenario, seed and version:
another one is refused.
"""

import pickle
import shutil
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from weft.core.errors import UsageError

if TYPE_CHECKING:
    from weft.netsim.engine.world import EngineWorld

_EVERY_S = 120.0
_SMALL = "small.pickle"


class Keep:
    """Where a run is kept, and how often."""

    def __init__(self, folder: Path, every_s: float = _EVERY_S) -> None:
        self.folder, self.every_s = folder, every_s
        self._last_s = time.monotonic()

    def now_and_then(self, world: "EngineWorld") -> None:
        """Keep the run where the last time is long enough ago."""
        if time.monotonic() - self._last_s >= self.every_s:
            save(world, self.folder)
            self._last_s = time.monotonic()

    def take_up(self, world: "EngineWorld") -> None:
        """Go on where a kept run stopped, if there is one."""
        if (self.folder / _SMALL).is_file():
            load(world, self.folder)


def _arrays(value: Any, name: str) -> dict[str, Any]:
    """Return every array in nested named tuples, by a name."""
    if isinstance(value, np.ndarray):
        return {name: value}
    found: dict[str, Any] = {}
    for field, each in zip(value._fields, value, strict=True):
        found |= _arrays(each, f"{name}-{field}")
    return found


def _columns(world: "EngineWorld") -> dict[str, Any]:
    found = {"busy": world.busy}
    for name, value in (
        ("fabric", world.fabric),
        ("wires", world.wires),
        ("queues", world.queues),
        ("halves", world.endpoints.halves),
        *((f"desk{place}", desk) for place, desk in enumerate(world.desks)),
    ):
        found |= _arrays(value, name)
    return found


def save(world: "EngineWorld", folder: Path) -> None:
    """Write everything that a run is made of into `folder`."""
    part = folder.with_name(f".{folder.name}.part")
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir(parents=True)
    for name, column in _columns(world).items():
        # What was never used of the stores of packets is not worth keeping.
        used = world.used(name, len(column))
        np.save(part / f"{name}.npy", column[:used])
    with (part / _SMALL).open("wb") as file:
        pickle.dump(world.small_state(), file)
    old = folder.with_name(f".{folder.name}.old")
    shutil.rmtree(old, ignore_errors=True)
    if folder.exists():
        folder.rename(old)
    part.rename(folder)
    shutil.rmtree(old, ignore_errors=True)


def load(world: "EngineWorld", folder: Path) -> None:
    """Bring a world that was made from the same scenario to where the kept one stopped."""
    with (folder / _SMALL).open("rb") as file:
        small = pickle.load(file)  # noqa: S301  written by `save`, below a folder that the user names
    world.make_like(small)
    for name, column in _columns(world).items():
        kept = np.load(folder / f"{name}.npy")
        if kept.dtype != column.dtype or kept.shape[1:] != column.shape[1:] or len(kept) > len(column):
            raise UsageError(f"{folder} keeps another scenario; name an empty folder, or remove it")
        column[: len(kept)] = kept
    world.set_small_state(small)
