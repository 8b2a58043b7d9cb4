"""What readers find in files, in the forms that diagnosis takes. Data only."""

from dataclasses import dataclass, field

from weft.diagnosis.collective_calls import EnteredCollective
from weft.diagnosis.finding import DiagnosisFinding
from weft.diagnosis.operations import Operations
from weft.diagnosis.rank_steps import RankSteps
from weft.diagnosis.step_series import StepSeries
from weft.diagnosis.timeline import TimelineShares


@dataclass(frozen=True)
class Bandwidth:
    """What a collective reached in a benchmark."""

    operation: str
    size_bytes: int
    ranks: int | None
    time_us: float
    algorithm_gb_s: float
    bus_gb_s: float


@dataclass(frozen=True)
class DeviceSample:
    """What a device counter was over the time of a log."""

    device: str
    field: str
    unit: str
    mean: float
    low: float
    high: float
    samples: int


@dataclass(frozen=True)
class SourceFile:
    """One file that was looked at."""

    path: str
    reader: str
    """Name of the reader, empty where none knows the file."""
    found: str
    """What was found, or why it could not be read."""


@dataclass
class Evidence:
    """Everything that was read."""

    sources: list[SourceFile] = field(default_factory=list)
    operations: list[Operations] = field(default_factory=list)
    timelines: list[TimelineShares] = field(default_factory=list)
    calls: list[EnteredCollective] = field(default_factory=list)
    members: dict[str, tuple[int, ...]] = field(default_factory=dict)
    heard: set[int] = field(default_factory=set)
    """Ranks of which there is a record of calls."""
    dumped: set[int] = field(default_factory=set)
    """Ranks whose flight recorder was read."""
    rank_steps: list[RankSteps] = field(default_factory=list)
    series: list[StepSeries] = field(default_factory=list)
    bandwidths: list[Bandwidth] = field(default_factory=list)
    samples: list[DeviceSample] = field(default_factory=list)
    findings: list[DiagnosisFinding] = field(default_factory=list)
    """What a file says by itself: an error that it names, a link that it shows to be slow."""

    def add(self, other: "Evidence") -> None:
        """Take over what was read from another file."""
        self.operations += other.operations
        self.timelines += other.timelines
        self.calls += other.calls
        self.members |= other.members
        self.heard |= other.heard
        self.rank_steps += other.rank_steps
        self.series += other.series
        self.bandwidths += other.bandwidths
        self.samples += other.samples
        self.findings += other.findings
