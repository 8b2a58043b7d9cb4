"""How fast this machine multiplies matrices: the peak that MFU is measured against, found by doing it.

A data sheet's figure assumes clocks that a loaded device does not hold; the measured one is what a perfect program
would reach here and now. Run before a training, never inside one.
"""

import time

import torch

from weft.core.units import FlopsPerSecond

_ROUNDS = 5
_FLOPS_PER_MULTIPLY_ADD = 2
_NANOSECONDS = 10**9


def measure_peak(
    device: torch.device, dtype: torch.dtype, size: int | None = None, round_ns: int = 100_000_000
) -> FlopsPerSecond:
    """Return the best speed over a few rounds of square matrix products of `size`, each about `round_ns` long."""
    size = size or (8192 if device.type == "cuda" else 1024)
    # Random numbers: a GPU multiplies constant ones faster, because switching fewer bits takes less power.
    chance = torch.Generator(device).manual_seed(0)
    left = torch.randn((size, size), generator=chance, device=device).to(dtype)
    right = torch.randn((size, size), generator=chance, device=device).to(dtype)
    product = left @ right
    once_ns = max(1, _timed(left, right, product, 1))
    repeats = max(1, round_ns // once_ns)
    best_ns = min(_timed(left, right, product, repeats) for _ in range(_ROUNDS))
    return FlopsPerSecond(_FLOPS_PER_MULTIPLY_ADD * size**3 * repeats * _NANOSECONDS // max(1, best_ns))


def _timed(left: torch.Tensor, right: torch.Tensor, product: torch.Tensor, repeats: int) -> int:
    _settle(left.device)
    begin = time.perf_counter_ns()
    for _ in range(repeats):
        torch.mm(left, right, out=product)
    _settle(left.device)
    return time.perf_counter_ns() - begin


def _settle(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
