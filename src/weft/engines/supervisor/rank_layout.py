"""The ranks of a run before any is started: the program that they run, their slots, what may be done without some."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from weft.cluster.recovery.events import RankSlot, RecoveryPolicy
from weft.cluster.recovery.limits import LimitRule
from weft.planning.legality import problems
from weft.specs.job import JobSpec, PlanSpec
from weft.training.launch.rank_process import Target


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


def policy_of(job: JobSpec, plan: PlanSpec, main: RankMain, hosts: int = 1) -> RecoveryPolicy:
    """Return what may be done about lost hardware: as the job says, at the widths that its plan allows."""
    recovery = job.recovery
    widths = tuple(width for width in range(1, plan.dp) if _fits(job, narrowed(plan, width)))
    return RecoveryPolicy(
        recovery.policy, plan.dp, plan.ranks // plan.dp, widths, recovery.restarts, patience_ps=recovery.patience,
        rule=main.rule, restart_all=_why_all(job, plan, main, hosts),
    )  # fmt: skip


def _why_all(job: JobSpec, plan: PlanSpec, main: RankMain, hosts: int) -> str | None:
    """Return why every rank must be started again when one is lost, or nothing where the others can go on."""
    guard, in_step = job.guard, job.recovery.in_step
    split = next((axis for axis in ("shard", "tp", "pp", "cp", "ep") if getattr(plan, axis) > 1), None)
    guarded = guard.checked or guard.digest_every or guard.replay_every or guard.micro_test_every or guard.abft
    reasons = {
        "ranks of several hosts are not replaced one by one": hosts > 1,
        "the job says so: recovery.in_step = false": in_step is False,
        "the loop is one's own, and its job does not say recovery.in_step = true":
            in_step is None and main.target != TRAIN.target,
        f"the plan has {split} > 1, and only whole replicas hold what a lost rank held": split is not None,
        "queue pairs to a lost rank are not replaced one by one": job.backend == "mrc",
        "the guard's account of a step is not carried over": bool(guarded),
        "there is no other rank": plan.dp == 1,
    }  # fmt: skip
    return next((why for why, so in reasons.items() if so), None)


def checks_of(job: JobSpec) -> Any:
    """Return how the ranks' collectives are checked, where the job asks for it."""
    if not job.guard.checked:
        return None
    from weft.training.checked_collectives import Checks

    return Checks(seed=job.seed, inner="mrc" if job.backend == "mrc" else "gloo")
