"""The rehearsal: one page that says what a job would do on a site, predicted beside simulated beside measured.

The predicted column is made here from a planner's report. The other two are given: figures of a simulated step of the
same plan on the same fabric, and those of a finished run of the same job. What was not simulated or run is left open.
"""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from weft.fabric.design import describe
from weft.planning.cost_model.machine import FabricTable
from weft.planning.report import PlanReport, plan_row
from weft.planning.search import Scored, scored

SIMULATED, MEASURED = "simulated", "measured"


@dataclass(frozen=True)
class RehearsalLine:
    """One figure of the page."""

    section: str
    """The part of the page."""
    key: str
    """Its stable name."""
    what: str
    """What it is, for people."""
    unit: str
    """Unit of the figures; empty for words and plain numbers."""
    predicted: float | str
    """What the planner says."""
    simulated: float | None = None
    """What a simulation of it gave."""
    measured: float | None = None
    """What a run of it gave."""

    def as_json(self) -> dict[str, Any]:
        """Return the line as plain values."""
        plain = asdict(self)
        infinite = isinstance(self.predicted, float) and math.isinf(self.predicted)
        return {**plain, "predicted": None if infinite else self.predicted}


def rehearse(
    report: PlanReport, *, simulated: Mapping[str, float] | None = None, measured: Mapping[str, float] | None = None
) -> tuple[RehearsalLine, ...]:
    """Return the page as lines; `simulated` and `measured` fill in the figures whose keys they have."""
    lines = [*_fabric(report), *_plan(report), *_run(report), *_breaks(report), *_power(report)]
    beside, after = simulated or {}, measured or {}
    return tuple(
        RehearsalLine(
            line.section, line.key, line.what, line.unit, line.predicted, beside.get(line.key), after.get(line.key)
        )
        for line in lines
    )


def simulated_figures(report: PlanReport, healthy: FabricTable, spine_lost: FabricTable | None) -> dict[str, float]:
    """Return the figures of the chosen plan's step where its exchanges reach what was simulated."""
    plan = report.chosen.plans.take([0])

    def step(table: FabricTable) -> Scored:
        return scored(report.work, plan, replace(report.machine, table=table), report.practice)

    found = step(healthy)
    figures = {
        "step_s": float(found.step_s[0]),
        "mfu": 100 * float(found.mfu[0]),
        "tokens_per_s": float(found.tokens_per_s[0]),
        "network_s": float(found.times.network_s[0]),
    }
    if spine_lost is not None:
        longer = float(step(spine_lost).step_s[0]) / figures["step_s"] - 1
        figures["slower:T1 switch"] = 100 * longer
    return figures


def _fabric(report: PlanReport) -> list[RehearsalLine]:
    found = describe(report.site.name, report.site.fabric)
    spec = report.site.fabric
    section = "the fabric"
    return [
        RehearsalLine(section, "gpus", "GPUs", "", float(spec.gpus)),
        RehearsalLine(section, "planes", "planes", "", float(spec.planes)),
        RehearsalLine(section, "nic_bps", "NIC rate", "b/s", float(spec.nic_rate)),
        RehearsalLine(section, "switches", "switches", "", float(found.shape.switches)),
        RehearsalLine(section, "hops", "longest path, switches", "", float(found.limits.hops_max)),
        RehearsalLine(section, "bisection_bps", "bisection", "b/s", float(found.limits.bisection_bps)),
    ]


def _plan(report: PlanReport) -> list[RehearsalLine]:
    row = plan_row(report.chosen, 0, report.machine, report.work)
    section = "the plan and its step"
    return [
        RehearsalLine(section, "plan", "plan", "", plan_name(row)),
        RehearsalLine(section, "used_gpus", "GPUs used", "", float(row["gpus"])),
        RehearsalLine(section, "step_s", "step", "s", row["step_s"]),
        RehearsalLine(section, "mfu", "MFU", "%", 100 * row["mfu"]),
        RehearsalLine(section, "tokens_per_s", "tokens/s", "", row["tokens_per_s"]),
        RehearsalLine(section, "network_s", "exposed communication", "s", float(report.chosen.times.network_s[0])),
        RehearsalLine(section, "bubble_s", "pipeline bubble", "s", float(report.chosen.times.bubble_s[0])),
        RehearsalLine(section, "memory_bytes", "peak GPU memory", "B", float(row["memory_bytes"])),
        RehearsalLine(section, "limit", "limited by", "", row["limit"]),
    ]


def plan_name(row: Mapping[str, Any]) -> str:
    """Return the name of a plan from its row in a report: its axes, schedule and sharding."""
    shape = " x ".join(f"{axis} {row[axis]}" for axis in ("dp", "tp", "pp", "cp", "ep") if row[axis] > 1) or "one rank"
    return f"{shape}, {row['schedule']}, ZeRO {row['zero']}"


def _run(report: PlanReport) -> list[RehearsalLine]:
    good, run = report.goodput, report.run
    section = "the run with this site's failures"
    return [
        RehearsalLine(section, "mttf_s", "MTBF of the job", "s", good.mttf_s),
        RehearsalLine(section, "goodput", "goodput (ETTR)", "%", 100 * good.share),
        RehearsalLine(section, "spares", "spare nodes for 99.9 %", "", float(good.spares)),
        RehearsalLine(section, "run_s", "run time", "s", run.days * 86400),
        RehearsalLine(section, "run_low_s", "run time, 90 % low", "s", run.days_low * 86400),
        RehearsalLine(section, "run_high_s", "run time, 90 % high", "s", run.days_high * 86400),
        RehearsalLine(section, "gpu_hours", "GPU-hours", "", run.gpu_hours),
        RehearsalLine(section, "gpu_cost", "GPU-hour cost", report.site.prices.currency, run.gpu_cents / 100),
    ]


def _breaks(report: PlanReport) -> list[RehearsalLine]:
    section = "what breaks: longer steps, or GPU-hours for each"
    slower = [
        RehearsalLine(section, f"slower:{cost.part}", f"{cost.part}: step", "%", 100 * cost.slower)
        for cost in report.failures
        if cost.bandwidth_lost
    ]
    lost = [
        RehearsalLine(section, f"lost:{fault.name}", f"{fault.name}: GPU-hours", "", fault.lost_gpu_hours)
        for fault in report.goodput.faults
        if fault.stops
    ]
    return slower + lost


def _power(report: PlanReport) -> list[RehearsalLine]:
    power, run = report.power, report.run
    section = "power, energy and carbon"
    return [
        RehearsalLine(section, "power_mean_w", "mean draw", "W", power.mean_w),
        RehearsalLine(section, "power_peak_w", "peak", "W", power.peak_w),
        RehearsalLine(section, "power_swing_w", "swing within a second", "W", power.swing_w),
        RehearsalLine(section, "contract", "utility-contract violations", "", ", ".join(power.broken) or "none"),
        RehearsalLine(section, "energy_j_per_step", "energy per step", "J", report.energy_j_per_step),
        RehearsalLine(section, "energy_kwh", "energy", "kWh", run.energy_kwh),
        RehearsalLine(section, "carbon_kg", "carbon dioxide", "kg", run.carbon_kg),
        RehearsalLine(section, "energy_cost", "energy cost", report.site.prices.currency, run.energy_cents / 100),
    ]
