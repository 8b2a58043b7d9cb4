"""Which small runs tell what a large one will reach: a ladder of models and lengths below it.

The rungs are the target made smaller: narrower (heads of the same width, the same depth) and shorter. They form a grid,
four sizes by four lengths, its largest is at least ten times cheaper than the target. Each is trained as well as the
target is: its warm-up and its fall of the learning rate are shares of its own length, and a narrower model starts with
larger weights and learns at a higher rate. Everything else is unchanged. Pure: a job in, jobs out.
"""

import math
from dataclasses import dataclass

from weft.core.errors import UsageError
from weft.planning.cost_model.arithmetic import parameters
from weft.planning.cost_model.parameter_shapes import head_width
from weft.planning.scaling_laws.scaling import FLOPS_PER_PARAMETER_AND_TOKEN
from weft.specs.job import JobSpec, ModelSpec

LEAST_TIMES = 10.0
"""How much cheaper than the target the largest rung is, at least."""
SIZES = LENGTHS = 4
SIZE_STEP, LENGTH_STEP = 1.6, 1.6
"""Between two sizes, and two lengths: near enough to the target for one law to hold, far enough to see it."""
LEAST_STEPS = 20
TRANSIENT_STEPS = 1000
"""Shorter runs differ by when they leave their first plateau, not by what they can learn: their losses scatter
several times as much as those of longer runs (docs/scaling.md has the numbers)."""
MOST_RATE = 10.0
"""The highest learning rate that a job may have."""
_FEED_MULTIPLE = 8


@dataclass(frozen=True)
class Rung:
    """One run."""

    job: JobSpec
    """What is trained."""
    params: int
    """Its parameters."""
    tokens: int
    """Tokens that it sees."""

    @property
    def flops(self) -> float:
        """Return its operations."""
        return float(FLOPS_PER_PARAMETER_AND_TOKEN) * self.params * self.tokens


def rung_of(job: JobSpec) -> Rung:
    """Return a job as a run of known size."""
    return Rung(job, parameters(job.model).total, job.steps * job.batch.sequences * job.batch.length)


def ladder(target: JobSpec, budget: float | None = None) -> tuple[Rung, ...]:
    """Return the rungs below `target`, the cheapest first, whose operations together are within `budget`."""
    top = rung_of(target)
    shrink = math.sqrt(LEAST_TIMES)
    rungs = _grid(target, shrink)
    if budget is not None:
        if not (budget > 0 and math.isfinite(budget)):
            raise UsageError(f"a budget of {budget:g} operations; write a number above zero")
        for _ in range(64):
            spent = sum(rung.flops for rung in rungs)
            # Rounding can make two sizes one at some scales; a little smaller they differ again.
            if spent <= budget and len({rung.params for rung in rungs}) == SIZES:
                break
            shrink *= max(1.02, math.sqrt(spent / budget))
            rungs = _grid(target, shrink)
        else:
            raise _too_small(budget, top)
    if any(rung.job.steps < LEAST_STEPS for rung in rungs) or len({rung.params for rung in rungs}) < SIZES:
        raise _too_small(budget, top)
    assert all(top.flops >= LEAST_TIMES * rung.flops for rung in rungs), "rungs are far below the target"
    return tuple(sorted(rungs, key=lambda rung: (rung.flops, rung.params)))


def cautions(rungs: tuple[Rung, ...]) -> tuple[str, ...]:
    """Return what makes these rungs poor witnesses, in words."""
    shortest = min(rung.job.steps for rung in rungs)
    if shortest >= TRANSIENT_STEPS:
        return ()
    return (
        f"the shortest small run has {shortest:,} steps; below {TRANSIENT_STEPS:,} losses scatter; give the job more"
        " steps of smaller batches, or raise the budget",
    )


def _too_small(budget: float | None, top: Rung) -> UsageError:
    what = f"{top.flops:.2g} operations" if budget is None else f"a budget of {budget:.2g} operations"
    return UsageError(
        f"{what} leave no ladder of {SIZES} sizes and {LENGTHS} lengths of at least {LEAST_STEPS} steps below job"
        f" {top.job.name!r} ({top.params:,} parameters, {top.job.steps:,} steps); choose a larger job or budget"
    )


def _grid(target: JobSpec, shrink: float) -> list[Rung]:
    """Return the grid whose largest rung has 1/shrink of the target's parameters and of its steps, or less."""
    largest = _narrower(target.model, parameters(target.model).total / shrink)
    top = parameters(largest).total
    models: dict[int, ModelSpec] = {top: largest}
    for size in range(1, SIZES):
        model = _nearest(target.model, top / SIZE_STEP**size)
        models[parameters(model).total] = model
    found: list[Rung] = []
    for model in models.values():
        for length in range(LENGTHS):
            steps = max(1, math.floor(target.steps / shrink / LENGTH_STEP**length))
            found.append(rung_of(_job(target, model, steps)))
    return found


def _narrower(model: ModelSpec, wanted: float) -> ModelSpec:
    """Return the widest model like `model` that has at most `wanted` parameters, or the narrowest there is."""
    each = head_width(model)
    best = _with_heads(model, 1, each)
    for heads in range(2, model.heads + 1):
        wider = _with_heads(model, heads, each)
        if parameters(wider).total > wanted:
            break
        best = wider
    return best


def _nearest(model: ModelSpec, wanted: float) -> ModelSpec:
    """Return the model like `model` whose parameters differ from `wanted` by the smallest factor."""
    each = head_width(model)
    choices = [_with_heads(model, heads, each) for heads in range(1, model.heads + 1)]
    return min(choices, key=lambda one: abs(math.log(parameters(one).total / wanted)))


def _with_heads(model: ModelSpec, heads: int, each: int) -> ModelSpec:
    groups = model.kv_heads or model.heads
    share = max(1, model.heads // groups)
    ffn = max(_FEED_MULTIPLE, round(model.ffn * heads / model.heads / _FEED_MULTIPLE) * _FEED_MULTIPLE)
    return model.model_copy(
        update={
            "heads": heads, "width": heads * model.width // model.heads, "ffn": ffn,
            "kv_heads": heads // share if heads % share == 0 else heads, "head_width": each,
            # What a matrix makes of its input is as large in a narrow model as in a wide one.
            "deviation": min(1.0, model.deviation * math.sqrt(model.heads / heads)),
        }
    )  # fmt: skip


def _job(target: JobSpec, model: ModelSpec, steps: int) -> JobSpec:
    """Return the target with another model and length; its schedule keeps its shape, and it is judged at its end.

    The best learning rate of Adam falls as the width grows (Yang et al., arXiv 2203.03466, table 3), so a narrower
    model gets a higher one.
    """
    warmup = math.ceil(target.optimizer.warmup * steps / target.steps)
    horizon = target.optimizer.horizon and math.ceil(target.optimizer.horizon * steps / target.steps)
    rate = min(MOST_RATE, target.optimizer.learning_rate * target.model.width / model.width)
    return target.model_copy(
        update={
            "name": f"{target.name[:40]}-w{model.width}-s{steps}", "model": model, "steps": steps,
            "optimizer": target.optimizer.model_copy(
                update={"warmup": warmup, "learning_rate": rate, "horizon": horizon}
            ),
            "evaluation": target.evaluation.model_copy(update={"every": steps}),
            "checkpoint": target.checkpoint.model_copy(update={"every": 0, "keep": 1}),
        }
    )  # fmt: skip
