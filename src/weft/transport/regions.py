"""Registered memory: what peers may write to, once they know its key. The thread reads the table; Python fills it."""

import secrets
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from weft.core.errors import LimitReachedError, UsageError
from weft.transport.memory.layout import INDEX_BITS, INDEX_MASK, REGIONS


@dataclass(frozen=True)
class Region:
    """Memory that peers may write to, once they know its key."""

    key: int
    """What opens it."""
    address: int
    """Where it begins."""
    size: int
    """Bytes."""
    owner: object = field(repr=False, default=None)
    """Keeps the memory alive."""


def address_and_size(memory: object) -> tuple[int, int]:
    """Return address and bytes of a numpy array or of a CPU tensor, which must lie in one piece."""
    if hasattr(memory, "data_ptr"):
        # A tensor of torch, which need not be installed here.
        tensor: Any = memory
        if tensor.device.type != "cpu" or not tensor.is_contiguous():
            raise UsageError("only contiguous CPU tensors can be registered; this is a CPU transport")
        return int(tensor.data_ptr()), int(tensor.numel() * tensor.element_size())
    array = np.asarray(memory)
    if not array.flags.c_contiguous or array.__array_interface__["data"][1]:
        raise UsageError("only contiguous arrays that can be written to can be registered")
    return int(array.ctypes.data), int(array.nbytes)


class RegionTable:
    """The regions of an endpoint; its owner sees to it that one thread at a time changes them."""

    def __init__(self, rows: np.ndarray) -> None:
        """Fill `rows`, which the endpoint's thread reads."""
        self._rows = rows
        self._kept: dict[int, Region] = {}

    def add(self, address: int, size: int, owner: object, adds: int) -> Region:
        """Open a region under a new random key."""
        free = next((row for row in range(1, REGIONS) if row not in self._kept), None)
        if free is None:
            raise LimitReachedError(f"all {REGIONS - 1} regions are in use; deregister some")
        # The low bits of a key name its row, the others are random: who has no key cannot guess one.
        region = Region(secrets.randbits(32 - INDEX_BITS) << INDEX_BITS | free, address, size, owner)
        self._kept[free] = region
        row = self._rows[free]
        row["key"], row["address"], row["size"], row["adds"] = region.key, address, size, adds
        # Last: the thread may look at any time, and must not find a row that is half filled.
        row["open"] = 1
        return region

    def close(self, region: Region) -> bool:
        """Let nobody write there from the thread's next turn on; return whether it was open."""
        index = region.key & INDEX_MASK
        if self._kept.get(index) is not region:
            return False
        self._rows[index]["open"] = 0
        return True

    def forget(self, region: Region) -> None:
        """Let the row be used again."""
        self._kept.pop(region.key & INDEX_MASK, None)
