"""How far off a predicted step may be: intervals from the errors on published runs of that GPU, precision and class.

Widths hold at least 90 % of the rows of `verification/published_runs.py`, with the row's own model left out, and of
`verification/held_out_runs.py`, which nothing was fitted to; they are wider where a type, a precision or a class has no
run of its own. Plans of a class that the verification calls unmatched are named. Nothing here changes a prediction.
"""

from dataclasses import dataclass

from weft.planning.cost_model.machine import Machine
from weft.planning.cost_model.plans import SCHEDULES, SHARD_WEIGHTS, Plans, Workload
from weft.specs.gpus import gpu_type, is_known
from weft.specs.software import SoftwareSpec

_SEEN = {
    ("A100", "bf16"): 0.10, ("H100", "bf16"): 0.05, ("H100", "fp8"): 0.09, ("H100", "fp8-block"): 0.10,
    ("H200", "bf16"): 0.09, ("H200", "fp8"): 0.11, ("B200", "bf16"): 0.12, ("B200", "fp8"): 0.10,
    ("B200", "mxfp8"): 0.10, ("B200", "nvfp4"): 0.20, ("GB200", "bf16"): 0.09, ("GB200", "fp8"): 0.14,
    ("GB200", "mxfp8"): 0.10, ("GB200", "nvfp4"): 0.25, ("GB300", "fp8"): 0.12, ("GB300", "mxfp8"): 0.10,
    ("GB300", "nvfp4"): 0.20,
}  # fmt: skip
"""Half-widths where runs were seen: on this type, or in this precision on the type next to it."""
_MEASURED, _BY_PEAK = 0.20, 0.35
"""Where kernels were measured and no run was seen; and where there is nothing but a data sheet."""
_MIXTURE, _MIXTURE_FAR, _MIXTURE_WINDOW = 0.35, 0.50, 0.80
"""Mixtures of experts whose exchange stays in a domain, those whose exchange leaves it, and those with sliding windows
(gpt-oss, whose steps are predicted a quarter to two fifths too short)."""
_SHARDED = 0.35
"""Weights sharded over more than one domain."""
_CAPPED = 0.15
"""More, where the power limit is below the data sheet's: torchtitan's runs on H100 at 500 W."""
_CPU = 0.15
"""Measured processors (verification/own_runs.py)."""


@dataclass(frozen=True)
class Confidence:
    """What is known of a prediction's error."""

    share: float
    """Width of the 90 % interval: from the predicted time over one and this to the predicted time by one and this."""
    basis: str
    """What it comes from."""
    unmatched: str | None
    """Why the plan belongs to a class that no published run confirms; none where one does."""

    def interval(self, step_s: float) -> tuple[float, float]:
        """Return the 90 % interval around a predicted time."""
        return step_s / (1 + self.share), step_s * (1 + self.share)


def confidence_of(work: Workload, plans: Plans, row: int, machine: Machine, software: SoftwareSpec) -> Confidence:
    """Return how far off the predicted step of one plan may be."""
    share, basis = _of_type(machine, software.precision or "bf16")
    if is_known(machine.kind) and machine.power_w < gpu_type(machine.kind).gpu.power / 1000:
        share, basis = share + _CAPPED, f"{basis}; at a lower power limit"
    unmatched = None
    if work.model.experts > 1:
        far = float(plans.ep[row] * (1 if software.fold else plans.tp[row])) > machine.domain_gpus
        wider, seen = (_MIXTURE_FAR, "experts over several domains") if far else (_MIXTURE, "experts inside a domain")
        if far:
            unmatched = "experts over several scale-up domains: published runs took up to half as long again"
        if work.model.window:
            wider, seen = _MIXTURE_WINDOW, "gpt-oss"
            unmatched = "mixtures with sliding windows: published runs of gpt-oss were up to 1.8 times slower"
        if wider > share:
            share, basis = wider, f"published runs of mixtures, {seen}"
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
    # MX formats are predicted by kernels with scales for blocks, as `kernels` does.
    table = {"mxfp8": "fp8_block"}.get(precision, precision.replace("-", "_"))
    if share.bf16 is not None and getattr(share, table, None) is not None:
        return _MEASURED, f"single kernels measured on {kind} in {precision}; no run seen"
    return _BY_PEAK, f"the data sheet of {kind} alone; nothing measured in {precision}"
