"""Plans as columns: how a model is spread, many ways at once; and the dimensions of what is spread.

A `Plans` holds one number for each candidate in every column, so that a search evaluates all of them in a few hundred
array operations. A single plan is a table of one row.
"""

import math
from dataclasses import dataclass, fields
from typing import Any, TypedDict, Unpack

import numpy as np

from weft.collectives.costs import Column
from weft.core.errors import UsageError
from weft.planning.cost_model.parameter_shapes import head_width, kv_heads
from weft.specs.job import JobSpec, ModelSpec, PlanSpec
from weft.specs.site import SiteSpec
from weft.specs.software import SoftwareSpec

SCHEDULES = ("1f1b", "interleaved", "zero-bubble", "zbv")
"""Pipeline schedules that are costed; the column `schedule` counts them from 0."""
RECOMPUTES = ("none", "selective", "full")
"""Recomputations; the column `recompute` counts them from 0."""
_, SELECTIVE, FULL = range(len(RECOMPUTES))
SHARD_OPTIMIZER, SHARD_GRADIENTS, SHARD_WEIGHTS = 1, 2, 3
"""ZeRO stages: what the column `zero` shards from each number on."""


@dataclass(frozen=True)
class Latent:
    """Multi-head latent attention (DeepSeek-V2, arXiv 2405.04434): keys and values from one narrow vector."""

    kv_rank: int
    """Width of that vector."""
    query_rank: int
    """Width of the queries' own; 0 where queries come from the residual stream."""
    rope_width: int
    """More width of a query and key, turned by position and shared by all heads' keys."""
    value_width: int
    """Width of a head's values."""


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
    shared: int = 0
    """Inner width of what sees every token beside the experts."""
    dense_layers: int = 0
    """Blocks at the start that have no experts."""
    dense_ffn: int = 0
    """Inner width of the feed-forward block there."""
    nodes: int = 0
    """Most nodes that a token is sent to; 0 for no limit."""
    mtp: int = 0
    """Modules at the end that predict one token more each: a block, a projection and the output once more."""
    parallel: bool = False
    """Attention and feed-forward side by side on one input."""
    expert_biases: bool = False
    """Whether experts' matrices have a bias."""
    clamped: bool = False
    """Whether what enters an expert's gate is clamped first."""
    window: int = 0
    """Tokens that blocks with a window see; 0 where all see the whole text."""
    window_from: int | None = None
    """First block with one: all from there on have it. Every other block where absent."""
    latent: Latent | None = None
    """Latent attention, where it is used."""

    def seen(self, length: int) -> float:
        """Return the share of a causal text's pairs that blocks attend to on average."""
        reach = min(1.0, self.window / length) if self.window else 1.0
        share = 0.5 if self.window_from is None else self.windowed / self.layers
        return 1 - share * (1 - reach * (2 - reach))

    @property
    def windowed(self) -> int:
        """Return how many blocks have a window."""
        if self.window_from is None:
            return self.layers // 2 if self.window else 0
        return max(0, self.layers - self.window_from) if self.window else 0

    @property
    def query_width(self) -> int:
        """Return the width of a head's query and key."""
        return self.head_width + (self.latent.rope_width if self.latent else 0)

    @property
    def value_width(self) -> int:
        """Return the width of a head's values."""
        return self.latent.value_width if self.latent else self.head_width

    @property
    def attention_matrices(self) -> tuple[tuple[int, int, bool, bool], ...]:
        """Return the matrices of an attention block as (inputs, outputs, inputs are cut by tp, outputs are)."""
        values = self.heads * self.value_width
        if self.latent is None:
            keys = 2 * self.kv_heads * self.head_width
            return ((self.width, self.heads * self.head_width + keys, False, True), (values, self.width, True, False))
        latent, rank = self.latent, self.latent.query_rank
        narrow = latent.kv_rank + latent.rope_width
        queries = self.heads * self.query_width
        first = (self.width, narrow + (rank or 0), False, False)
        up = (latent.kv_rank, self.heads * (self.head_width + latent.value_width), False, True)
        return (first, (rank or self.width, queries, False, True), up, (values, self.width, True, False))

    @property
    def attention_parameters(self) -> int:
        """Return the matrix parameters of one attention block."""
        return sum(inputs * outputs for inputs, outputs, _, _ in self.attention_matrices)

    @property
    def feed_parameters(self) -> int:
        """Return the parameters of one feed-forward block or expert."""
        return self.feed_of(self.ffn)

    def feed_of(self, inner: int) -> int:
        """Return the parameters of a feed-forward block of a given inner width."""
        return (3 if self.gated else 2) * self.width * inner

    @property
    def layer_parameters(self) -> int:
        """Return the parameters of one block: all experts, the router and both norms."""
        router = self.width * self.experts if self.experts > 1 else 0
        feed = self.experts * self.feed_parameters + self.feed_of(self.shared)
        return self.attention_parameters + feed + router + 2 * self.width

    @property
    def total_parameters(self) -> int:
        """Return the parameters of the whole model."""
        ends = (1 if self.tied else 2) * self.vocabulary * self.width + self.width
        return (self.layers + self.mtp) * self.layer_parameters - self._without_experts + ends + self._predicting

    @property
    def active_parameters(self) -> int:
        """Return the parameters that one token meets."""
        idle = (self.layers - self.dense_layers + self.mtp) * (self.experts - self.top_k) * self.feed_parameters
        return self.total_parameters - (idle if self.experts > 1 else 0)

    @property
    def _without_experts(self) -> int:
        """Return what the first blocks lack of the others' parameters."""
        if not self.dense_layers:
            return 0
        sparse = self.experts * self.feed_parameters + self.feed_of(self.shared) + self.width * self.experts
        return self.dense_layers * (sparse - self.feed_of(self.dense_ffn))

    @property
    def _predicting(self) -> int:
        """Return the parameters of the further modules besides their blocks."""
        return self.mtp * (2 * self.width**2 + 3 * self.width)

    def flops_per_token(self, length: int, *, causal: bool) -> float:
        """Return the model's operations for one token, forward and backward; nothing computed twice is counted."""
        feed = self.top_k * self.feed_parameters + self.feed_of(self.shared)
        feed += self.width * self.experts if self.experts > 1 else 0
        blocks = self.layers + self.mtp
        matrices = blocks * self.attention_parameters + (blocks - self.dense_layers) * feed
        matrices += self.dense_layers * self.feed_of(self.dense_ffn) + self.mtp * 2 * self.width**2
        seen = (length + 1) / 2 * self.seen(length) if causal else length
        pairs = blocks * self.heads * (self.query_width + self.value_width) * seen
        return 6.0 * (matrices + pairs + (1 + self.mtp) * self.vocabulary * self.width)


def dimensions_of(spec: ModelSpec) -> Dimensions:
    """Return the dimensions of a model as a job file describes it."""
    experts, latent = spec.experts, spec.latent
    return Dimensions(
        layers=spec.layers,
        width=spec.width,
        heads=spec.heads,
        kv_heads=kv_heads(spec),
        head_width=head_width(spec),
        ffn=experts.ffn if experts else spec.ffn,
        vocabulary=spec.vocabulary,
        tied=spec.tied,
        gated=spec.gated,
        experts=experts.count if experts else 1,
        top_k=experts.top_k if experts else 1,
        shared=experts.shared if experts else 0,
        dense_layers=experts.dense_layers if experts else 0,
        dense_ffn=spec.ffn if experts and experts.dense_layers else 0,
        nodes=experts.nodes if experts else 0,
        mtp=spec.mtp,
        parallel=spec.parallel,
        expert_biases=experts.biases if experts else False,
        clamped=experts.clamped if experts else False,
        window=spec.window,
        window_from=spec.window_from,
        latent=None if latent is None else Latent(**latent.model_dump()),
    )


def software_of(job: JobSpec, site: SiteSpec, precision: str | None = None) -> SoftwareSpec:
    """Return the habits that a job's file names, or our own trainer's, in the precision that is asked for."""
    written = (job.software or SoftwareSpec()).resolved()
    planned = None if job.plan == "auto" else job.plan.precision
    usual = "fp32" if site.gpu.kind == "CPU" else "bf16"
    return written.model_copy(update={"precision": precision or written.precision or planned or usual})


@dataclass(frozen=True)
class Workload:
    """What one step trains: a model on a global batch."""

    model: Dimensions
    """The model."""
    sequences: int
    """Sequences of a step."""
    length: int
    """Tokens of a sequence."""

    @property
    def tokens(self) -> int:
        """Return the tokens of a step."""
        return self.sequences * self.length


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
    """Expert-parallel ranks, taken from the data-parallel ones, or from all of a stage's where software folds."""
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
    usual = 2 if schedule in ("interleaved", "zbv") else 1
    return one_plan(
        dp=plan.dp, tp=plan.tp, pp=plan.pp, cp=plan.cp, ep=plan.ep,
        zero=SHARD_WEIGHTS if plan.shard > 1 else plan.zero,
        shard=plan.shard if plan.shard > 1 else None, schedule=schedule,
        chunks=plan.chunks or usual, micro=job.batch.micro, recompute=plan.recompute,
    )  # fmt: skip


def spec_of(plans: Plans, row: int, practice: SoftwareSpec) -> PlanSpec:
    """Return one plan as a job file holds it."""
    plain = plans.row(row)
    sharded = plain["zero"] == SHARD_WEIGHTS
    return PlanSpec.model_validate(
        {
            **{axis: plain[axis] for axis in ("dp", "tp", "pp", "cp", "ep")},
            "shard": math.gcd(plain["shard"], plain["dp"]) if sharded else 1,
            "zero": 0 if sharded else plain["zero"],
            "schedule": plain["schedule"],
            "chunks": plain["chunks"] if plain["schedule"] == "interleaved" else None,
            "recompute": plain["recompute"],
            "precision": "fp32" if practice.fp32 else "bf16",
        }
    )
