"""Several jobs on one fabric: each one's steps of compute and a collective as flows, over NICs of its own."""

from weft.collectives.registry import schedule_named
from weft.core.errors import UsageError
from weft.netsim.model.flow import Flow
from weft.netsim.workload.schedules import Beginning, flows_of_schedule
from weft.specs.scenario import SharerSpec

BETWEEN = "/"
"""What stands between a job's name and what follows it in the name of a flow."""


def sharer_flows(jobs: tuple[SharerSpec, ...], hosts: int) -> list[Flow]:
    """Return the flows of all jobs; those of one are named by it."""
    flows: list[Flow] = []
    taken: dict[int, str] = {}
    for job in jobs:
        nics = range(job.first, job.first + job.ranks * job.stride, job.stride)
        if nics[-1] >= hosts:
            raise UsageError(f"job {job.name!r} needs NIC {nics[-1]}, but there are {hosts:,}; change first or stride")
        shared = next((nic for nic in nics if nic in taken), None)
        if shared is not None:
            raise UsageError(f"jobs {taken[shared]!r} and {job.name!r} both have NIC {shared}; give each its own")
        taken |= dict.fromkeys(nics, job.name)
        _add_steps(flows, job, nics)
    return flows


def _add_steps(flows: list[Flow], job: SharerSpec, nics: range) -> None:
    """Add the steps of one job: a rank computes once the collective before is over for it, and all send after that."""
    schedule = schedule_named(job.kind, job.algorithm, job.ranks)
    over: list[tuple[int, ...]] = [()] * job.ranks
    for step in range(job.steps):
        name = f"{job.name}{BETWEEN}{step}"
        computed = len(flows)
        flows += [
            Flow(f"{name}.compute.{nic}", nic, nic, 0, job.compute if step else job.at + job.compute, over[rank])
            for rank, nic in enumerate(nics)
        ]
        ready = computed + job.ranks
        flows.append(Flow(f"{name}.ready", nics[0], nics[0], 0, 0, tuple(range(computed, ready))))
        sends = flows_of_schedule(schedule, nics, job.size, begin=Beginning(0, (ready,), len(flows), name))
        first = len(flows)
        flows += sends
        over = [tuple(first + n for n, flow in enumerate(sends) if flow.destination == nic) or (ready,) for nic in nics]
