"""Shared memory between ranks of one host: for each direction of a queue pair a ring that its receiver owns.

A ring is an anonymous file of its receiver, which the peer opens through `/proc`, so that it is gone with the process
however that ends, and only processes of the same user (or root) can open it. Its name in the card is a process, two
descriptors and a word drawn for it: whoever opens another machine's or another process's file by mistake finds another
word and talks over sockets as before. What is written and read there is `weft.transport.packets.shared`'s.
"""

import mmap
import os
import secrets
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from weft.transport.memory.layout import RING_FRONT, RING_HEADS, RING_NAME_AT, RING_SLOTS

_NAME = "weft-ring"
_WORD_BITS = 62


def slot_bytes(payload: int) -> int:
    """Return the bytes of one place of a ring for packets of `payload` bytes."""
    return RING_HEADS + -(-payload // 64) * 64


@dataclass
class SharedRings:
    """The rings of one endpoint: its own, and those of peers that it could open."""

    payload: int
    """Bytes of data in a full packet."""
    bell: int
    """Descriptor by which peers wake this endpoint."""
    _held: list[tuple[mmap.mmap, int]] = field(default_factory=list)
    _bells: list[int] = field(default_factory=list)

    @property
    def size(self) -> int:
        """Return the bytes of a ring."""
        return RING_FRONT + RING_SLOTS * slot_bytes(self.payload)

    def offer(self) -> tuple[int, dict[str, int]]:
        """Make a ring for what a peer sends here; return where it lies and what the peer must know of it."""
        descriptor = os.memfd_create(_NAME, os.MFD_CLOEXEC)
        os.ftruncate(descriptor, self.size)
        words, address = self._mapped(descriptor)
        word = secrets.randbits(_WORD_BITS)
        words[RING_NAME_AT // 8] = word
        return address, {"process": os.getpid(), "ring": descriptor, "bell": self.bell, "word": word}

    def accept(self, known: Mapping[str, int]) -> tuple[int, int] | None:
        """Open the ring of a peer; return where it lies and the peer's bell, or None where it cannot be reached."""
        folder = f"/proc/{int(known['process'])}/fd/"
        with suppress(OSError, ValueError):
            # Looked at before it is opened: elsewhere this number may be a device.
            if not str(Path(f"{folder}{int(known['ring'])}").readlink()).startswith(f"/memfd:{_NAME}"):
                return None
            descriptor = os.open(f"{folder}{int(known['ring'])}", os.O_RDWR | os.O_CLOEXEC)
            if os.fstat(descriptor).st_size != self.size:
                os.close(descriptor)
                return None
            words, address = self._mapped(descriptor)
            if words[RING_NAME_AT // 8] != known["word"]:
                return None
            bell = os.open(f"{folder}{int(known['bell'])}", os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            self._bells.append(bell)
            return address, bell
        return None

    def _mapped(self, descriptor: int) -> tuple[np.ndarray, int]:
        memory = mmap.mmap(descriptor, self.size)
        words = np.frombuffer(memory, np.int64)
        self._held.append((memory, descriptor))
        return words, int(words.ctypes.data)

    def close(self) -> None:
        """Let everything go; the thread has ended."""
        for _, descriptor in self._held:
            os.close(descriptor)
        for bell in self._bells:
            os.close(bell)
        self._held.clear()
        self._bells.clear()


def card_of(known: object) -> Mapping[str, Any] | None:
    """Return what a card says of a ring, where it says it in the right form."""
    if isinstance(known, Mapping) and all(
        isinstance(known.get(one), int) for one in ("process", "ring", "bell", "word")
    ):
        return known
    return None
