"""The tensor axis: matrices of a decoder cut over ranks, with the sequence cut between them (DTensor).

Columns first, rows second, one gather and one scatter for each block; norms and the residual stream see a part of the
sequence. Experts are cut along their inner width. The vocabulary is cut too: a rank has the logits of its own part of
it, and ranks tell each other three numbers for each token instead of all logits. Which ranks share a matrix is `mesh`'s
business.
"""

from typing import Any, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.autograd import Function
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    ParallelStyle,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)
from typing_extensions import override

from weft.training.metrics.exposed import waiting
from weft.training.model import Decoder
from weft.training.model.experts import ExpertFeed

_SEQUENCE = 1
_VOCABULARY = -1
_HEADS = 1


def _block_styles(block: nn.Module) -> dict[str, ParallelStyle]:
    styles: dict[str, ParallelStyle] = {
        "attention_norm": SequenceParallel(),
        "attention": PrepareModuleInput(
            input_layouts=cast("Any", (Shard(_SEQUENCE), None)), desired_input_layouts=cast("Any", (Replicate(), None))
        ),
        "attention.query": ColwiseParallel(),
        "attention.key": ColwiseParallel(),
        "attention.value": ColwiseParallel(),
        "attention.output": RowwiseParallel(output_layouts=Shard(_SEQUENCE)),
        "feed_norm": SequenceParallel(),
    }
    attention = cast("Any", block).attention
    if attention.query_norm is not None:
        # Heads are cut as a sequence is elsewhere: each rank norms its own, and their weight gathers all gradients.
        styles["attention.query_norm"] = SequenceParallel(sequence_dim=_HEADS, use_local_output=True)
        styles["attention.key_norm"] = SequenceParallel(sequence_dim=_HEADS, use_local_output=True)
    routed = isinstance(cast("Any", block).feed, ExpertFeed)
    styles["feed"] = PrepareModuleInput(
        input_layouts=Shard(_SEQUENCE), desired_input_layouts=Replicate(), use_local_output=routed
    )
    if not routed:
        styles["feed.gate"] = ColwiseParallel()
        styles["feed.up"] = ColwiseParallel()
        styles["feed.down"] = RowwiseParallel(output_layouts=Shard(_SEQUENCE))
    return styles


def spread_tensors(stage: Decoder, mesh: DeviceMesh) -> None:
    """Cut the matrices of `stage` over the ranks of `mesh`, in place."""
    if stage.embed is not None:
        style = RowwiseParallel(input_layouts=Replicate(), output_layouts=Shard(_SEQUENCE))
        parallelize_module(stage, mesh, {"embed": style})
        stage.embed.register_forward_hook(_arrived)
    for block in stage.layers.values():
        parallelize_module(block, mesh, _block_styles(block))
        feed = cast("Any", block).feed
        if isinstance(feed, ExpertFeed):
            feed.register_forward_hook(_own_part(mesh))
    if stage.head is not None:
        head = ColwiseParallel(input_layouts=Shard(_SEQUENCE), output_layouts=Shard(_VOCABULARY))
        parallelize_module(stage, mesh, {"norm": SequenceParallel(), "head": head})
        if stage.spec.tied and stage.embed is not None:
            stage.head.weight = stage.embed.weight


def own_words(vocabulary: int, ranks: int, rank: int) -> range:
    """Return the words whose logits `rank` has of so many, which divide the vocabulary."""
    each = vocabulary // ranks
    return range(rank * each, (rank + 1) * each)


def cut_loss(logits: Tensor, targets: Tensor, words: range, group: dist.ProcessGroup) -> Tensor:
    """Return the summed cross-entropy of tokens of whose logits this rank has those of `words`, on every rank."""
    return _CutLoss.apply(logits.flatten(0, 1), targets.flatten(), words, group)


class _CutLoss(Function):
    """Cross-entropy over a vocabulary that is cut over ranks; gradients stay where the logits are.

    Torch's `loss_parallel` wants DTensors and a backward inside its own context, which a pipeline's schedule runs.
    """

    @staticmethod
    @override
    def forward(*args: Any, **_: object) -> Tensor:
        ctx, logits, targets, words, group = args
        shifted = logits.float()
        top = shifted.amax(-1)
        with waiting():
            dist.all_reduce(top, dist.ReduceOp.MAX, group=group)
        shifted = shifted - top.unsqueeze(-1)
        mine = (targets >= words.start) & (targets < words.stop)
        column = torch.where(mine, targets - words.start, 0).unsqueeze(-1)
        chosen = torch.where(mine, shifted.gather(-1, column).squeeze(-1), 0.0)
        shares = shifted.exp_()
        sums = torch.stack((shares.sum(-1), chosen))
        with waiting():
            dist.all_reduce(sums, group=group)
        shares /= sums[0].unsqueeze(-1)
        ctx.save_for_backward(shares, column, mine)
        ctx.dtype = logits.dtype
        return (sums[0].log() - sums[1]).sum()

    @staticmethod
    @override
    def backward(ctx: Any, *grad_outputs: Any) -> Any:
        shares, column, mine = ctx.saved_tensors
        gradient = shares.scatter_add(-1, column, -mine.to(shares.dtype).unsqueeze(-1))
        return (gradient * grad_outputs[0]).to(ctx.dtype), None, None, None


def _arrived(module: nn.Module, inputs: object, output: Tensor) -> Tensor:
    """Wait for what a collective brings: compiled blocks would lose the gradient of a tensor in flight."""
    del module, inputs
    return output.clone()


def _own_part(mesh: DeviceMesh) -> Any:
    """Return a hook that takes this rank's part of the sequence from what the experts answered for all of it."""
    from torch.distributed.tensor import DTensor

    def hook(module: nn.Module, inputs: object, outputs: tuple[Tensor, Any]) -> tuple[Tensor, Any]:
        del module, inputs
        whole, load = outputs
        shared = DTensor.from_local(whole, mesh, (Replicate(),), run_check=False)
        return shared.redistribute(placements=(Shard(_SEQUENCE),)).to_local(), load

    return hook
