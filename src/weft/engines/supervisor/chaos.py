"""Faults that only a supervisor can bring about: signals at a time, lost nodes and stores, damage to what is kept."""

import math
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from weft.core.errors import UsageError
from weft.core.seeds import mix
from weft.core.units import Picoseconds
from weft.specs.faults import Fault
from weft.training.checkpoint.manifest import MANIFEST, complete

_OURS = ("lose-node", "lose-store", "return")
_KEPT = ("checkpoint", "snapshot")
_AT_A_TIME = ("kill", "stop", "lose-rank", "lose-node", "lose-store", "return")


def check_times(faults: Sequence[Fault]) -> None:
    """Refuse faults that can only happen in a step, where a time is named."""
    for fault in faults:
        if fault.at_ps is not None and fault.kind not in _AT_A_TIME:
            raise UsageError(f"fault {fault.number + 1} ({fault.kind}) happens inside a step; write step instead of at")


class Chaos:
    """The faults of a run, and which of them have come true."""

    def __init__(self, faults: Sequence[Fault]) -> None:
        """Bring about `faults`, each once unless it is sticky."""
        check_times(faults)
        self._faults = list(faults)
        self._fired: set[int] = set()
        self._moments: dict[int, Picoseconds] = {}

    def fired(self, number: int) -> Fault:
        """Note that a fault has come true."""
        self._fired.add(number)
        return self._faults[number]

    def kept(self) -> dict[str, Any]:
        """Return what another process needs to go on with these faults."""
        return {"fired": sorted(self._fired), "moments": dict(self._moments)}

    def go_on(self, kept: Mapping[str, Any]) -> None:
        """Go on where another process stopped."""
        self._fired, self._moments = set(kept["fired"]), dict(kept["moments"])

    def of_rank(self, rank: int) -> tuple[Fault, ...]:
        """Return what goes wrong inside `rank` and has not yet, or comes again."""
        return tuple(
            fault
            for fault in self._faults
            if fault.rank == rank
            and fault.step is not None
            and not _is_ours(fault)
            and (fault.number not in self._fired or fault.sticky or fault.kind in {"slow", "slow-input"})
        )

    def due(self, done: int, now: Picoseconds) -> list[Fault]:
        """Return the supervisor's faults whose moment has come, after `done` steps, and note them as fired."""
        for fault in self._faults:
            if fault.at_ps is not None:
                self._moments[fault.number] = fault.at_ps
            elif _is_ours(fault) and fault.step is not None and done >= fault.step - 1:
                self._moments.setdefault(fault.number, Picoseconds(now + fault.after_ps))
        found = [fault for fault in self._faults if self._open(fault.number) <= now]
        self._fired.update(fault.number for fault in found)
        return found

    def _open(self, number: int) -> float:
        return math.inf if number in self._fired else self._moments.get(number, math.inf)

    def next_ps(self) -> Picoseconds | None:
        """Return the next moment at which a fault is due, as far as that is known."""
        times = [time for number, time in self._moments.items() if number not in self._fired]
        return min(times, default=None)


def _is_ours(fault: Fault) -> bool:
    return fault.kind in _OURS or fault.place in _KEPT


def damage_checkpoint(folder: Path, fault: Fault) -> str | None:
    """Flip a bit in the newest complete checkpoint; returns the file that was damaged."""
    for path, _ in complete(folder):
        files = sorted(file for file in path.iterdir() if file.name != MANIFEST and file.stat().st_size)
        if files:
            file = max(files, key=lambda one: one.stat().st_size)
            content = bytearray(file.read_bytes())
            place = mix(fault.word, 1) % len(content)
            content[place] ^= 1 << mix(fault.word, 2) % 8
            file.write_bytes(content)
            return str(file)
    return None


def lose_store(folder: Path) -> None:
    """Remove every checkpoint."""
    shutil.rmtree(folder, ignore_errors=True)
