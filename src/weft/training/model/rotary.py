"""Rotary positions: the angle of each plane of a head, and the rotation of queries and keys by it."""

import math

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from weft.planning.cost_model.parameter_shapes import head_width
from weft.specs.job import ModelSpec, RopeScalingSpec

Speeds = NDArray[np.float32]


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
        if self.spec.learned_positions:
            return heads
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
            gain = self.spec.rope_scaling.gain if self.spec.rope_scaling else 1.0
            self._tables = (angles.cos() * gain, angles.sin() * gain)
        return self._tables


def frequencies(spec: ModelSpec) -> list[float]:
    """Return the angle, in radians a token, of each plane of a head; not in torch, so that no device has its own.

    Each operation is rounded to fp32 as in the code that published models were trained with: at a base of 500,000 the
    exponent's rounding moves a speed by up to 4e-7 of itself, which far positions would show.
    """
    width = spec.latent.rope_width if spec.latent is not None else head_width(spec)
    exponents = np.arange(0, width, 2, dtype=np.float32) / np.float32(width)
    plain = np.float32(1) / (float(np.float32(spec.rope_base)) ** exponents.astype(np.float64)).astype(np.float32)
    scaling = spec.rope_scaling
    if scaling is None:
        return plain.tolist()
    slow = plain / np.float32(scaling.factor)
    if scaling.kind == "linear":
        return slow.tolist()
    kept = _kept_by_yarn(scaling, spec.rope_base, width) if scaling.kind == "yarn" else _kept_by_llama(scaling, plain)
    blended = (np.float32(1) - kept) * slow + kept * plain
    return np.where(kept <= 0, slow, np.where(kept >= 1, plain, blended)).tolist()


def _kept_by_llama(scaling: RopeScalingSpec, plain: Speeds) -> Speeds:
    """Return how much of each speed stays as it is by Llama 3.1's rule: `transformers` calls it "llama3".

    Slow planes are stretched, fast ones kept, those between blended by how often they turn over the length that was
    learned first.
    """
    turns = np.float32(scaling.length) / (np.float32(2 * math.pi) / plain)
    return np.clip((turns - np.float32(scaling.low)) / np.float32(scaling.high - scaling.low), 0, 1)


def _kept_by_yarn(scaling: RopeScalingSpec, base: float, width: int) -> Speeds:
    """Return how much of each speed stays as it is by YaRN's rule (arXiv 2309.00071, section 3.2).

    The blend is a straight line over the number of the plane, between the planes with `high` and with `low` turns.
    """
    first, last = (
        width * math.log(scaling.length / (turns * 2 * math.pi)) / (2 * math.log(base))
        for turns in (scaling.high, scaling.low)
    )
    if scaling.rounded:
        first, last = math.floor(first), math.ceil(last)
    first, last = max(first, 0), min(last, width - 1)
    # `transformers` keeps the line from being vertical by the same width.
    span = np.float32(last - first or 0.001)
    return np.float32(1) - np.clip((np.arange(width // 2, dtype=np.float32) - np.float32(first)) / span, 0, 1)
