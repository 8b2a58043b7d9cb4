"""The tensor axis: matrices of a decoder cut over ranks, with the sequence cut between them (DTensor).

Columns first, rows second, one gather and one scatter for each block; norms and the residual stream see a part of the
sequence. Experts are cut along their inner width. Which ranks share a matrix is `mesh`'s business.
"""

from typing import Any, cast

from torch import Tensor, nn
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

from weft.training.model import Decoder
from weft.training.model.experts import ExpertFeed

_SEQUENCE = 1
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
    for block in stage.layers.values():
        parallelize_module(block, mesh, _block_styles(block))
        feed = cast("Any", block).feed
        if isinstance(feed, ExpertFeed):
            feed.register_forward_hook(_own_part(mesh))
    if stage.head is not None:
        head = ColwiseParallel(input_layouts=Shard(_SEQUENCE), output_layouts=Replicate())
        parallelize_module(stage, mesh, {"norm": SequenceParallel(), "head": head})
        if stage.spec.tied and stage.embed is not None:
            stage.head.weight = stage.embed.weight


def _own_part(mesh: DeviceMesh) -> Any:
    """Return a hook that takes this rank's part of the sequence from what the experts answered for all of it."""
    from torch.distributed.tensor import DTensor

    def hook(module: nn.Module, inputs: Any, outputs: tuple[Tensor, Any]) -> tuple[Tensor, Any]:
        del module, inputs
        whole, load = outputs
        shared = DTensor.from_local(whole, mesh, (Replicate(),), run_check=False)
        return shared.redistribute(placements=(Shard(_SEQUENCE),)).to_local(), load

    return hook
