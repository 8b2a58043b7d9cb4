"""What a training is at one instant, by names that no mesh changes: for checkpoints, and as one digest.

Parameters and the tensors of their optimizer state go under the parameter's name in the whole model. The digest is a
sum over elements (`digests`), so any split of a tensor gives the same.
"""

from collections.abc import Callable, Iterable
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.tensor import DTensor
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset
from torch.optim import Optimizer

from weft.training.checkpoint import tensor_digests

Named = Callable[[], Iterable[tuple[str, nn.Parameter]]]


def state_of(named: Named, buffers: dict[str, torch.Tensor], optimizer: Optimizer | None) -> dict[str, Any]:
    """Return the state as tensors that share memory with the training, so that a load fills them in place."""
    state: dict[str, Any] = {"model": {name: parameter.detach() for name, parameter in named()}}
    if buffers:
        state["buffers"] = dict(buffers)
    if optimizer is not None:
        state["optimizer"] = {
            f"{name}.{key}": value
            for name, parameter in named()
            for key, value in optimizer.state.get(parameter, {}).items()
            if isinstance(value, torch.Tensor)
        }
    return state


def make_optimizer_state(optimizer: Optimizer) -> None:
    """Make the optimizer's tensors exist, so that they can be filled: one step that changes no weight."""
    rates = [group["lr"] for group in optimizer.param_groups]
    for group in optimizer.param_groups:
        group["lr"] = 0.0 if not isinstance(group["lr"], torch.Tensor) else torch.zeros_like(group["lr"])
        for parameter in group["params"]:
            parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    for group, rate in zip(optimizer.param_groups, rates, strict=True):
        group["lr"] = rate


def _shard_digest(parameter: torch.Tensor) -> int:
    data = parameter.detach()
    if not isinstance(data, DTensor):
        return tensor_digests.shard_digest(data, (0,) * data.dim(), data.shape)
    _, offsets = compute_local_shape_and_global_offset(data.shape, data.device_mesh, data.placements)
    return tensor_digests.shard_digest(data.to_local(), offsets, data.shape)


def weight_digests(named: Named, first_copy: Callable[[nn.Parameter], bool]) -> dict[str, str]:
    """Return the digest of every parameter of the whole model, the same on every rank and under every plan.

    `first_copy` says which rank stands for equal shards. All ranks call it together.
    """
    mine = tensor_digests.added(
        {name: _shard_digest(parameter)} for name, parameter in named() if first_copy(parameter)
    )
    everybody: list[Any] = [mine]
    if dist.is_initialized() and dist.get_world_size() > 1:
        everybody = [None] * dist.get_world_size()
        dist.all_gather_object(everybody, mine)
    return {name: tensor_digests.written(total) for name, total in sorted(tensor_digests.added(everybody).items())}
