"""A training step as traffic: what its plan sends over the fabric, as flows that wait for each other and for compute.

Ranks sit on NICs as `weft.planning.run.placement` numbers them: the tensor axis innermost, then context, data,
pipeline. Sent are the activations and their gradients between stages, micro-batch by micro-batch, and the reduction of
gradients (and gathering of sharded weights) at the end, in two levels: what stays inside a scale-up domain takes its
time there. Tensor, context and expert exchanges are part of the compute that the planner prices. A stage sends a
micro-batch once it has computed it and the one before has arrived: sending does not overlap a stage's own next
micro-batch.
"""

from dataclasses import dataclass

from weft.collectives import algorithms
from weft.core.errors import UsageError
from weft.core.units import PICOSECONDS_PER_SECOND
from weft.netsim.model.flow import Flow
from weft.netsim.workload.schedules import Beginning, Near, flows_of_schedule
from weft.planning.cost_model.blocks import stage_parameters
from weft.planning.cost_model.machine import machine_of
from weft.planning.cost_model.plans import Plans, Workload, dimensions_of, software_of, written_plan
from weft.planning.cost_model.step import step_times
from weft.planning.search import search
from weft.specs.job import JobSpec
from weft.specs.site import SiteSpec

MOST_FLOWS = 1_000_000
"""Flows of one step that are taken on."""
_ACTIVATION_BYTES = 2
_GRADIENTS, _WEIGHTS = 2, 3
"""The stages of sharding at which gradients, and weights too, are sharded."""


@dataclass(frozen=True)
class StepTraffic:
    """One step of a job on a site, in numbers."""

    tp: int
    cp: int
    dp: int
    pp: int
    rounds: int
    """Micro-batches that pass each stage."""
    activation: int
    """Bytes that a rank sends to the next stage for one micro-batch."""
    gradients: int
    """Bytes of the reduction at the end, the size of an all-reduce that sends as much."""
    forward_ps: int
    """Time of one micro-batch through one stage."""
    backward_ps: int
    """The same backwards."""
    domain: int
    """GPUs of a scale-up domain."""
    near: Near
    """What a send inside one costs."""

    @property
    def ranks(self) -> int:
        """Return how many NICs take part."""
        return self.tp * self.cp * self.dp * self.pp

    def nic(self, column: int, stage: int) -> int:
        """Return the NIC of a column of the pipeline in one stage."""
        return column + self.tp * self.cp * self.dp * stage


def step_of(job: JobSpec, site: SiteSpec, share: float = 1.0) -> StepTraffic:
    """Return the step of a job, by its own plan or the planner's best; bytes and times are cut to `share`."""
    machine, practice = machine_of(site), software_of(job, site)
    work = Workload(dimensions_of(job.model), job.batch.sequences, job.batch.length)
    if job.plan == "auto":
        outcome = search(work, machine, practice, top=1)
        if not outcome.feasible:
            raise UsageError(f"{job.name} on {site.name}: {outcome.hint}")
        plans = outcome.best.plans.take([0])
    else:
        plans = written_plan(job, job.plan)
    times = step_times(work, plans, machine, practice)
    tp, cp, dp, pp = (int(axis[0]) for axis in (plans.tp, plans.cp, plans.dp, plans.pp))
    if tp * cp * dp * pp > site.fabric.gpus:
        raise UsageError(
            f"{job.name} needs {tp * cp * dp * pp:,} GPUs, but the fabric has {site.fabric.gpus:,}; add gpus"
        )
    rounds = max(1, work.sequences // (dp * int(plans.micro[0])))
    activation = int(plans.micro[0]) * work.length * work.model.width * _ACTIVATION_BYTES // (cp * tp)
    whole = _reduced_bytes(work, plans, rounds, practice.gradient_bytes)
    return StepTraffic(
        tp, cp, dp, pp, rounds, max(1, round(activation * share)), max(1, round(whole * share)),
        round(float(times.forward_s[0]) * share * PICOSECONDS_PER_SECOND),
        round(float(times.backward_s[0]) * share * PICOSECONDS_PER_SECOND),
        machine.domain_gpus,
        Near(round(machine.domain_latency_s * PICOSECONDS_PER_SECOND), round(machine.domain_rate)),
    )  # fmt: skip


def _reduced_bytes(work: Workload, plans: Plans, rounds: int, gradient_bytes: int) -> float:
    """Return the size of an all-reduce that sends what the plan's reductions and gatherings do in a step."""
    parameters, zero = float(stage_parameters(work.model, plans)[0]), int(plans.zero[0])
    scattered = parameters * gradient_bytes * (rounds if zero >= _GRADIENTS else 1)
    gathered = (
        parameters * (gradient_bytes if zero == 0 else _ACTIVATION_BYTES) * (2 * rounds if zero >= _WEIGHTS else 1)
    )
    return (scattered + gathered) / 2


def step_flows(step: StepTraffic) -> list[Flow]:
    """Return the flows of a step."""
    columns = step.tp * step.cp * step.dp
    _check_size(step, columns)
    flows: list[Flow] = []
    last: dict[tuple[int, int], int] = {}
    for column in range(columns):
        _pipeline(step, column, flows, last)
    for stage in range(step.pp):
        for tensor in range(step.tp):
            _reduce(step, stage, tensor, flows, last)
    if not flows:
        raise UsageError("nothing of this job's step crosses the fabric; use more GPUs than one scale-up domain has")
    return flows


def _check_size(step: StepTraffic, columns: int) -> None:
    group = step.cp * step.dp
    count = 2 * columns * (step.pp - 1) * step.rounds + step.pp * step.tp * 2 * group * max(0, group - 1)
    if count > MOST_FLOWS:
        raise UsageError(
            f"this job's step is {count:,} flows, more than are taken on ({MOST_FLOWS:,}); use a smaller job"
        )


def _pipeline(step: StepTraffic, column: int, flows: list[Flow], last: dict[tuple[int, int], int]) -> None:
    """Add the sends of one column of the pipeline; `last` keeps the last flow that each rank waits for."""
    sent: dict[tuple[str, int, int], int] = {}

    def add(
        way: str, micro: int, stage: int, other: int, waits: tuple[tuple[str, int, int], ...], wait_ps: int
    ) -> None:
        after = tuple(sorted({sent[key] for key in waits if key in sent}))
        sent[way, micro, stage] = len(flows)
        name = f"{way}{micro}.{column}:{stage}-{other}"
        flows.append(Flow(name, step.nic(column, stage), step.nic(column, other), step.activation, wait_ps, after))

    for micro in range(step.rounds):
        for stage in range(step.pp - 1):
            waits = ("F", micro, stage - 1), ("F", micro - 1, stage)
            add("F", micro, stage, stage + 1, waits, step.forward_ps)
        for stage in range(step.pp - 1, 0, -1):
            top = stage == step.pp - 1
            before = ("F", micro, stage - 1) if top else ("B", micro, stage + 1)
            wait_ps = step.backward_ps + (step.forward_ps if top else 0)
            add("B", micro, stage, stage - 1, (before, ("B", micro - 1, stage)), wait_ps)
    for stage in range(step.pp):
        key = ("B", step.rounds - 1, stage + 1 if stage < step.pp - 1 else stage)
        if key in sent:
            last[column, stage] = sent[key]


def _reduce(step: StepTraffic, stage: int, tensor: int, flows: list[Flow], last: dict[tuple[int, int], int]) -> None:
    """Add the reduction over the data and context ranks of one stage and tensor rank."""
    columns = [tensor + step.tp * member for member in range(step.cp * step.dp)]
    inner = max(1, min(len(columns), step.domain // step.tp))
    while len(columns) % inner:
        inner -= 1
    outer = len(columns) // inner
    if outer == 1:
        return
    schedule = algorithms.two_level_all_reduce(inner, outer) if inner > 1 else algorithms.ring_all_reduce(outer)
    after = tuple(sorted({last[column, stage] for column in columns if (column, stage) in last}))
    whole_ps = step.rounds * (step.forward_ps + step.backward_ps)
    flows += flows_of_schedule(
        schedule, [step.nic(column, stage) for column in columns], step.gradients,
        begin=Beginning(step.backward_ps if after else whole_ps, after, len(flows), f"reduce{stage}.{tensor}"),
        near=step.near if inner > 1 else None,
    )  # fmt: skip
