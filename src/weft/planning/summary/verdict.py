"""The verdict of a rehearsal: when it is done, what it takes, how sure that is, what could go wrong; and six tiles."""

import math
from datetime import date, timedelta

from weft.core.errors import UsageError
from weft.planning.report import PlanReport
from weft.planning.run.goodput import DAY_S
from weft.planning.run.run_cost import NINETY, chance_s
from weft.planning.summary.wording import Plain, figure, sentence

YES, CONDITIONS, NO = "yes", "yes, with conditions", "no"
_POOR_GOODPUT = 0.8
_WIDE = 0.25
_SLOWER = 0.05


def verdict(report: PlanReport, bill: Plain, power: Plain, begin: date | None) -> Plain:
    """Return the answer with its sentences; `bill` and `power` are what failures and the contract come to."""
    if not math.isfinite(report.run.days):
        return {
            "answer": NO,
            "headline": sentence(
                "The run never ends: a failure comes every {mttf}, and a restart takes {restart}.",
                mttf=(report.goodput.mttf_s, "s"), restart=(report.goodput.restart_s, "s"),
            ),
            "confidence": _confidence(report),
            "risks": _risks(report, bill, power),
        }  # fmt: skip
    risks = _risks(report, bill, power)
    held = bool(_violations(report)) or report.goodput.share < _POOR_GOODPUT or report.confidence.share > _WIDE
    return {
        "answer": CONDITIONS if held or report.confidence.unmatched else YES,
        "headline": _headline(report, begin),
        "confidence": _confidence(report),
        "risks": risks,
    }


def impossible(obstacle: str) -> Plain:
    """Return the verdict where no plan fits."""
    return {"answer": NO, "headline": sentence("{obstacle}.", obstacle=(obstacle, "")), "confidence": [], "risks": []}


def tiles(report: PlanReport) -> list[Plain]:
    """Return the six figures that are asked for first, each with its interval and what it comes with."""
    run, good, power = report.run, report.goodput, report.power
    row, currency = report.row(report.chosen, 0), report.site.prices.currency
    mfu, step_s = 100 * row["mfu"], row["step_s"]
    cost = run.gpu_cents / 100
    low, high = (
        days / run.days if math.isfinite(run.days) and run.days else 1.0 for days in (run.days_low, run.days_high)
    )
    least, most = _goodput_range(report)
    wave = report.meter.at(report.wave)
    limit = report.site.power.limit
    note = sentence("peak; the site file names no limit") if limit is None else sentence(
        "limit of the contract {limit}", limit=(limit / 1000, "W"))  # fmt: skip
    return [
        _tile("run", "Run time", (run.days * DAY_S, run.days_low * DAY_S, run.days_high * DAY_S), "s",
              sentence("{steps} steps, {failures} stops expected", steps=(float(report.job.steps), ""),
                       failures=(run.failures, ""))),
        _tile("cost", "GPU-hour cost", (cost, cost * low, cost * high), currency,
              sentence("{hours}; energy {energy}", hours=(run.gpu_hours, "GPU-hours"),
                       energy=(run.energy_cents / 100, currency))),
        _tile("step", "Step", (step_s, row["step_low_s"], row["step_high_s"]), "s",
              sentence("{tokens} tokens/s", tokens=(row["tokens_per_s"], ""))),
        _tile("mfu", "MFU", (mfu, mfu * step_s / row["step_high_s"], mfu * step_s / row["step_low_s"]), "%",
              sentence("limited by {limit}", limit=(row["limit"], ""))),
        _tile("goodput", "Goodput (ETTR)", (100 * good.share, 100 * least, 100 * most), "%",
              sentence("a checkpoint every {interval}", interval=(good.interval_s, "s"))),
        {**_tile("power", "Mean draw", (power.mean_w, float(wave.min()), float(wave.max())), "W", note),
         "range": "range within a step"},
    ]  # fmt: skip


def _tile(key: str, title: str, values: tuple[float, float, float], unit: str, note: Plain) -> Plain:
    value, low, high = (figure(each, unit) for each in values)
    return {
        "key": key,
        "title": title,
        "value": value,
        "low": low,
        "high": high,
        "range": "90 % interval",
        "note": note,
    }


def _goodput_range(report: PlanReport) -> tuple[float, float]:
    """Return the 90 % interval of the share of time that is work: failures come by chance."""
    good, seconds = report.goodput, report.run.days * DAY_S
    if not math.isfinite(seconds) or not seconds:
        return good.share, good.share
    spread = NINETY * chance_s(report.run.failures, good)
    work = good.share * seconds
    # Without a single failure the pauses for checkpoints are left.
    best = good.interval_s / (good.interval_s + good.write_s)
    return work / (seconds + spread), min(max(best, good.share), work / max(seconds - spread, work))


def _headline(report: PlanReport, begin: date | None) -> Plain:
    run, currency = report.run, report.site.prices.currency
    figures = {
        "job": (report.job.name, ""), "site": (report.site.name, ""), "days": (run.days * DAY_S, "s"),
        "low": (run.days_low * DAY_S, "s"), "high": (run.days_high * DAY_S, "s"),
        "gpus": (float(report.meter.gpus), ""),
        "cost": (run.gpu_cents / 100, currency), "energy": (run.energy_cents / 100, currency),
    }  # fmt: skip
    text = (
        "{job} takes {days} (90 % interval {low} to {high}) on {gpus} "
        + ("GPU" if report.meter.gpus == 1 else "GPUs")
        + " of {site}, {cost} of GPU-hours and {energy} of energy"
    )
    if begin is None:
        return sentence(f"{text}.", **figures)
    ends = {
        "begin": (str(begin), ""), "end": (day_after(begin, run.days), ""),
        "first": (day_after(begin, run.days_low), ""), "last": (day_after(begin, run.days_high), ""),
    }  # fmt: skip
    text += "; begun on {begin}, it ends on {end} (90 % interval {first} to {last})."
    return sentence(text, **figures, **ends)


def _confidence(report: PlanReport) -> list[Plain]:
    doubt = report.confidence
    found = [sentence(
        "Step time is known to within {share} (90 % interval): {basis}.",
        share=(100 * doubt.share, "%"), basis=(doubt.basis, ""),
    )]  # fmt: skip
    if doubt.unmatched is not None:
        found.append(sentence("Not confirmed: {unmatched}.", unmatched=(doubt.unmatched, "")))
    return found


def _risks(report: PlanReport, bill: Plain, power: Plain) -> list[Plain]:
    """Return what could go wrong, what costs most first."""
    found: list[Plain] = []
    stopping = [row for row in bill["rows"] if row["stops"]]
    if stopping and bill["per"] == "run":
        worst = stopping[0]
        found.append({
            "text": "Failures of class {name} cost most: {count} expected, {hours}, {cost}.",
            "figures": {"name": figure(worst["name"]), "count": worst["expected"],
                        "hours": worst["run"]["gpu_hours"], "cost": worst["run"]["cost"]},
        })  # fmt: skip
    found += _power_risks(report, power)
    found += _network_risks(report)
    if report.goodput.share < _POOR_GOODPUT:
        found.append(sentence("Only {share} of the time is work.", share=(100 * report.goodput.share, "%")))
    return found or [sentence("No failure is expected, and no term of a contract is violated.")]


def _power_risks(report: PlanReport, power: Plain) -> list[Plain]:
    if not _violations(report):
        return []
    broken = sentence("The draw violates {terms} of the utility contract.", terms=(", ".join(report.power.broken), ""))
    if power["cheapest"] is None:
        return [broken]
    chosen = next(each for each in power["mitigations"] if each["name"] == power["cheapest"])
    broken["text"] += " Cheapest remedy: {remedy}, {price} for the run"
    broken["text"] += ", and its hardware." if chosen["store"]["value"] else "; it needs no hardware."
    broken["figures"] |= {"remedy": figure(chosen["name"]), "price": chosen["cost"]}
    return [broken]


def _violations(report: PlanReport) -> tuple[str, ...]:
    """Return the terms that are violated; without a contract there are none, the critical range is an example's."""
    power = report.site.power
    none = power.limit is None and power.swing is None and power.ramp_per_second is None
    return () if none else report.power.broken


def _network_risks(report: PlanReport) -> list[Plain]:
    links = [cost for cost in report.failures if cost.bandwidth_lost]
    stops = [cost.part for cost in links if math.isinf(cost.slower)]
    if stops:
        return [sentence(
            "There is one plane: the loss of {parts} stops the job.", parts=(", ".join(stops), "")
        )]  # fmt: skip
    worst = max(links, key=lambda cost: cost.slower, default=None)
    if worst is None or worst.slower < _SLOWER:
        return []
    return [sentence(
        "While {part} is lost every step takes {slower} longer.",
        part=(worst.part, ""), slower=(100 * worst.slower, "%"),
    )]  # fmt: skip


def check_begin(report: PlanReport | None, begin: date) -> None:
    """Raise where a run that begins on a day would end after the calendar does."""
    if report is not None and math.isfinite(report.run.days):
        try:
            day_after(begin, report.run.days_high)
        except OverflowError:
            raise UsageError(f"--start {begin}: the run must end before the year 9999") from None


def day_after(begin: date, days: float) -> str:
    """Return the day that many days after another one."""
    return str(begin + timedelta(days=days))
