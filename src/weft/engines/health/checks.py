"""Health checks as data: a check, its settings, its findings."""

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from weft.cluster.records.node import Severity


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is not as it should be."""

    check: str
    """Which check saw it: "xid", "ecc", "matmul"."""
    severity: Severity
    """A note, a warning, or proof."""
    text: str
    """What was seen, in words."""
    gpu: int | None = None
    """Which GPU, where one is to blame."""


@dataclass(frozen=True, slots=True)
class CheckSetting:
    """What a check works with."""

    seconds: float = 1.0
    """How long each active test works."""
    mebibytes: int = 64
    """Memory that patterns are written to, and bytes that a pair exchanges."""
    seed: int = 0
    """Root of everything random."""
    state: Path | None = None
    """Where counters are kept between two looks; without it rates are over the time since the boot."""
    kernel_log: Path | None = None
    """A saved kernel log to read instead of the machine's."""
    system: Path = Path("/sys")
    """Where the kernel shows its counters."""
    survey: Path | None = None
    """The fabric prober's JSON."""
    runs: Path | None = None
    """A folder of training runs whose incidents are read."""
    ranks: int = 2
    """Processes of the small all-reduce."""


@dataclass(frozen=True, slots=True)
class HealthReport:
    """What a check has found."""

    program: str
    findings: tuple[Finding, ...]
    """What is wrong; empty where nothing is."""
    figures: Mapping[str, float] = field(default_factory=dict)
    """What was measured, by name with its unit last."""
    seconds: float = 0.0
    """How long it took."""
    note: str = ""
    """Why the check does not apply, where it does not."""

    @property
    def passed(self) -> bool:
        """Return whether nothing is wrong beyond notes."""
        return all(one.severity == "note" for one in self.findings)

    def as_json(self) -> dict[str, Any]:
        """Return the report as plain values."""
        return {
            "program": self.program, "passed": self.passed, "seconds": self.seconds, "figures": dict(self.figures),
            "findings": [asdict(one) for one in self.findings], "note": self.note,
        }  # fmt: skip


@dataclass(frozen=True, slots=True)
class HealthCheck:
    """A health check."""

    name: str
    kind: Literal["passive", "active"]
    """Whether it only reads."""
    catches: str
    """What it detects."""
    threshold: str
    """From which value on it reports."""
    takes: str
    """How long it takes."""
    run: Callable[[CheckSetting], HealthReport]
    repair: str = ""
    """What is done about a node that fails it: a name in `cluster.health.tickets.REPAIRS`; the general one if empty."""
