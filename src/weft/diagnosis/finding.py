"""What a diagnosis says: findings with evidence, confidence and cost, worst first. Pure data."""

from dataclasses import asdict, dataclass, field
from typing import Any, Literal

Verdict = Literal["slow", "stuck", "wrong", "below expectation", "note"]
Persistence = Literal["persistent", "intermittent", "since", "property of the work", ""]

_ORDER: dict[Verdict, int] = {"stuck": 0, "wrong": 1, "slow": 2, "below expectation": 3, "note": 4}


@dataclass(frozen=True)
class DiagnosisFinding:
    """One thing that is not as it should be, or that is worth knowing."""

    verdict: Verdict
    """What kind of trouble."""
    cause: str
    """Short name of the cause for programs, as `slow-rank`; the same words in every report."""
    subject: str
    """Who or what is to blame, as `rank 5` or `stage 3`; empty where it is nobody."""
    sentence: str
    """One sentence for people."""
    evidence: tuple[str, ...] = ()
    """What was measured, a sentence each."""
    confidence: float = 1.0
    """From 0 to 1."""
    slowdown: float | None = None
    """Time of a step over what it would be without this cause."""
    cost_share: float | None = None
    """Share of all GPU time that this costs."""
    persistence: Persistence = ""
    """Whether it is always there, comes and goes, or lies in the work itself."""
    since_step: int | None = None
    """First step in which it shows, where it began inside of what was read."""
    ranks: tuple[int, ...] = ()
    """Ranks that are concerned."""

    def as_json(self) -> dict[str, Any]:
        """Return the fields as plain values."""
        return {**asdict(self), "evidence": list(self.evidence), "ranks": list(self.ranks)}


@dataclass
class Diagnosis:
    """Everything that was found."""

    findings: list[DiagnosisFinding] = field(default_factory=list)
    figures: dict[str, float | int | str] = field(default_factory=dict)
    """Figures worth printing beside the findings: step time, jitter, shares."""

    def sorted(self) -> list[DiagnosisFinding]:
        """Return the findings, worst first: stuck before wrong before slow, then by what they cost."""
        return sorted(self.findings, key=lambda one: (_ORDER[one.verdict], -(one.cost_share or 0.0), -one.confidence))

    @property
    def healthy(self) -> bool:
        """Return whether nothing was found that anybody has to act on."""
        return all(one.verdict == "note" for one in self.findings)

    def add(self, other: "Diagnosis") -> None:
        """Take over what another diagnosis of the same job found."""
        self.findings += other.findings
        self.figures |= other.figures
