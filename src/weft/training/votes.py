"""What equal copies say about each other: votes over digests, and what follows from them.

Ranks that hold copies of the same thing each give a digest. Most of them agree, or nobody does. Pure: no torch, no
ranks that talk; `guard` and `replay` gather the digests and act on the outcome.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Outcome:
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


def vote(digests: Mapping[int, int]) -> Outcome:
    """Return what the digests of several voters say; one voter alone is always right."""
    if not digests:
        return Outcome(None, ())
    (digest, count), *_ = Counter(digests.values()).most_common(1)
    if 2 * count <= len(digests):
        return Outcome(None, tuple(sorted(digests)))
    return Outcome(digest, tuple(sorted(voter for voter, given in digests.items() if given != digest)))


@dataclass(frozen=True)
class Difference:
    """Something that copies do not agree on."""

    what: str
    """Its name: a tensor, the learning rate, the random state, the data."""
    outcome: Outcome
    """Who is odd."""


def differences(names: Sequence[str], words: Mapping[int, Sequence[int]]) -> tuple[Difference, ...]:
    """Return every name on which the voters' words, one for each name, are not all the same."""
    found = []
    for index, name in enumerate(names):
        outcome = vote({voter: given[index] for voter, given in words.items()})
        if not outcome.unanimous:
            found.append(Difference(name, outcome))
    return tuple(found)


def told(found: Sequence[Difference], step: int, most: int = 4) -> str:
    """Return one sentence about `found`: who differs from whom at which step in what."""
    decided = [one for one in found if one.outcome.decided]
    what = ", ".join(one.what for one in found[:most]) + (f" and {len(found) - most} more" if len(found) > most else "")
    if len(decided) == len(found):
        odd = sorted({rank for one in found for rank in one.outcome.odd})
        ranks = f"rank {odd[0]} differs" if len(odd) == 1 else f"ranks {', '.join(map(str, odd))} differ"
        return f"at step {step} {ranks} from the majority of its replicas in {what}"
    open_ranks = sorted({rank for one in found if not one.outcome.decided for rank in one.outcome.odd})
    return (
        f"at step {step} ranks {' and '.join(map(str, open_ranks))} differ in {what} and no majority says who is right"
    )
