"""The plan of a job that leaves it open: the planner's best among those that this machine can start.

The planner decides; what is added here is what the trainer cannot do (`planning.legality`) and how many ranks there
are. `weft train`, `weft submit` and `weft submit --on` all ask `planned`, so that one job file means one plan.
"""

from dataclasses import replace

from weft.core.errors import UsageError
from weft.core.processors import processors
from weft.planning.cost_model.machine import Machine, machine_of
from weft.planning.cost_model.plans import Plans, Workload, dimensions_of, spec_of
from weft.planning.legality import is_trained
from weft.planning.search import search
from weft.specs import load_site
from weft.specs.job import JobSpec, PlanSpec
from weft.specs.software import SoftwareSpec
from weft.training.parallel.mesh import check

_HERE = "laptop"


def planned(job: JobSpec, site: str | None = None, ranks: int | None = None) -> JobSpec:
    """Return `job` with a plan that fits: its own, or where it leaves that open the best one.

    It is the best for `site` where one is named, else for up to `ranks` ranks on CPUs, by default one per processor of
    this machine.
    """
    if job.plan == "auto":
        machine = None if site is None else machine_of(load_site(site))
        most = ranks or (processors() if machine is None else machine.gpus)
        job = job.model_copy(update={"plan": automatic(job, most, machine)})
    assert job.plan != "auto"
    check(job, job.plan)
    return job


def automatic(job: JobSpec, ranks: int, machine: Machine | None = None) -> PlanSpec:
    """Return the best plan for up to `ranks` ranks of this machine; its micro-batches are the job's own."""
    known = machine or machine_of(load_site(_HERE))
    practice = SoftwareSpec(precision="fp32" if known.kind == "CPU" else "bf16")
    work = Workload(dimensions_of(job.model), job.batch.sequences, job.batch.length)

    def starts(plans: Plans, row: int) -> bool:
        return is_trained(plans, row, job, practice)

    for room in range(min(ranks, job.batch.sequences), 0, -1):
        here = replace(known, gpus=room)
        try:
            found = search(work, here, practice, fixed={"micro": str(job.batch.micro)}, top=1, accept=starts)
        except UsageError:
            continue
        if len(found.accepted):
            return spec_of(found.accepted.plans, 0, practice)
    return PlanSpec()
