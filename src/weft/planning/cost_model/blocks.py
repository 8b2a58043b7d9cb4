"""What one block and the two ends of a model cost on one GPU: times of a micro-batch, and parameters held.

A model with experts has two sorts of block: the first few may have none. Times are of compute alone; `exchange` adds
what is sent, `step` puts both together.
"""

from dataclasses import dataclass
from typing import Literal

import numpy as np

from weft.collectives.costs import Column
from weft.planning.cost_model.kernels import KernelTimes, Pass
from weft.planning.cost_model.machine import Machine
from weft.planning.cost_model.plans import Dimensions, Plans, Workload
from weft.specs.software import SoftwareSpec

Stage = Literal["first", "middle", "last"]
"""A pipeline stage: the one with the embedding, one without an end, or the one with the output."""
_LOSS_BYTES, _FUSED_LOSS_BYTES = 44, 12
"""Memory traffic of a softmax cross-entropy over half-precision logits, forward and backward, for a logit: in fp32
kernels one by one, or in one that reads the logits three times and writes them twice."""
_PERMUTED_BYTES = 8
"""Memory traffic of one value on its way to an expert and back: put in order, and put back."""
_BIASED_BYTES, _CLAMPED_BYTES = 23, 12
"""The same of a value that an expert adds a bias to, and of one inside it that is clamped, where neither is fused: a
third of both passes'. Bias times weight, sum, joined rows and rounding move 28 bytes forward and 40 back; two clamps
and their joined halves 16 and 20."""


@dataclass(frozen=True)
class BlockTimes:
    """Times of one block for one micro-batch on one GPU."""

    products: Pass
    """Matrix products."""
    scores: Pass
    """Scores, softmax and weighted values."""
    elementwise: Column
    """Everything else, at the memory's rate, forward; twice that backward."""

    @property
    def forward(self) -> Column:
        """Return the forward pass."""
        return self.products.forward + self.scores.forward + self.elementwise

    @property
    def backward(self) -> Column:
        """Return the backward pass."""
        return self.products.backward + self.scores.backward + 2 * self.elementwise


def block_times(
    work: Workload, plans: Plans, machine: Machine, software: SoftwareSpec, *, sparse: bool | None = None
) -> BlockTimes:
    """Return the times of one block for one micro-batch; the one with experts where the model has them."""
    return times_of_block(work, plans, KernelTimes(machine, software), sparse=sparse)


def times_of_block(work: Workload, plans: Plans, kernels: KernelTimes, *, sparse: bool | None = None) -> BlockTimes:
    """Return the times of one block for one micro-batch; `sparse` says whether it is one with experts."""
    model, software = work.model, kernels.software
    sparse = model.experts > 1 if sparse is None else sparse
    tokens = plans.micro * work.length / plans.cp
    products = Pass(np.zeros_like(tokens), np.zeros_like(tokens))
    for inputs, outputs, cut_inputs, cut_outputs in model.attention_matrices:
        k = inputs / (plans.tp if cut_inputs else 1.0) + 0.0 * tokens
        n = outputs / (plans.tp if cut_outputs else 1.0) + 0.0 * tokens
        products += kernels.product(tokens, n, k)
    feed, activation = _feed(work, plans, kernels, sparse=sparse)
    split = plans.tp if software.sequence_parallel else np.ones_like(plans.tp)
    residual = (22 if software.dropout else 20) * model.width / split
    query = model.heads * model.query_width / plans.tp
    keys = np.ceil(model.kv_heads / plans.tp) * model.head_width
    rotary = 4 * (query + keys) if software.flash else 0.0
    elementwise = kernels.elementwise(tokens * (residual + activation + rotary)) + kernels.rows(tokens / split)
    return BlockTimes(products + feed, _attention(work, plans, kernels), elementwise)


def _feed(work: Workload, plans: Plans, kernels: KernelTimes, *, sparse: bool) -> tuple[Pass, Column]:
    """Return the products of a feed-forward block, and the bytes of its activation for each token."""
    model, software = work.model, kernels.software
    tokens = plans.micro * work.length / plans.cp
    width = np.full_like(tokens, model.width)
    ways = 3 if model.gated else 2

    def pair(m: Column, inner: Column, count: Column | float = 1.0) -> Pass:
        up = kernels.product(m, (ways - 1) * inner, width, count=count)
        return up + kernels.product(m, width, inner, count=count)

    if not sparse:
        inner = (model.ffn if model.experts == 1 else model.dense_ffn) / plans.tp
        return pair(tokens, inner), 2 * ways * inner
    local = model.experts / plans.ep
    # The busiest rank's tokens, where some experts are asked for more often.
    split, cut = (plans.tp, 1.0) if software.fold else (1.0, plans.tp)
    each = tokens / split * model.top_k / local * (1 + software.imbalance)
    found = pair(each, model.ffn / cut + 0.0 * tokens, local)
    activation = 2 * ways * model.ffn * model.top_k / plans.tp + _PERMUTED_BYTES * model.top_k * model.width / split
    if not software.fused_experts:
        activation = activation + _BIASED_BYTES * model.top_k * model.width / split * model.expert_biases
        activation = activation + _CLAMPED_BYTES * model.top_k * model.ffn / plans.tp * model.clamped
    if model.shared:
        found += pair(tokens, model.shared / plans.tp)
        activation = activation + 2 * ways * model.shared / plans.tp
    found += kernels.product(tokens / split, np.full_like(tokens, model.experts), width, usual=True)
    return found, activation


def _attention(work: Workload, plans: Plans, kernels: KernelTimes) -> Pass:
    """Return the times of scores, softmax and weighted values."""
    model = work.model
    tokens = plans.micro * work.length / plans.cp
    heads = model.heads / plans.tp
    if kernels.software.flash:
        # A causal kernel does half of the pairs.
        operations = tokens * work.length * heads * (model.query_width + model.value_width)
        return kernels.attention(operations * model.seen(work.length), work.length, model.value_width)
    length = np.full_like(tokens, float(work.length))
    side = np.full_like(tokens, float(model.head_width))
    count = plans.micro * heads / plans.cp
    scores = kernels.product(length, length, side, count=count, usual=True)
    values = kernels.product(length, side, length, count=count, usual=True)
    softmax = kernels.elementwise((9 if kernels.software.dropout else 4) * tokens * heads * work.length)
    forward = scores.forward + values.forward + softmax
    return Pass(forward, 2 * forward)


def head_time(work: Workload, plans: Plans, kernels: KernelTimes) -> Column:
    """Return the time of the output matrix and the loss, both passes, for one micro-batch; once for each module."""
    tokens = plans.micro * work.length / plans.cp
    columns = work.model.vocabulary / plans.tp
    width = np.full_like(tokens, float(work.model.width))
    each = _FUSED_LOSS_BYTES if kernels.software.fused_loss else _LOSS_BYTES
    loss = kernels.traffic(each * tokens * columns / kernels.machine.efficiency.elementwise)
    output = kernels.product(tokens, columns, width, usual=True)
    once = output.forward + output.backward + 3 * kernels.rows(tokens) + loss
    if not work.model.mtp:
        return once
    joined = kernels.product(tokens, width, 2 * width)
    return once + work.model.mtp * (once + joined.forward + joined.backward)


def stage_layers(layers: int, plans: Plans) -> tuple[Column, Column]:
    """Return the blocks of a middle stage and of the last one.

    One or two that lack are taken off the ends, as Llama 3 does; more off the last stage, which has the output, as
    Megatron's layouts of DeepSeek-V3 do (61 blocks and a further module: 4 to each of 15 stages, and 1).
    """
    middle = np.ceil(layers / plans.pp)
    lacking = middle * plans.pp - layers
    return middle, np.maximum(0.0, middle - np.where(lacking > 2, lacking, np.minimum(lacking, 1.0)))  # noqa: PLR2004


def stage_blocks(model: Dimensions, plans: Plans, stage: Stage) -> tuple[Column, Column]:
    """Return how many blocks without and with experts a stage has, further modules among them."""
    middle, end = stage_layers(model.layers, plans)
    total = np.full_like(middle, float(model.layers))
    count = middle if stage == "middle" else np.where(plans.pp == 1, total, end)
    if stage == "first":
        lacking = middle * plans.pp - model.layers
        count = np.where(plans.pp == 1, total, np.where(lacking == 2, middle - 1, middle))  # noqa: PLR2004
    if model.experts == 1:
        return count + (model.mtp if stage == "last" else 0), np.zeros_like(count)
    if stage == "first":
        dense = np.minimum(model.dense_layers, count)
    elif stage == "last":
        dense = np.maximum(0.0, model.dense_layers - (model.layers - count))
    else:
        dense = np.zeros_like(count)
    return dense, count - dense + (model.mtp if stage == "last" else 0)


def stage_parameters(model: Dimensions, plans: Plans, software: SoftwareSpec | None = None) -> Column:
    """Return the parameters that one GPU of the fullest stage holds before any sharding over data-parallel ranks."""
    shared, experts = fullest_stage(model, plans, software)
    return shared + experts


def fullest_stage(model: Dimensions, plans: Plans, software: SoftwareSpec | None = None) -> tuple[Column, Column]:
    """Return the same apart: parameters that every data-parallel rank has too, and experts'."""
    ends: tuple[Stage, ...] = ("first", "last", "middle")
    fold = software is not None and software.fold
    shared, experts = held_parameters(model, plans, "first", fold=fold)
    for stage in ends[1:]:
        others = held_parameters(model, plans, stage, fold=fold)
        fuller = (sum(others) > shared + experts) & ((stage == "last") | (plans.pp > len(ends) - 1))
        shared, experts = np.where(fuller, others[0], shared), np.where(fuller, others[1], experts)
    return shared, experts


def expert_copies(plans: Plans, ranks: Column, software: SoftwareSpec) -> Column:
    """Return how many of `ranks` data-parallel ranks have the same experts; folded, a stage's others count too."""
    return np.maximum(1.0, ranks / plans.ep * (plans.tp if software.fold else 1.0))


def held_parameters(model: Dimensions, plans: Plans, stage: Stage, *, fold: bool) -> tuple[Column, Column]:
    """Return a GPU's parameters in a stage: those that every data-parallel rank has too, and experts'."""
    dense, sparse = stage_blocks(model, plans, stage)
    router = model.width * model.experts if model.experts > 1 else 0
    attention: Column = np.zeros_like(plans.tp)
    for inputs, outputs, cut_inputs, cut_outputs in model.attention_matrices:
        attention = attention + inputs * outputs / (plans.tp if cut_inputs or cut_outputs else 1.0)
    feed = model.feed_of(model.ffn if model.experts == 1 else model.dense_ffn) / plans.tp
    norms = 2 * model.width
    shared = dense * (attention + feed + norms)
    shared = shared + sparse * (attention + model.feed_of(model.shared) / plans.tp + router + norms)
    table = model.vocabulary * model.width / plans.tp
    if stage == "first":
        shared = shared + table + np.where((plans.pp == 1) & (not model.tied), table, 0.0)
        shared = shared + np.where(plans.pp == 1, model.mtp * 2 * model.width**2, 0.0)
    elif stage == "last":
        first = np.where((plans.pp == 1) & (not model.tied), 2 * table, table)
        shared = shared + first + model.mtp * 2 * model.width**2
    if model.experts == 1:
        return shared, np.zeros_like(shared)
    return shared, sparse * model.experts * model.feed_parameters / plans.ep / (1.0 if fold else plans.tp)
