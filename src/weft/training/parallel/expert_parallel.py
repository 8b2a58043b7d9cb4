"""The expert axis: each rank holds some of the experts, and tokens travel to theirs and back.

The ranks of an expert group run one micro-batch each at the same time. A token's copies are sent to the ranks that hold
its experts (all-to-all), computed there source by source, so that no product depends on whose tokens came together, and
sent back. On a tensor-parallel rank the experts hold a part of their inner width, and the answers are summed over it.
"""

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.autograd import Function
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Shard
from torch.nn import Parameter
from typing_extensions import override

from weft.training.metrics.exposed import waiting
from weft.training.model import Decoder
from weft.training.model.experts import ExpertFeed

Run = Callable[[Tensor, Tensor], Tensor]

_INNER = {"gate": 1, "up": 1, "down": 2}
"""Dim of each stacked matrix that is its inner width."""


class _Exchange(Function):
    """All-to-all of rows; the gradient goes the way back."""

    @staticmethod
    @override
    def forward(*args: Any, **_: Any) -> Tensor:
        ctx, rows, sent, received, group = args
        ctx.sizes, ctx.group = (sent, received), group
        out = rows.new_empty(sum(received), *rows.shape[1:])
        with waiting():
            dist.all_to_all_single(out, rows.contiguous(), received, sent, group=group)
        return out

    @staticmethod
    @override
    def backward(ctx: Any, *grad_outputs: Any) -> Any:
        sent, received = ctx.sizes
        gradient = grad_outputs[0].contiguous()
        back = gradient.new_empty(sum(sent), *gradient.shape[1:])
        with waiting():
            dist.all_to_all_single(back, gradient, sent, received, group=ctx.group)
        return back, None, None, None


class _SumBack(Function):
    """Hands tokens on and sums their gradients over the tensor-parallel ranks."""

    @staticmethod
    @override
    def forward(*args: Any, **_: Any) -> Tensor:
        ctx, rows, group = args
        ctx.group = group
        return rows.view_as(rows)

    @staticmethod
    @override
    def backward(ctx: Any, *grad_outputs: Any) -> Any:
        total = grad_outputs[0].clone()
        with waiting():
            dist.all_reduce(total, group=ctx.group)
        return total, None


class _Sum(Function):
    """Sums answers over the tensor-parallel ranks and hands the gradient back to each."""

    @staticmethod
    @override
    def forward(*args: Any, **_: Any) -> Tensor:
        ctx, rows, group = args
        del ctx
        total = rows.clone()
        with waiting():
            dist.all_reduce(total, group=group)
        return total

    @staticmethod
    @override
    def backward(ctx: Any, *grad_outputs: Any) -> Any:
        del ctx
        return grad_outputs[0], None


def _over_experts(group: dist.ProcessGroup, tokens: Tensor, counts: Tensor, run: Run) -> Tensor:
    """Run `tokens`, sorted by expert, on the ranks of `group` that hold their experts."""
    ranks = group.size()
    each = counts.numel() // ranks
    wanted = torch.empty_like(counts)
    with waiting():
        dist.all_to_all_single(wanted, counts.contiguous(), group=group)
    by_source = wanted.view(ranks, each)
    sent, received = counts.view(ranks, each).sum(1).tolist(), by_source.sum(1).tolist()
    arrived = _Exchange.apply(tokens, sent, received, group)
    answers = [run(part, by_source[source]) for source, part in enumerate(arrived.split(received))]
    return _Exchange.apply(torch.cat(answers), received, sent, group)


def dispatch_over(
    experts: dist.ProcessGroup | None, tensors: dist.ProcessGroup | None
) -> Callable[[Tensor, Tensor, Run], Tensor]:
    """Return a dispatch over the ranks that share the experts and those that share each expert's matrices."""

    def dispatch(tokens: Tensor, counts: Tensor, run: Run) -> Tensor:
        rows = tokens if tensors is None else _SumBack.apply(tokens, tensors)
        answers = run(rows, counts) if experts is None else _over_experts(experts, rows, counts, run)
        return answers if tensors is None else _Sum.apply(answers, tensors)

    return dispatch


def spread_experts(stage: Decoder, mesh: DeviceMesh, axes: tuple[str, ...]) -> None:
    """Keep of every stack of experts only this rank's part, as DTensors over the `axes` ("ep", "tp") of `mesh`."""
    for module in stage.modules():
        if not isinstance(module, ExpertFeed):
            continue
        for name, parameter in list(module.experts.named_parameters(recurse=False)):
            placements = [Shard(0) if axis == "ep" else Shard(_INNER[name]) for axis in axes]
            piece = parameter.data
            for axis, placement in zip(axes, placements, strict=True):
                parts = piece.chunk(mesh.size(axes.index(axis)), dim=placement.dim)
                piece = parts[mesh.get_local_rank(axis)]
            # A copy: the rest is freed, and torch's staging of checkpoints mistakes a part with an offset for a whole.
            spread = DTensor.from_local(piece.clone(memory_format=torch.contiguous_format), mesh, placements)
            module.experts.register_parameter(name, Parameter(spread))
