"""From whole training steps to what software and kernels reach inside one on a machine.

Kernels timed alone run with warm caches and without what stands around them. So a few short trainings are timed as they
are, and the figures of a calibration are chosen so that the planner predicts these steps: least squares over relative
errors, no figure below nothing, rates near those that were measured alone where no step shows them. Pure: the times are
given.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from scipy.optimize import nnls

from weft.collectives.costs import Column
from weft.planning.calibration.microbenchmarks import Calibration
from weft.planning.cost_model.machine import machine_of
from weft.planning.cost_model.plans import Workload, dimensions_of, software_of, written_plan
from weft.planning.cost_model.step import StepTimes, step_times
from weft.specs.job import JobSpec
from weft.specs.site import SiteSpec

_ROUNDS = 4
_FASTEST = 0.02
_RATES = {"flops": 0.05, "attention": 0.05, "elementwise": 0.02, "update": 0.02, "network": 0.05}
"""What is fitted as how many times longer it takes than was measured alone, and how much that weighs against a step:
least for what was hardly measured."""
_TIMES = {
    "message_us": 1e2, "block_us": 1e3, "token_us": 1.0, "tensor_us": 1e4, "tensor_bytes": 1e2, "shard_us": 1e4,
    "shard_bytes": 1e2, "stage_us": 1e3, "crowding": 0.1, "micro_us": 1e3, "update_us": 1e3, "spread_us": 1e3,
    "step_us": 1e4,
}  # fmt: skip
"""What is fitted as it is, times, bytes and a share, and about how much of it there is."""

Make = Callable[[Calibration], SiteSpec]
"""Makes the site of a calibration."""


@dataclass(frozen=True)
class ProbeTime:
    """A training that was timed."""

    job: JobSpec
    """What was trained; its plan is spelled out."""
    seconds: float
    """Time of one step."""
    others: float = 0.0
    """Share of the processors that other programs took meanwhile; `seconds` is without it."""


def times_of(site: SiteSpec, job: JobSpec) -> StepTimes:
    """Return where the time of a step of `job` goes on `site`, with the plan that the job spells out."""
    assert job.plan != "auto", "a probe's plan is spelled out"
    work = Workload(dimensions_of(job.model), job.batch.sequences, job.batch.length)
    return step_times(work, written_plan(job, job.plan), machine_of(site), software_of(job, site))


def fitted(found: Calibration, make: Make, probes: Sequence[ProbeTime]) -> Calibration:
    """Return the calibration whose predictions come nearest to the steps of `probes`."""
    seconds = np.array([probe.seconds for probe in probes])
    units = np.array([1.0 for _ in _RATES] + list(_TIMES.values()))
    trust = np.array(list(_RATES.values()) + [0.0 for _ in _TIMES])
    least = np.array([_FASTEST for _ in _RATES] + [0.0 for _ in _TIMES])
    now = np.array([1.0 for _ in _RATES] + [getattr(found.efficiency, name) / unit for name, unit in _TIMES.items()])

    def predicted(figures: Column) -> Column:
        site = make(_with(found, figures * units))
        return np.array([float(times_of(site, probe.job).step_s[0]) for probe in probes])

    for _ in range(_ROUNDS):
        # Around any figures the planner's times are straight lines, but for where one thing waits for another.
        here = predicted(now)
        slopes = np.stack([predicted(now + row) - here for row in np.eye(len(now))], axis=1) / seconds[:, None]
        rows = np.concatenate([slopes, np.diag(trust)])
        goals = np.concatenate([1 - here / seconds + slopes @ now, trust])
        now = least + nnls(rows, goals - rows @ least)[0]
    return _with(found, now * units)


def with_step(found: Calibration, seconds: float) -> Calibration:
    """Return the calibration of a GPU with the time of a step that computes next to nothing: nothing hides it."""
    return replace(found, efficiency=found.efficiency.model_copy(update={"step_us": round(seconds * 1e6, 1)}))


def _with(found: Calibration, figures: Column) -> Calibration:
    """Return `found` with its rates so many times slower, and these times."""
    slower = dict(zip(_RATES, figures.tolist(), strict=False))
    share = found.efficiency
    attention = min(1.0, share.attention * slower["flops"] / slower["attention"])
    speeds = {"elementwise": share.elementwise / slower["elementwise"], "update": share.update / slower["update"]}
    times = dict(zip(_TIMES, figures[len(_RATES) :].tolist(), strict=True))
    more = {"attention": attention, **speeds}
    return replace(
        found,
        flops=found.flops / slower["flops"],
        network_bytes_per_s=found.network_bytes_per_s / slower["network"],
        efficiency=share.model_copy(update={name: round(value, 4) for name, value in (more | times).items()}),
    )
