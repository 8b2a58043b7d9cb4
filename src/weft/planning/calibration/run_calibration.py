"""From one run's step time to a site whose predictions meet it, and what the same job takes at 2 to 16 times the size.

One number is fitted: the time of a step's compute over what the catalogue says (`efficiency.pace`). What the fabric
takes stays as it is, so that larger runs are predicted by the model and not by a rule of three. Pure: times are given.
"""

from dataclasses import dataclass, replace

import numpy as np

from weft.core.errors import UsageError
from weft.planning.cost_model.machine import Machine, machine_of, with_efficiency
from weft.planning.cost_model.plans import Plans, Workload, dimensions_of, software_of, written_plan
from weft.planning.cost_model.step import StepTimes, step_times
from weft.specs.gpus import gpu_type
from weft.specs.job import JobSpec
from weft.specs.site import SiteSpec
from weft.specs.software import SoftwareSpec

FACTORS = (2, 4, 8, 16)
"""How many times larger the predicted runs are."""
_SLOWEST, _FASTEST, _HALVINGS = 32.0, 1 / 32, 50
_OWN, _EACH_DOUBLING = 0.02, 0.01
"""Half of the 90 % interval of a predicted step, as a share: at the run's own size, and more for each doubling. The
families of `verification/published_runs.py` are 0.5 % off on average and 2 % at worst."""


@dataclass(frozen=True)
class Forecast:
    """The same job with more replicas."""

    gpus: int
    """GPUs."""
    sequences: int
    """Sequences of its batch."""
    step_s: float
    """Foretold step time."""
    low_s: float
    """Lower end of the 90 % interval."""
    high_s: float
    """Upper end of it."""


@dataclass(frozen=True)
class RunCalibration:
    """What a run says about a site."""

    expected: StepTimes
    """What was predicted before."""
    adjusted: StepTimes
    """What is predicted now."""
    measured_s: float
    """What the run took."""
    pace: float
    """Time of compute over what was expected of it."""
    site: SiteSpec
    """The site with that pace."""
    forecasts: tuple[Forecast, ...]
    """The same job, 2 to 16 times as large."""

    @property
    def ratio(self) -> float:
        """Return measured over expected time."""
        return self.measured_s / float(self.expected.step_s[0])


def calibrated(site: SiteSpec, job: JobSpec, measured_s: float) -> RunCalibration:
    """Return what a run of `job` on `site` with steps of `measured_s` says, or raise where nothing can explain it."""
    if job.plan == "auto":
        raise UsageError(f'{job.name} leaves its plan open (plan = "auto"); write the [plan] that the run had')
    work = Workload(dimensions_of(job.model), job.batch.sequences, job.batch.length)
    machine, software, plans = machine_of(site), software_of(job, site), written_plan(job, job.plan)
    if work.sequences % (job.plan.dp * job.batch.micro):
        raise UsageError(
            f"a batch of {work.sequences} is not divisible over dp = {job.plan.dp}; write the run's own plan"
        )
    pace = pace_of(work, plans, machine, software, measured_s)
    adjusted = with_efficiency(machine, pace=pace)
    known = site.efficiency or gpu_type(site.gpu.like or site.gpu.kind).efficiency
    share = known.model_copy(update={"pace": round(pace, 5), "source": f"{known.source}; pace: a run of {job.name}"})
    return RunCalibration(
        expected=step_times(work, plans, machine, software),
        adjusted=step_times(work, plans, adjusted, software),
        measured_s=measured_s,
        pace=pace,
        site=site.model_copy(update={"efficiency": share}),
        forecasts=tuple(_forecast(work, plans, adjusted, software, factor) for factor in FACTORS),
    )


def pace_of(work: Workload, plans: Plans, machine: Machine, software: SoftwareSpec, measured_s: float) -> float:
    """Return the pace with which a step takes `measured_s`: by halving, as time rises with it."""

    def takes(pace: float) -> float:
        adjusted = with_efficiency(machine, pace=machine.efficiency.pace * pace)
        return float(step_times(work, plans, adjusted, software).step_s[0])

    low, high = np.log(_FASTEST), np.log(_SLOWEST)
    if not takes(_FASTEST) < measured_s < takes(_SLOWEST):
        raise UsageError(
            f"steps of {measured_s:.3g} s are out of reach: with this plan and site a step takes {takes(1.0):.3g} s, "
            f"{takes(_FASTEST):.3g} s of it traffic; is it the job, plan and site of the run?"
        )
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if takes(float(np.exp(middle))) < measured_s else (low, middle)
    return float(machine.efficiency.pace * np.exp((low + high) / 2))


def grown(plans: Plans, factor: int) -> Plans:
    """Return a plan with `factor` times as many replicas; what was sharded over all of them still is."""
    whole = plans.shard == plans.dp * plans.cp
    return replace(plans, dp=plans.dp * factor, shard=np.where(whole, plans.shard * factor, plans.shard))


def _forecast(work: Workload, plans: Plans, machine: Machine, software: SoftwareSpec, factor: int) -> Forecast:
    larger = replace(work, sequences=work.sequences * factor)
    wider = grown(plans, factor)
    gpus = int(wider.ranks[0])
    step_s = float(step_times(larger, wider, replace(machine, gpus=max(machine.gpus, gpus)), software).step_s[0])
    half = _OWN + _EACH_DOUBLING * float(np.log2(factor))
    return Forecast(gpus, larger.sequences, step_s, step_s * (1 - half), step_s * (1 + half))
