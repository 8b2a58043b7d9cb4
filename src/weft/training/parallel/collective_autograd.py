"""Collectives inside forward and backward: what a tensor goes through, and what its gradient does in backward."""

from collections.abc import Callable
from typing import Any

import torch.distributed as dist
from torch import Tensor
from torch.autograd import Function
from typing_extensions import override

from weft.training.metrics.exposed import waiting

Through = Callable[[Tensor], Tensor]


class _Passed(Function):
    """A linear map whose gradient is given by another one."""

    @staticmethod
    @override
    def forward(*args: Any, **_: object) -> Tensor:
        ctx, tensor, there, back = args
        ctx.back = back
        return there(tensor)

    @staticmethod
    @override
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor, None, None]:
        return ctx.back(grad_outputs[0]), None, None


def passed(tensor: Tensor, there: Through, back: Through) -> Tensor:
    """Return `there(tensor)`, whose gradient becomes `back(gradient)`."""
    return _Passed.apply(tensor, there, back)


def unchanged(tensor: Tensor) -> Tensor:
    """Return `tensor` as another view: autograd forbids to return an input itself."""
    return tensor.view_as(tensor)


def total_over(group: dist.ProcessGroup) -> Through:
    """Return the sum over the ranks of `group`."""

    def total(tensor: Tensor) -> Tensor:
        summed = tensor.clone()
        with waiting():
            dist.all_reduce(summed, group=group)
        return summed

    return total


def exchanged_over(group: dist.ProcessGroup, sent: list[int], received: list[int]) -> Through:
    """Return the all-to-all of rows over `group`: so many rows to each rank, so many from each."""

    def exchange(rows: Tensor) -> Tensor:
        out = rows.new_empty(sum(received), *rows.shape[1:])
        with waiting():
            dist.all_to_all_single(out, rows.contiguous(), received, sent, group=group)
        return out

    return exchange
