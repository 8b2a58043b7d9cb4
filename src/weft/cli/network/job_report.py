"""What `weft simulate` says of several jobs on one fabric: the time of each beside the others, and alone."""

from collections.abc import Sequence

from weft.cli.output import print_table
from weft.core.quantity import TIME
from weft.netsim.report import SimulationReport
from weft.netsim.run import Observers
from weft.netsim.setup import set_up, transports_of
from weft.netsim.sharing import JobTime, job_times
from weft.specs import ScenarioSpec, load_scenario, load_site


def times_of_jobs(
    scenario: str | ScenarioSpec | None, reports: Sequence[SimulationReport], seed: int | None, observers: Observers
) -> list[tuple[JobTime, ...]]:
    """Run the jobs of a scenario alone, for each report; none where it has no jobs."""
    spec = load_scenario(scenario) if isinstance(scenario, str) else scenario
    if spec is None or not spec.jobs:
        return []
    site = load_site(spec.site)
    setup = set_up(spec, site, seed)
    transports = transports_of(setup, tuple(report.transport for report in reports))
    return [
        job_times(report, setup, site, transport, observers)
        for report, transport in zip(reports, transports, strict=True)
    ]


def print_jobs(found: Sequence[tuple[JobTime, ...]]) -> None:
    """Print a line for each job and transport."""
    rows = [
        (time.name, time.transport, _about(time.together_ps), _about(time.alone_ps),
         "-" if time.slower is None else f"{time.slower:.3f}")
        for times in found
        for time in times
    ]  # fmt: skip
    if rows:
        print_table("jobs beside each other", ("job", "transport", "together", "alone", "times as long"), rows)


def _about(time_ps: int | None) -> str:
    return "did not end" if time_ps is None else TIME.about(time_ps)
