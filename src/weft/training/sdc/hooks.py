"""Gives a model and its gradient sums to the guard, as the job's [guard] table asks.

The session stays free of what is checked and how; the guard stays free of sessions.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.optim import Optimizer

from weft.core.errors import UsageError
from weft.core.seeds import Seed
from weft.specs.job import JobSpec
from weft.training.data import BatchStream
from weft.training.parallel.mesh import Mesh
from weft.training.parallel.parallel_model import ParallelModel
from weft.training.parallel.reducer import Reducer
from weft.training.parallel.sharding import ShardReducer
from weft.training.sdc.abft import check_products
from weft.training.sdc.guard import Guard
from weft.training.sdc.replay import Replayer


def guard_of(job: JobSpec, mesh: Mesh) -> Guard | None:
    """Return the guard that `job` asks for; all ranks call it together."""
    spec = job.guard
    if not (spec.digest_every or spec.replay_every or spec.micro_test_every or spec.checked or spec.abft):
        return None
    return Guard(spec, mesh.layout, mesh.rank, Seed(job.seed))


class GuardedModel(NamedTuple):
    """What a guard watches."""

    model: ParallelModel
    """The model of this rank."""
    optimizers: Sequence[Optimizer]
    """Whose state is compared too."""
    loss: Callable[[Tensor], Tensor] | None
    """Mean loss of a micro-batch's tokens, for replay."""


def attach(guard: Guard, watched: GuardedModel, stream: BatchStream, device: torch.device) -> None:
    """Give the model to the guard, before its gradients are given to the reducer."""
    model = watched.model
    if guard.spec.abft:
        check_products(model.modules(), guard.product_failed)
    replayer = _replayer(watched, stream, device) if guard.spec.replay_every else None
    guard.attach(list(model.named_parameters()), watched.optimizers, frozenset(model.experts()), replayer)


def watch_sums(guard: Guard, reducer: "Reducer | ShardReducer") -> None:
    """Have the guard watch the sums of gradients that wait to be sent."""
    if guard.spec.digest_every and guard.spec.at_rest and isinstance(reducer, Reducer):
        reducer.watch(guard.checksums)


def _replayer(watched: GuardedModel, stream: BatchStream, device: torch.device) -> Replayer:
    plan = watched.model.mesh.plan
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
    if watched.loss is None:
        raise UsageError("guard.replay_every needs to know the loss; call run.attach(model, optimizer, loss=...)")

    def tokens(step: int, index: int) -> Tensor:
        return stream.micro_batch(step, index).to(device)

    model = watched.model
    return Replayer(list(model.parameters()), watched.loss, tokens, stream.torch_seed, model.buffers)
