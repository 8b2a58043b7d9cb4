"""Activations that are recomputed in backward instead of being kept: none, the cheap ones, or all.

"full" keeps only what enters a block; "selective" also keeps the results of matrix products and attention, which are
dear to compute, and computes the rest again.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

_ATEN = torch.ops.aten
_DEAR = {
    _ATEN.mm.default,
    _ATEN.addmm.default,
    _ATEN.bmm.default,
    _ATEN._scaled_dot_product_flash_attention_for_cpu.default,  # noqa: SLF001 - the operator's public name
    _ATEN._scaled_dot_product_flash_attention.default,  # noqa: SLF001
    _ATEN._scaled_dot_product_efficient_attention.default,  # noqa: SLF001
    _ATEN._scaled_dot_product_cudnn_attention.default,  # noqa: SLF001
}


def _keep_dear(context: object, operator: object, *_: object, **__: object) -> CheckpointPolicy:
    del context
    return CheckpointPolicy.MUST_SAVE if operator in _DEAR else CheckpointPolicy.PREFER_RECOMPUTE


def recompute_in(block: nn.Module, kind: str) -> None:
    """Make `block` compute its activations again in backward, as `kind` says."""
    if kind == "none":
        return
    again: Callable[..., Any] = partial(checkpoint, use_reentrant=False, preserve_rng_state=False)
    if kind == "selective":
        again = partial(again, context_fn=partial(create_selective_checkpoint_contexts, _keep_dear))
    # Replacing the method keeps the names of parameters; a wrapper module would change them.
    setattr(block, "forward", partial(again, block.forward))  # noqa: B010 - a method is replaced on purpose
