"""Where a run and its guard meet: what the guard is told, and when.

The run stays free of what is checked and how; the guard stays free of runs.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING

from torch import Tensor, nn
from torch.optim import Optimizer

from weft.core.errors import UsageError
from weft.core.seeds import Seed, mix
from weft.specs.job import JobSpec
from weft.training.metrics.ledger import TimeClass
from weft.training.parallel.apply import ParallelDecoder
from weft.training.parallel.mesh import Mesh
from weft.training.parallel.reducer import Reducer
from weft.training.parallel.sharding import ShardReducer
from weft.training.sdc.abft import check_products
from weft.training.sdc.guard import Guard
from weft.training.sdc.replay import Replayer

if TYPE_CHECKING:
    from weft.training.session import Session
    from weft.training.step import Step


def guard_of(job: JobSpec, mesh: Mesh) -> Guard | None:
    """Return the guard that `job` asks for; all ranks call it together."""
    spec = job.guard
    if not (spec.digest_every or spec.replay_every or spec.micro_test_every or spec.checked or spec.abft):
        return None
    return Guard(spec, mesh.layout, mesh.rank, Seed(job.seed))


def attach(
    guard: Guard, run: "Session", model: "nn.Module | ParallelDecoder", optimizer: Optimizer | None,
    loss: Callable[[Tensor], Tensor] | None,
) -> None:  # fmt: skip
    """Give the model to the guard, before its gradients are given to the reducer."""
    if guard.spec.abft:
        check_products(model.modules(), guard.product_failed)
    named = list(model.named_parameters())
    experts = frozenset[nn.Parameter]()
    if isinstance(model, ParallelDecoder):
        experts = frozenset(model.experts())
        loss = loss or (model.loss if run.mesh.plan.pp == 1 else None)
    guard.attach(named, optimizer, experts, _replayer(guard, run, [one for _, one in named], loss))


def seal(guard: Guard, reducer: "Reducer | ShardReducer") -> None:
    """Have the guard watch the sums of gradients that wait to be sent."""
    if guard.spec.digest_every and guard.spec.at_rest and isinstance(reducer, Reducer):
        reducer.seal(guard.seals)


def _replayer(
    guard: Guard, run: "Session", parameters: list[nn.Parameter], loss: Callable[[Tensor], Tensor] | None
) -> Replayer | None:
    if not guard.spec.replay_every:
        return None
    plan = run.mesh.plan
    for axis in ("pp", "ep", "shard"):
        if getattr(plan, axis) > 1:
            raise UsageError(
                f"guard.replay_every needs replicas that can compute alone, and the plan has {axis} ="
                f" {getattr(plan, axis)}; write {axis} = 1, or replay_every = 0"
            )
    if not plan.exact:
        raise UsageError(
            "guard.replay_every compares bits, which need exact = true in the plan; or write replay_every = 0"
        )
    if loss is None:
        raise UsageError("guard.replay_every needs to know the loss; call run.attach(model, optimizer, loss=...)")

    def randomness(step: int, index: int) -> int:
        return mix(Seed(run.job.seed).branch("dropout", step).word(), index) >> 1

    def tokens(step: int, index: int) -> Tensor:
        return run.stream.micro_batch(step, index).to(run.device)

    return Replayer(parameters, loss, tokens, randomness)


def after(guard: Guard, run: "Session", step: "Step") -> None:
    """Compare the state that the optimizer's step left; at once where it is about to be kept or judged."""
    with run.ledger.spending(TimeClass.VERIFY):
        cursor = [value for indices in step.sharing.runs for value in (indices.start, indices.stop)]
        guard.after_update(step.number, cursor)
        every = run.job.checkpoint.every
        if run.done == run.job.steps or step.stop or (every and run.done % every == 0) or run.evaluations.due(run.done):
            guard.settle()
