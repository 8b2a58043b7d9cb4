"""Sums whose bits do not depend on who adds: a fixed tree over micro-batch positions, and an order-free norm.

Floating-point addition is not associative, so a plain all-reduce gives other bits for every number of ranks. Here the
shape of the sum is a binary tree over *positions* (the indices of micro-batches), which no rank count can change: a
rank adds the subtrees that it holds completely, the owner of a chunk adds the rest in the same tree. The norm of the
gradient is summed as integers on a grid set by the largest element, so its order does not matter at all. Which tensors
travel when is `reducer`'s work.
"""

import math
from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TypeVar

import torch

Node = tuple[int, int]
"""A subtree: its level (0 for a leaf) and its number on that level."""

ValueT = TypeVar("ValueT")

_WORD_BITS = 62
_SLICE = {"cpu": 1 << 20, "cuda": 1 << 26}
"""Elements squared at a time: what a cache holds, or enough to fill a GPU."""


@dataclass(frozen=True)
class ReductionTree:
    """A binary tree over the positions that exist; where one child is empty, the other one stands for the parent."""

    positions: frozenset[int]
    """Positions of the leaves that exist."""

    @cached_property
    def levels(self) -> int:
        """Return the level of the root."""
        return max(self.positions, default=0).bit_length()

    @cached_property
    def _ordered(self) -> list[int]:
        return sorted(self.positions)

    def _inside(self, node: Node) -> list[int]:
        level, number = node
        first = bisect_left(self._ordered, number << level)
        return self._ordered[first : bisect_left(self._ordered, (number + 1) << level)]

    def empty(self, node: Node) -> bool:
        """Return whether no leaf exists below `node`."""
        return not self._inside(node)

    def climb(self, held: dict[Node, ValueT], leaf: int, value: ValueT, add: Callable[[ValueT, ValueT], ValueT]) -> int:
        """Put a leaf's value among the `held` subtrees and add as far up as both children are there.

        Returns how many additions were made. `add(left, right)` may reuse either argument.
        """
        level, number, additions = 0, leaf, 0
        while level < self.levels:
            sibling = (level, number ^ 1)
            if sibling in held:
                other = held.pop(sibling)
                value = add(value, other) if number % 2 == 0 else add(other, value)
                additions += 1
            elif not self.empty(sibling):
                break
            level, number = level + 1, number >> 1
        held[level, number] = value
        return additions

    def partials(self, mine: frozenset[int]) -> tuple[Node, ...]:
        """Return the largest subtrees all of whose leaves are among `mine`, from left to right."""
        found: list[Node] = []
        self._collect((self.levels, 0), mine, found)
        return tuple(found)

    def _collect(self, node: Node, mine: frozenset[int], found: list[Node]) -> None:
        level, number = node
        inside = self._inside(node)
        if not any(position in mine for position in inside):
            return
        if all(position in mine for position in inside):
            found.append(node)
            return
        for child in (2 * number, 2 * number + 1):
            self._collect((level - 1, child), mine, found)

    def total(self, held: dict[Node, ValueT], add: Callable[[ValueT, ValueT], ValueT]) -> ValueT:
        """Return the sum at the root of subtrees that together hold every leaf."""
        value = self._total((self.levels, 0), held, add)
        assert value is not None, "the tree has no leaves"
        return value

    def _total(self, node: Node, held: dict[Node, ValueT], add: Callable[[ValueT, ValueT], ValueT]) -> ValueT | None:
        if node in held:
            return held[node]
        level, number = node
        if level == 0:
            return None
        left = self._total((level - 1, 2 * number), held, add)
        right = self._total((level - 1, 2 * number + 1), held, add)
        if left is None or right is None:
            return right if left is None else left
        return add(left, right)


def tree_sum(values: Sequence[float]) -> float:
    """Return the sum of `values` in the order of the tree over their indices."""
    tree = ReductionTree(frozenset(range(len(values))))
    return tree.total({(0, index): value for index, value in enumerate(values)}, lambda left, right: left + right)


def grid_bits(elements: int) -> int:
    """Return how many bits each of `elements` squares may have so that their sum fits a 64-bit integer."""
    return _WORD_BITS - max(elements, 1).bit_length()


def _real(tensor: torch.Tensor) -> torch.Tensor:
    """Return complex numbers as pairs of real ones; a norm sees both."""
    return torch.view_as_real(tensor) if tensor.is_complex() else tensor


def largest(tensors: Iterable[torch.Tensor]) -> torch.Tensor:
    """Return the largest magnitude in `tensors` as a double, infinite where anything is not finite."""
    top: torch.Tensor | None = None
    for tensor in tensors:
        if tensor.numel() == 0:
            continue
        peak = torch.linalg.vector_norm(_real(tensor.detach()), ord=math.inf).double()
        peak = torch.where(torch.isfinite(peak), peak, torch.inf)
        top = peak if top is None else torch.maximum(top, peak)
    return torch.zeros((), dtype=torch.float64) if top is None else top


def grid_squares(tensors: Iterable[torch.Tensor], top: float, bits: int) -> torch.Tensor:
    """Return the sum of squares, each rounded down to a multiple of top^2 / 2^bits, as a count of such multiples.

    Every square is rounded by itself and integers are added, so any split of the elements gives the same count.
    """
    count = torch.zeros((), dtype=torch.int64)
    if top == 0 or not math.isfinite(top):
        return count
    scale = math.ldexp(1.0, bits // 2) / top
    odd = 2.0 if bits % 2 else 1.0
    for tensor in tensors:
        flat = _real(tensor.detach()).reshape(-1)
        for piece in flat.split(_SLICE.get(flat.device.type, _SLICE["cpu"])):
            scaled = piece.double().mul_(scale)
            squares = scaled.mul_(scaled).mul_(odd).to(torch.int64).sum()
            count = count.to(squares.device) + squares
    return count


def norm_from_grid(count: int, top: float, bits: int) -> float:
    """Return the norm that `count` multiples of top^2 / 2^bits mean; not finite where `top` is not."""
    if not math.isfinite(top):
        return math.nan
    return top * math.sqrt(count / math.ldexp(1.0, bits))
