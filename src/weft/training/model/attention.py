"""Attention with grouped queries and rotary positions.

The products of queries, keys and values go through one callable, `Attention.attend`; context parallelism puts another
one there. How many heads there are is read from the matrices, not from the spec, so that a tensor-parallel rank that
holds a part of the heads runs the same code.
"""

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional
from typing_extensions import override

from weft.planning.cost_model.arithmetic import head_width, kv_heads
from weft.specs.job import ModelSpec

Attend = Callable[[Tensor, Tensor, Tensor, bool], Tensor]
"""`attend(q, k, v, causal)`: q is `[batch, heads, length, head]`, k and v may have fewer heads; out comes q's shape."""


def attend_locally(q: Tensor, k: Tensor, v: Tensor, causal: bool) -> Tensor:
    """Attend on one device; each head of keys and values serves as many neighbouring heads of queries as there are."""
    grouped = q.shape[1] != k.shape[1]
    return functional.scaled_dot_product_attention(q, k, v, is_causal=causal, enable_gqa=grouped)


class Rotary:
    """Positions turned into rotations of queries and keys (RoFormer, arXiv 2104.09864, section 3.2).

    The two halves of a head are the coordinates of its planes ("rotate-half", the layout of weights on Hugging Face),
    not its neighbouring pairs. One object serves all layers of a forward pass. Where no positions were given they count
    from 0, over as many tokens as attention sees: a sequence-parallel rank gathers them only there.
    """

    def __init__(self, spec: ModelSpec, positions: Tensor | int | None = None) -> None:
        """Take the first token's position, or those of all tokens: `[length]` or `[batch, length]`."""
        self.spec = spec
        self.positions = positions
        self._tables: tuple[Tensor, Tensor] | None = None

    def turn(self, heads: Tensor) -> Tensor:
        """Return `heads`, `[batch, heads, length, head]`, each turned to its position; the arithmetic is fp32."""
        cosines, sines = self._at(heads.shape[2], heads.device)
        first, second = heads.float().chunk(2, dim=-1)
        turned = torch.cat((first * cosines - second * sines, second * cosines + first * sines), dim=-1)
        return turned.to(heads.dtype)

    def _at(self, length: int, device: torch.device) -> tuple[Tensor, Tensor]:
        if self._tables is None or self._tables[0].shape[-2] != length:
            positions = self.positions
            if not isinstance(positions, Tensor):
                positions = torch.arange(length, device=device) + (positions or 0)
            speeds = torch.tensor(frequencies(self.spec), dtype=torch.float32, device=device)
            angles = positions.to(device).float().unsqueeze(-1) * speeds
            # Positions of each sequence of a batch need a dimension for the heads.
            angles = angles if angles.dim() == 2 else angles.unsqueeze(1)  # noqa: PLR2004 - [length, planes]
            self._tables = (angles.cos(), angles.sin())
        return self._tables


def frequencies(spec: ModelSpec) -> list[float]:
    """Return the angle, in radians a token, of each plane of a head; in Python, so that no device has its own."""
    width = head_width(spec)
    plain = [spec.rope_base ** (-2 * plane / width) for plane in range(width // 2)]
    scaling = spec.rope_scaling
    if scaling is None:
        return plain
    stretched: list[float] = []
    for speed in plain:
        # Llama 3.1's rule, as `transformers` has it under the name "llama3": slow planes are stretched, fast ones kept,
        # those between blended by how often they turn over the length that was learned first.
        turns = scaling.length * speed / (2 * math.pi)
        kept = min(1.0, max(0.0, (turns - scaling.low) / (scaling.high - scaling.low)))
        stretched.append(speed * (kept + (1 - kept) / scaling.factor))
    return stretched


class Attention(nn.Module):
    """One attention block, from the normed residual stream to what is added to it."""

    def __init__(self, spec: ModelSpec) -> None:
        super().__init__()
        self.head_width = head_width(spec)
        groups = kv_heads(spec)
        self.query = nn.Linear(spec.width, spec.heads * self.head_width, bias=spec.qkv_bias)
        self.key = nn.Linear(spec.width, groups * self.head_width, bias=spec.qkv_bias)
        self.value = nn.Linear(spec.width, groups * self.head_width, bias=spec.qkv_bias)
        self.output = nn.Linear(spec.heads * self.head_width, spec.width, bias=False)
        self.query_norm = nn.RMSNorm(self.head_width, eps=spec.norm_epsilon) if spec.qk_norm else None
        self.key_norm = nn.RMSNorm(self.head_width, eps=spec.norm_epsilon) if spec.qk_norm else None
        self.attend: Attend = attend_locally

    @override
    def forward(self, hidden: Tensor, rotary: Rotary) -> Tensor:
        """Return what attention adds to `hidden`, `[batch, length, width]`."""
        q, k, v = (self._heads(project(hidden)) for project in (self.query, self.key, self.value))
        if self.query_norm is not None and self.key_norm is not None:
            q, k = self.query_norm(q), self.key_norm(k)
        mixed = self.attend(rotary.turn(q), rotary.turn(k), v, True)
        return self.output(mixed.transpose(1, 2).flatten(2))

    def _heads(self, projected: Tensor) -> Tensor:
        return projected.unflatten(-1, (-1, self.head_width)).transpose(1, 2)
