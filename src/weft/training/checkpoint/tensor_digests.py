"""Short digests of tensors that do not depend on how a tensor is cut into shards.

The digest of a tensor is a sum, modulo 2^64, over its elements: (bits + 1) times an odd number that is drawn from the
element's place in the whole tensor. Sums of shards can therefore be added in any order and on any rank; every change of
a single element changes the digest, because an odd factor can be undone modulo 2^64. It finds errors, not forgeries:
files are sealed with sha256 beside it.
"""

import hashlib
from collections.abc import Iterable, Mapping, Sequence

import torch

_WORD = 2**64
_SLAB_ELEMENTS = 1 << 20
# Fractional bits of the golden ratio, as in Knuth's multiplicative hashing; as a signed number, for torch.
_GOLDEN = 0x9E3779B97F4A7C15 - _WORD
_FOLD = 32
_BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def shard_digest(shard: torch.Tensor, offsets: Sequence[int], shape: Sequence[int]) -> int:
    """Return the part that `shard`, lying at `offsets` in a tensor of `shape`, adds to that tensor's digest."""
    bits = _as_integers(shard.detach())
    if bits.dim() == 0:
        bits, offsets, shape = bits.reshape(1), (0,), (1,)
    if bits.numel() == 0:
        return 0
    rows = max(1, _SLAB_ELEMENTS // max(1, bits[0].numel()))
    total = 0
    for first in range(0, bits.shape[0], rows):
        slab = bits[first : first + rows]
        places = _places(slab.shape, (offsets[0] + first, *offsets[1:]), shape, slab.device)
        total += int(((slab.to(torch.int64) + 1) * _factors(places)).sum().item())
    return total % _WORD


def tensor_digest(tensor: torch.Tensor) -> str:
    """Return the digest of a whole tensor on this rank, as 16 hexadecimal digits."""
    return written(shard_digest(tensor, (0,) * tensor.dim(), tensor.shape))


def written(total: int) -> str:
    """Return a sum of shard digests as 16 hexadecimal digits."""
    return f"{total % _WORD:016x}"


def added(parts: Iterable[Mapping[str, int]]) -> dict[str, int]:
    """Return the digests of whole tensors from those of their shards, rank by rank."""
    totals: dict[str, int] = {}
    for part in parts:
        for name, value in part.items():
            totals[name] = (totals.get(name, 0) + value) % _WORD
    return totals


def joint_digest(digests: Mapping[str, str]) -> str:
    """Return one digest of many named tensors, such as all weights of a model."""
    joint = hashlib.sha256()
    for name, digest in sorted(digests.items()):
        joint.update(f"{name} {digest}\n".encode())
    return joint.hexdigest()[:16]


def _as_integers(tensor: torch.Tensor) -> torch.Tensor:
    tensor = tensor.resolve_conj().resolve_neg()
    if tensor.dtype is torch.complex128:
        parts = torch.view_as_real(tensor).contiguous().view(torch.int64)
        return parts[..., 0] * _GOLDEN + parts[..., 1]
    if tensor.dtype is torch.bool:
        return tensor.to(torch.uint8)
    return tensor.contiguous().view(_BITS[tensor.element_size()])


def _places(sizes: Sequence[int], offsets: Sequence[int], shape: Sequence[int], device: torch.device) -> torch.Tensor:
    """Return the row-major place in the whole tensor of every element of a slab."""
    places = torch.zeros((), dtype=torch.int64, device=device)
    stride = 1
    for axis in range(len(sizes) - 1, -1, -1):
        along = torch.arange(offsets[axis], offsets[axis] + sizes[axis], dtype=torch.int64, device=device) * stride
        places = places + along.reshape(-1, *(1,) * (len(sizes) - 1 - axis))
        stride *= shape[axis]
    return places


def _factors(places: torch.Tensor) -> torch.Tensor:
    spread = (places + 1) * _GOLDEN
    return (spread ^ (spread >> _FOLD)) | 1
