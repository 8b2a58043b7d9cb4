"""A rehearsal as a whole: the report behind it, its lines, and the document that page, terminal and programs share.

`as_json` is that document. The page of `weft rehearse --html` is made from it and from nothing else, so that a figure
stands in both or in neither.
"""

import math
from dataclasses import dataclass, replace
from datetime import date

from weft.core.provenance import provenance
from weft.core.quantity import counted
from weft.fabric.design import describe
from weft.planning.rehearsal import RehearsalLine
from weft.planning.report import PlanReport
from weft.planning.summary.alternatives import alternatives
from weft.planning.summary.failure_bill import failure_bill
from weft.planning.summary.power_bill import power_bill
from weft.planning.summary.sources import assumptions, sources
from weft.planning.summary.step_chart import memory_chart, step_chart
from weft.planning.summary.verdict import check_begin, day_after, impossible, tiles, verdict
from weft.planning.summary.wording import Plain, named, sentence
from weft.specs import SITES, load_site
from weft.specs.job import JobSpec
from weft.specs.site import SiteSpec


@dataclass(frozen=True)
class SampledSimulation:
    """What was simulated packet by packet for a rehearsal, or why nothing was."""

    note: str
    """One sentence: what was simulated, or why not."""
    nics: int = 0
    """NICs that were simulated; 0 where nothing was."""
    seed: int = 0
    """Seed of the simulation."""

    def as_json(self) -> Plain:
        """Return the fields as plain values."""
        return {"ran": self.nics > 0, "nics": self.nics, "seed": self.seed if self.nics else None, "note": self.note}


@dataclass(frozen=True)
class Rehearsal:
    """What a job would do on a site."""

    site: SiteSpec
    """The site."""
    job: JobSpec
    """The job."""
    report: PlanReport | None
    """The planner's report; none where the job does not fit."""
    obstacle: str
    """Where it does not fit: why, and what would; empty otherwise."""
    lines: tuple[RehearsalLine, ...]
    """Every figure, predicted beside simulated beside measured."""
    simulation: SampledSimulation
    """What the simulated figures come from."""
    run: str | None = None
    """The run that the measured figures come from."""
    begin: date | None = None
    """First day of the run, where one was given."""

    def as_json(self) -> Plain:
        """Return the rehearsal as plain values."""
        asked = {"site": self.site.as_written(), "job": self.job.as_written()}
        seed = self.simulation.seed if self.simulation.nics else None
        return {
            "site": self.site.name,
            "job": self.job.name,
            "run": self.run,
            "feasible": self.report is not None,
            "lines": [line.as_json() for line in self.lines],
            "simulation": self.simulation.as_json(),
            "page": self._page(),
            "plan": None if self.report is None else self.report.as_json(),
            "provenance": provenance(asked, seed).as_json(),
        }

    def _page(self) -> Plain:
        head: Plain = {
            "title": f"{self.job.name} on {self.site.name}",
            "site": described(self.site),
            "job": self.job.description,
        }
        rest: Plain = {
            "fabric": fabric_chart(self.site),
            "assumptions": assumptions(self.site, self.report),
            "sources": sources(self.site, self.report),
        }
        if self.report is None:
            return {**head, "verdict": impossible(self.obstacle), **rest}
        report = self.report
        bill, power = failure_bill(report), power_bill(report)
        return {
            **head,
            "verdict": verdict(report, bill, power, self.begin),
            "tiles": tiles(report),
            "step": step_chart(report),
            "memory": memory_chart(report),
            "failures": bill,
            "power": power,
            "alternatives": alternatives(report),
            **rest,
        }


def fabric_chart(site: SiteSpec) -> Plain:
    """Return the tiers of a fabric with their switches, and what it can do."""
    found, spec = describe(site.name, site.fabric), site.fabric
    tiers = [
        {"name": f"T{number}", "per_plane": grid.size // spec.planes, "all": grid.size}
        for number, grid in enumerate(found.shape.switch_grids)
    ]
    return {
        "planes": spec.planes,
        "tiers": tiers,
        "facts": [
            named("GPUs", float(spec.gpus)),
            named("planes", float(spec.planes)),
            named("NIC rate", float(spec.nic_rate), "b/s"),
            named("port rate", float(spec.port_rate), "b/s"),
            named("switches", float(found.shape.switches)),
            named("links", float(sum(found.shape.links))),
            named("longest path, switches", float(found.limits.hops_max)),
            named("bisection", float(found.limits.bisection_bps), "b/s"),
            named("network power", found.bill.power_mw / 1000, "W"),
        ],
        "note": sentence(
            "One NIC of {gpus} is drawn with its port in each of {planes} planes; the figure at a tier is that of its "
            "switches in one plane." if spec.planes > 1 else
            "One NIC of {gpus} is drawn with its way up; the figure at a tier is that of its switches.",
            gpus=(float(spec.gpus), ""), planes=(float(spec.planes), ""),
        ),
    }  # fmt: skip


def begun(rehearsal: Rehearsal, begin: date) -> Rehearsal:
    """Return a rehearsal of a run that begins on a day, with a line that says when it ends."""
    check_begin(rehearsal.report, begin)
    if rehearsal.report is None or not math.isfinite(rehearsal.report.run.days):
        return replace(rehearsal, begin=begin)
    run = rehearsal.report.run
    ends, first, last = (day_after(begin, days) for days in (run.days, run.days_low, run.days_high))
    section = "the run with this site's failures"
    line = RehearsalLine(section, "finish", "ends", "", f"{ends}; 90 % interval {first} to {last}")
    return replace(rehearsal, begin=begin, lines=(*rehearsal.lines, line))


def described(site: SiteSpec) -> str:
    """Return what a site is, in a phrase; the one of a site that it builds on speaks of that one's size."""
    if site.name in SITES.names():
        return site.description
    like = next((name for name in SITES.names() if load_site(name).description == site.description), None)
    return (
        site.description
        if like is None
        else f"{counted(site.fabric.gpus, f'{site.gpu.kind} GPU')}, otherwise like {like}"
    )
