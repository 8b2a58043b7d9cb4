"""What jobs on one fabric do to each other: the time of each together with the others, and alone."""

from dataclasses import dataclass, replace
from typing import Any

from weft.netsim.report import SimulationReport
from weft.netsim.run import NOBODY, Observers, run
from weft.netsim.setup import Setup, set_up
from weft.netsim.transports.base import Transport
from weft.netsim.workload.sharers import BETWEEN
from weft.specs.site import SiteSpec

_PS_PER_US = 10**6


@dataclass(frozen=True)
class JobTime:
    """One job of several."""

    name: str
    """Its name."""
    transport: str
    """By which transport all of them sent."""
    together_ps: int | None
    """From its beginning to the end of its last step, beside the others; nothing where it did not end."""
    alone_ps: int | None
    """The same with the fabric to itself."""

    @property
    def slower(self) -> float | None:
        """Return how many times as long it took beside the others."""
        if self.together_ps is None or not self.alone_ps:
            return None
        return self.together_ps / self.alone_ps

    def as_json(self) -> dict[str, Any]:
        """Return it as plain values (docs/json.md)."""
        return {
            "job": self.name,
            "transport": self.transport,
            "together_us": None if self.together_ps is None else self.together_ps / _PS_PER_US,
            "alone_us": None if self.alone_ps is None else self.alone_ps / _PS_PER_US,
            "slower": None if self.slower is None else round(self.slower, 4),
        }


def time_of(report: SimulationReport, job: str) -> int | None:
    """Return how long a job of a run took, compute included."""
    mine = [flow for flow in (*report.flows, *report.waits) if flow.name.startswith(job + BETWEEN)]
    if not mine or any(flow.arrived_ps < 0 for flow in mine):
        return None
    return max(flow.arrived_ps for flow in mine) - min(flow.began_ps for flow in mine)


def job_times(
    report: SimulationReport, setup: Setup, site: SiteSpec, transport: Transport, observers: Observers = NOBODY
) -> tuple[JobTime, ...]:
    """Run every job of a scenario alone and return its time beside the one that it took together with the others."""
    found: list[JobTime] = []
    quiet = replace(observers, keep=None, series=None)
    for job in setup.scenario.jobs:
        alone = set_up(setup.scenario.model_copy(update={"jobs": (job,), "background": None}), site, setup.seed.root)
        lonely = run(alone, transport, observers=quiet)
        found.append(JobTime(job.name, transport.name, time_of(report, job.name), time_of(lonely, job.name)))
    return tuple(found)
