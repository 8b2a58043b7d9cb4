"""Attention: with grouped queries, or latent (MLA), over rotary or learned positions.

The products of queries, keys and values go through one callable, `attend`; context parallelism puts another one there.
How many heads there are is read from the matrices, not from the spec, so that a tensor-parallel rank that holds a part
of the heads runs the same code.
"""

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional
from typing_extensions import override

from weft.planning.cost_model.arithmetic import window_of
from weft.planning.cost_model.parameter_shapes import head_width, kv_heads
from weft.specs.huggingface_rope import mscale
from weft.specs.job import ModelSpec
from weft.training.model.rotary import Rotary

Attend = Callable[[Tensor, Tensor, Tensor, bool], Tensor]
"""`attend(q, k, v, causal)`: q is `[batch, heads, length, head]`, k and v may have fewer heads; out comes q's shape."""

_LATENT_EPSILON = 1e-6
"""Of the norms inside latent attention: DeepSeek's code takes it whatever the config's rms_norm_eps says."""


def attend_locally(q: Tensor, k: Tensor, v: Tensor, causal: bool) -> Tensor:
    """Attend on one device; each head of keys and values serves as many neighbouring heads of queries as there are."""
    grouped = q.shape[1] != k.shape[1]
    return functional.scaled_dot_product_attention(q, k, v, is_causal=causal, enable_gqa=grouped)


class AttentionCore(nn.Module):
    """What attention of every kind does with queries, keys and values: a window, dropout, and the products."""

    def __init__(self, spec: ModelSpec, layer: int) -> None:
        super().__init__()
        self.window = window_of(spec, layer)
        self.dropout = spec.dropout
        self.attend: Attend = attend_locally

    def mix(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Return the mixed values of all heads side by side, `[batch, length, heads x width]`."""
        rate = self.dropout if self.training else 0.0
        if self.window or rate:
            # Plans that spread attention over ranks are refused for such models, so it is whole here.
            mask = _seen(q.shape[2], self.window or q.shape[2], q.device)
            grouped = q.shape[1] != k.shape[1]
            mixed = functional.scaled_dot_product_attention(q, k, v, mask, dropout_p=rate, enable_gqa=grouped)
        else:
            mixed = self.attend(q, k, v, True)
        return mixed.transpose(1, 2).flatten(2)


def _seen(length: int, window: int, device: torch.device) -> Tensor:
    """Return which tokens each token sees: itself and those before it, `window` together."""
    places = torch.arange(length, device=device)
    behind = places.unsqueeze(1) - places
    return (behind >= 0) & (behind < window)


class Attention(AttentionCore):
    """One attention block, from the normed residual stream to what is added to it."""

    def __init__(self, spec: ModelSpec, layer: int) -> None:
        super().__init__(spec, layer)
        self.head_width = head_width(spec)
        groups, bias = kv_heads(spec), spec.qkv_bias or spec.biases
        self.query = nn.Linear(spec.width, spec.heads * self.head_width, bias=bias)
        self.key = nn.Linear(spec.width, groups * self.head_width, bias=bias)
        self.value = nn.Linear(spec.width, groups * self.head_width, bias=bias)
        self.output = nn.Linear(spec.heads * self.head_width, spec.width, bias=spec.biases)
        self.query_norm = nn.RMSNorm(self.head_width, eps=spec.norm_epsilon) if spec.qk_norm else None
        self.key_norm = nn.RMSNorm(self.head_width, eps=spec.norm_epsilon) if spec.qk_norm else None

    @override
    def forward(self, hidden: Tensor, rotary: Rotary) -> Tensor:
        """Return what attention adds to `hidden`, `[batch, length, width]`."""
        q, k, v = (self._heads(project(hidden)) for project in (self.query, self.key, self.value))
        if self.query_norm is not None and self.key_norm is not None:
            q, k = self.query_norm(q), self.key_norm(k)
        return self.output(self.mix(rotary.turn(q), rotary.turn(k), v))

    def _heads(self, projected: Tensor) -> Tensor:
        return projected.unflatten(-1, (-1, self.head_width)).transpose(1, 2)


class LatentAttention(AttentionCore):
    """Multi-head latent attention (DeepSeek-V2, arXiv 2405.04434, section 2.1).

    Keys and values of all heads are made from one narrow vector; a part of each query and key, the key's shared by all
    heads, carries the position.
    """

    def __init__(self, spec: ModelSpec, layer: int) -> None:
        super().__init__(spec, layer)
        assert spec.latent is not None, "a model without latent attention"
        latent, each = spec.latent, head_width(spec)
        self.widths = (each, latent.rope_width, latent.value_width)
        self.query_down = nn.Linear(spec.width, latent.query_rank, bias=False) if latent.query_rank else None
        self.query_norm = nn.RMSNorm(latent.query_rank, eps=_LATENT_EPSILON) if latent.query_rank else None
        queries = spec.heads * (each + latent.rope_width)
        self.query_up = nn.Linear(latent.query_rank or spec.width, queries, bias=False)
        self.kv_down = nn.Linear(spec.width, latent.kv_rank + latent.rope_width, bias=False)
        self.kv_norm = nn.RMSNorm(latent.kv_rank, eps=_LATENT_EPSILON)
        self.kv_up = nn.Linear(latent.kv_rank, spec.heads * (each + latent.value_width), bias=False)
        self.output = nn.Linear(spec.heads * latent.value_width, spec.width, bias=False)
        scaling = spec.rope_scaling
        self.gain = mscale(scaling.factor, scaling.mscale_all_dim) ** 2 if scaling and scaling.mscale_all_dim else 1.0

    @override
    def forward(self, hidden: Tensor, rotary: Rotary) -> Tensor:
        """Return what attention adds to `hidden`, `[batch, length, width]`."""
        each, turned, valued = self.widths
        narrow = hidden
        if self.query_down is not None and self.query_norm is not None:
            narrow = self.query_norm(self.query_down(hidden))
        q_plain, q_turned = self._heads(self.query_up(narrow), each + turned).split((each, turned), -1)
        latent, shared = self.kv_down(hidden).split((self.kv_norm.normalized_shape[0], turned), -1)
        k_plain, v = self._heads(self.kv_up(self.kv_norm(latent)), each + valued).split((each, valued), -1)
        k_turned = rotary.turn(shared.unsqueeze(1)).expand(-1, k_plain.shape[1], -1, -1)
        q = torch.cat((q_plain, rotary.turn(q_turned)), -1)
        k = torch.cat((k_plain, k_turned), -1)
        return self.output(self.mix(q * self.gain if self.gain != 1.0 else q, k, v))

    @staticmethod
    def _heads(projected: Tensor, width: int) -> Tensor:
        return projected.unflatten(-1, (-1, width)).transpose(1, 2)
