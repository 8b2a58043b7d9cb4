"""Which of Hugging Face's tensors hold which of weft's parameters: names, order of rows, and orientation.

Each stored tensor is one of weft's parameters, one expert of a stack, or several parameters one below the other (GPT-2
keeps queries, keys and values together), with its rows reordered (DeepSeek keeps the two coordinates of each rotary
plane beside each other) or transposed (GPT-2's Conv1D). That is all that the families differ in.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from weft.planning.cost_model.parameter_shapes import Shape, block_shapes, head_width, shapes
from weft.specs.huggingface import model_type
from weft.specs.job import ModelSpec

_LLAMA = {
    "attention_norm": "input_layernorm",
    "attention.query": "self_attn.q_proj",
    "attention.key": "self_attn.k_proj",
    "attention.value": "self_attn.v_proj",
    "attention.output": "self_attn.o_proj",
    "attention.query_norm": "self_attn.q_norm",
    "attention.key_norm": "self_attn.k_norm",
    "feed_norm": "post_attention_layernorm",
    "feed.gate": "mlp.gate_proj",
    "feed.up": "mlp.up_proj",
    "feed.down": "mlp.down_proj",
    "feed.router": "mlp.gate",
    "feed.correction": "mlp.gate.e_score_correction_bias",
    "feed.shared.gate": "mlp.shared_experts.gate_proj",
    "feed.shared.up": "mlp.shared_experts.up_proj",
    "feed.shared.down": "mlp.shared_experts.down_proj",
    "feed.experts.gate": "mlp.experts.{}.gate_proj.weight",
    "feed.experts.up": "mlp.experts.{}.up_proj.weight",
    "feed.experts.down": "mlp.experts.{}.down_proj.weight",
}
_MIXTRAL = _LLAMA | {
    "feed.router": "block_sparse_moe.gate",
    "feed.experts.gate": "block_sparse_moe.experts.{}.w1.weight",
    "feed.experts.up": "block_sparse_moe.experts.{}.w3.weight",
    "feed.experts.down": "block_sparse_moe.experts.{}.w2.weight",
}
_DEEPSEEK = _LLAMA | {
    "attention.query_down": "self_attn.q_a_proj",
    "attention.query_norm": "self_attn.q_a_layernorm",
    "attention.query_up": "self_attn.q_b_proj",
    "attention.kv_down": "self_attn.kv_a_proj_with_mqa",
    "attention.kv_norm": "self_attn.kv_a_layernorm",
    "attention.kv_up": "self_attn.kv_b_proj",
}
_GPT2 = {
    "attention_norm": "ln_1",
    "attention.query": "attn.c_attn",
    "attention.key": "attn.c_attn",
    "attention.value": "attn.c_attn",
    "attention.output": "attn.c_proj",
    "feed_norm": "ln_2",
    "feed.up": "mlp.c_fc",
    "feed.down": "mlp.c_proj",
}
_NAMES = {"mixtral": _MIXTRAL, "deepseek_v3": _DEEPSEEK, "gpt2": _GPT2}
_ENDS = {"embed": "model.embed_tokens", "norm": "model.norm", "head": "lm_head"}
_GPT2_ENDS = {"embed": "transformer.wte", "positions": "transformer.wpe", "norm": "transformer.ln_f", "head": "lm_head"}


@dataclass(frozen=True)
class Part:
    """Some rows of a stored tensor: a whole parameter, or one expert of a stack."""

    name: str
    """The parameter."""
    shape: Shape
    """The shape of these rows as weft has them."""
    expert: int | None = None
    """Which expert's matrix it is."""


@dataclass(frozen=True)
class StoredPlace:
    """One of Hugging Face's tensors, and what it is made of."""

    name: str
    """Its name there."""
    parts: tuple[Part, ...]
    """What stands in it, one below the other."""
    rows: tuple[int, ...] = ()
    """For each of its rows, which row of the parts it is; none where the order is the same."""
    transposed: bool = False
    """Whether rows and columns are exchanged."""

    @property
    def shape(self) -> Shape:
        """Return the shape that it is stored in."""
        whole = (sum(part.shape[0] for part in self.parts), *self.parts[0].shape[1:])
        return whole[::-1] if self.transposed else whole

    def outward(self, pieces: list[Tensor]) -> Tensor:
        """Return the tensor to store, from its parts."""
        whole = torch.cat(pieces) if len(pieces) > 1 else pieces[0]
        whole = whole[list(self.rows)] if self.rows else whole
        return whole.T if self.transposed else whole

    def inward(self, stored: Tensor, part: Part) -> Tensor:
        """Return one of its parts, from the stored tensor."""
        whole = stored.T if self.transposed else stored
        if self.rows:
            whole = whole[torch.tensor(self.rows).argsort()]
        first = sum(each.shape[0] for each in self.parts[: self.parts.index(part)])
        return whole[first : first + part.shape[0]]


def stored_places(spec: ModelSpec, *, interleaved: bool = True) -> Iterator[StoredPlace]:
    """Yield every tensor that Hugging Face's files of a model hold; `interleaved` says how DeepSeek's planes lie."""
    kind = model_type(spec)
    ends = shapes(spec.model_copy(update={"layers": 0}))
    for name, shape in ends.items():
        stem, _, leaf = name.rpartition(".")
        theirs = (_GPT2_ENDS if kind == "gpt2" else _ENDS)[stem]
        yield StoredPlace(f"{theirs}.{leaf}", (Part(name, shape),))
    for layer in range(spec.layers):
        prefix = f"transformer.h.{layer}" if kind == "gpt2" else f"model.layers.{layer}"
        merged: dict[str, list[Part]] = {}
        for inner, shape in block_shapes(spec, layer):
            for theirs, part in _stored_as(kind, spec, inner, Part(f"layers.{layer}.{inner}", shape)):
                merged.setdefault(theirs, []).append(part)
        for theirs, parts in merged.items():
            yield StoredPlace(
                f"{prefix}.{theirs}", tuple(parts), _rows(spec, theirs) if interleaved else (),
                transposed=kind == "gpt2" and len(parts[0].shape) > 1,
            )  # fmt: skip


def _stored_as(kind: str, spec: ModelSpec, inner: str, whole: Part) -> Iterator[tuple[str, Part]]:
    names = _NAMES.get(kind, _LLAMA)
    if inner.startswith("feed.experts."):
        for expert in range(whole.shape[0]):
            yield names[inner].format(expert), Part(whole.name, whole.shape[1:], expert)
        return
    if inner in names:
        yield names[inner], whole
        return
    stem, _, leaf = inner.rpartition(".")
    theirs = names[stem]
    if stem == "attention.query_up" and spec.latent is not None and not spec.latent.query_rank:
        theirs = "self_attn.q_proj"
    yield f"{theirs}.{leaf}", whole


def _rows(spec: ModelSpec, theirs: str) -> tuple[int, ...]:
    """Return how the rows of one of DeepSeek's projections stand: planes as neighbours there, as halves here."""
    latent = spec.latent
    if latent is None:
        return ()
    turned, each = latent.rope_width, head_width(spec)
    planes = [plane + half * (turned // 2) for plane in range(turned // 2) for half in (0, 1)]
    if theirs in ("self_attn.q_b_proj.weight", "self_attn.q_proj.weight"):
        per_head = [*range(each), *(each + row for row in planes)]
        return tuple(head * (each + turned) + row for head in range(spec.heads) for row in per_head)
    if theirs == "self_attn.kv_a_proj_with_mqa.weight":
        return (*range(latent.kv_rank), *(latent.kv_rank + row for row in planes))
    return ()
