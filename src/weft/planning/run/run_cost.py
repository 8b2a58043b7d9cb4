"""What a whole run takes: days with their uncertainty, energy, carbon and money.

The time of a run is its steps over the share of time that is work. Its spread has two parts: failures come by chance,
and the step time itself is a prediction.
"""

import math
from dataclasses import dataclass

from weft.planning.run.goodput import DAY_S, HOUR_S, Goodput
from weft.planning.run.power import JOULES_PER_KWH

MODEL_ERROR = 0.05
"""Spread of predicted step times: the mean error on published runs left out of the fit (verification)."""
NINETY = 1.645
"""Standard deviations to either side of a normal distribution's 90 % interval."""


@dataclass(frozen=True)
class RunCost:
    """What a run takes."""

    days: float
    """Expected duration."""
    days_low: float
    """Lower end of the 90 % interval."""
    days_high: float
    """Upper end of the 90 % interval."""
    failures: float
    """Expected failures that stop it."""
    gpu_hours: float
    """GPU-hours, lost ones included."""
    energy_kwh: float
    """Energy at the meter."""
    carbon_kg: float
    """Carbon dioxide from the grid."""
    energy_cents: float
    """Price of the energy."""
    gpu_cents: float
    """Price of the GPU-hours."""


@dataclass(frozen=True)
class Tariff:
    """What energy and GPUs cost."""

    cents_per_kwh: float
    """Price of energy."""
    carbon_g_per_kwh: float
    """Carbon dioxide of the grid's energy."""
    gpu_hour_cents: float
    """Price of a GPU-hour."""
    model_error: float = MODEL_ERROR
    """Spread of the predicted step time, as a share."""


def chance_s(failures: float, goodput: Goodput) -> float:
    """Return the standard deviation of a run's length that comes from when its expected `failures` strike."""
    # Each failure costs a restart and, evenly spread, up to an interval of lost work.
    each = goodput.restart_s + goodput.interval_s / 2
    return math.sqrt(failures) * math.sqrt(each**2 + goodput.interval_s**2 / 12)


def run_cost(steps: int, step_s: float, gpus: int, *, goodput: Goodput, meter_w: float, tariff: Tariff) -> RunCost:
    """Return what `steps` steps of `step_s` take on `gpus` GPUs that draw `meter_w` together."""
    seconds = steps * step_s / goodput.share if goodput.share > 0 else math.inf
    failures = 0.0 if math.isinf(goodput.mttf_s) else seconds / goodput.mttf_s
    spread = math.hypot(chance_s(failures, goodput), tariff.model_error * seconds)
    hours = gpus * seconds / HOUR_S
    energy = meter_w * seconds / JOULES_PER_KWH
    return RunCost(
        days=seconds / DAY_S,
        days_low=max(steps * step_s * (1 - NINETY * tariff.model_error), seconds - NINETY * spread) / DAY_S,
        days_high=(seconds + NINETY * spread) / DAY_S,
        failures=failures,
        gpu_hours=hours,
        energy_kwh=energy,
        carbon_kg=energy * tariff.carbon_g_per_kwh / 1000,
        energy_cents=energy * tariff.cents_per_kwh,
        gpu_cents=hours * tariff.gpu_hour_cents,
    )
