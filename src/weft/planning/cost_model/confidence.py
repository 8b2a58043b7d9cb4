"""How far off a predicted step may be: intervals from the errors on published runs of that GPU, precision and class.

Half-widths hold nine of ten rows of `verification/published_runs.py` with the row's own model left out, and are widened
where a type, a precision or a class has no run of its own. Plans of a class that the verification calls unmatched are
named. Nothing here changes a prediction.
"""

from dataclasses import dataclass

from weft.planning.cost_model.machine import Machine
from weft.planning.cost_model.plans import SCHEDULES, SHARD_WEIGHTS, Plans, Workload
from weft.specs.software import SoftwareSpec

_SEEN = {
    ("A100", "bf16"): 0.10, ("H100", "bf16"): 0.05, ("H100", "fp8"): 0.06, ("H200", "bf16"): 0.08,
    ("H200", "fp8"): 0.09, ("B200", "bf16"): 0.12, ("B200", "fp8"): 0.10, ("B200", "nvfp4"): 0.15,
    ("GB200", "bf16"): 0.06, ("GB200", "fp8"): 0.12,
}  # fmt: skip
"""Half-widths where runs were seen: on this type, or in this precision on the type next to it."""
_MEASURED, _BY_PEAK = 0.15, 0.35
"""Where kernels were measured and no run was seen; and where there is nothing but a data sheet."""
_MIXTURE, _MIXTURE_FAR = 0.20, 0.30
"""Mixtures of experts whose exchange stays in a domain, and those whose exchange leaves it."""
_SHARDED = 0.20
"""Weights sharded over more than one domain."""
_CPU = 0.15
"""Measured processors (verification/own_runs.py)."""


@dataclass(frozen=True)
class Confidence:
    """What is known of a prediction's error."""

    share: float
    """Half of the 90 % interval, as a share of the predicted time."""
    basis: str
    """What it comes from."""
    unmatched: str | None
    """Why the plan belongs to a class that no published run confirms; none where one does."""


def confidence_of(work: Workload, plans: Plans, row: int, machine: Machine, software: SoftwareSpec) -> Confidence:
    """Return how far off the predicted step of one plan may be."""
    precision = software.precision or "bf16"
    share, basis = _of_type(machine, precision)
    unmatched = None
    if work.model.experts > 1:
        far = float(plans.ep[row] * (1 if software.fold else plans.tp[row])) > machine.domain_gpus
        wider = _MIXTURE_FAR if far else _MIXTURE
        if wider > share:
            share, basis = wider, "mixtures of experts: DeepSeek-V2 and V3 on 8 B200"
        if far:
            unmatched = "experts over several scale-up domains: no published run was held against it"
    if plans.schedule[row] >= SCHEDULES.index("zero-bubble") and plans.pp[row] > 1:
        share, unmatched = max(share, _MEASURED), "zero-bubble schedules: no published run was held against them"
    over = float(plans.shard[row] * plans.tp[row])
    if plans.zero[row] == SHARD_WEIGHTS and over > machine.domain_gpus:
        share, basis = max(share, _SHARDED), "weights sharded over several scale-up domains"
        unmatched = "ZeRO 3 over several scale-up domains: published runs were up to four times slower (verification)"
    return Confidence(share, basis, unmatched)


def _of_type(machine: Machine, precision: str) -> tuple[float, str]:
    """Return the half-width for dense models on a type in a precision, and what it comes from."""
    kind = machine.kind
    if kind == "CPU" or machine.efficiency.source.startswith("measured with"):
        return _CPU, "a machine that was measured with its own trainer"
    if (kind, precision) in _SEEN:
        return _SEEN[kind, precision], f"published runs on {kind} or its sister type, {precision}"
    share = machine.efficiency
    measured = share.bf16 is not None and (precision == "bf16" or getattr(share, precision.replace("-", "_"), None))
    if measured:
        return _MEASURED, f"single kernels measured on {kind} in {precision}; no run seen"
    return _BY_PEAK, f"the data sheet of {kind} alone; nothing measured in {precision}"
