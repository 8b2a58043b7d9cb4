"""How far off a predicted step may be: intervals from the errors on published runs of that GPU, precision and class.

Widths hold at least 90 % of the rows of `verification/published_runs.py`, with the row's own model left out, and of
`verification/held_out_runs.py`, which nothing was fitted to; they are wider where a type, a precision or a class has no
run of its own. Plans of a class that the verification calls unmatched are named. Nothing here changes a prediction; the
search ranks plans by the upper ends of their intervals.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from weft.collectives.costs import Column
from weft.planning.cost_model.machine import Machine
from weft.planning.cost_model.plans import SCHEDULES, SHARD_WEIGHTS, Plans, Workload
from weft.specs.gpus import gpu_type, is_known
from weft.specs.software import SoftwareSpec

_SEEN = {
    ("A100", "bf16"): 0.10, ("H100", "bf16"): 0.06, ("H100", "fp8"): 0.11, ("H100", "fp8-block"): 0.12,
    ("H200", "bf16"): 0.10, ("H200", "fp8"): 0.13, ("B200", "bf16"): 0.12, ("B200", "fp8"): 0.12,
    ("B200", "mxfp8"): 0.12, ("B200", "nvfp4"): 0.20, ("GB200", "bf16"): 0.10, ("GB200", "fp8"): 0.16,
    ("GB200", "mxfp8"): 0.14, ("GB200", "nvfp4"): 0.22, ("GB300", "fp8"): 0.15, ("GB300", "mxfp8"): 0.12,
    ("GB300", "nvfp4"): 0.20,
}  # fmt: skip
"""Half-widths where runs were seen: on this type, or in this precision on the type next to it."""
_MEASURED, _BY_PEAK = 0.20, 0.35
"""Where kernels were measured and no run was seen; and where there is nothing but a data sheet."""
_MIXTURE, _MIXTURE_FAR, _MIXTURE_WINDOW = 0.40, 0.50, 0.60
"""Mixtures of experts whose exchange stays in a domain, those whose exchange leaves it, and those with sliding windows
(gpt-oss, whose steps are predicted a fifth to three tenths too short). The 90th percentile of the errors of
all other models, and a fifth more, holds 90 % of the rows of a model that is left out."""
_SHORT_CHUNK, _MIXTURE_SHORT = 2, 0.60
"""Blocks of a chunk, and the half-width, where experts' kernels are launched one by one in pipelines of short chunks:
Qwen3 30B on H100 (two runs: 23 and 58 % too fast), Mixtral 8x22B (25 %), Grok-1 (two: 6 and 15 % too slow)."""
_SHARDED = 0.45
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
    share, basis = _of_machine(machine, software)
    unmatched = None
    for each in _classes(work, plans, machine, software):
        if each.holds[row]:
            unmatched = each.unmatched or unmatched
            basis = (each.basis or basis) if each.width > share else basis
            share = float(each.widened(np.array(share)))
    return Confidence(share, basis, unmatched)


def latest_s(step_s: Column, work: Workload, plans: Plans, machine: Machine, software: SoftwareSpec) -> Column:
    """Return the upper ends of the 90 % intervals of steps: what plans are ranked by.

    A plan of a class that no published run confirms is so recommended where it is faster than its class is uncertain.
    """
    shares = np.full(len(plans), _of_machine(machine, software)[0])
    for each in _classes(work, plans, machine, software):
        shares = np.where(each.holds, each.widened(shares), shares)
    return step_s * (1 + shares)


@dataclass(frozen=True)
class _PlanClass:
    """Plans whose published runs, or the lack of them, widen the interval."""

    holds: NDArray[np.bool]
    """Which plans belong to it."""
    width: float
    """Half-width of their intervals."""
    basis: str | None
    """What the width comes from; none where that of the machine stays."""
    unmatched: str | None
    """Why no published run confirms them; none where one does."""
    adds: bool = False
    """Whether it comes on top of the doubt about machine and model, as independent errors do."""

    def widened(self, shares: Column) -> Column:
        """Return half-widths of before with this one."""
        return np.hypot(shares, self.width) if self.adds else np.maximum(shares, self.width)


def _classes(work: Workload, plans: Plans, machine: Machine, software: SoftwareSpec) -> list[_PlanClass]:
    """Return the classes that plans may belong to; later ones decide what is said of a plan."""
    found = []
    if work.model.experts > 1:
        far = plans.ep * (1.0 if software.fold else plans.tp) > machine.domain_gpus
        seen = "published runs of mixtures, experts"
        found.append(_PlanClass(~far, _MIXTURE, f"{seen} inside a domain", None))
        doubt = "experts over several scale-up domains: published runs took up to half as long again"
        found.append(_PlanClass(far, _MIXTURE_FAR, f"{seen} over several domains", doubt))
        if 0 < work.model.window < work.length:
            doubt = "mixtures with sliding windows: published runs of gpt-oss were up to 1.6 times slower"
            everything = np.ones(len(plans), dtype=np.bool)
            found.append(_PlanClass(everything, _MIXTURE_WINDOW, "published runs of mixtures, gpt-oss", doubt))
        if software.host_us and not software.cuda_graphs:
            blocks = np.ceil(work.model.layers / (plans.pp * plans.chunks))
            doubt = (
                "experts launched one by one in chunks of one or two blocks: published runs were up to 2.4 times slower"
            )
            short = (plans.pp > 1) & (plans.chunks > 1) & (blocks <= _SHORT_CHUNK)
            found.append(_PlanClass(short, _MIXTURE_SHORT, f"{seen} in chunks of one or two blocks", doubt))
    bubbleless = (plans.schedule >= SCHEDULES.index("zero-bubble")) & (plans.pp > 1)
    doubt = "zero-bubble schedules: no published run was held against them"
    found.append(_PlanClass(bubbleless, _MEASURED, None, doubt, adds=True))
    spread = (plans.zero == SHARD_WEIGHTS) & (plans.shard * plans.tp > machine.domain_gpus)
    doubt = "ZeRO 3 over several scale-up domains: published runs were up to four times slower (verification)"
    found.append(_PlanClass(spread, _SHARDED, "weights sharded over several scale-up domains", doubt, adds=True))
    return found


def _of_machine(machine: Machine, software: SoftwareSpec) -> tuple[float, str]:
    """Return the half-width for dense models on a machine, and what it comes from."""
    share, basis = _of_type(machine, software.precision or "bf16")
    if is_known(machine.kind) and machine.power_w < gpu_type(machine.kind).gpu.power / 1000:
        return share + _CAPPED, f"{basis}; at a lower power limit"
    return share, basis


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
