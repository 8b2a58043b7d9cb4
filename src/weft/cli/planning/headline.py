"""The headline of a plan or a rehearsal: how long, how much, and whether it holds, in a few lines of prose."""

import math

from weft.cli.screen.figures import NO_CHANGE, day_range, days, joules, kilowatt_hours, money, seconds, share, thousands
from weft.core.quantity import SIZE, counted
from weft.planning.report import PlanReport, plan_row

_CULPRITS = {"software": "software", "silent corruption": "silent corruption"}
"""Causes of failures that are no parts."""


def headline(report: PlanReport) -> list[str]:
    """Return what somebody wants to know first: time, money, energy and speed, then the verdict."""
    run, row = report.run, plan_row(report.chosen, 0, report.machine, report.work)
    when = f"{days(run.days)} (90 % interval {day_range(run.days_low, run.days, run.days_high)})"
    energy = kilowatt_hours(run.energy_kwh) if run.energy_kwh >= 1 else joules(run.energy_kwh * 3.6e6)
    return [
        f"{when}, {money(run.gpu_cents / 100, report.site.prices.currency)} of GPU-hours, {energy}",
        f"{counted(row['gpus'], 'GPU')}, step {seconds(row['step_s'])}, MFU {row['mfu']:.1%}, "
        f"{thousands(row['tokens_per_s'])} tokens/s, goodput {report.goodput.share:.1%}",
        *verdict(report),
    ]


def verdict(report: PlanReport) -> list[str]:
    """Return whether the chosen plan fits, then what is against it, each with what would mend it."""
    used, room = int(report.chosen.memory.total[0]), report.machine.memory_bytes
    if used > room:
        return [f"verdict: does not fit; a GPU needs {SIZE.about(used)} and has {SIZE.about(room)}"]
    fits = f"verdict: fits, with {math.floor(100 * (1 - used / room))}% of GPU memory free"
    concerns = _concerns(report)
    return [f"{fits}; but", *(f"  - {each}" for each in concerns)] if concerns else [fits]


def _concerns(report: PlanReport) -> list[str]:
    """Return what somebody who signs this should know, the dearest first."""
    found: list[str] = []
    good, chosen = report.goodput, report.chosen
    if not math.isinf(good.mttf_s) and good.mttf_s < report.run.days * 86_400:
        dearest = max((fault for fault in good.faults if fault.stops), key=lambda fault: fault.per_hour, default=None)
        who = "" if dearest is None else f", most often by {_CULPRITS.get(dearest.name, f'a failed {dearest.name}')}"
        found.append(f"a failure stops it every {seconds(good.mttf_s)}{who}")
    unmatched = report.row(chosen, 0)["unmatched"]
    if unmatched:
        found.append(unmatched)
    if report.power.broken:
        found.append(f"its power breaks the utility contract ({', '.join(report.power.broken)}); {_remedy(report)}")
    return found


def _remedy(report: PlanReport) -> str:
    """Return the cheapest mitigation that keeps the contract."""
    whole = [each for each in report.mitigations if not each.verdict.broken]
    if not whole:
        return "no mitigation would keep it"
    best = min(whole, key=lambda each: (each.energy + each.slower, each.name))
    costs = [f"{share(value)} {what}" for value, what in ((best.energy, "energy"), (best.slower, "step time"))
             if share(value) != NO_CHANGE]  # fmt: skip
    price = f"for {' and '.join(costs)}" if costs else "at no cost in energy or time"
    return f"{best.name} would keep it, {price}"
