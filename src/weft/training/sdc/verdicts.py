"""Who lies: evidence about ranks, added up into a verdict for each, also where a fault does not come back.

One wrong result proves that something went wrong once, not that a device is bad: a cosmic ray is not a reason to throw
a GPU out. So evidence has a weight, weights fade by half every so many steps, and a rank is a suspect while its score
is above one level and guilty above another. A fault that comes back when the work is repeated on the same rank makes it
guilty at once; one that does not needs a second offence before the first has faded. Pure; `replay` and `guard` gather
the evidence, the supervisor acts on the verdict.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from weft.training.sdc.voting import vote


class RankVerdict(StrEnum):
    """What is thought of a rank."""

    GOOD = "good"
    """Nothing that still counts speaks against it."""
    SUSPECT = "suspect"
    """It gave a wrong result, or may have: its work is repeated elsewhere."""
    GUILTY = "guilty"
    """It gives wrong results: it must not take part."""


class Kind(StrEnum):
    """How a rank came under suspicion, by how much it says."""

    OUTVOTED = "outvoted"
    """Two others computed the same work and agree with each other, not with it."""
    REPEATED = "repeated"
    """It was wrong again when it repeated the work."""
    CHANGED = "changed"
    """Memory that nobody wrote to has changed on it."""
    MICRO_TEST = "micro_test"
    """It got a known small computation wrong."""
    CHECKSUM = "checksum"
    """A matrix product did not fit its checksums."""
    TIE = "tie"
    """It differs from one other and nobody knows who is right."""


WEIGHTS: Mapping[Kind, float] = {
    Kind.OUTVOTED: 1.0,
    Kind.REPEATED: 2.0,
    Kind.CHANGED: 1.0,
    Kind.MICRO_TEST: 2.0,
    Kind.CHECKSUM: 1.0,
    Kind.TIE: 0.5,
}
SUSPECT_FROM = 0.5
GUILTY_FROM = 1.5


@dataclass(frozen=True)
class SdcEvidence:
    """One thing that speaks against a rank."""

    rank: int
    """Whom."""
    step: int
    """When it was seen."""
    kind: Kind
    """How."""
    what: str = ""
    """In which tensor or test."""

    def __str__(self) -> str:
        """Return the evidence in words."""
        return f"step {self.step}: {self.kind.value}" + (f" in {self.what}" if self.what else "")


@dataclass(frozen=True)
class Judgement:
    """What is thought of one rank, and why."""

    rank: int
    """Whom."""
    verdict: RankVerdict
    """What."""
    score: float
    """What still counts against it."""
    evidence: tuple[SdcEvidence, ...]
    """Everything that was seen, oldest first."""


def score(evidence: Iterable[SdcEvidence], step: int, half_life: float) -> float:
    """Return what `evidence` still weighs at `step`."""
    return sum(WEIGHTS[one.kind] * 0.5 ** (max(0, step - one.step) / half_life) for one in evidence)


def judge(evidence: Sequence[SdcEvidence], rank: int, step: int, half_life: float = 1000.0) -> Judgement:
    """Return the verdict on `rank` at `step`: guilt stays, suspicion fades."""
    mine = tuple(sorted((one for one in evidence if one.rank == rank), key=lambda one: one.step))
    # Guilt is decided when the last evidence comes in; afterwards waiting does not make a device good again.
    worst = max((score([b for b in mine if b.step <= a.step], a.step, half_life) for a in mine), default=0.0)
    now = score(mine, step, half_life)
    verdict = RankVerdict.SUSPECT if now >= SUSPECT_FROM else RankVerdict.GOOD
    return Judgement(rank, RankVerdict.GUILTY if worst >= GUILTY_FROM else verdict, now, mine)


@dataclass
class EvidenceLog:
    """All evidence of a run; equal on all ranks, since all see the same votes."""

    ranks: int
    """How many there are."""
    half_life: float = 1000.0
    """Steps after which evidence counts half."""
    evidence: list[SdcEvidence] = field(default_factory=list)
    """Everything so far."""

    def add(self, found: Iterable[SdcEvidence]) -> None:
        """Take evidence."""
        self.evidence += found

    def verdicts(self, step: int) -> tuple[Judgement, ...]:
        """Return the verdict on every rank."""
        return tuple(judge(self.evidence, rank, step, self.half_life) for rank in range(self.ranks))

    def guilty(self, step: int) -> tuple[int, ...]:
        """Return the ranks that must not take part."""
        return tuple(one.rank for one in self.verdicts(step) if one.verdict is RankVerdict.GUILTY)

    def suspects(self, step: int) -> tuple[int, ...]:
        """Return the ranks whose work should be repeated elsewhere."""
        return tuple(one.rank for one in self.verdicts(step) if one.verdict is RankVerdict.SUSPECT)


def from_vote(digests: Mapping[int, int], step: int, what: str) -> tuple[SdcEvidence, ...]:
    """Return what a vote on one piece of work says against the voters."""
    outcome = vote(digests)
    kind = Kind.OUTVOTED if outcome.decided else Kind.TIE
    return tuple(SdcEvidence(rank, step, kind, what) for rank in outcome.odd)


def settle(first: Mapping[int, int], again: Mapping[int, int], step: int, what: str) -> tuple[SdcEvidence, ...]:
    """Return who was wrong in an undecided vote, given what the voters get when they repeat the work.

    A rank whose second result is wrong too is wrong again; one whose second result is right had a fault that does not
    come back, and was outvoted by all results together.
    """
    outcome = vote(dict(enumerate((*first.values(), *again.values()))))
    if not outcome.decided:
        return tuple(SdcEvidence(rank, step, Kind.TIE, what) for rank in first)
    found = []
    for rank, digest in first.items():
        wrong = (digest != outcome.agreed) + (again.get(rank, outcome.agreed) != outcome.agreed)
        if wrong:
            found.append(SdcEvidence(rank, step, Kind.OUTVOTED if wrong == 1 else Kind.REPEATED, what))
    return tuple(found)


def describe(evidence: Sequence[SdcEvidence], most: int = 4) -> str:
    """Return one sentence about what was found at one step: who, in what, and whether anybody knows who is right."""
    lines = []
    for kind in Kind:
        mine = [one for one in evidence if one.kind is kind]
        if not mine:
            continue
        ranks = sorted({one.rank for one in mine})
        what = list(dict.fromkeys(one.what for one in mine if one.what))
        named = ", ".join(what[:most]) + (f" and {len(what) - most} more" if len(what) > most else "")
        who = f"rank {ranks[0]}" if len(ranks) == 1 else "ranks " + ", ".join(str(rank) for rank in ranks)
        lines.append(f"{who} {_SAID[kind]}" + (f" ({named})" if named else ""))
    return f"at step {evidence[0].step} " + "; ".join(lines) if evidence else "nothing was found"


_SAID: Mapping[Kind, str] = {
    Kind.OUTVOTED: "differs from what most others hold",
    Kind.REPEATED: "was wrong again when it repeated its work",
    Kind.CHANGED: "holds memory that changed while nobody wrote to it",
    Kind.MICRO_TEST: "got a known small computation wrong",
    Kind.CHECKSUM: "computed a matrix product that does not fit its checksums",
    Kind.TIE: "diverged with two copies only; culprit unknown",
}
