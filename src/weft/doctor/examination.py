"""From evidence to one answer: runs every diagnosis that the evidence allows, and compares with what was expected."""

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from weft.diagnosis.accusation import accuse
from weft.diagnosis.collective_calls import find_hangs
from weft.diagnosis.finding import Diagnosis, DiagnosisFinding
from weft.diagnosis.operations import Operations
from weft.diagnosis.rank_steps import examine_ranks
from weft.diagnosis.step_program import StepProgram, step_program
from weft.diagnosis.step_series import examine
from weft.diagnosis.timeline import examine_timelines
from weft.doctor.readers.evidence import Evidence

_SLOWER_THAN_EXPECTED = 1.05


@dataclass(frozen=True)
class Expectation:
    """What the planner says a step of this job takes on this site."""

    step_s: float
    tokens_per_step: float
    flops_per_step: float
    gpus: int
    peak_flops: float
    """Of one GPU in the job's precision."""
    description: str
    phases: tuple[tuple[str, float], ...] = ()
    """Seconds by phase: compute, exchanges, bubble."""


@dataclass
class Examination:
    """What the doctor says."""

    evidence: Evidence
    sections: dict[str, Diagnosis] = field(default_factory=dict)
    """By the kind of evidence that each rests on."""
    programs: list[StepProgram] = field(default_factory=list)
    """Programs of steps that were replayed, for pictures."""

    def findings(self) -> list[DiagnosisFinding]:
        """Return all findings, worst first."""
        whole = Diagnosis()
        for section in self.sections.values():
            whole.findings += section.findings
        return whole.sorted()

    @property
    def gpus(self) -> int | None:
        """Return the GPUs of the job: as a log says, as a trace says, or the ranks that were timed."""
        said = [series.gpus for series in self.evidence.series if series.gpus]
        ranks = [len(np.unique(program.rank)) for program in self.programs]
        return max([*said, *ranks], default=None)

    def gpu_hours_a_day(self, finding: DiagnosisFinding) -> float | None:
        """Return what mending it is worth, where it is known how many GPUs the job has."""
        return None if not finding.cost_share or self.gpus is None else 24 * self.gpus * finding.cost_share

    @property
    def healthy(self) -> bool:
        """Return whether nobody has to act."""
        return all(section.healthy for section in self.sections.values())

    def verdict(self) -> str:
        """Return the answer in one sentence."""
        worst = [one for one in self.findings() if one.verdict != "note"]
        read = [source for source in self.evidence.sources if source.reader]
        if not read:
            return "nothing that was named could be read"
        if worst:
            return worst[0].sentence
        if not self.sections:
            return "what was read does not say how fast anything was"
        return "nothing is slow, stuck or wrong in what was read"

    def as_json(self) -> dict[str, Any]:
        """Return everything as plain values."""
        whole = {
            "verdict": self.verdict(),
            "healthy": self.healthy,
            "findings": [{**one.as_json(), "gpu_hours_a_day": self.gpu_hours_a_day(one)} for one in self.findings()],
            "figures": {name: section.figures for name, section in self.sections.items() if section.figures},
            "files": [
                {"path": one.path, "reader": one.reader or None, "found": one.found} for one in self.evidence.sources
            ],
        }
        return {key: _finite(value) for key, value in whole.items()}


def _finite(value: Any) -> Any:
    """Return a plain value that JSON can hold: what is no number, or endless, becomes null."""
    match value:
        case float():
            return value if math.isfinite(value) else None
        case dict():
            return {key: _finite(one) for key, one in value.items()}
        case list() | tuple():
            return [_finite(one) for one in value]
        case _:
            return value


def examine_evidence(evidence: Evidence, expected: Expectation | None = None) -> Examination:
    """Return what all evidence together says."""
    found = Examination(evidence)
    if evidence.calls or evidence.heard:
        found.sections["collectives"] = find_hangs(evidence.calls, evidence.members, sorted(evidence.heard))
    if evidence.operations:
        program = step_program(joined(evidence.operations))
        if program is not None:
            found.programs.append(program)
            found.sections["operations"] = accuse(program)
    if evidence.timelines:
        found.sections["timelines"] = examine_timelines(evidence.timelines)
    for number, ranks in enumerate(evidence.rank_steps):
        found.sections[f"ranks ({number})" if number else "ranks"] = examine_ranks(ranks)
    for number, series in enumerate(evidence.series):
        name = series.source or "steps"
        section = examine(series)
        if expected is not None:
            _compare(section, expected)
        found.sections[name if name not in found.sections else f"{name} ({number})"] = section
    if evidence.bandwidths:
        found.sections["bandwidth"] = _bandwidth(evidence)
    if evidence.findings:
        found.sections.setdefault("files", Diagnosis()).findings += evidence.findings
    return found


def _bandwidth(evidence: Evidence) -> Diagnosis:
    best = max(evidence.bandwidths, key=lambda one: one.bus_gb_s)
    small = min(evidence.bandwidths, key=lambda one: one.size_bytes)
    return Diagnosis(figures={
        "operation": best.operation, "best_bus_gb_s": best.bus_gb_s, "at_bytes": best.size_bytes,
        "smallest_us": small.time_us,
    })  # fmt: skip


def joined(tables: list[Operations]) -> Operations:
    """Return several tables of one job as one: a rank's file each, or the parts of a long one."""
    if len(tables) == 1:
        return tables[0]
    names = tuple(sorted({name for table in tables for name in table.names}))
    index = {name: number for number, name in enumerate(names)}
    renamed = [np.array([index[name] for name in table.names], dtype=np.int64)[table.name] for table in tables]

    def column(key: str) -> Any:
        return np.concatenate([getattr(table, key) for table in tables])

    return Operations(
        column("rank"), column("replica"), column("stage"), column("step"), np.concatenate(renamed), column("start_s"),
        column("duration_s"), column("micro_batch"), names,
    )  # fmt: skip


def _compare(section: Diagnosis, expected: Expectation) -> None:
    """Add what was expected of a run to what was measured."""
    step_s = float(section.figures.get("step_s", 0.0))
    if step_s <= 0:
        return
    tokens = float(section.figures.get("tokens_per_s", 0.0)) * step_s or expected.tokens_per_step
    gpus = int(section.figures.get("gpus", expected.gpus))
    flops = expected.flops_per_step * tokens / expected.tokens_per_step
    section.figures |= {
        "expected_step_s": expected.step_s, "measured_over_expected": step_s / expected.step_s,
        "mfu": flops / step_s / (gpus * expected.peak_flops),
        **{f"expected_{name}_s": seconds for name, seconds in expected.phases},
    }  # fmt: skip
    ratio = step_s / expected.step_s
    if ratio > _SLOWER_THAN_EXPECTED:
        section.findings.append(DiagnosisFinding(
            "below expectation", "slower-than-expected", "the run",
            f"A step takes {step_s:.4g} s, {ratio:.2f} x the {expected.step_s:.4g} s that {expected.description} should"
            " take.", tuple(f"expected {name}: {seconds:.4g} s" for name, seconds in expected.phases), 0.7, ratio,
            1 - 1 / ratio, "persistent",
        ))  # fmt: skip
