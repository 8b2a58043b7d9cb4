"""What a session trains: a model on its mesh with its optimizer, its gradient reduction, and its state by name."""

from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.optim import Optimizer

from weft.core.errors import UsageError
from weft.training.checkpoint import state, tensor_digests
from weft.training.parallel.own_model import OwnModel
from weft.training.parallel.parallel_model import ParallelModel
from weft.training.parallel.reducer import local, measure_bucket
from weft.training.rank_context import RankContext
from weft.training.sdc import hooks

Loss = Callable[[Tensor], Tensor]


class TrainedModel:
    """The model of one rank, with everything that its training needs."""

    def __init__(
        self, context: RankContext, given: nn.Module | ParallelModel, optimizer: Optimizer | None, loss: Loss | None,
        *, overlap: bool,
    ) -> None:  # fmt: skip
        """Give the gradients of `given` to a reducer, and its state to the guard; all ranks call it together."""
        self.given = given
        """The model as people know it, for their evaluations."""
        self.model = given if isinstance(given, ParallelModel) else _replicated(context, given)
        self.optimizer = optimizer
        self.parameters = [parameter for _, parameter in self.named() if parameter.requires_grad]
        mesh, families = context.mesh, self.model.families()
        if context.guard is not None:
            if loss is None and isinstance(given, ParallelModel) and mesh.plan.pp == 1:
                loss = given.loss
            # The guard digests gradients as autograd makes them, so its hooks come before the reducer's.
            hooks.attach(context.guard, hooks.GuardedModel(self.model, optimizer, loss), context.stream, context.device)
        total = sum(local(one.data).numel() * local(one.data).element_size() for one in self.parameters)
        bucket = measure_bucket(families[0], context.device, total) if mesh.plan.shard == 1 else 0
        self.reducer = self.model.reducer(bucket, overlap=overlap)
        if context.guard is not None:
            hooks.watch_sums(context.guard, self.reducer)
        counted = sum(one.numel() for family in families if family.counted for one in family.parameters)
        stands = mesh.place.dp == 0 and mesh.place.cp == 0 and mesh.place.tp == 0
        elements = torch.tensor(counted if stands else 0, dtype=torch.int64)
        dist.all_reduce(elements)
        self.elements = int(elements)
        """Parameters of the whole model."""

    def named(self) -> list[tuple[str, nn.Parameter]]:
        """Return this rank's parameters under their names in the whole model."""
        return list(self.model.named_parameters())

    def gradients(self) -> dict[str, Tensor]:
        """Return the gradients that there are, by name."""
        return {name: parameter.grad for name, parameter in self.named() if parameter.grad is not None}

    def state(self) -> dict[str, dict[str, Tensor]]:
        """Return parameters, buffers and optimizer state, sharing memory with the training."""
        return state.state_of(self.named, self.model.buffers(), self.optimizer)

    def fillable(self) -> dict[str, dict[str, Tensor]]:
        """Return the state with the optimizer's tensors made, so that a load fills all of them."""
        if self.optimizer is not None:
            state.make_optimizer_state(self.optimizer)
        return self.state()

    def digest(self) -> str:
        """Return one digest of all weights, the same for every plan with equal bits; all ranks call it together."""
        return tensor_digests.joint_digest(state.weight_digests(self.named, self.model.first_copy))

    def set_learning_rate(self, rate: float) -> None:
        """Give every group of the optimizer the learning rate of a step."""
        for group in self.optimizer.param_groups if self.optimizer is not None else ():
            group["lr"] = rate


def _replicated(context: RankContext, module: nn.Module) -> OwnModel:
    for axis in ("tp", "pp", "cp", "ep", "shard"):
        size = getattr(context.mesh.plan, axis)
        if size > 1:
            raise UsageError(
                f"the plan has {axis} = {size}, which only the built-in model is spread by;"
                f" write {axis} = 1, or spread your model yourself"
            )
    return OwnModel.replicated(context, module)
