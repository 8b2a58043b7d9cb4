"""What the ranks agree a state is: a vote on the digest of every piece, and the digests of whole tensors. Pure.

Pieces that several ranks hold are voted on; a piece with one holder is taken at its word, which only replay can check.
Sums of pieces are the same however a tensor is cut, so states of different widths can be compared.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from weft.training.recovery.piece import Piece

_WORD = 2**64
_OTHER = "other."
"""Begins the names of what is no tensor of the model and no state of an optimizer."""

Digests = Mapping[str, int]
"""Digest of each piece that a rank holds, by its key."""


@dataclass(frozen=True, slots=True)
class Dissent:
    """A piece on which the ranks are not of one mind."""

    key: str
    """Which."""
    ranks: tuple[int, ...]
    """The minority, or everybody where there is none."""
    majority: bool
    """Whether there is one."""

    def __str__(self) -> str:
        who = ", ".join(map(str, self.ranks))
        name = self.key.partition("@")[0]
        if self.majority:
            return f"rank {who} holds another {name} than the majority"
        hint = "; what differs from rank to rank by nature cannot be given to run.attach" if _OTHER in name else ""
        return f"ranks {who} hold different {name} and there is no majority{hint}"


@dataclass(frozen=True, slots=True)
class Agreement:
    """What was agreed about one step."""

    pieces: Mapping[str, int]
    """Digest of every piece, by its key."""
    tensors: Mapping[str, str]
    """Digest of every whole tensor, by its name."""
    dissent: tuple[Dissent, ...]
    """Where they differed; nothing is agreed unless this is empty."""


def agree(reports: Mapping[int, Digests], pieces: Mapping[str, Piece]) -> Agreement:
    """Return what the ranks' `reports` amount to."""
    votes: dict[str, dict[int, int]] = {}
    for rank, digests in reports.items():
        for key, digest in digests.items():
            votes.setdefault(key, {})[rank] = digest
    agreed: dict[str, int] = {}
    dissent: list[Dissent] = []
    for key, ballot in votes.items():
        ((winner, count),) = Counter(ballot.values()).most_common(1)
        agreed[key] = winner
        if count == len(ballot):
            continue
        majority = 2 * count > len(ballot)
        against = [rank for rank, digest in sorted(ballot.items()) if digest != winner or not majority]
        dissent.append(Dissent(key, tuple(against), majority))
    totals: dict[str, int] = {}
    for key, digest in agreed.items():
        name = pieces[key].name
        totals[name] = (totals.get(name, 0) + digest) % _WORD
    return Agreement(agreed, {name: f"{total:016x}" for name, total in sorted(totals.items())}, tuple(dissent))


def first_difference(expected: Mapping[str, str], found: Mapping[str, str]) -> str | None:
    """Return the name of the first tensor whose digest is not the expected one, or nothing."""
    for name in sorted({*expected, *found}):
        if expected.get(name) != found.get(name):
            return name
    return None
