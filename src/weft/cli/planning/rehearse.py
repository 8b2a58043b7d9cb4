"""`weft rehearse`: the first page of the product, what a job would do on a site, on a screen or as an HTML file."""

import datetime
import logging
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from weft import api
from weft.cli.output import (
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
from weft.cli.planning.page.formats import shown
from weft.cli.planning.page.html_page import page_of
from weft.cli.planning.plan import Pairs, pairs_of
from weft.core.errors import UsageError
from weft.planning.rehearsal import RehearsalLine
from weft.planning.report import PlanReport
from weft.planning.summary.rehearsed import Rehearsal, described
from weft.planning.what_if import changed_all
from weft.specs import load_job, load_site

_RUNS = Path("runs")
_EFFECTS = {"step": "longer step", "GPU-hours": "GPU-hours lost"}
"""What a failure does, by the last word of its line."""
AllChanges = Annotated[
    list[str] | None,
    Parameter(name="--what-if", negative="", help="Change site or job first, as planes=4; all that are given."),
]


def rehearse_job(
    site: SiteArgument,
    job: JobArgument,
    /,
    *,
    folder: Annotated[Path, Parameter(name="--folder", help="Folder of runs with measured figures.")] = _RUNS,
    begin: Annotated[str | None, Parameter(name="--start", help="First day of the run, as 2027-01-31.")] = None,
    simulate: Annotated[
        bool | None,
        Parameter(help="Simulate the step's communication packet by packet. By default where it takes under 20 s."),
    ] = None,
    fix: Pairs = None,
    what_if: AllChanges = None,
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
    tell = logging.getLogger("weft.netsim").info
    there, task = changed_all(load_site(site), load_job(job), what_if or ())
    found = api.rehearse(
        there, task, folder=folder, start=_day(begin), simulate=simulate, say=tell, fixed=pairs_of(fix or [])
    )
    document = found.as_json()
    if page is not None:
        with writing(page) as part:
            part.write_text(page_of(document), encoding="utf-8")
    if json:
        print_json(document)
    if found.report is None:
        raise UsageError(found.obstacle)
    save_picture(plot, "draw_plan", found.report, size=(13.0, 9.0))
    if json:
        return
    _print_headline(found, found.report)
    if details:
        _print(found)
    else:
        _print_beside(found)


def _day(text: str | None) -> datetime.date | None:
    """Return the first day of the run."""
    if text is None:
        return None
    try:
        return datetime.date.fromisoformat(text)
    except ValueError:
        raise UsageError(f"--start {text}: write a day as 2027-01-31") from None


def _print_headline(found: Rehearsal, report: PlanReport) -> None:
    say(f"{found.job.name} on {found.site.name}: {described(found.site)}", style="bold")
    for line in headline(report):
        say(line)
    for line in found.lines:
        if line.key == "finish":
            say(f"{line.what} {line.predicted}")
    say("")


def _print_beside(found: Rehearsal) -> None:
    """Print the figures that were simulated or measured beside those predicted, and what breaks."""
    beside = [line for line in found.lines if line.simulated is not None or line.measured is not None]
    if beside:
        title = "predicted beside what was simulated or measured"
        name = "" if found.run is None else f" ({found.run})"
        rows = [(line.what, *cells(line)) for line in beside]
        print_table(f"{title}{name}", ("what", "predicted", "simulated", "measured"), rows)
    alike: dict[tuple[str, str], list[str]] = {}
    for line in found.lines:
        if line.section.startswith("what breaks"):
            name, _, effect = line.what.rpartition(": ")
            alike.setdefault((effect, cells(line)[0]), []).append(name)
    rows = [(_EFFECTS[effect], value, ", ".join(names)) for (effect, value), names in alike.items()]
    print_table("what a failure takes, of each kind", ("", "of each", "what breaks"), rows, words=(0, 2))
    say(_simulated(found))
    say("everything: --details; as a page: --html FILE")


def _print(found: Rehearsal) -> None:
    for section in dict.fromkeys(line.section for line in found.lines):
        own = [line for line in found.lines if line.section == section]
        rows = [(line.what, *cells(line)) for line in own]
        print_table(section, ("what", "predicted", "simulated", "measured"), rows)
    source = "no finished run; `weft train` makes one" if found.run is None else found.run
    say(f"measured: {source}; {_simulated(found)}")


def _simulated(found: Rehearsal) -> str:
    """Return what the simulated column rests on, or why there is none."""
    note = found.simulation.note
    return note if note.startswith("not simulated") else f"simulated: {note}"


def cells(line: RehearsalLine) -> tuple[str, str, str]:
    """Return the three columns of a line for people."""
    values = (line.predicted, line.simulated, line.measured)
    predicted, simulated, measured = ("-" if value is None else shown(value, line.unit) for value in values)
    return predicted, simulated, measured
