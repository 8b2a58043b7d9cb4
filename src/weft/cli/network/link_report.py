"""What links carried, as `weft simulate --links` writes and prints it."""

import csv
from pathlib import Path
from typing import Any

import numpy as np

from weft.cli.output import print_table, writing
from weft.core.quantity import SIZE, TIME
from weft.netsim.model.link_use import LinkUse
from weft.netsim.report import SimulationReport
from weft.specs import ScenarioSpec, load_scenario

_WORST = 5
_PS_PER_US = 10**6
_PLACES = ("tier", "plane", "lower", "uplink", "upper", "down", "links", "rate_bps")
_COUNTS = ("bytes", "queue_peak_bytes", "marked", "trimmed", "dropped")


def with_links(scenario: str | ScenarioSpec) -> ScenarioSpec:
    """Return a scenario in which every link counts what it carries."""
    spec = load_scenario(scenario) if isinstance(scenario, str) else scenario
    return spec.model_copy(update={"measure": spec.measure.model_copy(update={"links": True})})


def columns_of(transport: str, use: LinkUse) -> dict[str, Any]:
    """Return what links carried as columns: a row for each bin and link that carried anything in it."""
    bins, rows = np.nonzero(use.table.any(axis=2))
    found: dict[str, Any] = {"transport": [transport] * len(bins)}
    found["time_us"] = np.array(use.ends_ps, np.float64)[bins] / _PS_PER_US if len(bins) else np.zeros(0)
    found |= {name: use.place[rows, column] for column, name in enumerate(_PLACES)}
    return found | {name: use.table[bins, rows, column] for column, name in enumerate(_COUNTS)}


def write_links(target: Path, reports: tuple[SimulationReport, ...]) -> None:
    """Write what links carried in every run, as Parquet or as CSV."""
    tables = [columns_of(report.transport, report.links) for report in reports if report.links is not None]
    with writing(target) as part:
        if target.suffix == ".parquet":
            import polars

            polars.concat([polars.DataFrame(table) for table in tables]).write_parquet(part)
            return
        with part.open("w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(list(tables[0]))
            for table in tables:
                writer.writerows(zip(*(np.asarray(column).tolist() for column in table.values()), strict=True))


def print_links(reports: tuple[SimulationReport, ...]) -> None:
    """Print the worst links of every run that counted them."""
    rows = [
        (report.transport, each["link"], f"{each['busiest_bin']:.0%}", SIZE.about(each["queue_peak_bytes"]),
         TIME.about(round(each["wait_us"] * _PS_PER_US)), f"{each['marked']:,}",
         f"{each['trimmed'] + each['dropped']:,}")
        for report in reports
        if report.links is not None
        for each in report.links.as_json(_WORST)
    ]  # fmt: skip
    if rows:
        columns = ("transport", "link", "busiest bin", "deepest queue", "wait in it", "marked", "trimmed, dropped")
        print_table("worst links", columns, rows, words=(0, 1))
