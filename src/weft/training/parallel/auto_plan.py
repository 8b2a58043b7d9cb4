"""The plan of a job that leaves it open: the planner's best among those that this machine can start.

The planner decides; what is added here is what the trainer cannot do (`mesh.problems`) and how many ranks there are.
`weft train`, `weft submit` and `weft submit --on` all ask `planned`, so that one job file means one plan.
"""

from weft.core.errors import UsageError
from weft.core.processors import processors
from weft.planning.cost_model.machine import Machine, machine_of
from weft.planning.cost_model.plans import Practice, dimensions_of, spec_of
from weft.planning.cost_model.step import Workload
from weft.planning.search import search
from weft.specs import load_site
from weft.specs.job import JobSpec, PlanSpec
from weft.training.parallel.mesh import check, problems

_HERE = "laptop"
_TRIED = 200


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
    practice = Practice(fp32=known.kind == "CPU")
    work = Workload(dimensions_of(job.model), job.batch.sequences, job.batch.length)
    for room in range(min(ranks, job.batch.sequences), 0, -1):
        try:
            found = search(work, known, practice, fixed={"micro": str(job.batch.micro)}, top=_TRIED, gpus=room)
        except UsageError:
            continue
        for row in range(len(found.best)):
            plan = spec_of(found.best.plans, row, practice)
            if not problems(plan, job.model, job.batch):
                return plan
    return PlanSpec()
