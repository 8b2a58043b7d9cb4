"""Plans as columns: how a model is spread, many ways at once, and the habits of the software that runs it.

A `Plans` holds one number for each candidate in every column, so that a search evaluates all of them in a few hundred
array operations. A single plan is a table of one row.
"""

import math
from dataclasses import dataclass, fields
from typing import Any, TypedDict, Unpack

import numpy as np

from weft.collectives.costs import Column
from weft.core.errors import UsageError
from weft.planning.cost_model.arithmetic import head_width, kv_heads
from weft.specs.job import JobSpec, ModelSpec, PlanSpec
from weft.specs.site import SiteSpec

SCHEDULES = ("1f1b", "interleaved", "zero-bubble", "zbv")
"""Pipeline schedules that are costed; the column `schedule` counts them from 0."""
RECOMPUTES = ("none", "selective", "full")
"""Recomputations; the column `recompute` counts them from 0."""
_, SELECTIVE, FULL = range(len(RECOMPUTES))
SHARD_OPTIMIZER, SHARD_GRADIENTS, SHARD_WEIGHTS = 1, 2, 3
"""ZeRO stages: what the column `zero` shards from each number on."""


@dataclass(frozen=True)
class Dimensions:
    """A model's dimensions, dense or with experts, gated feed-forward or plain."""

    layers: int
    """Blocks."""
    width: int
    """Width of the residual stream."""
    heads: int
    """Attention heads."""
    kv_heads: int
    """Heads of keys and values."""
    head_width: int
    """Width of a head."""
    ffn: int
    """Inner width of one feed-forward block, or of one expert."""
    vocabulary: int
    """Tokens that exist."""
    tied: bool = True
    """Whether the output matrix is the embedding."""
    gated: bool = True
    """Three feed-forward matrices (SwiGLU), or two (GPT)."""
    experts: int = 1
    """Experts in a block; 1 for a dense model."""
    top_k: int = 1
    """Experts that see each token."""

    @property
    def attention_parameters(self) -> int:
        """Return the matrix parameters of one attention block."""
        return 2 * self.width * self.head_width * (self.heads + self.kv_heads)

    @property
    def feed_parameters(self) -> int:
        """Return the parameters of one feed-forward block or expert."""
        return (3 if self.gated else 2) * self.width * self.ffn

    @property
    def layer_parameters(self) -> int:
        """Return the parameters of one block: all experts, the router and both norms."""
        router = self.width * self.experts if self.experts > 1 else 0
        return self.attention_parameters + self.experts * self.feed_parameters + router + 2 * self.width

    @property
    def total_parameters(self) -> int:
        """Return the parameters of the whole model."""
        ends = (1 if self.tied else 2) * self.vocabulary * self.width + self.width
        return self.layers * self.layer_parameters + ends

    def flops_per_token(self, length: int, *, causal: bool) -> float:
        """Return the model's operations for one token, forward and backward; nothing computed twice is counted."""
        matrices = self.attention_parameters + self.top_k * self.feed_parameters
        matrices += self.width * self.experts if self.experts > 1 else 0
        seen = (length + 1) / 2 if causal else length
        pairs = 2 * self.heads * self.head_width * seen
        return 6.0 * (self.layers * (matrices + pairs) + self.vocabulary * self.width)


def dimensions_of(spec: ModelSpec) -> Dimensions:
    """Return the dimensions of a model as a job file describes it."""
    experts = spec.experts
    return Dimensions(
        layers=spec.layers,
        width=spec.width,
        heads=spec.heads,
        kv_heads=kv_heads(spec),
        head_width=head_width(spec),
        ffn=experts.ffn if experts else spec.ffn,
        vocabulary=spec.vocabulary,
        tied=spec.tied,
        experts=experts.count if experts else 1,
        top_k=experts.top_k if experts else 1,
    )


@dataclass(frozen=True)
class Practice:
    """Habits of the training software: facts about a code base, the same for every size of run."""

    flash: bool = True
    """Attention in one fused, causal kernel that keeps no scores."""
    lean: bool = False
    """Neither norms' outputs nor activations' products are kept: fused backward kernels make them again."""
    sequence_parallel: bool = True
    """Norms and dropout are split over the tensor-parallel ranks."""
    dropout: bool = False
    """Dropout after both blocks, with masks kept for the backward pass."""
    overlap_tensor: bool = True
    """Tensor-parallel communication runs under the products next to it, in pieces."""
    overlap_tensor_backward: bool = True
    """In the backward pass, communication runs under the products for the weights."""
    overlap_context: bool = True
    """Keys and values travel around the ring while attention works on those that have come."""
    overlap_data: bool = True
    """Gradients are reduced and weights gathered while other layers compute."""
    overlap_pipeline: bool = True
    """Stages send while they compute; only the first and last sends of a step are waited for."""
    gradient_bytes: int = 4
    """Bytes of a gradient that is kept and reduced."""
    fp8: bool = False
    """Products of the blocks in fp8; attention and the output stay in bf16."""
    fp32: bool = False
    """Everything in full precision: weights are their own master copy."""
    imbalance: float = 0.0
    """By how much the busiest expert-parallel rank has more tokens than the average one, as a share."""
    straggler: float = 0.0
    """Relative spread of one rank's step time; the slowest of all sets the pace."""

    @property
    def value_bytes(self) -> int:
        """Return the bytes of a weight or an activation that products read."""
        return 4 if self.fp32 else 2

    @property
    def optimizer_bytes(self) -> int:
        """Return the bytes that AdamW keeps for a parameter: two moments, and an fp32 copy of a narrower weight."""
        return 8 if self.fp32 else 12


def practice_of(job: JobSpec, site: SiteSpec, precision: str | None = None) -> Practice:
    """Return the habits of our own trainer with a job on a site, in its own precision or the one that is asked for."""
    usual = "fp32" if site.gpu.kind == "CPU" else "bf16"
    chosen = precision or (usual if job.plan == "auto" else job.plan.precision)
    return Practice(fp8=chosen == "fp8", fp32=chosen == "fp32")


@dataclass(frozen=True)
class Plans:
    """Candidate plans, a column for each choice."""

    dp: Column
    """Data-parallel replicas."""
    tp: Column
    """Tensor-parallel ranks."""
    pp: Column
    """Pipeline stages."""
    cp: Column
    """Context-parallel ranks."""
    ep: Column
    """Expert-parallel ranks, taken from the data-parallel ones."""
    zero: Column
    """0 replicates, 1 shards the optimiser, 2 gradients too, 3 weights too."""
    shard: Column
    """Ranks over which `zero` shards; fewer than dp x cp is hybrid."""
    schedule: Column
    """Index in `SCHEDULES`."""
    chunks: Column
    """Model chunks on each stage; more than 1 interleaves."""
    micro: Column
    """Sequences of a micro-batch."""
    recompute: Column
    """Index in `RECOMPUTES`."""

    def __len__(self) -> int:
        """Return the number of candidates."""
        return len(self.dp)

    @property
    def ranks(self) -> Column:
        """Return the GPUs that each candidate needs."""
        return self.dp * self.tp * self.pp * self.cp

    def take(self, rows: Any) -> "Plans":
        """Return the candidates at `rows`: indices or a mask."""
        return Plans(**{each.name: getattr(self, each.name)[rows] for each in fields(self)})

    def row(self, number: int) -> dict[str, Any]:
        """Return one candidate as plain values, with the names of its schedule and recomputation."""
        plain: dict[str, Any] = {each.name: int(getattr(self, each.name)[number]) for each in fields(self)}
        plain["schedule"] = SCHEDULES[plain["schedule"]]
        plain["recompute"] = RECOMPUTES[plain["recompute"]]
        return plain


class PlanChoices(TypedDict, total=False):
    """The choices of one plan; what is left out is one rank, one micro-batch, no sharding, 1F1B, no recomputation."""

    dp: int
    tp: int
    pp: int
    cp: int
    ep: int
    zero: int
    shard: int | None
    schedule: str
    chunks: int
    micro: int
    recompute: str


def one_plan(**choices: Unpack[PlanChoices]) -> Plans:
    """Return a table of one plan."""
    schedule = choices.get("schedule", SCHEDULES[0])
    if schedule not in SCHEDULES:
        raise UsageError(f"the schedule {schedule!r} is not costed; known are {', '.join(SCHEDULES)}")
    ones = dict.fromkeys(("dp", "tp", "pp", "cp", "ep", "chunks", "micro"), 1)
    values: dict[str, Any] = {**ones, "zero": 0, **choices, "schedule": SCHEDULES.index(schedule)}
    values["shard"] = choices.get("shard") or values["dp"] * values["cp"]
    values["recompute"] = RECOMPUTES.index(choices.get("recompute", RECOMPUTES[0]))
    return Plans(**{name: np.array([float(value)]) for name, value in values.items()})


_SAME_COST = {"gpipe": "1f1b", "looped-bfs": "interleaved", "dualpipev": "zbv"}


def written_plan(job: JobSpec, plan: PlanSpec) -> Plans:
    """Return the plan that a job file spells out; schedules with the same bubble share their cost."""
    schedule = _SAME_COST.get(plan.schedule, plan.schedule)
    return one_plan(
        dp=plan.dp, tp=plan.tp, pp=plan.pp, cp=plan.cp, ep=plan.ep, zero=SHARD_WEIGHTS if plan.shard > 1 else 0,
        shard=plan.shard if plan.shard > 1 else None, schedule=schedule,
        chunks=2 if schedule in ("interleaved", "zbv") else 1, micro=job.batch.micro, recompute=plan.recompute,
    )  # fmt: skip


def spec_of(plans: Plans, row: int, practice: Practice) -> PlanSpec:
    """Return one plan as a job file holds it; chunks of a schedule are the trainer's own choice there."""
    plain = plans.row(row)
    sharded = plain["zero"] == SHARD_WEIGHTS
    return PlanSpec.model_validate(
        {
            **{axis: plain[axis] for axis in ("dp", "tp", "pp", "cp", "ep")},
            "shard": math.gcd(plain["shard"], plain["dp"]) if sharded else 1,
            "schedule": plain["schedule"],
            "recompute": plain["recompute"],
            "precision": "fp32" if practice.fp32 else "bf16",
        }
    )
