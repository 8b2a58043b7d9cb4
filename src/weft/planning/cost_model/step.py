"""The time of a training step, part by part, for many plans at once.

Compute comes from `blocks`, traffic from `exchange`; here they become stages, rounds of micro-batches, bubbles and the
update. The slowest stage sets the pace. Ranks are placed with the tensor axis innermost, then context, data and
pipeline. Memory is `memory`'s matter, and faults `goodput`'s.
"""

from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import NDArray

from weft.collectives.costs import Column
from weft.planning.cost_model.blocks import (
    BlockTimes,
    Stage,
    expert_copies,
    fullest_stage,
    head_time,
    stage_blocks,
    stage_layers,
    stage_parameters,
    times_of_block,
)
from weft.planning.cost_model.exchange import (
    context_traffic,
    data_traffic,
    expert_traffic,
    pipeline_traffic,
    tensor_traffic,
)
from weft.planning.cost_model.kernels import KernelTimes
from weft.planning.cost_model.machine import Machine
from weft.planning.cost_model.plans import FULL, SELECTIVE, SHARD_GRADIENTS, SHARD_OPTIMIZER, Plans, Workload
from weft.specs.software import SoftwareSpec

_OPTIMIZER_BYTES = 48
"""Memory traffic of AdamW for a parameter: gradient cast, norm and clip (18), then weights and moments (30)."""


@dataclass(frozen=True)
class StepTimes:
    """Where the time of a step goes, in seconds: columns over plans."""

    compute_s: Column
    """Products and element-wise work of the slowest stage."""
    recompute_s: Column
    """The same, done again to save memory."""
    tensor_s: Column
    """Exposed tensor-parallel communication."""
    context_s: Column
    """Exposed context-parallel communication."""
    expert_s: Column
    """Exposed all-to-all of experts."""
    pipeline_s: Column
    """Exposed sends between stages."""
    bubble_s: Column
    """Stages waiting for the pipeline to fill and drain."""
    data_s: Column
    """Exposed reduction of gradients and gathering of weights."""
    optimizer_s: Column
    """The update, and the software's own time for a step."""
    straggler_s: Column
    """Waiting for the slowest rank."""
    forward_s: Column
    """Forward time of one micro-batch through one stage, for the timeline."""
    backward_s: Column
    """Backward time of one micro-batch through one stage, for the timeline."""

    @property
    def step_s(self) -> Column:
        """Return the time of the whole step."""
        parts = [getattr(self, each.name) for each in fields(self) if each.name not in ("forward_s", "backward_s")]
        return np.sum(parts, axis=0)

    @property
    def network_s(self) -> Column:
        """Return all exposed communication."""
        return self.tensor_s + self.context_s + self.expert_s + self.pipeline_s + self.data_s


@dataclass(frozen=True)
class _Costs:
    """What one block, or a stage of them, costs for one micro-batch."""

    forward: Column
    backward: Column
    again: Column
    tensor: Column
    context: Column
    expert: Column

    @property
    def whole(self) -> Column:
        """Return all of it."""
        return self.forward + self.backward + self.again + self.tensor + self.context + self.expert

    def times(self, count: Column) -> "_Costs":
        """Return the costs of `count` of them."""
        return _Costs(**{each.name: count * getattr(self, each.name) for each in fields(self)})

    def plus(self, other: "_Costs") -> "_Costs":
        """Return the costs of both."""
        return _Costs(**{each.name: getattr(self, each.name) + getattr(other, each.name) for each in fields(self)})

    def where(self, mask: NDArray[np.bool], other: "_Costs") -> "_Costs":
        """Return these costs where `mask` holds, the others elsewhere."""
        return _Costs(
            **{each.name: np.where(mask, getattr(self, each.name), getattr(other, each.name)) for each in fields(self)}
        )


def step_times(work: Workload, plans: Plans, machine: Machine, software: SoftwareSpec) -> StepTimes:
    """Return where the time of a step goes, for every plan."""
    share = machine.efficiency
    software = software if share.overlaps else _nothing_beside(software)
    kernels = KernelTimes(machine, software)
    rounds = work.sequences / (plans.dp * plans.micro)
    sparse = _block(work, plans, kernels, sparse=work.model.experts > 1)
    dense = _block(work, plans, kernels, sparse=False) if work.model.dense_layers else sparse

    def stage(place: Stage) -> _Costs:
        plain, routed = stage_blocks(work.model, plans, place)
        return dense[0].times(plain).plus(sparse[0].times(routed))

    head = head_time(work, plans, kernels) + _spread(work, plans, kernels)
    # The slowest stage sets the pace: one without an end, or the last with the output matrix.
    middle, last = stage("middle").where(plans.pp > 2, stage("first")), stage("last")  # noqa: PLR2004
    longer = middle.whole >= last.whole + head
    heavy = middle.where(longer, last)
    extra = np.where(longer & (plans.pp > 1), 0.0, head)

    layers = stage_layers(work.model.layers, plans)[0]
    late = layers * (sparse[1].products.forward + sparse[1].elementwise)
    pipeline = pipeline_traffic(work, plans, machine, software, rounds) + _slots(work, plans, machine, rounds)
    bubble = _bubble(plans, middle.whole, late)
    data = data_traffic(work, plans, machine, software, behind=middle.whole, rounds=rounds)
    parameters = stage_parameters(work.model, plans, software)
    moved = share.sums_bytes + np.where(plans.zero > SHARD_GRADIENTS, share.shard_bytes, 0.0)
    each = share.micro_us * 1e-6 + kernels.parameters(moved * parameters)
    optimizer = kernels.parameters(_OPTIMIZER_BYTES * _updated(work, plans, software))
    optimizer = optimizer + layers * _updates(plans, machine) + share.step_us * 1e-6
    if share.ranks_per_core > 1:
        # Stages share processors: what counts is the work of all, and a bubble is what nobody fills.
        slowest = rounds * (heavy.whole + extra + each) + bubble
        heavy, extra = dense[0].times(np.full_like(layers, work.model.layers) / plans.pp), head / plans.pp
        bubble = np.maximum(0.0, slowest / share.ranks_per_core - rounds * (heavy.whole + extra + each))
    compute = rounds * (heavy.forward + heavy.backward + extra + each)
    busy = rounds * (heavy.whole + extra + each) + bubble
    return StepTimes(
        compute_s=compute,
        recompute_s=rounds * heavy.again,
        tensor_s=rounds * heavy.tensor,
        context_s=rounds * heavy.context,
        expert_s=rounds * heavy.expert,
        pipeline_s=pipeline,
        bubble_s=bubble,
        data_s=data,
        optimizer_s=optimizer,
        straggler_s=software.jitter * np.log(np.maximum(plans.ranks, 1.0)) * busy if share.overlaps else 0.0 * busy,
        forward_s=middle.forward + (middle.tensor + middle.context) / 3 + middle.expert / 2,
        backward_s=middle.backward + middle.again + 2 * (middle.tensor + middle.context) / 3 + middle.expert / 2,
    )


def _block(work: Workload, plans: Plans, kernels: KernelTimes, *, sparse: bool) -> tuple[_Costs, BlockTimes]:
    """Return what a block of one sort costs, and the times that it is made of."""
    machine, software = kernels.machine, kernels.software
    block = times_of_block(work, plans, kernels, sparse=sparse)
    own = _software(work, plans, kernels)
    crowded = np.where(plans.pp > 1, machine.efficiency.crowding, 0.0) * (own / 3 + block.elementwise)
    none = np.zeros_like(block.elementwise)
    tensor = tensor_traffic(work, plans, machine, software, block, sparse=sparse)
    context = context_traffic(work, plans, machine, software, block)
    expert = expert_traffic(work, plans, machine, software, block) if sparse else none
    # Kernels and exchanges are launched ahead of the GPU; it waits where they take less than that.
    busy = block.forward + block.backward + tensor + context + expert
    idle = np.maximum(0.0, _launching(work, software, sparse=sparse) - busy) / 3
    return _Costs(
        forward=block.forward + own / 3 + crowded + idle,
        backward=block.backward + 2 * (own / 3 + crowded + idle),
        again=_again(block, plans, software),
        tensor=tensor,
        context=context,
        expert=expert,
    ), block


def _launching(work: Workload, software: SoftwareSpec, *, sparse: bool) -> float:
    """Return the time in which the software launches one block's kernels, both passes."""
    if software.cuda_graphs:
        return 0.0
    more = (software.host_expert_us if sparse else 0.0) + (software.host_latent_us if work.model.latent else 0.0)
    return (software.host_us + more) * 1e-6


def _again(block: BlockTimes, plans: Plans, software: SoftwareSpec) -> Column:
    """Return the time that one block computes again in the backward pass.

    Selective recomputation does attention again where its scores would be kept (arXiv 2205.05198, section 5); a fused
    kernel keeps none, and what is then worth doing again is element-wise: norms and the feed-forward's activation.
    """
    cheap = block.elementwise if software.flash else block.scores.forward
    return np.where(plans.recompute == FULL, block.forward, np.where(plans.recompute == SELECTIVE, cheap, 0.0))


def _nothing_beside(software: SoftwareSpec) -> SoftwareSpec:
    """Return the habits where communication takes the processor from compute: there is nothing to hide behind."""
    names = ("tensor", "tensor_backward", "context", "data", "pipeline", "expert")
    return software.model_copy(update={f"overlap_{name}": False for name in names})


def _software(work: Workload, plans: Plans, kernels: KernelTimes) -> Column:
    """Return the software's own time for one block and micro-batch."""
    return kernels.machine.efficiency.block_us * 1e-6 + _spread(work, plans, kernels)


def _spread(work: Workload, plans: Plans, kernels: KernelTimes) -> Column:
    """Return what the software takes longer for cut matrices and shards: of one block, or of embedding and head."""
    share = kernels.machine.efficiency
    values = plans.micro * work.length / plans.cp * work.model.width
    cut = np.where(plans.tp > 1, share.tensor_us * 1e-6 + kernels.traffic(share.tensor_bytes * values), 0.0)
    return cut + np.where(plans.zero > SHARD_GRADIENTS, share.shard_us, 0.0) * 1e-6


def _updated(work: Workload, plans: Plans, software: SoftwareSpec) -> Column:
    """Return the parameters that one rank updates; experts have fewer copies to share that with."""
    shared, experts = fullest_stage(work.model, plans, software)
    split = plans.zero >= SHARD_OPTIMIZER
    return shared / np.where(split, plans.shard, 1.0) + experts / np.where(
        split, expert_copies(plans, plans.shard, software), 1.0
    )


def _updates(plans: Plans, machine: Machine) -> Column:
    """Return the software's own time for one block and step."""
    share = machine.efficiency
    spread = np.where((plans.tp > 1) | (plans.zero > SHARD_GRADIENTS), share.spread_us, 0.0)
    return (share.update_us + spread) * 1e-6


def _slots(work: Workload, plans: Plans, machine: Machine, rounds: Column) -> Column:
    """Return the software's own time for a pipeline: its slots, and one more where both ends share a matrix."""
    slots = rounds + plans.pp - 1 + (1 if work.model.tied else 0)
    return np.where(plans.pp > 1, slots * machine.efficiency.stage_us, 0.0) * 1e-6


def _bubble(plans: Plans, whole: Column, weights: Column) -> Column:
    """Return the waiting of a stage while the pipeline fills and drains.

    1F1B waits for p - 1 micro-batches, interleaving divides that by the chunks of a stage (arXiv 2104.04473, section
    2.2); zero-bubble H1 fills it with the products for the weights, of which two thirds fit (arXiv 2401.10241, section
    2.1), and ZB-V leaves nothing where forward and backward take equal times.
    """
    plain = (plans.pp - 1) * whole / plans.chunks
    h1 = (plans.pp - 1) * np.maximum(0.0, whole - 2 * weights)
    v_shape = (plans.pp - 1) * np.maximum(0.0, whole - 3 * weights) / 2
    return np.choose(plans.schedule.astype(np.int64), [plain, plain, h1, v_shape])
