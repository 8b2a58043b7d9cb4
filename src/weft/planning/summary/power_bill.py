"""The draw of the run against the utility contract: the wave over a few steps, its terms, and what smoothing costs.

The price of a mitigation is the energy that it burns and the GPU-hours by which it lengthens the run. Hardware is not
priced: no site file states what a store of energy costs.
"""

import math

import numpy as np

from weft.planning.report import PlanReport
from weft.planning.run.power import BAND_HIGH_HZ, BAND_LOW_HZ, BAND_SHARE, Mitigation
from weft.planning.summary.wording import Plain, figure, named, sentence

_STEPS, _POINTS = 3, 240
_NOISE = 1e-9
"""Rounding of sums over a wave, as a share."""


def power_bill(report: PlanReport) -> Plain:
    """Return the wave, the contract's terms with what was found, and the mitigations with their price."""
    wave, seconds = _wave(report)
    choices = [_choice(report, each) for each in report.mitigations if each.name != "nothing"]
    return {
        "wave": {"seconds": seconds, "watts": wave},
        "mean": figure(report.power.mean_w, "W"),
        "peak": figure(report.power.peak_w, "W"),
        "low": figure(min(wave), "W"),
        "limit": None if report.site.power.limit is None else figure(report.site.power.limit / 1000, "W"),
        "terms": _terms(report),
        "mitigations": choices,
        "cheapest": _cheapest(choices) if report.power.broken else None,
        "notes": _notes(report, choices),
        "facts": [
            named("energy per step", report.energy_j_per_step, "J"),
            named("energy of the run", report.run.energy_kwh, "kWh"),
            named("energy cost", report.run.energy_cents / 100, report.site.prices.currency),
            named("carbon dioxide", report.run.carbon_kg, "kg"),
        ],
    }


def _wave(report: PlanReport) -> tuple[list[float], list[float]]:
    """Return the draw at the meter over some steps, and when; both ends of what is left out between points are kept."""
    count = max(2, round(_STEPS * float(report.chosen.step_s[0]) * report.per_second))
    wave = np.asarray(report.meter.at(report.wave[:count]), dtype=np.float64)
    every = max(1, -(-len(wave) * 2 // _POINTS))
    kept: list[int] = []
    for start in range(0, len(wave), every):
        block = wave[start : start + every]
        kept += sorted({start + int(block.argmin()), start + int(block.argmax())})
    return [float(wave[number]) for number in kept], [number / report.per_second for number in kept]


def _terms(report: PlanReport) -> list[Plain]:
    """Return the terms that the contract has, each with what is allowed and what was found."""
    power = report.site.power
    found: tuple[tuple[str, str, int | None, float], ...] = (
        ("limit", "highest draw", power.limit, report.power.peak_w),
        ("swing", "swing within a second", power.swing, report.power.swing_w),
    )
    rows = [
        {"name": name, "what": what, "allowed": figure(allowed / 1000, "W"), "found": figure(drawn, "W")}
        for name, what, allowed, drawn in found
        if allowed is not None
    ]
    if power.ramp_per_second is not None:
        rows.append({
            "name": "ramp", "what": "ramp of the one-second mean",
            "allowed": figure(power.ramp_per_second / 1000, "W/s"), "found": figure(report.power.ramp_w_per_s, "W/s"),
        })  # fmt: skip
    rows.append({
        "name": "critical range", "what": "share of the wave in the critical range",
        "allowed": figure(100 * BAND_SHARE, "%"), "found": figure(100 * report.power.band_share, "%"),
    })  # fmt: skip
    return [{**row, "broken": row["name"] in report.power.broken} for row in rows]


def _choice(report: PlanReport, each: Mitigation) -> Plain:
    run, verdict, currency = report.run, each.verdict, report.site.prices.currency
    more = each.energy if abs(each.energy) > _NOISE else 0.0
    energy = run.energy_cents / 100 * ((1 + more) * (1 + each.slower) - 1)
    time = run.gpu_cents / 100 * each.slower
    return {
        "name": each.name,
        "swing": figure(verdict.swing_w, "W"),
        "ramp": figure(verdict.ramp_w_per_s, "W/s"),
        "energy": figure(100 * more, "%"),
        "slower": figure(100 * each.slower, "%"),
        "energy_cost": figure(energy, currency),
        "time_cost": figure(time, currency),
        "cost": figure(energy + time, currency),
        "broken": list(verdict.broken),
        "store": figure(each.store_j, "J"),
    }


def _cheapest(choices: list[Plain]) -> str | None:
    """Return the cheapest mitigation that leaves no violation, one without new hardware if there is any."""
    enough = [each for each in choices if not each["broken"] and each["cost"]["value"] is not None]
    best = min(enough, key=lambda each: (each["store"]["value"] > 0, each["cost"]["value"]), default=None)
    return None if best is None else str(best["name"])


def _notes(report: PlanReport, choices: list[Plain]) -> list[Plain]:
    power = report.site.power
    notes: list[Plain] = []
    if power.limit is None and power.swing is None and power.ramp_per_second is None:
        notes.append(
            sentence("The site file names no power contract; the draw is held against the critical range alone.")
        )
    notes.append(sentence(
        "The critical range is {low} to {high}, of which an example contract allows {share} (arXiv 2508.14318).",
        low=(BAND_LOW_HZ, "Hz"), high=(BAND_HIGH_HZ, "Hz"), share=(100 * BAND_SHARE, "%"),
    ))  # fmt: skip
    if not report.power.broken:
        notes.append(sentence("Nothing is violated, so no mitigation is needed."))
    elif not math.isfinite(report.run.days):
        notes.append(sentence("The run does not end, so no mitigation has a price."))
    elif _cheapest(choices) is None:
        notes.append(
            sentence("None of the mitigations meets every term; those that leave fewest violations come first.")
        )
    if choices:
        notes.append(
            sentence("Prices are energy and longer steps; a store of energy is hardware, which is not in them.")
        )
    return notes
