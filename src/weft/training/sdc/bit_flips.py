"""Bits flipped in tensors, from a seed: the hardware faults that detectors are measured with."""

from dataclasses import dataclass

import numpy as np
import torch

_WORDS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


@dataclass(frozen=True, slots=True)
class Flip:
    """Which bit was flipped."""

    element: int
    """Row-major number of the element."""
    bit: int
    """Number of the bit in it, 0 the least."""
    before: float
    """What the element was."""
    after: float
    """What it is now."""


def flip_bit(tensor: torch.Tensor, draw: np.random.Generator) -> Flip:
    """Flip one bit of `tensor`, in place, element and bit drawn evenly."""
    size = tensor.element_size()
    element, bit = int(draw.integers(tensor.numel())), int(draw.integers(8 * size))
    with torch.no_grad():
        place = np.unravel_index(element, tuple(tensor.shape)) if tensor.dim() else ()
        # A view of one element: tensors with gaps in memory are changed in place too.
        one = tensor.detach()[tuple(int(index) for index in place)].reshape(1)
        before = float(one)
        word = one.view(_WORDS[size])
        mask = 1 << bit
        word ^= mask - (1 << 8 * size) if bit == 8 * size - 1 and size > 1 else mask
        return Flip(element, bit, before, float(one))
