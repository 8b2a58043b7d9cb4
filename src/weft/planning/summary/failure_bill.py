"""What failures cost: for each class how many are expected in the run, what each takes in GPU-hours and in money.

A failure that stops the job costs everybody's restart and lost work, and its node's time in repair. One that takes
bandwidth costs longer steps until it is repaired.
"""

import math

from weft.core.units import PICOSECONDS_PER_SECOND
from weft.planning.report import PlanReport
from weft.planning.run.goodput import HOUR_S, FailureClass
from weft.planning.summary.wording import Plain, figure, joined, sentence

_SLOWED_BY = {"NIC link optics": "NIC link", "switch": "T0 switch"}
"""The part whose loss slows the step, for classes of failures that do not stop the job."""
_FLAP = "link flap"
_NOTHING = 1e-6
"""Share of the run's GPU-hours below which a cost is left out."""


def failure_bill(report: PlanReport) -> Plain:
    """Return what failures cost the run, dearest first, and what the loss of each part costs while it lasts."""
    ends = math.isfinite(report.run.days)
    rows = [_class(report, each, report.run.days * 24 if ends else None) for each in report.goodput.faults]
    priced = [row for row in rows if row is not None]
    whole = "run" if ends else "each"
    pauses = _checkpoints(report) if ends else None
    if pauses is not None:
        priced.append(pauses)
    priced.sort(key=lambda row: -(row[whole]["gpu_hours"]["value"] or 0.0))
    return {
        "rows": priced,
        "per": whole,
        "parts": [_part(report, number) for number in range(len(report.failures))],
        "notes": _notes(report, priced=bool(report.goodput.faults), ends=ends),
    }


def _money(report: PlanReport, gpu_hours: float) -> Plain:
    return {
        "gpu_hours": figure(gpu_hours, "GPU-hours"),
        "cost": figure(gpu_hours * report.site.prices.gpu_hour / 100, report.site.prices.currency),
    }


def _class(report: PlanReport, fault: FailureClass, hours: float | None) -> Plain | None:
    """Return the bill of one class; none for link flaps, whose length no site file states."""
    if fault.name == _FLAP and not fault.stops:
        return None
    each = fault.lost_gpu_hours
    if not fault.stops and fault.name in _SLOWED_BY:
        each += _slowed_gpu_hours(report, _SLOWED_BY[fault.name])
    expected = fault.per_hour * hours if hours is not None else math.inf
    return {
        "name": fault.name,
        "stops": fault.stops,
        "expected": figure(expected),
        "per_day": figure(fault.per_hour * 24),
        "each": _money(report, each),
        "run": _money(report, expected * each if math.isfinite(expected) else math.inf),
    }


def _slowed_gpu_hours(report: PlanReport, part: str) -> float:
    """Return the GPU-hours that longer steps cost until a lost part is back."""
    found = next((cost for cost in report.failures if cost.part == part), None)
    if found is None or not math.isfinite(found.slower):
        return 0.0
    repair_h = report.site.failures.repair / PICOSECONDS_PER_SECOND / HOUR_S
    return report.meter.gpus * repair_h * found.slower / (1 + found.slower)


def _checkpoints(report: PlanReport) -> Plain | None:
    """Return what the pauses for writing checkpoints cost; none where that is next to nothing."""
    good, seconds = report.goodput, report.run.days * 86400
    count = seconds * good.share / good.interval_s
    each = report.meter.gpus * good.write_s / HOUR_S
    if count * each < _NOTHING * report.run.gpu_hours:
        return None
    return {
        "name": "checkpoint writes", "stops": False, "expected": figure(count),
        "per_day": figure(count / report.run.days if report.run.days else 0.0),
        "each": _money(report, each), "run": _money(report, count * each),
    }  # fmt: skip


def _part(report: PlanReport, number: int) -> Plain:
    cost = report.failures[number]
    stops = not math.isfinite(cost.slower)
    return {
        "part": cost.part,
        "stops": stops,
        "slower": figure(100 * cost.slower, "%"),
        "replicas_lost": cost.replicas_lost,
        "throughput_lost": figure(100 * cost.throughput_lost, "%"),
    }


def _notes(report: PlanReport, *, priced: bool, ends: bool) -> list[Plain]:
    good = report.goodput
    if not priced:
        return [sentence("The site file states no failure rates, so nothing is expected to break.")]
    notes: list[Plain] = []
    if math.isfinite(good.mttf_s):
        notes.append(sentence(
            "A failure stops the job every {mttf} on average; it loses the work since the last checkpoint, half of "
            "{interval} on average, and {restart} for detection and restart.",
            mttf=(good.mttf_s, "s"), interval=(good.interval_s, "s"), restart=(good.restart_s, "s"),
        ))  # fmt: skip
    notes.append(sentence(
        "{spares} spare nodes suffice with a probability of {sure}; without spares {share} of the throughput is left.",
        spares=(float(good.spares), ""), sure=(99.9, "%"), share=(100 * good.degraded_share, "%"),
    ))  # fmt: skip
    flaps = next((each for each in good.faults if each.name == _FLAP and not each.stops), None)
    if flaps is not None and ends:
        notes.append(joined(
            "{flaps} link flaps are expected too; the transport waits for links that come back by themselves, and no "
            "site file states how long that takes, so they are not priced.",
            {"flaps": figure(flaps.per_hour * report.run.days * 24)},
        ))  # fmt: skip
    return notes
