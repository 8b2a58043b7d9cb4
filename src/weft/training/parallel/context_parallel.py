"""The context axis: a sequence over several ranks, attention over all of it.

Each rank holds two pieces of every sequence, one from the front and one from the back (rank r of n the pieces r and
2n - 1 - r of 2n), so that causal attention costs every rank the same. Keys and values are gathered over the axis, put
in order, and each rank attends with its own queries under the mask of their positions; the backward pass scatters the
sums back. Works on every backend; torch's own form has no rule for attention on a CPU.
"""

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.autograd import Function
from torch.nn import functional
from typing_extensions import override

from weft.training.metrics.exposed import waiting

_LENGTH = 2
"""Dim of `[batch, heads, length, head]` that is cut."""


def positions(length: int, ranks: int, rank: int) -> Tensor:
    """Return the positions that `rank` of `ranks` holds, front piece first."""
    piece = length // (2 * ranks)
    front = torch.arange(rank * piece, (rank + 1) * piece)
    back = torch.arange((2 * ranks - 1 - rank) * piece, (2 * ranks - rank) * piece)
    return torch.cat([front, back])


def part(tokens: Tensor, ranks: int, rank: int) -> Tensor:
    """Return this rank's part of whole sequences `[batch, length]`."""
    return tokens[:, positions(tokens.shape[1], ranks, rank).to(tokens.device)]


class _Gather(Function):
    """Gathers a dim over the ranks in order of position; the gradient is summed over the ranks and cut again."""

    @staticmethod
    @override
    def forward(*args: Any, **_: object) -> Tensor:
        ctx, piece, group = args
        ctx.group = group
        ranks = group.size()
        parts = torch.empty(ranks, *piece.shape, dtype=piece.dtype, device=piece.device)
        with waiting():
            dist.all_gather_single(parts, piece.contiguous().unsqueeze(0), group=group)
        fronts, backs = zip(*(one.chunk(2, dim=_LENGTH) for one in parts.unbind()), strict=True)
        return torch.cat([*fronts, *reversed(backs)], dim=_LENGTH)

    @staticmethod
    @override
    def backward(ctx: Any, *grad_outputs: Any) -> Any:
        group: dist.ProcessGroup = ctx.group
        ranks = group.size()
        pieces = grad_outputs[0].chunk(2 * ranks, dim=_LENGTH)
        send = torch.stack(
            [torch.cat([pieces[rank], pieces[2 * ranks - 1 - rank]], dim=_LENGTH) for rank in range(ranks)]
        )
        received = torch.empty_like(send)
        with waiting():
            dist.all_to_all_single(received, send, group=group)
        # Added in the order of ranks: the same bits on every backend.
        total = received[0]
        for rank in range(1, ranks):
            total = total + received[rank]
        return total, None


def attend_over(group: dist.ProcessGroup) -> Callable[[Tensor, Tensor, Tensor, bool], Tensor]:
    """Return an attention over the sequences that the ranks of `group` share."""

    def attend(q: Tensor, k: Tensor, v: Tensor, causal: bool) -> Tensor:
        keys, values = _Gather.apply(k, group), _Gather.apply(v, group)
        length = q.shape[_LENGTH] * group.size()
        mask = None
        if causal:
            mine = positions(length, group.size(), group.rank()).to(q.device)
            mask = mine.unsqueeze(1) >= torch.arange(length, device=q.device).unsqueeze(0)
        grouped = q.shape[1] != k.shape[1]
        return functional.scaled_dot_product_attention(q, keys, values, attn_mask=mask, enable_gqa=grouped)

    return attend
