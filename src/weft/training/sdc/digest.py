"""Digests at the speed of memory, for comparing copies that lie on different ranks in the same cut.

A tensor is read as 64-bit words; runs of 64 words are added up, the sums folded into columns by addition, and the
columns are added with odd factors, all modulo 2^64. Every change of one word changes the digest, since odd factors can
be undone; several changes cancel with odds of about 2^-64 unless they are made for it. In tensors of more than 2,048
words, words that trade places within a run are not seen. A slower digest that does not depend on the cut and sees
places is in `digests`.
"""

from collections.abc import Iterable
from functools import cache

import numpy as np
import torch

from weft.core.seeds import mix

_WORD = 2**64
_COLUMNS = 2048
_RUN = 64
_BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32}
_WORD_BYTES = 8
_SHIFT = 29
_LOW = 2 ** (64 - _SHIFT) - 1


@cache
def _factors(device: torch.device) -> torch.Tensor:
    """Return one odd factor for each column."""
    values = [(mix(0, column) | 1) - _WORD // 2 for column in range(_COLUMNS)]
    return torch.tensor(values, dtype=torch.int64, device=device) | 1


@cache
def _host_factors() -> np.ndarray:
    return _factors(torch.device("cpu")).numpy()


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


def _runs(words: torch.Tensor) -> torch.Tensor:
    """Return fewer words with the same meaning: sums of runs, where there are many."""
    if words.numel() <= _COLUMNS:
        return words
    whole = words.numel() // _RUN * _RUN
    sums = words[:whole].view(-1, _RUN).sum(1)
    return sums if whole == words.numel() else torch.cat([sums, words[whole:]])


def _on_host(words: np.ndarray) -> int:
    """Return the digest of words in the host's memory; numpy's calls are the cheaper ones for small tensors."""
    factors = _host_factors()
    rows = words.size // _COLUMNS
    body, rest = words[: rows * _COLUMNS], words[rows * _COLUMNS :]
    total = int(np.dot(rest, factors[: rest.size])) if rest.size else 0
    if rows:
        total += int(np.dot(np.add.reduce(body.reshape(rows, _COLUMNS), axis=0), factors))
    return (total + _WORD // 2) % _WORD - _WORD // 2


def _on_device(words: torch.Tensor) -> torch.Tensor:
    factors = _factors(words.device)
    rows = words.numel() // _COLUMNS
    body, rest = words[: rows * _COLUMNS], words[rows * _COLUMNS :]
    total = (rest * factors[: rest.numel()]).sum()
    return total + (body.view(rows, _COLUMNS).sum(0) * factors).sum() if rows else total


def fold(tensor: torch.Tensor) -> torch.Tensor:
    """Return the digest of `tensor` as a 64-bit integer on its own device; nothing waits for the device."""
    words = _runs(_words(tensor))
    return _on_device(words) if words.is_cuda else torch.tensor(_on_host(words.numpy()))


def folds(tensors: Iterable[torch.Tensor], device: torch.device) -> torch.Tensor:
    """Return the digests of several tensors of `device` as one vector there."""
    words = [_runs(_words(tensor)) for tensor in tensors]
    if device.type == "cuda":
        return (
            torch.stack([_on_device(one) for one in words]) if words else torch.zeros(0, dtype=torch.int64).to(device)
        )
    return torch.tensor([_on_host(one.numpy()) for one in words], dtype=torch.int64)


def joined(digests: torch.Tensor) -> torch.Tensor:
    """Return one digest of a vector of digests, in which their order counts."""
    factors = _factors(digests.device)
    # More tensors than columns: the factor of a later row is turned, so that rows cannot trade places.
    rows = -(-digests.numel() // _COLUMNS)
    total = torch.zeros((), dtype=torch.int64, device=digests.device)
    for row in range(rows):
        part = digests[row * _COLUMNS : (row + 1) * _COLUMNS]
        # The shift must bring in zeros, not signs: else 0 and -1 would be the same.
        mixed = (part ^ (part >> _SHIFT & _LOW)) * factors[: part.numel()]
        total = total * factors[row % _COLUMNS] + mixed.sum()
    return total


def fold_digest(tensors: Iterable[torch.Tensor]) -> int:
    """Return one digest of several tensors as a number from 0 to 2^64 - 1; waits for the device."""
    found = [fold(tensor) for tensor in tensors]
    return int(joined(torch.stack(found))) % _WORD if found else 0
