"""A shuffled order that is never written down: a keyed permutation of 0 to n-1 that is computed place by place.

A Feistel network of six rounds over the smallest even number of bits that holds n, walked until it lands inside
(Black and Rogaway, "Ciphers with arbitrary finite domains", CT-RSA 2002, section 5). It shuffles; it hides nothing.
"""

from weft.core.seeds import Seed, mix

_ROUNDS = 6


class Permutation:
    """A permutation of `range(size)`, chosen by a seed."""

    def __init__(self, size: int, seed: Seed) -> None:
        assert size >= 1, "there is nothing to permute"
        self.size = size
        self._half = max(1, ((size - 1).bit_length() + 1) // 2)
        word = seed.word()
        self._keys = tuple(mix(word, number) for number in range(_ROUNDS))

    def __len__(self) -> int:
        """Return the number of places."""
        return self.size

    def __getitem__(self, place: int) -> int:
        """Return what stands at `place`."""
        if not 0 <= place < self.size:
            raise IndexError(f"place {place} of {self.size}")
        # The network permutes fewer than four times as many numbers, so a walk is short on average and always ends.
        found = self._network(place)
        while found >= self.size:
            found = self._network(found)
        return found

    def _network(self, number: int) -> int:
        mask = (1 << self._half) - 1
        left, right = number >> self._half, number & mask
        for key in self._keys:
            left, right = right, left ^ (mix(key, right) & mask)
        return left << self._half | right
