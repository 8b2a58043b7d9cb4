"""Weights in the form that others read: safetensors with Hugging Face's names, and a config.json beside them.

Layouts agree without any reordering: linear weights are `[out, in]` on both sides, heads are consecutive rows of the
projections, query head h uses key head h // (heads / kv_heads), and rotary planes are (i, i + head / 2) of a head
("rotate-half"). Stacked experts become one tensor for each expert; a tied output is left out, as `transformers` does.
The translation of config.json itself is `weft.specs.huggingface`.
"""

import json
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from weft.core.errors import FailedError, UsageError
from weft.specs.huggingface import config_of, model_spec, model_type, read_config
from weft.specs.job import ModelSpec
from weft.training.model.weights import canonical, shapes

LARGEST_FILE_BYTES = 5 * 10**9
"""Size from which weights are cut into several files; the default of `save_pretrained`."""

_DENSE = {
    "attention_norm.weight": "input_layernorm.weight",
    "attention.query.weight": "self_attn.q_proj.weight",
    "attention.query.bias": "self_attn.q_proj.bias",
    "attention.key.weight": "self_attn.k_proj.weight",
    "attention.key.bias": "self_attn.k_proj.bias",
    "attention.value.weight": "self_attn.v_proj.weight",
    "attention.value.bias": "self_attn.v_proj.bias",
    "attention.output.weight": "self_attn.o_proj.weight",
    "attention.query_norm.weight": "self_attn.q_norm.weight",
    "attention.key_norm.weight": "self_attn.k_norm.weight",
    "feed_norm.weight": "post_attention_layernorm.weight",
    "feed.gate.weight": "mlp.gate_proj.weight",
    "feed.up.weight": "mlp.up_proj.weight",
    "feed.down.weight": "mlp.down_proj.weight",
}
_EXPERTS = {
    "mixtral": {
        "feed.router.weight": "block_sparse_moe.gate.weight",
        "feed.experts.gate": "block_sparse_moe.experts.{}.w1.weight",
        "feed.experts.up": "block_sparse_moe.experts.{}.w3.weight",
        "feed.experts.down": "block_sparse_moe.experts.{}.w2.weight",
    },
    "qwen3_moe": {
        "feed.router.weight": "mlp.gate.weight",
        "feed.experts.gate": "mlp.experts.{}.gate_proj.weight",
        "feed.experts.up": "mlp.experts.{}.up_proj.weight",
        "feed.experts.down": "mlp.experts.{}.down_proj.weight",
    },
}
_ENDS = {
    "embed.weight": "model.embed_tokens.weight",
    "norm.weight": "model.norm.weight",
    "head.weight": "lm_head.weight",
}


def names_of(name: str, spec: ModelSpec) -> list[str]:
    """Return the Hugging Face names of our parameter `name`: one, or one for each expert of a stack."""
    if name in _ENDS:
        return [_ENDS[name]]
    _, layer, inner = name.split(".", 2)
    theirs = {**_DENSE, **_EXPERTS.get(model_type(spec), {})}[inner]
    count = spec.experts.count if spec.experts and "{}" in theirs else 1
    return [f"model.layers.{layer}.{theirs.format(expert)}" for expert in range(count)]


def save_weights(
    state: Mapping[str, Tensor],
    spec: ModelSpec,
    folder: Path,
    *,
    length: int,
    dtype: torch.dtype | None = None,
    largest_file_bytes: int = LARGEST_FILE_BYTES,
) -> None:
    """Write the whole `state` of a decoder to the new folder `folder`, which appears whole or not at all.

    `length` is the longest text the model is meant for. Weights keep their type unless `dtype` names another.
    """
    config = config_of(spec, length)
    tensors = dict(_outward(state, spec, dtype))
    if dtype is not None or tensors:
        config["torch_dtype"] = str(dtype or next(iter(tensors.values())).dtype).removeprefix("torch.")
    if folder.exists() and any(folder.iterdir()):
        raise UsageError(f"{folder} is not empty; name a new folder for the weights")
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        part = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", suffix=".part", dir=folder.parent))
        try:
            part.chmod(0o755)
            (part / "config.json").write_text(json.dumps(config, indent=2) + "\n")
            _save_files(tensors, part, largest_file_bytes)
            part.replace(folder)
        finally:
            shutil.rmtree(part, ignore_errors=True)
    except (OSError, SafetensorError) as error:
        raise FailedError(f"weights cannot be written to {folder}: {error}") from None


def load_weights(folder: Path) -> tuple[ModelSpec, dict[str, Tensor]]:
    """Return the model and the state that lie in `folder` in Hugging Face's form."""
    spec = model_spec(read_config(folder / "config.json"), str(folder / "config.json"))
    files = sorted(folder.glob("*.safetensors"))
    if not files:
        raise UsageError(f"{folder} holds no .safetensors file; weights in other forms cannot be read")
    found: dict[str, Tensor] = {}
    for file in files:
        try:
            found |= load_file(file)
        except (OSError, SafetensorError) as error:
            raise UsageError(f"{file} is not a whole safetensors file: {error}") from None
    return spec, _inward(found, spec, folder)


def _outward(state: Mapping[str, Tensor], spec: ModelSpec, dtype: torch.dtype | None) -> Iterator[tuple[str, Tensor]]:
    bare = {canonical(name, spec): tensor for name, tensor in state.items()}
    missing = [name for name in shapes(spec) if name not in bare]
    if missing:
        raise FailedError(f"the state lacks {_some(missing)}; weights are written from a whole model, not a stage")
    for name in shapes(spec):
        tensor = bare[name].detach().to(device="cpu", dtype=dtype)
        theirs = names_of(name, spec)
        parts = tensor.unbind() if ".experts." in name else (tensor,)
        # A copy: the format refuses tensors that share memory.
        yield from ((target, piece.clone().contiguous()) for target, piece in zip(theirs, parts, strict=True))


def _inward(found: Mapping[str, Tensor], spec: ModelSpec, folder: Path) -> dict[str, Tensor]:
    state: dict[str, Tensor] = {}
    problems: list[str] = []
    for name, shape in shapes(spec).items():
        theirs = names_of(name, spec)
        missing = [target for target in theirs if target not in found]
        if missing:
            problems.append(f"lacks {_some(missing)}")
            continue
        tensor = torch.stack([found[target] for target in theirs]) if ".experts." in name else found[theirs[0]]
        if tuple(tensor.shape) != shape:
            problems.append(f"has {theirs[0]} as {tuple(tensor.shape)}, not {shape}")
        state[name] = tensor
    if problems:
        raise UsageError(f"{folder} does not hold the model of its config.json: it " + "; it ".join(problems))
    if spec.tied:
        state["head.weight"] = state["embed.weight"]
    return state


def _save_files(tensors: Mapping[str, Tensor], folder: Path, largest_file_bytes: int) -> None:
    groups: list[dict[str, Tensor]] = [{}]
    size = 0
    for name, tensor in tensors.items():
        if groups[-1] and size + tensor.nbytes > largest_file_bytes:
            groups.append({})
            size = 0
        groups[-1][name] = tensor
        size += tensor.nbytes
    if len(groups) == 1:
        save_file(groups[0], folder / "model.safetensors", metadata={"format": "pt"})
        return
    places: dict[str, str] = {}
    for number, group in enumerate(groups, start=1):
        file = f"model-{number:05d}-of-{len(groups):05d}.safetensors"
        save_file(group, folder / file, metadata={"format": "pt"})
        places |= dict.fromkeys(group, file)
    total = sum(tensor.nbytes for tensor in tensors.values())
    index: dict[str, Any] = {"metadata": {"total_size": total}, "weight_map": places}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index, indent=2) + "\n")


def _some(names: list[str], shown: int = 4) -> str:
    rest = len(names) - shown
    return ", ".join(names[:shown]) + (f" and {rest} more" if rest > 0 else "")
