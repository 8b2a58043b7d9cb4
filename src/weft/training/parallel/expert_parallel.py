"""The expert axis: each rank holds some of the experts, and tokens travel to theirs and back.

The ranks of an expert group run one micro-batch each at the same time. A token's copies are sent to the ranks that hold
its experts (all-to-all), computed there source by source, so that no product depends on whose tokens came together, and
sent back. On a tensor-parallel rank the experts hold a part of their inner width, and the answers are summed over it.
"""

from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Shard
from torch.nn import Parameter

from weft.training.metrics.exposed import waiting
from weft.training.model import Decoder
from weft.training.model.experts import ExpertFeed
from weft.training.parallel.collective_autograd import exchanged_over, passed, total_over, unchanged

Run = Callable[[Tensor, Tensor], Tensor]

_INNER = {"gate": 1, "up": 1, "down": 2}
"""Dim of each stacked matrix that is its inner width."""


def _over_experts(group: dist.ProcessGroup, tokens: Tensor, counts: Tensor, run: Run) -> Tensor:
    """Run `tokens`, sorted by expert, on the ranks of `group` that hold their experts."""
    ranks = group.size()
    each = counts.numel() // ranks
    wanted = torch.empty_like(counts)
    with waiting():
        dist.all_to_all_single(wanted, counts.contiguous(), group=group)
    by_source = wanted.view(ranks, each)
    sent, received = counts.view(ranks, each).sum(1).tolist(), by_source.sum(1).tolist()
    there, back = exchanged_over(group, sent, received), exchanged_over(group, received, sent)
    arrived = passed(tokens, there, back)
    answers = [run(part, by_source[source]) for source, part in enumerate(arrived.split(received))]
    return passed(torch.cat(answers), back, there)


def dispatch_over(
    experts: dist.ProcessGroup | None, tensors: dist.ProcessGroup | None
) -> Callable[[Tensor, Tensor, Run], Tensor]:
    """Return a dispatch over the ranks that share the experts and those that share each expert's matrices."""

    def dispatch(tokens: Tensor, counts: Tensor, run: Run) -> Tensor:
        # Each tensor rank computes a part of every expert's answer: answers are summed, and so are tokens' gradients.
        rows = tokens if tensors is None else passed(tokens, unchanged, total_over(tensors))
        answers = run(rows, counts) if experts is None else _over_experts(experts, rows, counts, run)
        return answers if tensors is None else passed(answers, total_over(tensors), unchanged)

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
