"""Digests at the speed of memory, for comparing copies that lie on different ranks in the same cut.

A tensor is read as 64-bit words, folded into columns by integer addition, and the columns are added with odd factors,
all modulo 2^64. Every change of one word changes the digest, since odd factors can be undone; several changes cancel
with odds of about 2^-64 unless they are made for it. Words that trade places within one column are not seen. A slower
digest that does not depend on the cut is in `digests`.
"""

from collections.abc import Iterable
from functools import cache

import torch

from weft.core.seeds import mix

_WORD = 2**64
_COLUMNS = 2048
_BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32}
_WORD_BYTES = 8


@cache
def _factors(device: torch.device) -> torch.Tensor:
    """Return one odd factor for each column."""
    values = [(mix(0, column) | 1) - _WORD // 2 for column in range(_COLUMNS)]
    return torch.tensor(values, dtype=torch.int64, device=device) | 1


def _words(tensor: torch.Tensor) -> torch.Tensor:
    """Return the tensor's memory as 64-bit words; widened one by one where it does not divide into them."""
    flat = tensor.detach().contiguous().reshape(-1)
    size = flat.element_size()
    if size == _WORD_BYTES:
        return flat.view(torch.int64)
    each = _WORD_BYTES // size
    if flat.numel() % each == 0 and flat.storage_offset() % each == 0:
        return flat.view(torch.int64)
    return flat.view(_BITS[size]).to(torch.int64)


def fold(tensor: torch.Tensor) -> torch.Tensor:
    """Return the digest of `tensor` as a 64-bit integer on its own device; nothing waits for the device."""
    words = _words(tensor)
    factors = _factors(words.device)
    rows = words.numel() // _COLUMNS
    total = torch.zeros((), dtype=torch.int64, device=words.device)
    if rows:
        total = total + _weighted(words[: rows * _COLUMNS].view(rows, _COLUMNS).sum(0), factors)
    rest = words[rows * _COLUMNS :]
    if rest.numel():
        total = total + _weighted(rest, factors[: rest.numel()])
    return total


def _weighted(columns: torch.Tensor, factors: torch.Tensor) -> torch.Tensor:
    if columns.is_cuda:
        return (columns * factors).sum()
    return torch.dot(columns, factors)


def folds(tensors: Iterable[torch.Tensor], device: torch.device) -> torch.Tensor:
    """Return the digests of several tensors as one vector on `device`."""
    found = [fold(tensor) for tensor in tensors]
    return torch.stack(found) if found else torch.zeros(0, dtype=torch.int64, device=device)


def joined(digests: torch.Tensor) -> torch.Tensor:
    """Return one digest of a vector of digests, in which their order counts."""
    factors = _factors(digests.device)
    # More tensors than columns: the factor of a later row is turned, so that rows can not trade places.
    rows = -(-digests.numel() // _COLUMNS)
    total = torch.zeros((), dtype=torch.int64, device=digests.device)
    for row in range(rows):
        part = digests[row * _COLUMNS : (row + 1) * _COLUMNS]
        total = total * factors[row % _COLUMNS] + _weighted(part ^ (part >> 29), factors[: part.numel()])
    return total


def fold_digest(tensors: Iterable[torch.Tensor]) -> int:
    """Return one digest of several tensors as a number from 0 to 2^64 - 1; waits for the device."""
    found = [fold(tensor) for tensor in tensors]
    return int(joined(torch.stack(found))) % _WORD if found else 0
