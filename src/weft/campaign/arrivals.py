"""When what breaks: every failure of a campaign, drawn before it begins, from named streams of one seed.

Each class of parts has its own stream, so that another class or another policy never shifts it: campaigns that are
compared with the same seeds meet the same failures. Parts with a Weibull shape are renewed one by one; parts with a
constant rate are a Poisson process. A lemon draws more failures than others; those in excess end when its tray is
swapped.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from weft.campaign.fleet import DAY_MS, FIT_HOURS, HOUR_MS, Fleet, Numbers, PartClass, ms
from weft.core.errors import UsageError
from weft.core.seeds import Seed

YEAR_MS = 365 * DAY_MS
_MOST_EVENTS = 5_000_000
"""Half a gigabyte of them, and minutes; a year of 131,072 GPUs with all classes has 120,000."""


@dataclass(frozen=True, slots=True)
class FleetFault:
    """One thing that breaks."""

    at_ms: int
    name: str
    """Its class: a kind of part, "silent", "software", "alarm", or a burst."""
    group: int
    """Number of the unit, rack, switch or row that it is in; of the gang for "software"."""
    soft: bool = False
    """Whether a reset cures it."""
    elusive: bool = False
    """Whether no test of the node finds it."""
    excess: bool = False
    """Whether it would not be there were its node no lemon."""


class Arrivals:
    """All failures of one campaign in order of time."""

    def __init__(self, fleet: Fleet, gangs: int, end_ms: int, seed: Seed) -> None:
        """Draw them."""
        self._fleet, self._end_ms, self._seed = fleet, end_ms, seed
        spec, site = fleet.spec, fleet.site
        refuse_too_many(expected_events(fleet, gangs, end_ms))
        draw = seed.stream("lemons")
        self.lemon = draw.random(fleet.units) < spec.lemons.share
        self._found: list[FleetFault] = []
        for each in fleet.classes.values():
            self._of_parts(each)
        silent = site.failures.silent if spec.silent.rate is None else spec.silent.rate
        self._poisson("silent", silent * fleet.gpus, fleet.units, elusive=spec.silent.elusive)
        self._poisson("alarm", spec.alarms.rate * fleet.units * fleet.trays, fleet.units, soft=1.0)
        software = site.failures.software if spec.software.rate is None else spec.software.rate
        self._poisson("software", software * gangs, max(1, gangs))
        self._bursts()
        self._second()
        self._found.sort(key=lambda fault: (fault.at_ms, fault.name, fault.group))
        self.faults = self._found
        hours = end_ms / HOUR_MS
        flap = site.failures.link_flap
        links = fleet.shape.links
        near, core = (flap if own is None else own for own in (spec.network.nic_flap, spec.network.core_flap))
        nic_links = fleet.gpus * fleet.planes
        core_links = sum(links[1:]) * fleet.share * fleet.planes / fleet.site.fabric.planes
        self.nic_flaps_per_hour = near * nic_links / FIT_HOURS
        self.core_flaps_per_hour = core * core_links / FIT_HOURS
        self.flaps = int(seed.stream("flaps").poisson((self.nic_flaps_per_hour + self.core_flaps_per_hour) * hours))
        """Flaps are counted, and their mean effect is a share of the speed: there are millions of them."""

    def _of_parts(self, each: PartClass) -> None:
        if each.fit <= 0:
            return
        if each.spec.shape == 1:
            own = each.groups == self._fleet.units
            elusive = self._fleet.spec.repair.elusive
            self._poisson(each.name, each.fit * each.count, each.groups, soft=each.spec.soft, elusive=elusive, own=own)
            return
        draw = self._seed.stream("parts", each.name)
        times, parts = renewals(each, self._end_ms, draw)
        self._add(each.name, times, parts * each.groups // each.count, draw, each.spec.soft)

    def _poisson(
        self, name: str, fit: float, groups: int, *, soft: float = 0.0, elusive: float = 0.0, own: bool = False
    ) -> None:
        """Draw failures at a constant rate, `own` ones more often in lemons; the mean over all is the same."""
        per_hour = fit / FIT_HOURS
        draw = self._seed.stream("parts", name)
        count = int(draw.poisson(per_hour * self._end_ms / HOUR_MS))
        times = np.floor(draw.random(count) * self._end_ms).astype(np.int64)
        where = draw.integers(0, groups, count)
        excess = np.zeros(count, dtype=bool)
        if own and self.lemon.any():
            factor, lemons = self._fleet.spec.lemons.factor, np.flatnonzero(self.lemon)
            extra = (factor - 1) * len(lemons)
            excess = draw.random(count) < extra / (groups + extra)
            where = np.where(excess, lemons[draw.integers(0, len(lemons), count)], where)
        self._add(name, times, where, draw, soft, elusive, excess)

    def _add(
        self, name: str, times: Numbers, where: Numbers, draw: np.random.Generator, soft: float,
        *more: float | np.ndarray,
    ) -> None:  # fmt: skip
        elusive, excess = more or (0.0, np.zeros(len(times), dtype=bool))
        softs, elusives = draw.random(len(times)) < soft, draw.random(len(times)) < elusive
        columns = (times.tolist(), where.tolist(), softs.tolist(), elusives.tolist(), np.asarray(excess).tolist())
        self._found += [
            FleetFault(at, name, group, soft=is_soft, elusive=hides, excess=more_often)
            for at, group, is_soft, hides, more_often in zip(*columns, strict=True)
        ]

    def _bursts(self) -> None:
        for burst in self._fleet.spec.bursts:
            draw = self._seed.stream("bursts", burst.name)
            groups = self._fleet.groups_of(burst.scope) if burst.scope != "all" else np.zeros(self._fleet.units)
            for _ in range(int(draw.poisson(burst.per_year * self._end_ms / YEAR_MS))):
                begin_ms = int(draw.random() * self._end_ms)
                members = np.flatnonzero(groups == draw.integers(0, int(groups.max()) + 1))
                hit = members[draw.random(len(members)) < burst.hits]
                delays = np.floor(draw.random(len(hit)) * ms(burst.spread)).astype(np.int64)
                times = begin_ms + delays
                kept = times < self._end_ms
                self._add(burst.name, times[kept], hit[kept], draw, burst.soft)

    def _second(self) -> None:
        """Let some failures of a unit bring another one of the host with them, within the hour."""
        share = self._fleet.spec.second
        names = {each.name for each in self._fleet.classes.values() if each.groups == self._fleet.units}
        first = [fault for fault in self._found if fault.name in names]
        draw = self._seed.stream("second")
        chosen = np.flatnonzero(draw.random(len(first)) < share).tolist()
        delays = (draw.random(len(chosen)) * HOUR_MS).astype(np.int64).tolist()
        self._found += [
            FleetFault(first[at].at_ms + delay, "host", first[at].group)
            for at, delay in zip(chosen, delays, strict=True)
            if first[at].at_ms + delay < self._end_ms
        ]


def expected_events(fleet: Fleet, gangs: int, end_ms: int) -> dict[str, float]:
    """Return how many events of each kind a campaign has on average, by the key that brings them."""
    spec, site, hours = fleet.spec, fleet.site, end_ms / HOUR_MS
    found = {f"components.{each.name}": each.per_hour * hours for each in fleet.classes.values()}
    silent = site.failures.silent if spec.silent.rate is None else spec.silent.rate
    software = site.failures.software if spec.software.rate is None else spec.software.rate
    found["silent.rate"] = silent * fleet.gpus * hours / FIT_HOURS
    found["software.rate"] = software * gangs * hours / FIT_HOURS
    found["alarms.rate"] = spec.alarms.rate * fleet.units * fleet.trays * hours / FIT_HOURS
    for burst in spec.bursts:
        groups = 1 if burst.scope == "all" else int(fleet.groups_of(burst.scope).max()) + 1
        found[f"bursts {burst.name}"] = burst.per_year * end_ms / YEAR_MS * max(1.0, burst.hits * fleet.units / groups)
    found["experiments.per_day"] = spec.experiments.per_day * end_ms / DAY_MS
    found["power.demand_response.per_year"] = spec.power.demand_response.per_year * end_ms / YEAR_MS
    if spec.maintenance.every is not None:
        found["maintenance.every"] = gangs * (1 + spec.maintenance.nodes) * end_ms / ms(spec.maintenance.every)
    if spec.screening.mode in ("scheduled", "replay"):
        found["screening.every"] = gangs * end_ms / ms(spec.screening.every)
    return found


def refuse_too_many(events: Mapping[str, float]) -> None:
    """Raise where there are more events than are simulated one by one."""
    if sum(events.values()) > _MOST_EVENTS:
        name = max(events, key=lambda key: events[key])
        raise UsageError(
            f"{sum(events.values()):,.0f} events in the campaign, most of them by {name}; at most {_MOST_EVENTS:,} are "
            "simulated one by one: write a lower rate or a shorter duration"
        )


def renewals(each: PartClass, end_ms: int, draw: np.random.Generator) -> tuple[Numbers, Numbers]:
    """Return when which part of a class with a Weibull life fails; a failed part is replaced by a new one.

    The scale follows from rate and shape: a new part lives 1/rate on average.
    """
    shape = each.spec.shape
    scale_ms = FIT_HOURS / each.fit * HOUR_MS / math.gamma(1 + 1 / shape)
    parts = np.arange(each.count)
    age_ms = float(ms(each.spec.age))
    at_ms = scale_ms * ((age_ms / scale_ms) ** shape + draw.exponential(size=each.count)) ** (1 / shape) - age_ms
    times: list[Numbers] = []
    who: list[Numbers] = []
    drawn = 0
    while True:
        alive = at_ms < end_ms
        parts, at_ms = parts[alive], at_ms[alive]
        drawn += len(parts)
        if not len(parts):
            break
        # With a shape below 1 new parts fail far more often than the mean says.
        refuse_too_many({f"components.{each.name}": float(drawn)})
        # The difference from a great age is rounded: what fails at once would fail before the beginning.
        times.append(np.floor(np.maximum(at_ms, 0)).astype(np.int64))
        who.append(parts)
        at_ms = at_ms + scale_ms * draw.weibull(shape, len(parts))
    none = np.zeros(0, dtype=np.int64)
    return np.concatenate([none, *times]), np.concatenate([none, *who])
