"""Where weights start: each parameter from its own random stream, named after it.

A stage, a shard or an expert-parallel rank that holds a part of the model draws the same bits as the whole would. The
streams are counter-based with keys of 128 bits (`weft.core.seeds`); torch's CPU generator keeps only 32 bits of its
seed, so among ten thousand parameters two would start alike in one run of a hundred.

Matrices are normal with the spec's standard deviation, 0.02 unless it says otherwise, as in the code of GPT-2 and
Megatron; those that write to the residual stream (attention.output, feed.down) are divided by the root of the number of
such writes, twice the layers (GPT-2, Radford et al. 2019, section 2.3; Megatron-LM, arXiv 1909.08053, section 5.1).
Norms start at one, biases at zero.
"""

import math
import re
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, distribute_tensor

from weft.core.seeds import Seed
from weft.planning.cost_model.parameter_shapes import Shape, block_shapes, shapes
from weft.specs.job import ModelSpec

_WRAPPERS = re.compile(r"(_checkpoint_wrapped_module|_orig_mod|_fsdp_wrapped_module|module)\.")
_RESIDUAL_WRITES = 2


def canonical(name: str, spec: ModelSpec) -> str:
    """Return a parameter's name in the bare whole model: wrappers dropped, a tied output called as the embedding."""
    bare = _WRAPPERS.sub("", name)
    return "embed.weight" if bare == "head.weight" and spec.tied else bare


def full_tensor_of(name: str, spec: ModelSpec, seed: Seed) -> Tensor:
    """Return the whole starting value of the parameter called `name`, in fp32 on the CPU."""
    name = canonical(name, spec)
    shape = _shape(name, spec)
    if name.endswith("norm.weight"):
        return torch.ones(shape)
    if name.endswith(("bias", "correction")):
        return torch.zeros(shape)
    deviation = spec.deviation
    if re.search(r"(attention\.output\.weight|feed\.(shared\.)?down\.weight|experts\.down)$", name):
        deviation /= math.sqrt(_RESIDUAL_WRITES * spec.layers)
    branch = seed.branch("weights", name)
    if ".experts." in name:
        return torch.stack([_normal(branch.branch(expert), shape[1:], deviation) for expert in range(shape[0])])
    return _normal(branch, shape, deviation)


Start = Callable[[str], Tensor]
"""The whole starting value of a parameter of the bare whole model, by its name."""


@torch.no_grad()
def initialise(model: nn.Module, seed: Seed, spec: ModelSpec | None = None, start: Start | None = None) -> None:
    """Set every parameter of `model`, the whole decoder or any stage of it, sharded or not, to its starting value.

    The spec is needed only where `model` is not a `Decoder` itself, which carries it. Values are drawn from `seed`
    unless `start` has them.
    """
    known = getattr(model, "spec", None) if spec is None else spec
    assert isinstance(known, ModelSpec), "give the spec of a model that is wrapped"
    for name, parameter in model.named_parameters():
        whole = full_tensor_of(name, known, seed) if start is None else start(canonical(name, known))
        assert whole.shape == parameter.shape, f"{name} is {tuple(parameter.shape)}, not {tuple(whole.shape)}"
        if isinstance(parameter, DTensor):
            # Without a source rank every rank cuts its own part; nothing is sent.
            mesh, placements = parameter.device_mesh, parameter.placements
            whole = whole.to(device=parameter.device, dtype=parameter.dtype)
            whole = distribute_tensor(whole, mesh, placements, src_data_rank=None)
        parameter.copy_(whole)


def _normal(seed: Seed, shape: tuple[int, ...], deviation: float) -> Tensor:
    return torch.from_numpy(seed.stream().standard_normal(shape, dtype="float32")).mul_(deviation)


def _shape(name: str, spec: ModelSpec) -> Shape:
    if name.startswith("layers."):
        _, layer, inner = name.split(".", 2)
        return dict(block_shapes(spec, int(layer)))[inner]
    return shapes(spec.model_copy(update={"layers": 0}))[name]
