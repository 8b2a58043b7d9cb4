"""The memory of one GPU, part by part, for many plans at once.

Weights, gradients and optimiser states follow from the parameters of a stage and how they are sharded; activations
from what each block keeps for its backward pass (arXiv 2205.05198, section 4) and how many micro-batches a stage holds
at once. The first stage holds most micro-batches, the last one the logits: both are counted, the larger total is the
peak. What an allocator takes besides (fragments, buffers of collectives) is `reserved_share`'s and `buffer_bytes`'.
"""

from dataclasses import dataclass, fields

import numpy as np

from weft.collectives.costs import Column
from weft.planning.cost_model.blocks import Stage, expert_copies, held_parameters, stage_blocks
from weft.planning.cost_model.plans import (
    FULL,
    SCHEDULES,
    SELECTIVE,
    SHARD_GRADIENTS,
    SHARD_OPTIMIZER,
    SHARD_WEIGHTS,
    Dimensions,
    Plans,
    Workload,
)
from weft.specs.software import SoftwareSpec

_LOGIT_BYTES, _FUSED_LOGIT_BYTES = 6, 4
"""A logit in half precision, and its fp32 copy for the loss or the gradient in half precision."""
_BACKWARD_BYTES = 8
"""What is alive for a value of the residual stream inside one block's backward pass: gradients that come and go, and
the inputs that tensor-parallel ranks gather again."""
_MADE_BYTES = 6
"""A gradient in half precision and turned into full precision, before it is added to what is kept."""
_ZBV = SCHEDULES.index("zbv")


@dataclass(frozen=True)
class Memory:
    """Peak bytes of a GPU, as columns over plans."""

    weights: Column
    """Weights that the products read."""
    gradients: Column
    """Gradients."""
    optimizer: Column
    """Master weights and moments."""
    activations: Column
    """What blocks keep for the backward pass, over all micro-batches in flight."""
    working: Column
    """Logits, one block's backward pass, what is recomputed in it, gathered weights."""

    @property
    def total(self) -> Column:
        """Return all of it."""
        return self.weights + self.gradients + self.optimizer + self.activations + self.working

    def row(self, number: int) -> dict[str, int]:
        """Return the parts of one plan in bytes."""
        return {each.name: round(float(getattr(self, each.name)[number])) for each in fields(self)}


def memory_of(work: Workload, plans: Plans, software: SoftwareSpec) -> Memory:
    """Return the peak GPU memory of every plan: that of the stage that needs most."""
    first, last = (stage_memory(work, plans, software, stage) for stage in ("first", "last"))
    larger = first.total >= last.total
    parts = {e.name: np.where(larger, getattr(first, e.name), getattr(last, e.name)) for e in fields(Memory)}
    return Memory(**parts)


def stage_memory(work: Workload, plans: Plans, software: SoftwareSpec, stage: Stage) -> Memory:
    """Return the peak memory of a GPU of one stage."""
    model = work.model
    shared, experts = held_parameters(model, plans, stage, fold=software.fold)
    # Experts have fewer copies to share the states with.
    copies = expert_copies(plans, plans.shard, software)

    def held(each: float, from_stage: int) -> Column:
        split = plans.zero >= from_stage
        return each * (shared / np.where(split, plans.shard, 1.0) + experts / np.where(split, copies, 1.0))

    dense, sparse = stage_blocks(model, plans, stage)
    plain, routed = (_block_bytes(work, plans, software, sparse=each) for each in (False, True))
    flight = _in_flight(work, plans) if stage == "first" else np.where(plans.pp > 1, 1.0, _in_flight(work, plans))
    tokens = plans.micro * work.length / plans.cp
    each = _FUSED_LOGIT_BYTES if software.fused_loss else _LOGIT_BYTES
    logits = each * tokens * model.vocabulary / plans.tp * (1 + model.mtp)
    ends = logits if stage == "last" else np.where(plans.pp == 1, logits, 0.0)
    one_layer = (shared + experts) / np.maximum(1.0, dense + sparse)
    # Two layers' worth of what is sharded is whole at a time: one in use, one on its way.
    whole = np.where(plans.zero >= SHARD_GRADIENTS, float(software.gradient_bytes), 0.0)
    whole += np.where(plans.zero == SHARD_WEIGHTS, float(software.value_bytes), 0.0)
    backward = _BACKWARD_BYTES * tokens * model.width
    if not software.fused_sums:
        backward = backward + _MADE_BYTES * _largest(model) / plans.tp
    again = np.where(plans.recompute == FULL, np.maximum(plain[1], routed[1]), 0.0)
    return Memory(
        weights=held(software.value_bytes, SHARD_WEIGHTS),
        gradients=held(software.gradient_bytes, SHARD_GRADIENTS),
        optimizer=held(software.optimizer_bytes, SHARD_OPTIMIZER),
        activations=(dense * plain[0] + sparse * routed[0]) * flight,
        working=ends + again + backward + 2 * whole * one_layer,
    )


def _block_bytes(work: Workload, plans: Plans, software: SoftwareSpec, *, sparse: bool) -> tuple[Column, Column]:
    """Return what one block keeps for one micro-batch under its recomputation, and what it would keep without any."""
    model = work.model
    tokens = plans.micro * work.length / plans.cp
    split = plans.tp if software.sequence_parallel else np.ones_like(plans.tp)
    masks = 2 * model.width if software.dropout else 0
    query = model.heads * (model.query_width + model.value_width)
    keys = model.kv_heads * (model.query_width + model.value_width)
    routed = sparse and model.experts > 1
    # A quantised product keeps its input in one byte a value.
    kept = 1 if software.quantised else 2
    if routed:
        inner = model.ffn * model.top_k + model.shared
        inputs = 1 + model.top_k + (1 if model.shared else 0)
    else:
        inner, inputs = (model.ffn if model.experts == 1 else model.dense_ffn), 1
    norm_inputs = 4 * model.width / split
    block_inputs = kept * (1 + inputs) * model.width / split
    attention = (2 * query + 2 * keys) / plans.tp
    if model.latent is not None:
        attention = attention + 4 * (model.latent.query_rank + model.latent.kv_rank)
    scores = (4 if software.flash else (5 if software.dropout else 4) * work.length) * model.heads / plans.tp
    activation_inputs = 2 * (2 if model.gated else 1) * inner / plans.tp
    activation = kept * inner / plans.tp
    # What experts answered is kept for the gradient of their weights in the sum.
    answers = 2 * model.top_k * model.width / split if routed else 0.0
    cheap = block_inputs + activation
    none = norm_inputs + masks / split + attention + scores + activation_inputs + answers
    none = none + (0 if software.lean else cheap)
    # Attention again where scores were kept; with a fused kernel, norms and the activation again.
    selective = none - ((0 if software.lean else cheap) if software.flash else scores)
    full = 2 * model.width / split
    chosen = np.where(plans.recompute == FULL, full, np.where(plans.recompute == SELECTIVE, selective, none))
    wider = software.value_bytes / 2
    return wider * tokens * chosen, wider * tokens * none


def _largest(model: Dimensions) -> int:
    """Return the parameters of the largest single matrix of a block that is not one of its experts'."""
    ways = 2 if model.gated else 1
    inner = model.ffn if model.experts == 1 else max(model.shared, model.dense_ffn)
    return max(ways * model.width * inner, *(inputs * outputs for inputs, outputs, _, _ in model.attention_matrices))


def _in_flight(work: Workload, plans: Plans) -> Column:
    """Return the micro-batches whose activations the first stage holds, in whole stages."""
    rounds = work.sequences / (plans.dp * plans.micro)
    interleaved = plans.pp * (1 + (plans.pp - 1) / (plans.pp * plans.chunks))
    most = np.where((plans.chunks > 1) & (plans.schedule != _ZBV), interleaved, plans.pp)
    return np.minimum(most, rounds)
