"""What equal copies say about each other: votes over digests, and what follows from them.

Ranks that hold copies of the same thing each give a digest. Most of them agree, or nobody does. Pure: no torch, no
ranks that talk; `guard` and `replay` gather the digests and act on the outcome.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class VoteOutcome:
    """What a vote says."""

    agreed: int | None
    """The digest that more than half of the voters gave, where there is one."""
    odd: tuple[int, ...]
    """Voters that gave another one than the majority; all of them where there is no majority."""

    @property
    def unanimous(self) -> bool:
        """Return whether nobody differs."""
        return not self.odd

    @property
    def decided(self) -> bool:
        """Return whether the vote says who is right."""
        return self.agreed is not None


def vote(digests: Mapping[int, int]) -> VoteOutcome:
    """Return what the digests of several voters say; one voter alone is always right."""
    if not digests:
        return VoteOutcome(None, ())
    (digest, count), *_ = Counter(digests.values()).most_common(1)
    if 2 * count <= len(digests):
        return VoteOutcome(None, tuple(sorted(digests)))
    return VoteOutcome(digest, tuple(sorted(voter for voter, given in digests.items() if given != digest)))
