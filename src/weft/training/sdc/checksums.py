"""Memory that waits: its digest is taken when it is written and compared when it is next used.

Between the two nobody may write to it, so a difference means that a bit has changed by itself. Partial sums of
gradients wait like that until they are sent. Nothing waits for a device before `broken` is asked.
"""

import torch

from weft.training.sdc.digest import fold


class MemoryChecksums:
    """Digests of pieces of memory that nobody should write to."""

    def __init__(self) -> None:
        """Begin with none."""
        self._known: dict[int, torch.Tensor] = {}
        self._checked: list[tuple[str, torch.Tensor]] = []

    def put(self, memory: torch.Tensor) -> None:
        """Take the checksum of `memory` as it is now."""
        self._known[memory.data_ptr()] = fold(memory)

    def check(self, memory: torch.Tensor, name: str) -> None:
        """Compare `memory` with its checksum, if it has one, and drop that."""
        known = self._known.pop(memory.data_ptr(), None)
        if known is not None:
            self._checked.append((name, fold(memory) != known))

    def forget(self) -> None:
        """Drop every checksum: the memory is not used any more."""
        self._known.clear()
        self._checked.clear()

    def broken(self) -> list[str]:
        """Return what did not match its checksum since this was last asked."""
        found = sorted({name for name, differs in self._checked if bool(differs)})
        self._checked.clear()
        return found
