"""From a state of tensors to pieces and back: cutting, digests, bytes, and filling a differently cut state."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch
from torch.distributed.tensor import DTensor
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

from weft.training.checkpoint import tensor_digests
from weft.training.recovery.piece import Piece, overlap

_DTYPES = {str(kind).removeprefix("torch."): kind for kind in vars(torch).values() if isinstance(kind, torch.dtype)}


def pieces_of(state: Mapping[str, Any]) -> dict[str, tuple[Piece, torch.Tensor]]:
    """Return every piece of `state` that this rank holds, by its key, with the memory that it lies in."""
    found: dict[str, tuple[Piece, torch.Tensor]] = {}
    for name, tensor in _flat(state, ""):
        local = tensor.to_local() if isinstance(tensor, DTensor) else tensor
        offsets = (0,) * local.dim()
        if isinstance(tensor, DTensor):
            _, offsets = compute_local_shape_and_global_offset(tensor.shape, tensor.device_mesh, tensor.placements)
        if local.numel():
            dtype = str(local.dtype).removeprefix("torch.")
            piece = Piece(name, tuple(offsets), tuple(local.shape), tuple(tensor.shape), dtype)
            found[piece.key] = (piece, local.detach())
    return found


def _flat(state: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, torch.Tensor]]:
    for key, value in state.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{key}.")
        elif isinstance(value, torch.Tensor):
            yield f"{prefix}{key}", value


def digest(piece: Piece, tensor: torch.Tensor) -> int:
    """Return what `tensor`, lying where `piece` says, adds to the digest of the whole tensor."""
    return tensor_digests.shard_digest(tensor, piece.offsets, piece.shape)


def as_bytes(tensor: torch.Tensor) -> memoryview:
    """Return the memory of `tensor`, which must be on the CPU, as bytes."""
    flat: Any = tensor.contiguous().reshape(-1).view(torch.uint8).numpy()
    return memoryview(flat)


def from_bytes(piece: Piece, content: bytearray) -> torch.Tensor:
    """Return the tensor of `piece` whose bytes are `content`; raises `ValueError` where their number is wrong."""
    dtype = _DTYPES[piece.dtype]
    if len(content) != piece.elements * dtype.itemsize:
        raise ValueError(f"{len(content)} bytes instead of {piece.elements * dtype.itemsize}")
    return torch.frombuffer(content, dtype=dtype).reshape(piece.sizes)


def missing(wanted: Iterable[Piece], stored: Iterable[Piece]) -> str | None:
    """Return the name of the first wanted piece that the stored ones do not cover, or nothing."""
    by_name: dict[str, list[Piece]] = {}
    for piece in stored:
        by_name.setdefault(piece.name, []).append(piece)
    for piece in wanted:
        common = (overlap(there, piece) for there in by_name.get(piece.name, ()))
        if sum(part.elements for part in common if part is not None) != piece.elements:
            return piece.name
    return None


def fill(target: Mapping[str, tuple[Piece, torch.Tensor]], stored: Iterable[tuple[Piece, torch.Tensor]]) -> None:
    """Copy into the pieces of `target` what `stored` pieces have for them, however either is cut."""
    by_name: dict[str, list[tuple[Piece, torch.Tensor]]] = {}
    for piece, tensor in stored:
        by_name.setdefault(piece.name, []).append((piece, tensor))
    with torch.no_grad():
        for piece, memory in target.values():
            for there, tensor in by_name.get(piece.name, ()):
                part = overlap(there, piece)
                if part is not None:
                    memory[part.here].copy_(tensor[part.there])
