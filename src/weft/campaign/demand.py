"""From a scenario to what is asked of a fleet: gangs in units, teams with what they may have, spares, a trace."""

import math
from dataclasses import dataclass
from pathlib import Path

from weft.campaign.compression import StandingGang
from weft.campaign.fleet import DAY_MS, Fleet, ms
from weft.campaign.trace import TraceJob, admit_all, read
from weft.cluster.records.job import Team
from weft.core.errors import UsageError
from weft.specs.campaign import GangSpec

_HEADROOM = 1.6
"""Room for experiments over what they take on average, where none is written."""

_SPARE_SHARE = 0.02
"""Spare nodes where a scenario writes none: about what vendors of NVL72 racks recommend."""


@dataclass(frozen=True, slots=True)
class Demand:
    """What is asked of a fleet."""

    gangs: tuple[StandingGang, ...]
    teams: tuple[Team, ...]
    spares: int
    """Units that are kept free."""
    trace: list[TraceJob]


def experiment_units(fleet: Fleet) -> int:
    """Return the units that no gang without a size takes, so that experiments find room."""
    spec = fleet.spec.experiments
    if not spec.per_day:
        return 0
    if spec.room:
        return -(-spec.room // fleet.trays)
    sizes = [2**power for power in range(int(math.log2(spec.largest)) + 1)]
    mean = spec.per_day * ms(spec.mean) / DAY_MS * sum(sizes) / len(sizes)
    return max(sizes[-1], math.ceil(_HEADROOM * mean))


def spares_of(fleet: Fleet) -> int:
    """Return the units that are kept free; a fleet of one unit keeps none unless that is written."""
    if fleet.spec.spares is None:
        return min(math.ceil(_SPARE_SHARE * fleet.units), fleet.units - 1)
    return -(-fleet.spec.spares // fleet.trays)


def demand_of(fleet: Fleet, folder: Path | None = None) -> Demand:
    """Return what a scenario asks for, or raise where the fleet cannot give it; a trace lies in `folder`."""
    spec = fleet.spec
    spares = spares_of(fleet)
    serving = spec.serving.replicas * spec.serving.nodes
    room = experiment_units(fleet)
    fixed = [gang for gang in spec.gangs if gang.gpus is not None]
    taken = spares + serving + room + sum(_units(fleet, gang, gang.gpus or 0) for gang in fixed)
    rest = fleet.units - taken
    if rest < 0:
        raise UsageError(
            f"the scenario asks for {taken:,} units of {fleet.unit_gpus} GPUs (gangs, {spares:,} spare, {serving:,} "
            f"serving, {room:,} for experiments); the fleet has {fleet.units:,}"
        )
    gangs: list[StandingGang] = []
    for gang in spec.gangs:
        step = -(-(gang.replica or fleet.unit_gpus) // fleet.unit_gpus)
        units = rest // step * step if gang.gpus is None else _units(fleet, gang, gang.gpus)
        if not units:
            raise UsageError(f"no units are left for gang {gang.name!r}; the fleet has {fleet.units:,}")
        fewest = max(step, math.ceil(gang.fewest * units / step) * step)
        gangs.append(StandingGang(gang.name, units, min(fewest, units), step, gang.team))
    lines = _trace(fleet, folder) if spec.trace is not None else []
    wanted: dict[str, int] = {}
    for each in gangs:
        wanted[each.team] = wanted.get(each.team, 0) + each.units
    if serving:
        wanted[spec.serving.team] = wanted.get(spec.serving.team, 0) + serving
    if spec.experiments.per_day:
        wanted[spec.experiments.team] = wanted.get(spec.experiments.team, 0) + room
    # What is left over is for whoever has jobs in the trace; nobody else takes spares.
    over = max(0, fleet.units - spares - sum(wanted.values()))
    for line in lines:
        wanted.setdefault(line.team, over)
    teams = tuple(Team(name, units * fleet.unit_gpus, units * fleet.unit_gpus) for name, units in wanted.items())
    if lines:
        admit_all(lines, fleet.records, teams, str(spec.trace))
    return Demand(tuple(gangs), teams, spares, lines)


def _units(fleet: Fleet, gang: GangSpec, gpus: int) -> int:
    if gpus % fleet.unit_gpus:
        below = gpus - gpus % fleet.unit_gpus
        raise UsageError(
            f"gang {gang.name!r} has {gpus:,} GPUs; a unit has {fleet.unit_gpus}: write {below:,} or "
            f"{below + fleet.unit_gpus:,}"
        )
    return gpus // fleet.unit_gpus


def _trace(fleet: Fleet, folder: Path | None) -> list[TraceJob]:
    path = (folder or Path()) / str(fleet.spec.trace)
    try:
        return read(path.read_text(encoding="utf-8"), str(path))
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{path} cannot be read: {error}; name a job trace") from None
