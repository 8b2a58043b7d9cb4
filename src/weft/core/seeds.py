"""Named random streams from one root seed.

Every consumer of chance asks for a stream by name. The name and the root seed alone decide what it draws, so adding a
consumer never shifts another, and a run replays from its seed. Streams are counter-based (Philox), so draw number n of
a stream can be had without drawing the n-1 before it. `mix` is the same idea in a few integer operations, for code
where a generator object would be too heavy.
"""

import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    import numpy as np

_MASK = 2**64 - 1
SEEDS = 2**63
"""Root seeds run from 0 to below this."""


@dataclass(frozen=True, slots=True)
class Seed:
    """A root seed, or a branch of one; give each part of a run its own branch."""

    root: int
    """The number that the user gave."""
    path: tuple[str, ...] = ()
    """Names from the root to this branch."""

    def __post_init__(self) -> None:
        """Check the range once, so that every later use is total."""
        if not 0 <= self.root < SEEDS:
            raise ValueError(f"a seed lies between 0 and 2^63 - 1, not {self.root}")

    def branch(self, *names: str | int) -> "Seed":
        """Return the branch called `names` below this one."""
        return Seed(self.root, (*self.path, *(_label(name) for name in names)))

    def key(self) -> int:
        """Return this branch's 128-bit key."""
        return int.from_bytes(self._digest().digest(), "little")

    def _digest(self) -> "hashlib.blake2b":
        digest = hashlib.blake2b(self.root.to_bytes(8, "little"), digest_size=16, person=b"weft seed")
        digest.update(b"".join(map(_encoded, self.path)))
        return digest

    def stream(self, *names: str | int, start: int = 0) -> "np.random.Generator":
        """Return the generator of the branch called `names`, positioned at its block number `start`."""
        import numpy as np

        return np.random.Generator(np.random.Philox(key=self.branch(*names).key(), counter=start))

    def word(self) -> int:
        """Return 64 bits of this branch's key, the usual first argument of `mix`."""
        return self.key() & _MASK

    def words(self, branches: "Iterable[Sequence[str | int]]") -> list[int]:
        """Return the word of each of many branches below this one, in about half of the time."""
        above = self._digest()
        found: list[int] = []
        for names in branches:
            digest = above.copy()
            digest.update(b"".join([_encoded(_label(name)) for name in names]))
            found.append(int.from_bytes(digest.digest()[:8], "little"))
        return found


def mix(word: int, counter: int) -> int:
    """Return 64 well-mixed bits of (word, counter): splitmix64's finaliser (Steele et al., OOPSLA 2014, section 3)."""
    z = (word + 0x9E3779B97F4A7C15 * (counter + 1)) & _MASK
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & _MASK
    return z ^ (z >> 31)


def _label(name: str | int) -> str:
    # An integer and its decimal text must not name the same stream.
    return f"#{name}" if isinstance(name, int) else name.replace("#", "##")


def _encoded(label: str) -> bytes:
    encoded = label.encode()
    return len(encoded).to_bytes(4, "little") + encoded
