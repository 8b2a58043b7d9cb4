"""One scenario over many values of its keys, transports, failed links and seeds: on all cores, resumable, as one table.

Every run leaves its row in a folder beside the result; a row that is there is not run again. The table is written when
all are there.
"""

import itertools
import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict, dataclass, replace
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from weft.core.errors import UsageError
from weft.core.input_files import json_of, read_bytes
from weft.core.processors import processors
from weft.core.provenance import digest
from weft.core.quantity import RATE
from weft.core.seeds import Seed
from weft.core.specfile import validate
from weft.core.units import BitsPerSecond
from weft.fabric.graph.topology import build
from weft.netsim.run import run
from weft.netsim.setup import set_up, transports_of
from weft.specs import ScenarioSpec, load_scenario, load_site
from weft.specs.scenario import FaultSpec, SweepSpec
from weft.specs.site import SiteSpec

MOST_RUNS = 100_000
"""Runs that one sweep may have."""
_FABRIC = "fabric."


@dataclass(frozen=True)
class Point:
    """One run of a sweep."""

    gpus: int | None
    """GPUs; the scenario's where absent."""
    size: int | None
    """Bytes of a flow; the scenario's where absent."""
    load: float | None
    """Offered load; the scenario's where absent."""
    transport: str
    """Transport."""
    failed_links: int
    """Links that are down."""
    seed: int
    """Seed."""
    varied: tuple[tuple[str, Any], ...] = ()
    """Other keys with their values."""

    def key(self) -> str:
        """Return a name for a file."""
        plain = "-".join(str(value) for name, value in asdict(self).items() if name != "varied")
        return f"{plain}-{digest(self.varied)[:8]}" if self.varied else plain

    def columns(self) -> dict[str, Any]:
        """Return what tells it from other points."""
        plain = {name: value for name, value in asdict(self).items() if name != "varied"}
        return plain | {name: _shown(value) for name, value in self.varied}


def points_of(spec: SweepSpec, scenario: ScenarioSpec) -> tuple[Point, ...]:
    """Return every run of a sweep."""
    lists: list[tuple[Any, ...]] = [
        spec.gpus or (None,),
        spec.size or (None,),
        spec.load or (None,),
        spec.transport or scenario.transport.use,
        spec.failed_links or (0,),
        tuple(range(spec.seeds)),
        *(tuple((key, value) for value in values) for key, values in spec.vary.items()),
    ]
    runs = math.prod(len(values) for values in lists)
    if runs > MOST_RUNS:
        raise UsageError(f"the sweep has {runs:,} runs; write lists that make at most {MOST_RUNS:,}")
    plain = len(lists) - len(spec.vary)
    return tuple(Point(*values[:plain], varied=values[plain:]) for values in itertools.product(*lists))


def axes_of(spec: SweepSpec) -> tuple[str, ...]:
    """Return the columns of a sweep that take several values, those of numbers first; seeds and transports apart."""
    named = ("gpus", "size", "load", "failed_links")
    lists = {name: getattr(spec, name) for name in named} | spec.vary
    varied = [name for name, values in lists.items() if len(values) > 1]
    return tuple(sorted(varied, key=lambda name: not all(isinstance(value, int | float) for value in lists[name])))


def _shown(value: Any) -> Any:
    """Return a value as it stands in a column: what is no number or text becomes text."""
    return value if isinstance(value, int | float | str) else json.dumps(value)


def site_at(site: SiteSpec, point: Point, gpus: int | None) -> SiteSpec:
    """Return the site of one run; `gpus` is how much of its fabric the scenario builds."""
    values = {key: value for key, value in point.varied if key.startswith(_FABRIC)}
    if not values:
        return site
    table, fabric = site.as_written(), site.fabric
    table["fabric"]["gpus"] = min(fabric.gpus, point.gpus or gpus or fabric.gpus)
    planes = values.get("fabric.planes")
    if isinstance(planes, int) and planes > 0:
        # The same NIC over other planes: what a switch carries is cut into ports of another rate.
        port_rate = BitsPerSecond(fabric.nic_rate // planes)
        radix = fabric.radix * fabric.port_rate // port_rate
        table["fabric"] |= {"port_rate": RATE.format(port_rate), "radix": radix - radix % 2}
    for key, value in values.items():
        _put(table, key, value)
    return validate(table, SiteSpec, _point_text(values))


def scenario_at(scenario: ScenarioSpec, point: Point) -> ScenarioSpec:
    """Return the scenario of one run, its failed links among its faults."""
    assert scenario.traffic is not None, "a sweep is over traffic"
    changed = {name: value for name, value in (("size", point.size), ("load", point.load)) if value is not None}
    found = scenario.model_copy(update={"traffic": scenario.traffic.model_copy(update=changed)})
    if point.gpus is not None:
        found = found.model_copy(update={"gpus": point.gpus})
    values = {key: value for key, value in point.varied if not key.startswith(_FABRIC)}
    if values:
        table = found.as_written()
        for key, value in values.items():
            _put(table, key, value)
        found = validate(table, ScenarioSpec, _point_text(values))
    if not point.failed_links:
        return found
    setup = set_up(found, site_at(load_site(found.site), point, found.gpus), point.seed)
    topology = build(setup.fabric)
    between = (topology.links.stage > 0).nonzero()[0]
    if point.failed_links > len(between):
        raise UsageError(f"{point.failed_links} links cannot fail: the fabric has {len(between)} between switches")
    drawn = Seed(point.seed).stream("failed links").choice(between, size=point.failed_links, replace=False)
    faults = tuple(
        FaultSpec(kind="link-down", target=topology.names.of("link", int(link))) for link in sorted(drawn.tolist())
    )
    return found.model_copy(update={"faults": (*found.faults, *faults)})


def _point_text(values: Mapping[str, Any]) -> str:
    return ", ".join(f"{key} = {json.dumps(value)}" for key, value in values.items())


def _put(table: dict[str, Any], key: str, value: Any) -> None:
    """Put a value at a dotted key of plain values; a number names a place in a list."""
    *path, last = key.split(".")
    inner: Any = table
    for part in path:
        inner = _inside(inner, part, key)
    if isinstance(inner, list):
        _inside(inner, last, key)
        inner[int(last)] = value
    else:
        inner[last] = value


def _inside(inner: Any, part: str, key: str) -> Any:
    """Return what stands at `part` of a table, made where it is missing, or of a list."""
    if isinstance(inner, list):
        if not part.isdecimal() or int(part) >= len(inner):
            raise UsageError(f"vary.{key!r}: there is no {part!r} in a list of {len(inner)}; count from 0")
        return inner[int(part)]
    found = inner.setdefault(part, {})
    if isinstance(found, str | int | float):
        raise UsageError(f"vary.{key!r}: {part!r} is a value, not a table; name a key")
    return found


def run_point(reference: str, point: Point) -> dict[str, Any]:
    """Run one point of a sweep and return its row."""
    scenario = scenario_at(load_scenario(reference), point)
    setup = set_up(scenario, site_at(load_site(scenario.site), point, scenario.gpus), point.seed)
    (transport,) = transports_of(setup, (point.transport,))
    found = run(setup, transport, threads=1).as_json()
    row = {"scenario": scenario.name, **point.columns()}
    row |= {f"fct_{name}_us": value for name, value in found["fct_us"].items()}
    names = ("hosts", "flows", "completed", "failed", "ideal_us", "goodput_bps_per_nic", "retransmitted", "trimmed")
    more = ("marked", "dropped", "lost", "packet_hops", "cpu_s", "hash")
    return row | {name: found[name] for name in names + more}


def rows_of(
    spec: SweepSpec, folder: Path, *, workers: int | None = None, watch: Callable[[int, int], None] | None = None
) -> list[dict[str, Any]]:
    """Run what is missing of a sweep and return all its rows; every row is kept in `folder`."""
    scenario = load_scenario(spec.scenario)
    if scenario.traffic is None:
        raise UsageError(f"{spec.scenario} has no traffic to be varied; sweep a scenario with a [traffic] table")
    points = points_of(spec, scenario)
    _check_values(scenario, points)
    folder.mkdir(parents=True, exist_ok=True)
    asked = digest([scenario.as_written(), load_site(scenario.site).fabric.as_written()])[:12]
    missing = [point for point in points if not _row_file(folder, asked, point).is_file()]
    done = len(points) - len(missing)
    count = min(workers or processors(), max(1, len(missing)))
    for point, row in _run_all(spec.scenario, missing, count):
        file = _row_file(folder, asked, point)
        part = file.with_suffix(".part")
        part.write_text(json.dumps(row))
        part.replace(file)
        done += 1
        if watch is not None:
            watch(done, len(points))
    return [_kept_row(_row_file(folder, asked, point)) for point in points]


def _check_values(scenario: ScenarioSpec, points: Sequence[Point]) -> None:
    """Raise where a combination of varied values is none that a scenario or a site can have, before anything runs."""
    site = load_site(scenario.site)
    for point in {json.dumps(point.varied): point for point in points}.values():
        site_at(site, point, scenario.gpus)
        scenario_at(scenario, replace(point, failed_links=0))


def _kept_row(file: Path) -> dict[str, Any]:
    """Return a row that was kept; one that is damaged is named, so that it can be removed and run again."""
    try:
        found = json_of(read_bytes(file))
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise UsageError(f"{file} is no row of a sweep ({reason}); remove it, and it is run again") from None
    if not isinstance(found, dict):
        raise UsageError(f"{file} is no row of a sweep; remove it, and it is run again")
    return found


def _run_all(reference: str, points: list[Point], workers: int) -> Iterator[tuple[Point, dict[str, Any]]]:
    if workers == 1:
        for point in points:
            yield point, run_point(reference, point)
        return
    with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
        pending = {pool.submit(run_point, reference, point): point for point in points}
        for future in as_completed(pending):
            yield pending[future], future.result()


def _row_file(folder: Path, asked: str, point: Point) -> Path:
    """Return where a point's row is kept; `asked` names the scenario and its fabric, so that an edit runs again."""
    return folder / f"{point.key()}-{asked}.json"
