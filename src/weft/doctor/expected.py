"""What the planner expects of a step, to set what was seen beside it."""

from weft.doctor.examination import Expectation
from weft.planning.report import PlanReport


def expectation(report: PlanReport) -> Expectation:
    """Return what the planner expects of a step of a job on a site."""
    chosen = report.chosen
    times = chosen.times
    phases = tuple(
        (key.removesuffix("_s"), float(getattr(times, key)[0]))
        for key in ("compute_s", "recompute_s", "tensor_s", "context_s", "expert_s", "pipeline_s", "bubble_s", "data_s",
                    "optimizer_s", "straggler_s")
    )  # fmt: skip
    step_s = float(chosen.step_s[0])
    gpus = int(chosen.plans.ranks[0])
    peak = chosen.peak_flops
    return Expectation(
        step_s, float(report.work.tokens), float(chosen.mfu[0]) * step_s * gpus * peak, gpus, peak,
        f"{report.job.name} on {report.site.name}", tuple(phase for phase in phases if phase[1] > 0),
    )  # fmt: skip
