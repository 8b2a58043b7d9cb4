"""The plans that were considered besides the chosen one, and why they lost: the part of their step that grew most."""

from typing import Any

from weft.planning.rehearsal import plan_name
from weft.planning.report import PlanReport, plan_row, step_row
from weft.planning.summary.step_chart import PARTS, other_plans
from weft.planning.summary.wording import Plain, figure, sentence

_SHOWN = 5
_EQUAL = 1e-6


def alternatives(report: PlanReport) -> Plain:
    """Return the next best plans, each with its distance and the reason, and how many were looked at."""
    rows = [_alternative(report, number) for number in other_plans(report)[:_SHOWN]]
    found = report.outcome
    notes = [sentence(
        ("{considered} valid plans were scored; {feasible} fit into memory." if found.every else
         "{considered} evenly spaced plans of those that are valid were scored; {feasible} fit into memory."),
        considered=(float(found.considered), ""), feasible=(float(found.feasible), ""),
    )]  # fmt: skip
    if not rows:
        notes.append(sentence("No other mesh, micro-batch or schedule fits, so there is no alternative."))
    if report.own is not None:
        notes.append(sentence("The job file names its own plan, and the report is about that one."))
    return {"chosen": plan_name(plan_row(report.chosen, 0, report.machine, report.work)), "rows": rows, "notes": notes}


def _alternative(report: PlanReport, number: int) -> Plain:
    row = plan_row(report.outcome.best, number, report.machine, report.work)
    step_s = float(report.chosen.step_s[0])
    return {
        "plan": plan_name(row),
        "micro_batch": row["micro_batch"],
        "gpus": figure(float(row["gpus"])),
        "step": figure(row["step_s"], "s"),
        "slower": figure(100 * (row["step_s"] / step_s - 1), "%"),
        "mfu": figure(100 * row["mfu"], "%"),
        "memory": figure(float(row["memory_bytes"]), "B"),
        "limit": row["limit"],
        "why": _why(report, number, row),
    }


def _why(report: PlanReport, number: int, row: dict[str, Any]) -> Plain:
    ours, theirs = step_row(report.chosen.times, 0), step_row(report.outcome.best.times, number)
    longer = row["step_s"] - float(report.chosen.step_s[0])
    if abs(longer) <= _EQUAL * row["step_s"]:
        return _tie(report, row)
    if longer < 0:
        part = min(theirs, key=lambda key: theirs[key] - ours[key])
        return sentence(
            f"It is faster, with {{less}} less {PARTS[part]}, but the job file names another plan.",
            less=(ours[part] - theirs[part], "s"),
        )
    part = max(theirs, key=lambda key: theirs[key] - ours[key])
    return sentence(f"{{more}} more {PARTS[part]}.", more=(theirs[part] - ours[part], "s"))


def _tie(report: PlanReport, row: dict[str, Any]) -> Plain:
    used = int(report.chosen.plans.ranks[0])
    more = row["memory_bytes"] - round(float(report.chosen.memory.total[0]))
    if row["gpus"] > used:
        return sentence("Equally fast, on {more} more GPUs.", more=(float(row["gpus"] - used), ""))
    if more > 0:
        return sentence("Equally fast, with {more} more memory on each GPU.", more=(float(more), "B"))
    return sentence("Equally fast, with the same GPUs and memory; the first found is kept.")
