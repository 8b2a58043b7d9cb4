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
from collections.abc import Iterator

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, distribute_tensor

from weft.core.seeds import Seed
from weft.planning.cost_model.arithmetic import head_width, kv_heads
from weft.specs.job import ModelSpec

_WRAPPERS = re.compile(r"(_checkpoint_wrapped_module|_orig_mod|_fsdp_wrapped_module|module)\.")
_RESIDUAL_WRITES = 2


def canonical(name: str, spec: ModelSpec) -> str:
    """Return a parameter's name in the bare whole model: wrappers dropped, a tied output called as the embedding."""
    bare = _WRAPPERS.sub("", name)
    return "embed.weight" if bare == "head.weight" and spec.tied else bare


def shapes(spec: ModelSpec) -> dict[str, tuple[int, ...]]:
    """Return the name and the shape of every parameter of the whole model, in the order of its modules."""
    found: dict[str, tuple[int, ...]] = {"embed.weight": (spec.vocabulary, spec.width)}
    for number in range(spec.layers):
        found |= {f"layers.{number}.{name}": shape for name, shape in _block_shapes(spec)}
    found["norm.weight"] = (spec.width,)
    if not spec.tied:
        found["head.weight"] = (spec.vocabulary, spec.width)
    return found


def full_tensor_of(name: str, spec: ModelSpec, seed: Seed) -> Tensor:
    """Return the whole starting value of the parameter called `name`, in fp32 on the CPU."""
    name = canonical(name, spec)
    shape = _shape(name, spec)
    if name.endswith("norm.weight"):
        return torch.ones(shape)
    if name.endswith("bias"):
        return torch.zeros(shape)
    deviation = spec.deviation
    if re.search(r"(attention\.output\.weight|feed\.down\.weight|experts\.down)$", name):
        deviation /= math.sqrt(_RESIDUAL_WRITES * spec.layers)
    branch = seed.branch("weights", name)
    if ".experts." in name:
        return torch.stack([_normal(branch.branch(expert), shape[1:], deviation) for expert in range(shape[0])])
    return _normal(branch, shape, deviation)


@torch.no_grad()
def initialise(model: nn.Module, seed: Seed, spec: ModelSpec | None = None) -> None:
    """Set every parameter of `model`, the whole decoder or any stage of it, sharded or not, to its starting value.

    The spec is needed only where `model` is not a `Decoder` itself, which carries it.
    """
    known = getattr(model, "spec", None) if spec is None else spec
    assert isinstance(known, ModelSpec), "give the spec of a model that is wrapped"
    for name, parameter in model.named_parameters():
        whole = full_tensor_of(name, known, seed)
        assert whole.shape == parameter.shape, f"{name} is {tuple(parameter.shape)}, not {tuple(whole.shape)}"
        if isinstance(parameter, DTensor):
            # Without a source rank every rank cuts its own part; nothing is sent.
            mesh, placements = parameter.device_mesh, parameter.placements
            whole = whole.to(device=parameter.device, dtype=parameter.dtype)
            whole = distribute_tensor(whole, mesh, placements, src_data_rank=None)
        parameter.copy_(whole)


def _normal(seed: Seed, shape: tuple[int, ...], deviation: float) -> Tensor:
    return torch.from_numpy(seed.stream().standard_normal(shape, dtype="float32")).mul_(deviation)


def _shape(name: str, spec: ModelSpec) -> tuple[int, ...]:
    if name.startswith("layers."):
        return dict(_block_shapes(spec))[name.split(".", 2)[2]]
    return (spec.width,) if name == "norm.weight" else (spec.vocabulary, spec.width)


def _block_shapes(spec: ModelSpec) -> Iterator[tuple[str, tuple[int, ...]]]:
    width, each = spec.width, head_width(spec)
    queries, keys = spec.heads * each, kv_heads(spec) * each
    yield "attention_norm.weight", (width,)
    for part, rows in (("query", queries), ("key", keys), ("value", keys)):
        yield f"attention.{part}.weight", (rows, width)
        if spec.qkv_bias:
            yield f"attention.{part}.bias", (rows,)
    yield "attention.output.weight", (width, queries)
    if spec.qk_norm:
        yield "attention.query_norm.weight", (each,)
        yield "attention.key_norm.weight", (each,)
    yield "feed_norm.weight", (width,)
    if spec.experts is None:
        yield "feed.gate.weight", (spec.ffn, width)
        yield "feed.up.weight", (spec.ffn, width)
        yield "feed.down.weight", (width, spec.ffn)
        return
    count, ffn = spec.experts.count, spec.experts.ffn
    yield "feed.router.weight", (count, width)
    yield "feed.experts.gate", (count, ffn, width)
    yield "feed.experts.up", (count, ffn, width)
    yield "feed.experts.down", (count, width, ffn)
