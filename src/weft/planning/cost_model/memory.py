"""The memory of one GPU, part by part, for many plans at once.

Weights, gradients and optimiser states follow from the parameters of the fullest stage and how they are sharded;
activations from what each block keeps for its backward pass (arXiv 2205.05198, section 4) and how many micro-batches a
stage holds at once. The first stage holds most micro-batches, the last one the logits: the larger of the two counts.
"""

from dataclasses import dataclass

import numpy as np

from weft.collectives.costs import Column
from weft.planning.cost_model.plans import (
    FULL,
    SCHEDULES,
    SELECTIVE,
    SHARD_GRADIENTS,
    SHARD_OPTIMIZER,
    SHARD_WEIGHTS,
    Dimensions,
    Plans,
    Practice,
)
from weft.planning.cost_model.step import Workload, expert_parameters, shared_parameters, stage_layers

_LOGIT_BYTES = 6
"""A logit in half precision and its fp32 copy for the loss."""
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
    """Logits, one block being recomputed, gathered weights."""

    @property
    def total(self) -> Column:
        """Return all of it."""
        return self.weights + self.gradients + self.optimizer + self.activations + self.working

    def row(self, number: int) -> dict[str, int]:
        """Return the parts of one plan in bytes."""
        parts = ("weights", "gradients", "optimizer", "activations", "working")
        return {name: round(float(getattr(self, name)[number])) for name in parts}


def memory_of(work: Workload, plans: Plans, practice: Practice) -> Memory:
    """Return the peak GPU memory of every plan."""
    model = work.model
    shared, experts = shared_parameters(model, plans), expert_parameters(model, plans)

    def held(each: float, from_stage: int) -> Column:
        split = plans.zero >= from_stage
        over = np.where(split, plans.shard, 1.0)
        # Experts have fewer copies to share the states with.
        over_experts = np.where(split, np.maximum(1.0, plans.shard / plans.ep), 1.0)
        return each * (shared / over + experts / over_experts)

    kept, inside = _block_bytes(work, plans, practice)
    layers = stage_layers(model.layers, plans)[0]
    flight = _in_flight(work, plans)
    tokens = plans.micro * work.length / plans.cp
    logits = _LOGIT_BYTES * tokens * model.vocabulary / plans.tp
    first_stage = layers * kept * flight
    last_stage = layers * kept * np.minimum(flight, 1.0) + logits
    one_layer = (shared + experts) / layers
    # Two layers' worth of what is sharded is whole at a time: one in use, one on its way.
    whole = np.where(plans.zero >= SHARD_GRADIENTS, float(practice.gradient_bytes), 0.0)
    whole += np.where(plans.zero == SHARD_WEIGHTS, float(practice.value_bytes), 0.0)
    gathered = 2 * whole * one_layer
    again = np.where(plans.recompute == FULL, inside, 0.0)
    return Memory(
        weights=held(practice.value_bytes, SHARD_WEIGHTS),
        gradients=held(practice.gradient_bytes, SHARD_GRADIENTS),
        optimizer=held(practice.optimizer_bytes, SHARD_OPTIMIZER),
        activations=first_stage,
        working=np.maximum(0.0, last_stage - first_stage) + again + gathered,
    )


def _block_bytes(work: Workload, plans: Plans, practice: Practice) -> tuple[Column, Column]:
    """Return what one block keeps for one micro-batch under its recomputation, and what it would keep without any."""
    model = work.model
    tokens = plans.micro * work.length / plans.cp
    whole = plans.tp if practice.sequence_parallel else np.ones_like(plans.tp)
    masks = 2 * model.width if practice.dropout else 0
    query, keys = model.heads * model.head_width, model.kv_heads * model.head_width
    inner = model.ffn * model.top_k
    norm_inputs = 4 * model.width / whole
    block_inputs = 2 * (1 + model.top_k if model.experts > 1 else 2) * model.width / whole
    attention = (4 * query + 4 * keys) / plans.tp
    scores = (4 if practice.flash else (5 if practice.dropout else 4) * work.length) * model.heads / plans.tp
    activation_inputs = 2 * (2 if model.gated else 1) * inner / plans.tp
    activation = 2 * inner / plans.tp
    cheap = block_inputs + activation
    none = norm_inputs + masks / whole + attention + scores + activation_inputs + (0 if practice.lean else cheap)
    # Attention again where scores were kept; with a fused kernel, norms and the activation again.
    selective = none - ((0 if practice.lean else cheap) if practice.flash else scores)
    full = 2 * model.width / whole
    chosen = np.where(plans.recompute == FULL, full, np.where(plans.recompute == SELECTIVE, selective, none))
    wider = practice.value_bytes / 2
    return wider * tokens * chosen, wider * tokens * none


def _in_flight(work: Workload, plans: Plans) -> Column:
    """Return the micro-batches whose activations the first stage holds, in whole stages."""
    rounds = work.sequences / (plans.dp * plans.micro)
    interleaved = plans.pp * (1 + (plans.pp - 1) / (plans.pp * plans.chunks))
    most = np.where((plans.chunks > 1) & (plans.schedule != _ZBV), interleaved, plans.pp)
    return np.minimum(most, rounds)


def parameters_bytes(model: Dimensions, each: int = 2) -> int:
    """Return the bytes of all weights of a model at `each` bytes a parameter."""
    return model.total_parameters * each
