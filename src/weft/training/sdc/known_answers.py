"""Small computations with a known answer, run between steps: a device that gets them wrong is not to be trusted.

Matrices of small whole numbers multiply exactly in floating point, in whatever order a kernel adds, so the answer is
known from integer arithmetic on the host and no tolerance is needed. Other numbers come in every time.
"""

import torch

from weft.core.seeds import Seed

_SIZE = 96
_LARGEST = 15


def known_answer_test(seed: Seed, number: int, device: torch.device, size: int = _SIZE) -> str | None:
    """Run test `number`; returns what was wrong, or nothing."""
    draw = seed.stream("micro-test", number)
    left, right = (draw.integers(-_LARGEST, _LARGEST + 1, (size, size)) for _ in range(2))
    expected = torch.from_numpy(left @ right)
    for dtype in (torch.float32, torch.bfloat16):
        # Up to 2^24 every whole number has a float32, and small ones have a bfloat16; sums are kept in float32.
        first, second = (torch.from_numpy(one).to(device=device, dtype=dtype) for one in (left, right))
        if not torch.equal(torch.mm(first, second).float().cpu(), expected.to(dtype).float()):
            return f"matrix product in {str(dtype).removeprefix('torch.')}"
    vector = torch.from_numpy(left.reshape(-1)).to(device=device, dtype=torch.float32)
    if int(vector.sum()) != int(left.sum()):
        return "sum in float32"
    if not torch.equal((vector * vector - vector).cpu(), torch.from_numpy((left * left - left).reshape(-1)).float()):
        return "element-wise arithmetic in float32"
    return None
