"""What-if: a site and a job with changes, and everything that `weft rehearse` says about them, at once.

Sites and jobs are asked for by name among the built-in ones and the files below the console's folders.
"""

import shlex
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from weft import api
from weft.core.errors import UsageError, WeftError
from weft.core.provenance import provenance
from weft.core.quantity import POWER, RATE, SIZE
from weft.core.spec import Spec
from weft.core.toml import written
from weft.planning.rehearsal import rehearse
from weft.planning.report import PlanReport, step_row
from weft.planning.what_if import CHANGES, changed_all
from weft.specs import JOBS, SITES, JobSpec, SiteSpec, load_job, load_site

_MOST_FILES, _MOST_FILE_BYTES = 200, 1 << 20
_PLANS = 8
_WAVE = 600
_FIXED = ("dp", "tp", "pp", "cp", "ep", "zero", "recompute", "schedule", "micro")
Text = Annotated[str, Field(min_length=1, max_length=200)]


class WhatIfSpec(Spec):
    """A question about a job on a site."""

    site: Text
    """A site that the console lists."""
    job: Text
    """A job that the console lists."""
    changes: tuple[Text, ...] = Field((), strict=False, max_length=32)
    """Changes made one after the other, as planes=4."""
    fixed: tuple[Text, ...] = Field((), strict=False, max_length=16)
    """Choices of the plan, as tp=8."""


class SpecFiles:
    """The sites and jobs that may be asked about."""

    def __init__(self, folders: Iterable[Path]) -> None:
        """Offer the built-in ones, and the files directly in `folders`."""
        self._folders = tuple(folders)

    def sites(self) -> dict[str, str]:
        """Return the sites by the name that they are asked for by: built-in names, and files."""
        return {**{name: name for name in SITES.names()}, **self._files("fabric")}

    def jobs(self) -> dict[str, str]:
        """Return the jobs in the same way."""
        return {**{name: name for name in JOBS.names()}, **self._files("optimizer", "model")}

    def load(self, site: str, job: str) -> tuple[SiteSpec, JobSpec]:
        """Return both, read anew."""
        jobs = self.jobs()
        if job not in jobs:
            raise UsageError(f"there is no job called {job!r} here; there are {', '.join(jobs)}")
        return self.site(site), load_job(jobs[job])

    def site(self, name: str) -> SiteSpec:
        """Return one site, read anew."""
        sites = self.sites()
        if name not in sites:
            raise UsageError(f"there is no site called {name!r} here; there are {', '.join(sites)}")
        return load_site(sites[name])

    def _files(self, *tables: str) -> dict[str, str]:
        """Return TOML files that have one of `tables`, or extend another file, by their names."""
        found: dict[str, str] = {}
        for folder in self._folders:
            for path in sorted(folder.glob("*.toml"))[:_MOST_FILES]:
                try:
                    if path.stat().st_size > _MOST_FILE_BYTES or not path.is_file():
                        continue
                    text = path.read_text(encoding="utf-8")
                except (OSError, UnicodeDecodeError):
                    continue
                if any(f"[{table}" in text for table in tables):
                    found[path.name] = str(path.absolute())
        return found


def choices(files: SpecFiles) -> dict[str, Any]:
    """Return what can be asked: sites and jobs with their present values, and the names of changes."""
    return {
        "sites": [_site(name, at) for name, at in files.sites().items()],
        "jobs": [_job(name, at) for name, at in files.jobs().items()],
        "changes": list(CHANGES), "fixed": list(_FIXED),
    }  # fmt: skip


def _site(name: str, at: str) -> dict[str, Any]:
    try:
        site = load_site(at)
    except WeftError as error:
        return {"name": name, "error": str(error)}
    fabric = site.fabric
    return {
        "name": name, "description": site.description, "gpus": fabric.gpus, "node_gpus": site.node.gpus,
        "planes": fabric.planes, "link_rate": RATE.format(fabric.nic_rate), "scale_up": site.scale_up.gpus,
        "memory": SIZE.format(site.gpu.memory),
        "power": POWER.format(site.gpu.power), "kind": site.gpu.kind, "error": None,
    }  # fmt: skip


def _job(name: str, at: str) -> dict[str, Any]:
    try:
        job = load_job(at)
    except WeftError as error:
        return {"name": name, "error": str(error)}
    return {
        "name": name, "description": job.description, "batch": job.batch.sequences, "length": job.batch.length,
        "steps": job.steps, "plan": "auto" if job.plan == "auto" else "own", "error": None,
    }  # fmt: skip


def answered(files: SpecFiles, asked: WhatIfSpec) -> dict[str, Any]:
    """Return the rehearsal of what is asked, with the command and the files that say the same."""
    site, job = files.load(asked.site, asked.job)
    site, job = changed_all(site, job, asked.changes)
    report = api.plan(job, site, top=_PLANS, fixed=_pairs(asked.fixed))
    spec = {"site": site.as_written(), "job": job.as_written()}
    words = ["weft", "rehearse", asked.site, asked.job]
    words += [word for change in asked.changes for word in ("--what-if", change)]
    words += [word for pair in asked.fixed for word in ("--fix", pair)]
    best = report.outcome.best
    return {
        "lines": [line.as_json() for line in rehearse(report)],
        "plans": [report.row(best, row) for row in range(len(best))],
        "chosen": report.row(report.chosen, 0), "considered": report.outcome.considered,
        "feasible": report.outcome.feasible, "step": step_row(report.chosen.times, 0),
        "memory": {"parts": report.chosen.memory.row(0), "of": int(report.machine.memory_bytes)},
        "faults": [{"name": each.name, "gpu_hours": each.lost_gpu_hours, "stops": each.stops}
                   for each in report.goodput.faults],
        "power": _power(report), "command": shlex.join(words),
        "site_toml": f"{written(spec['site'])}\n", "job_toml": f"{written(spec['job'])}\n",
        "provenance": provenance(spec).as_json(),
    }  # fmt: skip


def _power(report: PlanReport) -> dict[str, Any]:
    """Return the draw at the meter over a few steps, and what the contract allows."""
    power = report.site.power
    every = max(1, len(report.wave) // _WAVE)
    return {
        "per_second": report.per_second / every,
        "watts": [float(watts) for watts in report.meter.at(report.wave)[::every]],
        "limit_w": None if power.limit is None else power.limit / 1000,
        "mean_w": report.power.mean_w, "peak_w": report.power.peak_w, "broken": list(report.power.broken),
        "mitigations": [{"name": each.name, "energy": each.energy, "slower": each.slower,
                         "swing_w": each.verdict.swing_w, "broken": list(each.verdict.broken)}
                        for each in report.mitigations],
    }  # fmt: skip


def _pairs(texts: Sequence[str]) -> dict[str, str] | None:
    """Return choices of the plan by name."""
    found: dict[str, str] = {}
    for text in texts:
        name, equals, value = (part.strip() for part in text.partition("="))
        if not equals or name not in _FIXED or not value:
            raise UsageError(f"{text!r} is no choice of a plan; write NAME=VALUE with one of {', '.join(_FIXED)}")
        found[name] = value
    return found or None
