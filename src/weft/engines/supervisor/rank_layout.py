"""The ranks of a run before any is started: the program that they run, their slots, what may be done without some."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from weft.cluster.recovery.events import RankSlot, RecoveryPolicy
from weft.cluster.recovery.limits import LimitRule
from weft.planning.legality import problems
from weft.specs.job import JobSpec, PlanSpec
from weft.training.launch.ranks import Target


@dataclass(frozen=True)
class RankMain:
    """What every rank runs, and what is known of it beforehand."""

    target: str | Target = "weft.training.train:train"
    arguments: Mapping[str, Any] | None = None
    """What it gets; the job, the folder and whether to resume where absent."""
    ranks: int | None = None
    """Most ranks of a job that leaves its plan open; one per processor where absent."""
    rule: LimitRule = field(default_factory=LimitRule)
    """How long its phases may take."""


TRAIN = RankMain()
"""A training by its job file."""


def narrowed(plan: PlanSpec, replicas: int) -> PlanSpec:
    """Return `plan` with another number of data-parallel replicas, fully sharded if it was."""
    shard = replicas if plan.shard == plan.dp else plan.shard
    return plan.model_copy(update={"dp": replicas, "shard": shard})


def _fits(job: JobSpec, plan: PlanSpec) -> bool:
    return plan.dp % plan.shard == 0 and plan.dp % plan.ep == 0 and not problems(plan, job.model, job.batch)


def slots_of(ranks: int, spares: int, domains: int, hosts: int = 1) -> tuple[RankSlot, ...]:
    """Return the slots of a run: neighbours share a failure domain, spares are dealt out over all of them.

    A domain never spans two of the `hosts`, so each has one at least.
    """
    here = -(-domains // hosts)
    each = -(-ranks // hosts)
    in_domain = -(-each // here)
    used = (RankSlot(number, number // each * here + number % each // in_domain) for number in range(ranks))
    return (*used, *(RankSlot(ranks + spare, spare % (here * hosts)) for spare in range(spares)))


def policy_of(job: JobSpec, plan: PlanSpec, rule: LimitRule) -> RecoveryPolicy:
    """Return what may be done about lost hardware: as the job says, at the widths that its plan allows."""
    recovery = job.recovery
    widths = tuple(width for width in range(1, plan.dp) if _fits(job, narrowed(plan, width)))
    return RecoveryPolicy(
        recovery.policy, plan.dp, plan.ranks // plan.dp, widths, recovery.restarts, patience_ps=recovery.patience,
        rule=rule,
    )  # fmt: skip


def checks_of(job: JobSpec) -> Any:
    """Return how the ranks' collectives are checked, where the job asks for it."""
    if not job.guard.checked:
        return None
    from weft.training.checked_collectives import Checks

    return Checks(seed=job.seed, inner="mrc" if job.backend == "mrc" else "gloo")
