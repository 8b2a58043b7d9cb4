"""One scenario over many sizes, loads, transports, failed links and seeds: on all cores, resumable, as one table.

Every run leaves its row in a folder beside the result; a row that is there is not run again. The table is written when
all are there.
"""

import itertools
import json
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict, dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from weft.core.errors import UsageError
from weft.core.input_files import json_of, read_bytes
from weft.core.processors import processors
from weft.core.provenance import digest
from weft.core.seeds import Seed
from weft.fabric.graph.topology import build
from weft.netsim.run import run
from weft.netsim.setup import set_up, transports_of
from weft.specs import ScenarioSpec, load_scenario, load_site
from weft.specs.scenario import FaultSpec, SweepSpec

MOST_RUNS = 100_000
"""Runs that one sweep may have."""


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

    def key(self) -> str:
        """Return a name for a file."""
        return "-".join(str(value) for value in asdict(self).values())


def points_of(spec: SweepSpec, scenario: ScenarioSpec) -> tuple[Point, ...]:
    """Return every run of a sweep."""
    lists: list[tuple[Any, ...]] = [
        spec.gpus or (None,),
        spec.size or (None,),
        spec.load or (None,),
        spec.transport or scenario.transport.use,
        spec.failed_links or (0,),
        tuple(range(spec.seeds)),
    ]
    found = tuple(Point(*values) for values in itertools.product(*lists))
    if len(found) > MOST_RUNS:
        raise UsageError(f"the sweep has {len(found):,} runs; write lists that make at most {MOST_RUNS:,}")
    return found


def scenario_at(scenario: ScenarioSpec, point: Point) -> ScenarioSpec:
    """Return the scenario of one run, its failed links among its faults."""
    assert scenario.traffic is not None, "a sweep is over traffic"
    changed = {name: value for name, value in (("size", point.size), ("load", point.load)) if value is not None}
    found = scenario.model_copy(update={"traffic": scenario.traffic.model_copy(update=changed)})
    if point.gpus is not None:
        found = found.model_copy(update={"gpus": point.gpus})
    if not point.failed_links:
        return found
    setup = set_up(found, load_site(found.site), point.seed)
    topology = build(setup.fabric)
    between = (topology.links.stage > 0).nonzero()[0]
    if point.failed_links > len(between):
        raise UsageError(f"{point.failed_links} links cannot fail: the fabric has {len(between)} between switches")
    drawn = Seed(point.seed).stream("failed links").choice(between, size=point.failed_links, replace=False)
    faults = tuple(
        FaultSpec(kind="link-down", target=topology.names.of("link", int(link))) for link in sorted(drawn.tolist())
    )
    return found.model_copy(update={"faults": (*found.faults, *faults)})


def run_point(reference: str, point: Point) -> dict[str, Any]:
    """Run one point of a sweep and return its row."""
    scenario = scenario_at(load_scenario(reference), point)
    setup = set_up(scenario, load_site(scenario.site), point.seed)
    (transport,) = transports_of(setup, (point.transport,))
    found = run(setup, transport, threads=1).as_json()
    row = {"scenario": scenario.name, **asdict(point)}
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
