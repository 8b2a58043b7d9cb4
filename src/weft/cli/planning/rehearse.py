"""`weft rehearse`: the first page of the product, what a job would do on a site, on a screen or as an HTML file."""

import datetime
import html
import io
import logging
import math
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from weft import api
from weft.cli.output import (
    PICTURE_STYLE,
    DetailsFlag,
    JobArgument,
    JsonFlag,
    PlotFile,
    SiteArgument,
    print_json,
    print_table,
    save_picture,
    say,
    writing,
    written_to,
)
from weft.cli.planning.headline import headline
from weft.cli.planning.job_and_site import job_and_site
from weft.cli.screen.figures import counted_whole, joules, kilograms, kilowatt_hours, money, seconds, watts
from weft.core.errors import UsageError
from weft.core.provenance import provenance
from weft.core.quantity import RATE, SIZE, significant
from weft.planning.rehearsal import RehearsalLine, rehearse, simulated_figures
from weft.planning.report import PlanReport
from weft.planning.run.power import JOULES_PER_KWH
from weft.specs import JobSpec, load_job
from weft.training.run_dir import RunRecord, records

_RUNS = Path("runs")


def rehearse_job(
    site: SiteArgument,
    job: JobArgument,
    /,
    *,
    folder: Annotated[Path, Parameter(name="--folder", help="Folder of runs with measured figures.")] = _RUNS,
    begin: Annotated[str | None, Parameter(name="--start", help="First day of the run, as 2027-01-31.")] = None,
    simulate: Annotated[
        bool, Parameter(negative="", help="Also simulate the step's communication packet by packet.")
    ] = False,
    page: Annotated[
        Path | None,
        Parameter(name="--html", help="Write the page with its plots to FILE."),
        written_to("--html", ".html", ".htm"),
    ] = None,
    details: DetailsFlag = False,
    json: JsonFlag = False,
    plot: PlotFile = None,
) -> None:
    """Predict what JOB would do on SITE, named in either order: plan, step, goodput, failures, power, cost, days."""
    job, site = job_and_site(job, site)
    spec = load_job(job)
    report = api.plan(spec, site)
    record = _measured(folder, spec)
    simulated = _simulated(report) if simulate else {}
    lines = [*rehearse(report, simulated=simulated, measured={} if record is None else figures(record, spec.steps))]
    if begin is not None:
        lines.append(_finish(report, begin))
    save_picture(plot, "draw_plan", report, size=(13.0, 9.0))
    if page is not None:
        _write(page, report, lines)
    if json:
        asked = {"site": report.site.as_written(), "job": spec.as_written()}
        print_json({
            "site": report.site.name, "job": spec.name, "run": None if record is None else record.name,
            "lines": [line.as_json() for line in lines], "plan": report.as_json(),
            "provenance": provenance(asked).as_json(),
        })  # fmt: skip
        return
    _print_headline(report, lines)
    if details:
        _print(lines, record, simulated=simulate)
    else:
        _print_beside(lines, record)


def _simulated(report: PlanReport) -> dict[str, float]:
    """Return what the step's exchanges come to packet by packet."""
    from weft.netsim.step_table import step_tables

    tables = step_tables(report.site, say=logging.getLogger("weft.netsim").info)
    return simulated_figures(report, tables.healthy, tables.spine_lost)


def _finish(report: PlanReport, begin: str) -> RehearsalLine:
    """Return when a run that begins on a day ends, with its 90 % interval."""
    try:
        first = datetime.date.fromisoformat(begin)
        run = report.run
        ends = [first + datetime.timedelta(days=days) for days in (run.days, run.days_low, run.days_high)]
    except (ValueError, OverflowError):
        raise UsageError(f"--start {begin}: write a day as 2027-01-31; the run must end before 9999") from None
    section = "the run with this site's failures"
    return RehearsalLine(section, "finish", "ends", "", f"{ends[0]}; 90 % interval {ends[1]} to {ends[2]}")


def figures(record: RunRecord, steps_asked: int) -> dict[str, float]:
    """Return what a finished run measured, under the names of the rehearsal's lines.

    Figures of the whole run count only where it was as long as what is rehearsed.
    """
    result, steps = record.result() or {}, record.steps()
    found: dict[str, float] = {}
    spent = sorted(sum(line["seconds"].values()) for line in steps)
    if spent:
        found["step_s"] = spent[len(spent) // 2]
    whole = record.job().steps == steps_asked
    wall = sum(record.seconds().values())
    if whole and wall > 0:
        found["run_s"] = wall
    for key, name, scale in (("tokens_per_s", "tokens_per_s", 1.0), ("mfu", "mfu", 100.0)):
        if result.get(key) is not None:
            found[name] = scale * float(result[key])
    if result.get("energy_j") is not None and steps:
        found["energy_j_per_step"] = float(result["energy_j"]) / len(steps)
        if whole:
            found["energy_kwh"] = float(result["energy_j"]) / JOULES_PER_KWH
    return found


def _measured(folder: Path, job: JobSpec) -> RunRecord | None:
    """Return the newest finished run of the same training: name, model, batch and plan; none where there is none."""
    if folder.exists() and not folder.is_dir():
        raise UsageError(f"--folder {folder} is not a folder; name a folder of runs")
    if not folder.is_dir():
        return None
    own = [record for record in records(folder) if record.state() == "finished" and _same(record.job(), job)]
    return own[-1] if own else None


def _same(one: JobSpec, other: JobSpec) -> bool:
    """Return whether two jobs train the same in the same way, for however many steps."""
    return all(getattr(one, key) == getattr(other, key) for key in ("name", "model", "batch", "plan"))


def _print_headline(report: PlanReport, lines: Sequence[RehearsalLine]) -> None:
    say(f"{report.job.name} on {report.site.name}: {report.site.description}", style="bold")
    for line in headline(report):
        say(line)
    for line in lines:
        if line.key == "finish":
            say(f"{line.what} {line.predicted}")
    say("")


def _print_beside(lines: Sequence[RehearsalLine], record: RunRecord | None) -> None:
    """Print the figures that were simulated or measured beside those predicted, and what breaks."""
    beside = [line for line in lines if line.simulated is not None or line.measured is not None]
    if beside:
        title = "predicted beside what was simulated or measured"
        name = "" if record is None else f" ({record.name})"
        rows = [(line.what, *cells(line)) for line in beside]
        print_table(f"{title}{name}", ("what", "predicted", "simulated", "measured"), rows)
    rows = [(line.what, cells(line)[0]) for line in lines if line.section.startswith("what breaks")]
    print_table("what breaks: longer steps, or GPU-hours for each", ("what", "predicted"), rows)
    say("everything: --details; as a page: --html FILE; beside a simulation: --simulate")


def _print(lines: Sequence[RehearsalLine], record: RunRecord | None, *, simulated: bool) -> None:
    for section in dict.fromkeys(line.section for line in lines):
        own = [line for line in lines if line.section == section]
        rows = [(line.what, *cells(line)) for line in own]
        print_table(section, ("what", "predicted", "simulated", "measured"), rows)
    source = "no finished run; `weft train` makes one" if record is None else record.name
    beside = "permutations of a ring's step on a part of the fabric" if simulated else "add --simulate"
    say(f"measured: {source}; simulated: {beside}")


def cells(line: RehearsalLine) -> tuple[str, str, str]:
    """Return the three columns of a line for people."""
    values = (line.predicted, line.simulated, line.measured)
    predicted, simulated, measured = ("-" if value is None else shown(value, line.unit) for value in values)
    return predicted, simulated, measured


def shown(value: float | str, unit: str) -> str:
    """Return a figure with its unit."""
    if isinstance(value, str):
        return value
    if math.isinf(value):
        return "stops" if unit == "%" else "none expected"
    if _CURRENCY.match(unit):
        return money(value, unit)
    return _SHOWN[unit](value) if unit in _SHOWN else f"{counted_whole(value)} {unit}".strip()


_CURRENCY = re.compile(r"^[A-Z]{3}$")
_SHOWN: dict[str, Callable[[float], str]] = {
    "s": seconds,
    "b/s": RATE.about,
    "B": SIZE.about,
    "W": watts,
    "J": joules,
    "kWh": kilowatt_hours,
    "kg": kilograms,
    "%": lambda value: f"{significant(value)} %",
}


_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; max-width: 70em; margin: 2em auto; padding: 0 1em; color: #222 }
table { border-collapse: collapse; margin: 0 0 2em }
td, th { padding: .2em 1em; text-align: right; border-bottom: 1px solid #ddd }
td:first-child, th:first-child { text-align: left }
h2 { font-size: 1.1em; margin: 1.5em 0 .3em }
svg { max-width: 100%; height: auto }
"""


def page_of(report: PlanReport, lines: Sequence[RehearsalLine], picture: str) -> str:
    """Return the page as one HTML document with its picture inside."""
    title = html.escape(f"{report.job.name} on {report.site.name}")
    parts = [f"<!doctype html><html lang='en'><meta charset='utf-8'><title>{title}</title><style>{_STYLE}</style>"]
    parts.append(f"<h1>{title}</h1><p>{html.escape(report.site.description)}</p>")
    for section in dict.fromkeys(line.section for line in lines):
        parts.append(f"<h2>{html.escape(section)}</h2><table><tr><th><th>predicted<th>simulated<th>measured")
        for line in lines:
            if line.section == section:
                row = "".join(f"<td>{html.escape(cell)}" for cell in cells(line))
                parts.append(f"<tr><td>{html.escape(line.what)}{row}")
        parts.append("</table>")
    return "\n".join([*parts, picture, "</html>\n"])


def _write(target: Path, report: PlanReport, lines: Sequence[RehearsalLine]) -> None:
    with writing(target) as part:
        part.write_text(page_of(report, lines, _picture(report)), encoding="utf-8")


def _picture(report: PlanReport) -> str:
    import matplotlib as mpl
    from matplotlib.figure import Figure

    from weft.cli.pictures import draw_plan

    with mpl.rc_context(PICTURE_STYLE):
        figure = Figure(figsize=(13.0, 9.0), layout="constrained")
        draw_plan(figure, report)
        text = io.StringIO()
        figure.savefig(text, format="svg", metadata={"Date": None})
    document = text.getvalue()
    return document[document.index("<svg") :]
