"""A piece of a tensor as a box in it: what a rank holds, what a keeper stores, and how two boxes overlap. No torch."""

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from typing import Any


@dataclass(frozen=True, slots=True)
class Piece:
    """A box in a named tensor."""

    name: str
    """The tensor's name in the whole training: "model.layers.0.norm", "optimizer.layers.0.norm.exp_avg"."""
    offsets: tuple[int, ...]
    """Where the box begins, along each dimension."""
    sizes: tuple[int, ...]
    """How long it is, along each dimension."""
    shape: tuple[int, ...]
    """Shape of the whole tensor."""
    dtype: str
    """Element type, as torch names it."""

    @property
    def key(self) -> str:
        """Return what tells this piece from every other of a state."""
        return f"{self.name}@{','.join(map(str, self.offsets))}+{','.join(map(str, self.sizes))}"

    @property
    def elements(self) -> int:
        """Return how many elements it has."""
        return prod(self.sizes)

    def as_json(self) -> dict[str, object]:
        """Return it as plain values."""
        return {
            "name": self.name,
            "offsets": self.offsets,
            "sizes": self.sizes,
            "shape": self.shape,
            "dtype": self.dtype,
        }


def piece_from(document: Mapping[str, Any]) -> Piece:
    """Return the piece that `as_json` has described."""
    boxes = (tuple(document[key]) for key in ("offsets", "sizes", "shape"))
    return Piece(str(document["name"]), *boxes, dtype=str(document["dtype"]))


@dataclass(frozen=True, slots=True)
class Overlap:
    """What two pieces of one tensor have in common."""

    there: tuple[slice, ...]
    """Where it lies in the first."""
    here: tuple[slice, ...]
    """Where it lies in the second."""
    elements: int
    """How many elements it has."""


def overlap(there: Piece, here: Piece) -> Overlap | None:
    """Return what `there` and `here` have in common, or nothing."""
    if there.name != here.name or there.shape != here.shape:
        return None
    from_there: list[slice] = []
    from_here: list[slice] = []
    for first, size, other, length in zip(there.offsets, there.sizes, here.offsets, here.sizes, strict=True):
        low, high = max(first, other), min(first + size, other + length)
        if low >= high:
            return None
        from_there.append(slice(low - first, high - first))
        from_here.append(slice(low - other, high - other))
    return Overlap(tuple(from_there), tuple(from_here), prod(part.stop - part.start for part in from_here))
