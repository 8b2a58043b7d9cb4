"""Energy of a run: read from the hardware where it counts it, estimated where it does not, and always said which.

The first half is pure: differences of counters, estimates, the report. The second half reads counters: NVML's total
energy of each GPU (none where there is no driver) and the processor's RAPL packages in /sys/class/powercap. Counters
belong to a machine: one rank of each machine reads them, the others do not. RAPL counts whatever runs on the processor,
not this training alone.
"""

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol

import pynvml

from weft.core.units import PICOSECONDS_PER_SECOND, Millijoules, Milliwatts, Picoseconds

Source = Literal["nvml", "rapl", "estimate"]

CPU_CORE_MW = Milliwatts(8_000)
"""Guess for one busy processor core with its share of memory, where nothing can be read. Data sheets give 3.75 W a core
(EPYC 9654: 360 W, 96 cores) to 8.75 W (EPYC 9354: 280 W, 32 cores) at full load; small machines lie higher."""

POWERCAP = Path("/sys/class/powercap")
_MICROJOULES = 1000


@dataclass(frozen=True, slots=True)
class EnergyPart:
    """The energy of one component."""

    name: str
    """What it is: "GPU 0", "package-0", "4 cores"."""
    source: Source
    """Where the figure comes from."""
    energy_mj: Millijoules
    """How much."""


@dataclass(frozen=True, slots=True)
class EnergyReport:
    """The energy of a span of time on one or more machines."""

    parts: tuple[EnergyPart, ...]
    """Components."""

    @property
    def joules(self) -> float:
        """Return the energy of all parts in joules."""
        return sum(part.energy_mj for part in self.parts) / 1000

    @property
    def measured(self) -> bool:
        """Return whether every part was read from hardware."""
        return bool(self.parts) and all(part.source != "estimate" for part in self.parts)

    def __add__(self, other: "EnergyReport") -> "EnergyReport":
        """Return both reports as one, for the machines of a job."""
        return EnergyReport(self.parts + other.parts)

    def as_json(self) -> dict[str, Any]:
        """Return the report as plain values."""
        parts = [{"name": part.name, "source": part.source, "joules": part.energy_mj / 1000} for part in self.parts]
        return {"joules": self.joules, "measured": self.measured, "parts": parts}


@dataclass(frozen=True, slots=True)
class Reading:
    """One counter at one instant."""

    name: str
    """What it counts for."""
    source: Source
    """Who counts."""
    counter: int
    """Its value in its own unit."""
    per_mj: int = 1
    """How many of its units are one millijoule."""
    wraps_at: int | None = None
    """The value after which it begins at zero again, where it does."""


def difference(before: Sequence[Reading], after: Sequence[Reading]) -> EnergyReport:
    """Return the energy between two readings of the same counters; a counter may have wrapped once."""
    earlier = {(one.source, one.name): one for one in before}
    parts: list[EnergyPart] = []
    for now in after:
        then = earlier.get((now.source, now.name))
        if then is None:
            continue
        counted = now.counter - then.counter
        if counted < 0:
            # Without a known range a smaller value means that the counter was reset: count from zero.
            counted = counted + now.wraps_at + 1 if now.wraps_at is not None else now.counter
        parts.append(EnergyPart(now.name, now.source, Millijoules(counted // now.per_mj)))
    return EnergyReport(tuple(parts))


def estimate(name: str, busy_ps: Picoseconds, busy: Milliwatts, idle_ps: Picoseconds, idle: Milliwatts) -> EnergyPart:
    """Return the energy of a component from its power when busy and when idle."""
    return EnergyPart(name, "estimate", Millijoules((busy_ps * busy + idle_ps * idle) // PICOSECONDS_PER_SECOND))


def completed(read: EnergyReport, guess: EnergyPart, source: Source) -> EnergyReport:
    """Return `read`, with `guess` added where it has no part of `source`."""
    return read if any(part.source == source for part in read.parts) else EnergyReport((*read.parts, guess))


class Counters(Protocol):
    """A set of energy counters of this machine."""

    def read(self) -> list[Reading]:
        """Return their values now; an empty list where there are none."""
        ...


class Rapl:
    """The processor packages' counters."""

    def __init__(self, folder: Path = POWERCAP) -> None:
        """Find the packages below `folder`; their parts (core, uncore) are contained in them and are not added."""
        self._zones = [zone for zone in sorted(folder.glob("intel-rapl:*")) if zone.name.count(":") == 1]

    def read(self) -> list[Reading]:
        """Return the packages' counters that this user may read (often only root may)."""
        found: list[Reading] = []
        for zone in self._zones:
            with contextlib.suppress(OSError, ValueError):
                name, counter, limit = (
                    (zone / file).read_text().strip() for file in ("name", "energy_uj", "max_energy_range_uj")
                )
                found.append(Reading(name, "rapl", int(counter), _MICROJOULES, int(limit)))
        return found


class Nvml:
    """The GPUs' total energy counters (Volta and newer), by NVIDIA's management library."""

    def __init__(self, gpus: Sequence[int] | None = None) -> None:
        """Find the GPUs where there is a driver; `gpus` are its indices, all where none are given."""
        self._handles: dict[int, object] = {}
        with contextlib.suppress(pynvml.NVMLError):
            pynvml.nvmlInit()
            for index in range(pynvml.nvmlDeviceGetCount()) if gpus is None else gpus:
                with contextlib.suppress(pynvml.NVMLError):
                    self._handles[index] = pynvml.nvmlDeviceGetHandleByIndex(index)

    def read(self) -> list[Reading]:
        """Return the counters of the GPUs that have one."""
        found: list[Reading] = []
        for index, handle in self._handles.items():
            with contextlib.suppress(pynvml.NVMLError):
                found.append(Reading(f"GPU {index}", "nvml", pynvml.nvmlDeviceGetTotalEnergyConsumption(handle)))
        return found


class EnergyMeter:
    """Reads all counters of this machine at the beginning and at the end of a span."""

    def __init__(self, counters: Sequence[Counters] | None = None) -> None:
        """Begin now, with NVML and RAPL where no others are given."""
        self._counters = [Nvml(), Rapl()] if counters is None else list(counters)
        self._before = self._read()

    def lap(self) -> EnergyReport:
        """Return the energy since the last lap; add estimates for what has no counter with `completed`."""
        before, self._before = self._before, self._read()
        return difference(before, self._before)

    def _read(self) -> list[Reading]:
        return [reading for one in self._counters for reading in one.read()]
