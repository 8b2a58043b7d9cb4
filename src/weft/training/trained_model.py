"""What a session trains: a model on its mesh with its optimizers, its gradient reduction, and its state by name."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from weft.core.errors import FailedError, UsageError
from weft.training.checkpoint import tensor_digests
from weft.training.checkpoint.state import (
    HasState,
    RestoreTarget,
    StoredTensor,
    TrainingState,
    by_parameter,
    by_rank,
    weight_digests,
)
from weft.training.parallel.buffers import Buffers
from weft.training.parallel.own_model import OwnModel
from weft.training.parallel.parallel_model import ParallelModel
from weft.training.parallel.reducer import Reducer, local, measure_bucket
from weft.training.parallel.sharding import ShardReducer, sharded_modules
from weft.training.rank_context import RankContext
from weft.training.sdc import hooks

Loss = Callable[[Tensor], Tensor]


class TrainedModel:
    """The model of one rank, with everything that its training needs."""

    def __init__(
        self, context: RankContext, given: nn.Module | ParallelModel, stateful: Sequence[HasState],
        loss: Loss | None, *, overlap: bool, buffers: str = "broadcast",
    ) -> None:  # fmt: skip
        """Give the gradients of `given` to a reducer, and its state to the guard; all ranks call it together.

        `stateful` are its optimizers, and whatever else goes on changing.
        """
        self.given = given
        """The model as people know it, for their evaluations."""
        self.model = given if isinstance(given, ParallelModel) else _replicated(context, given)
        self.reshard()
        # FSDP2 shows whole parameters after a forward without backward; those that count are the shards of the start.
        self._named = list(self.model.named_parameters())
        self.parameters = [parameter for _, parameter in self._named if parameter.requires_grad]
        self.optimizers: list[Any] = [one for one in stateful if hasattr(one, "param_groups")]
        """What changes the weights."""
        self._base = {id(group): group["lr"] for group in self._groups() if "lr" in group}
        self._rate_set: dict[int, Any] = {}
        self._most = context.job.optimizer.learning_rate
        self.buffers = Buffers(self.model, buffers)
        """The model's buffers, and whose values count."""
        self._state = TrainingState(
            self._named, self.buffers.named, [one for one in stateful if by_parameter(one)],
            self._others(context, stateful), self._follows_schedule,
        )  # fmt: skip
        mesh, families = context.mesh, self.model.families()
        if context.guard is not None:
            if loss is None and isinstance(given, ParallelModel) and mesh.plan.pp == 1:
                loss = given.loss
            # The guard digests gradients as autograd makes them, so its hooks come before the reducer's.
            watched = hooks.GuardedModel(self.model, self.optimizers, loss)
            hooks.attach(context.guard, watched, context.stream, context.device)
        total = sum(local(one.data).numel() * local(one.data).element_size() for one in self.parameters)
        self.bucket_bytes = measure_bucket(families[0], context.device, total) if mesh.plan.shard == 1 else 0
        """Size of a bucket of gradients, the same on every rank."""
        self._overlap, self._outlives = overlap, context.life.place is not None
        self.reducer = self._make_reducer()
        if context.guard is not None:
            hooks.watch_sums(context.guard, self.reducer)
        counted = sum(one.numel() for family in families if family.counted for one in family.parameters)
        stands = mesh.place.dp == 0 and mesh.place.cp == 0 and mesh.place.tp == 0
        elements = torch.tensor(counted if stands else 0, dtype=torch.int64)
        if dist.is_initialized():
            dist.all_reduce(elements)
        self.elements = int(elements)
        """Parameters of the whole model."""

    @staticmethod
    def _others(context: RankContext, stateful: Sequence[HasState]) -> dict[str, HasState]:
        """Return what keeps its state in its own way, by name; it must be equal on all ranks."""
        plan = context.mesh.plan
        found = {f"{type(one).__name__}-{number}": one for number, one in enumerate(stateful)}
        found = {name: one for name, one in found.items() if not by_parameter(one)}
        for name, one in found.items():
            if hasattr(one, "param_groups") and plan.shard * plan.tp * plan.pp * plan.ep > 1:
                raise UsageError(
                    f"{name} keeps its state in its own way, so nobody knows which part of it belongs to which shard;"
                    " write shard, tp, pp and ep = 1 in the plan, or use an optimizer with torch's own state_dict"
                )
        return found

    def _groups(self) -> list[dict[str, Any]]:
        return [group for optimizer in self.optimizers for group in optimizer.param_groups]

    def _follows_schedule(self, group: Mapping[str, Any]) -> bool:
        """Return whether a group's learning rate is its own times the job's schedule, and nobody else's business."""
        if id(group) not in self._base or "initial_lr" in group:
            # torch's schedulers write this key: the loop has a schedule of its own.
            return False
        then = self._rate_set.get(id(group), self._base[id(group)])
        return float(group["lr"]) == float(then)

    def reshard(self) -> None:
        """Free whole parameters that an evaluation has left behind."""
        for stage in self.model.stages:
            for module in sharded_modules(stage):
                module.reshard()

    def _make_reducer(self) -> Reducer | ShardReducer:
        reducer = self.model.reducer(self.bucket_bytes, overlap=self._overlap)
        if self._outlives and isinstance(reducer, Reducer):
            reducer.keep_parts()
        return reducer

    def join_with(self, bucket_bytes: int) -> None:
        """Exchange gradients in buckets of `bucket_bytes`, as ranks do that were there before."""
        self.reducer.close()
        self.bucket_bytes = bucket_bytes
        self.reducer = self._make_reducer()

    def named(self) -> list[tuple[str, nn.Parameter]]:
        """Return this rank's parameters under their names in the whole model."""
        return self._named

    def gradients(self) -> dict[str, Tensor]:
        """Return the gradients that there are, by name."""
        return {name: parameter.grad for name, parameter in self.named() if parameter.grad is not None}

    def state(self) -> dict[str, dict[str, Tensor]]:
        """Return parameters, buffers and all that optimizers keep, sharing memory with the training."""
        return self._state.tensors()

    def check_equal(self) -> None:
        """Refuse what is attached and begins with another state on another rank; all ranks call it together."""
        mine = {name: tensor_digests.tensor_digest(one) for name, one in self._state.besides().get("other", {}).items()}
        for rank, theirs in enumerate(by_rank(mine)):
            for name in sorted(mine.keys() | theirs.keys()):
                if mine.get(name) != theirs.get(name):
                    what = name.partition(":")[0].partition("{")[0]
                    raise UsageError(
                        f"{what} has another state on rank {rank} than on rank {dist.get_rank()}, so no other number of"
                        " ranks could take it over; attach what is equal on all ranks, and make what a rank feeds or"
                        " draws by itself a function of the step (run.stream and step.micro_batches are)"
                    )

    def besides(self) -> dict[str, dict[str, Tensor]]:
        """Return the part of the state that is neither weights nor what optimizers keep about them."""
        return self._state.besides()

    @property
    def obstacle(self) -> str | None:
        """Return why a lost rank's state could not come from another rank inside a step, if so."""
        own = [one for one in self.optimizers if not by_parameter(one)]
        return f"{type(own[0]).__name__} keeps its state in its own way" if own else self.buffers.obstacle

    def target(self, stored: Mapping[str, StoredTensor]) -> RestoreTarget:
        """Return the state made to measure for what is `stored`; all ranks call it together.

        Raises on every rank where something that must be in it is not, or where nobody takes something that is.
        """
        problem, taken = None, set[str]()
        try:
            target = self._state.target(stored)
            taken = target.names()
        except FailedError as error:
            target, problem = None, str(error)
        everybody = by_rank((problem, taken))
        problems = [problem for problem, _ in everybody if problem is not None]
        left = sorted(set(stored).difference(*(names for _, names in everybody)))
        if not problems and left:
            problems = [f"{left[0]} is in it, and nothing of this training takes it"]
        if problems or target is None:
            raise FailedError(problems[0])
        return target

    def fillable(self, stored: Mapping[str, StoredTensor]) -> RestoreTarget:
        """Return `target` where this rank alone is to be filled, whole; raises where it does not fit."""
        target = self._state.target(stored)
        left = sorted(set(stored) - target.names())
        if left:
            raise FailedError(f"{left[0]} is part of the others' state, and nothing of this rank takes it")
        return target

    def digest(self) -> str:
        """Return one digest of all weights, the same for every plan with equal bits; all ranks call it together."""
        return tensor_digests.joint_digest(weight_digests(self.named, self.model.first_copy))

    def set_learning_rate(self, rate: float) -> None:
        """Scale every group's own learning rate as the job's schedule scales the job's; `rate` is the job's now.

        A group that has a scheduler of its own, or whose rate the loop has changed, is left alone from then on.
        """
        for group in self._groups():
            if not self._follows_schedule(group):
                continue
            own = self._base[id(group)]
            # Not scaled where it is the job's own: the product may differ from `rate` in its last bit.
            scaled = rate if own == self._most else own * (rate / self._most)
            if isinstance(group["lr"], Tensor):
                group["lr"].fill_(float(scaled))
            else:
                group["lr"] = scaled
            self._rate_set[id(group)] = float(group["lr"])


def _replicated(context: RankContext, module: nn.Module) -> OwnModel:
    for axis in ("tp", "pp", "cp", "ep", "shard"):
        size = getattr(context.mesh.plan, axis)
        if size > 1:
            raise UsageError(
                f"the plan has {axis} = {size}, which only the built-in model is spread by;"
                f" write {axis} = 1, or spread your model yourself"
            )
    made = OwnModel.replicated(context, module)
    group = context.mesh.groups["replicas"]
    if group is not None:
        # As DDP does: whatever a rank has drawn for itself, all begin as the first one.
        with torch.no_grad():
            for tensor in (*module.parameters(), *module.buffers()):
                dist.broadcast(tensor.detach(), group=group, group_src=0)
    return made
