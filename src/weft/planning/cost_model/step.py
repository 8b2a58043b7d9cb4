"""The time of a training step, part by part, for many plans at once.

Compute is a roofline: products at the share of the matrix speed that their shortest side allows, everything else at
the memory's. Communication takes the closed forms of `weft.collectives`, near inside a scale-up domain and far over
the fabric; ranks are placed with the tensor axis innermost, then context, data and pipeline. What software hides behind
compute is taken off; what is left is exposed. Memory is `memory`'s matter, and faults `goodput`'s.
"""

from dataclasses import dataclass, fields, replace

import numpy as np

from weft.collectives.costs import Column, best_half, two_level_half
from weft.planning.cost_model.machine import Machine
from weft.planning.cost_model.plans import FULL, SELECTIVE, SHARD_GRADIENTS, Dimensions, Plans, Practice

_OPTIMIZER_BYTES = 48
"""Memory traffic of AdamW for a parameter: gradient cast, norm and clip (18), then weights and moments (30)."""
_LOSS_BYTES = 44
"""Memory traffic of a softmax cross-entropy in fp32 over half-precision logits, forward and backward, for a logit."""


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
class BlockTimes:
    """Times of one block for one micro-batch on one GPU, forward; products and the rest take twice that backward."""

    products: Column
    """Matrix products."""
    attention: Column
    """Scores, softmax and weighted values."""
    elementwise: Column
    """Everything else, at the memory's rate."""
    attention_backward: Column
    """Attention's backward pass."""

    @property
    def forward(self) -> Column:
        """Return the forward pass."""
        return self.products + self.attention + self.elementwise

    @property
    def backward(self) -> Column:
        """Return the backward pass."""
        return 2 * (self.products + self.elementwise) + self.attention_backward


class _Roofline:
    """Products and memory traffic on one type of GPU."""

    def __init__(self, machine: Machine, practice: Practice) -> None:
        self.machine = machine
        self.value_bytes = practice.value_bytes
        usual = machine.fp32_flops if practice.fp32 else machine.bf16_flops
        self.fused = usual * machine.efficiency.attention
        self.usual = usual * machine.efficiency.matmul
        self.peak = machine.fp8_flops * machine.efficiency.matmul if practice.fp8 else self.usual

    def product(self, m: Column, n: Column, k: Column, *, count: Column | float = 1.0, usual: bool = False) -> Column:
        """Return the time of `count` matrix products (m x k) (k x n); `usual` ones are never in fp8."""
        shortest = np.minimum(np.minimum(m, n), k)
        reached = (self.usual if usual else self.peak) / (1 + self.machine.efficiency.small / shortest)
        arithmetic = 2 * m * n * k / reached
        traffic = self.value_bytes * (m * k + k * n + m * n) / self.machine.memory_rate
        return count * np.maximum(arithmetic, traffic) + self.machine.efficiency.kernel_us * 1e-6

    def traffic(self, amount: Column) -> Column:
        """Return the time that `amount` bytes take to or from memory."""
        return amount / self.machine.memory_rate

    def rows(self, tokens: Column) -> Column:
        """Return the time of one pass over a block's rows, besides their bytes."""
        return tokens * self.machine.efficiency.token_us * 1e-6

    def parameters(self, amount: Column) -> Column:
        """Return the time of `amount` bytes that are moved for each parameter, not for each token."""
        return self.traffic(amount / self.machine.efficiency.update)

    def narrow(self, amount: Column) -> Column:
        """Return the time of what would be `amount` bytes with values of two bytes."""
        return self.traffic(amount * (self.value_bytes / 2) / self.machine.efficiency.elementwise)


def step_times(work: Workload, plans: Plans, machine: Machine, practice: Practice) -> StepTimes:
    """Return where the time of a step goes, for every plan."""
    share = machine.efficiency
    practice = practice if share.overlaps else _nothing_beside(practice)
    roof = _Roofline(machine, practice)
    layer = _layer(work, plans, roof, practice)
    head = _head(work, plans, roof) + _spread(work, plans, roof)
    middle, last = stage_layers(work.model.layers, plans)
    rounds = work.sequences / (plans.dp * plans.micro)

    software = _software(work, plans, roof)
    crowded = np.where(plans.pp > 1, share.crowding, 0.0) * (software / 3 + layer.elementwise)
    forward = layer.forward + software / 3 + crowded
    backward = layer.backward + 2 * (software / 3 + crowded)
    again = _again(layer, plans, practice)
    tensor = _tensor(work, plans, machine, practice, layer)
    context = _context(work, plans, machine, practice, layer)
    expert = _expert(work, plans, machine, practice)
    whole = forward + backward + again + tensor + context + expert
    # The slowest stage sets the pace: a middle one, or the last with the output matrix.
    heavy = np.where(middle * whole >= last * whole + head, middle, last)
    extra = np.where(heavy == middle, np.where(last == middle, head, 0.0), head)

    pipeline = _pipeline(work, plans, machine, practice, rounds) + _slots(work, plans, machine, rounds)
    bubble = _bubble(plans, middle * whole, middle * (layer.products + layer.elementwise))
    data = _data(work, plans, machine, practice, behind=middle * whole, rounds=rounds)
    moved = share.sums_bytes + np.where(plans.zero > SHARD_GRADIENTS, share.shard_bytes, 0.0)
    each = share.micro_us * 1e-6 + roof.parameters(moved * stage_parameters(work.model, plans))
    optimizer = _optimizer(work, plans, roof) + middle * _updates(plans, machine) + share.step_us * 1e-6
    if share.ranks_per_core > 1:
        # Stages share processors: what counts is the work of all, and a bubble is what nobody fills.
        slowest = rounds * (heavy * whole + extra + each) + bubble
        heavy, extra = work.model.layers / plans.pp, head / plans.pp
        bubble = np.maximum(0.0, slowest / share.ranks_per_core - rounds * (heavy * whole + extra + each))
    passes = rounds * heavy
    compute = passes * (forward + backward) + rounds * (extra + each)
    busy = compute + passes * (again + tensor + context + expert) + bubble
    tail = practice.straggler * np.sqrt(2 * np.log(np.maximum(plans.ranks, 1.0)))
    return StepTimes(
        compute_s=compute,
        recompute_s=passes * again,
        tensor_s=passes * tensor,
        context_s=passes * context,
        expert_s=passes * expert,
        pipeline_s=pipeline,
        bubble_s=bubble,
        data_s=data,
        optimizer_s=optimizer,
        straggler_s=tail * busy,
        forward_s=middle * (forward + tensor / 3 + context / 3 + expert / 2),
        backward_s=middle * (backward + again + 2 * tensor / 3 + 2 * context / 3 + expert / 2),
    )


def _nothing_beside(practice: Practice) -> Practice:
    """Return the habits where communication takes the processor from compute: there is nothing to hide behind."""
    return replace(
        practice, overlap_tensor=False, overlap_tensor_backward=False, overlap_context=False, overlap_data=False,
        overlap_pipeline=False,
    )  # fmt: skip


def _software(work: Workload, plans: Plans, roof: _Roofline) -> Column:
    """Return the software's own time for one block and micro-batch."""
    return roof.machine.efficiency.block_us * 1e-6 + _spread(work, plans, roof)


def _spread(work: Workload, plans: Plans, roof: _Roofline) -> Column:
    """Return what the software takes longer for cut matrices and shards: of one block, or of embedding and head."""
    share = roof.machine.efficiency
    values = plans.micro * work.length / plans.cp * work.model.width
    cut = np.where(plans.tp > 1, share.tensor_us * 1e-6 + roof.traffic(share.tensor_bytes * values), 0.0)
    return cut + np.where(plans.zero > SHARD_GRADIENTS, share.shard_us, 0.0) * 1e-6


def _updates(plans: Plans, machine: Machine) -> Column:
    """Return the software's own time for one block and step."""
    share = machine.efficiency
    spread = np.where((plans.tp > 1) | (plans.zero > SHARD_GRADIENTS), share.spread_us, 0.0)
    return (share.update_us + spread) * 1e-6


def _slots(work: Workload, plans: Plans, machine: Machine, rounds: Column) -> Column:
    """Return the software's own time for a pipeline: its slots, and one more where both ends share a matrix."""
    slots = rounds + plans.pp - 1 + (1 if work.model.tied else 0)
    return np.where(plans.pp > 1, slots * machine.efficiency.stage_us, 0.0) * 1e-6


def _optimizer(work: Workload, plans: Plans, roof: _Roofline) -> Column:
    """Return the time of the update."""
    parameters = stage_parameters(work.model, plans)
    return roof.parameters(_OPTIMIZER_BYTES * parameters / np.where(plans.zero >= 1, plans.shard, 1.0))


def block_times(work: Workload, plans: Plans, machine: Machine, practice: Practice) -> BlockTimes:
    """Return the times of one block for one micro-batch."""
    return _layer(work, plans, _Roofline(machine, practice), practice)


def stage_parameters(model: Dimensions, plans: Plans) -> Column:
    """Return the parameters that one GPU of the fullest stage holds before any sharding over data-parallel ranks."""
    return shared_parameters(model, plans) + expert_parameters(model, plans)


def shared_parameters(model: Dimensions, plans: Plans) -> Column:
    """Return those of a GPU's parameters that every data-parallel rank has too: all but experts'."""
    dense = model.feed_parameters if model.experts == 1 else 0
    router = model.width * model.experts if model.experts > 1 else 0
    layer = (model.attention_parameters + dense) / plans.tp + router + 2 * model.width
    ends = model.vocabulary * model.width / plans.tp
    ends = np.where((plans.pp == 1) & (not model.tied), 2 * ends, ends)
    return stage_layers(model.layers, plans)[0] * layer + ends


def expert_parameters(model: Dimensions, plans: Plans) -> Column:
    """Return those of a GPU's parameters that are experts'; they are spread over the expert-parallel ranks."""
    if model.experts == 1:
        return np.zeros_like(plans.dp)
    local = model.experts * model.feed_parameters / plans.ep / plans.tp
    return stage_layers(model.layers, plans)[0] * local


def stage_layers(layers: int, plans: Plans) -> tuple[Column, Column]:
    """Return the blocks of a middle stage and of the last one; a rest is taken off the ends, as Llama 3 does."""
    middle = np.ceil(layers / plans.pp)
    return middle, np.where(np.mod(layers, plans.pp) == 0, middle, middle - 1)


def _inside(machine: Machine, stride: Column, size: Column) -> Column:
    """Return how many ranks of a group at `stride` share a scale-up domain, whichever group it is.

    Groups are laid end to end, so where a domain does not hold whole ones some group is cut, and every step waits for
    the one that is cut worst.
    """
    slots = np.where(np.mod(machine.domain_gpus, stride) == 0, machine.domain_gpus // stride, 1.0)
    return np.gcd(slots.astype(np.int64), size.astype(np.int64)).astype(np.float64)


def _layer(work: Workload, plans: Plans, roof: _Roofline, practice: Practice) -> BlockTimes:
    model = work.model
    tokens = plans.micro * work.length / plans.cp
    query = model.heads * model.head_width / plans.tp
    keys = np.ceil(model.kv_heads / plans.tp) * model.head_width
    inner = model.ffn / plans.tp
    width = np.full_like(tokens, model.width)
    ways = 3 if model.gated else 2
    local = model.experts / plans.ep
    # The busiest rank's tokens, where some experts are asked for more often.
    each = tokens * model.top_k / local * (1 + (practice.imbalance if model.experts > 1 else 0.0))
    products = roof.product(tokens, query + 2 * keys, width) + roof.product(tokens, width, query)
    products += roof.product(each, (ways - 1) * inner, width, count=local)
    products += roof.product(each, width, inner, count=local)
    attention, attention_backward = _attention(work, plans, roof, practice)

    split = plans.tp if practice.sequence_parallel else np.ones_like(plans.tp)
    residual = (22 if practice.dropout else 20) * model.width / split
    activation = 2 * ways * inner * model.top_k
    rotary = 4 * (query + keys) if practice.flash else 0.0
    elementwise = roof.narrow(tokens * (residual + activation + rotary)) + roof.rows(tokens / split)
    return BlockTimes(products, attention, elementwise, attention_backward)


def _attention(work: Workload, plans: Plans, roof: _Roofline, practice: Practice) -> tuple[Column, Column]:
    """Return the times of scores, softmax and weighted values, forward and backward."""
    model = work.model
    tokens = plans.micro * work.length / plans.cp
    heads = model.heads / plans.tp
    if practice.flash:
        # A causal kernel does half of the pairs; its backward pass has five products for the forward's two.
        operations = 2 * tokens * work.length * heads * model.head_width
        forward = operations / roof.fused
        return forward, 2.5 * forward
    length = np.full_like(tokens, float(work.length))
    side = np.full_like(tokens, float(model.head_width))
    count = plans.micro * heads / plans.cp
    products = roof.product(length, length, side, count=count, usual=True)
    products += roof.product(length, side, length, count=count, usual=True)
    softmax = roof.narrow((9 if practice.dropout else 4) * tokens * heads * work.length)
    return products + softmax, 2 * (products + softmax)


def _head(work: Workload, plans: Plans, roof: _Roofline) -> Column:
    """Return the time of the output matrix and the loss, both passes, for one micro-batch."""
    tokens = plans.micro * work.length / plans.cp
    columns = work.model.vocabulary / plans.tp
    width = np.full_like(tokens, float(work.model.width))
    loss = roof.traffic(_LOSS_BYTES * tokens * columns / roof.machine.efficiency.elementwise)
    return 3 * (roof.product(tokens, columns, width, usual=True) + roof.rows(tokens)) + loss


def _again(layer: BlockTimes, plans: Plans, practice: Practice) -> Column:
    """Return the time that one block computes again in the backward pass.

    Selective recomputation does attention again where its scores would be kept (arXiv 2205.05198, section 5); a fused
    kernel keeps none, and what is then worth doing again is element-wise: norms and the feed-forward's activation.
    """
    full = layer.forward
    cheap = layer.elementwise if practice.flash else layer.attention
    return np.where(plans.recompute == FULL, full, np.where(plans.recompute == SELECTIVE, cheap, 0.0))


def _tensor(work: Workload, plans: Plans, machine: Machine, practice: Practice, layer: BlockTimes) -> Column:
    """Return the exposed tensor-parallel communication of one block: forward, backward and recomputation."""
    size = plans.micro * work.length / plans.cp * work.model.width * practice.value_bytes
    inner = _inside(machine, np.ones_like(plans.tp), plans.tp)
    # Two all-reduces, or two all-gathers and two reduce-scatters: the same four halves.
    one_pass = 4 * two_level_half(inner, plans.tp / inner, size, machine.near, machine.far(size))
    forward, backward = one_pass, one_pass
    if practice.overlap_tensor:
        # Pieces of a collective run under pieces of the product beside it; the first piece has nothing to hide behind.
        first = one_pass / plans.tp
        forward = first + np.maximum(0.0, one_pass - first - layer.products)
        backward = first + np.maximum(0.0, one_pass - first - 2 * layer.products)
    elif practice.overlap_tensor_backward:
        # With sequence parallelism only what a product waits for is left: half of the halves.
        waited = one_pass / 2 if practice.sequence_parallel else 0.0 * one_pass
        backward = waited + np.maximum(0.0, one_pass - waited - layer.products)
    return np.where(plans.tp > 1, forward * np.where(plans.recompute == FULL, 2, 1) + backward, 0.0)


def _context(work: Workload, plans: Plans, machine: Machine, practice: Practice, layer: BlockTimes) -> Column:
    """Return the exposed communication of keys and values of one block, both passes."""
    model = work.model
    keys = 2 * np.ceil(model.kv_heads / plans.tp) * model.head_width
    size = plans.micro * work.length * keys * practice.value_bytes
    inner = _inside(machine, plans.tp, plans.cp)
    half = two_level_half(inner, plans.cp / inner, size, machine.near, machine.far(size))
    if practice.overlap_context:
        first = half / plans.cp
        forward = first + np.maximum(0.0, half - first - layer.attention)
        backward = 2 * first + np.maximum(0.0, 2 * (half - first) - layer.attention_backward)
    else:
        forward, backward = half, 2 * half
    return np.where(plans.cp > 1, forward * np.where(plans.recompute == FULL, 2, 1) + backward, 0.0)


def _expert(work: Workload, plans: Plans, machine: Machine, practice: Practice) -> Column:
    """Return the exchanges of one block: tokens to their experts and back, in both passes."""
    model = work.model
    if model.experts == 1:
        return np.zeros_like(plans.dp)
    size = plans.micro * work.length / plans.cp * model.top_k * model.width * practice.value_bytes / plans.tp
    inner = _inside(machine, plans.tp * plans.cp, plans.ep)
    near = (inner - 1) / plans.ep * size / machine.domain_rate + (inner - 1) * machine.domain_latency_s
    away = plans.ep - inner
    # Messages to other domains are posted together, so their latencies overlap.
    far = away / plans.ep * size / machine.far_rate(size) + np.where(away > 0, machine.fabric_latency_s, 0.0)
    passes = 4 + 2 * (plans.recompute == FULL)
    return np.where(plans.ep > 1, passes * (near + far), 0.0)


def _pipeline(work: Workload, plans: Plans, machine: Machine, practice: Practice, rounds: Column) -> Column:
    """Return the exposed sends between stages over a step."""
    size = plans.micro * work.length / plans.cp * work.model.width * practice.value_bytes / plans.tp
    send = machine.fabric_latency_s + size / machine.far_rate(size)
    # Without sequence parallelism a stage sends a part from each tensor-parallel rank and puts them together again.
    if not practice.sequence_parallel:
        send = send + best_half(plans.tp, size * plans.tp, machine.domain_latency_s, machine.domain_rate)
    waited = 2 * (plans.pp - 1) if practice.overlap_pipeline else 2 * (rounds * plans.chunks + plans.pp - 1)
    return np.where(plans.pp > 1, waited * send, 0.0)


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


def _data(
    work: Workload, plans: Plans, machine: Machine, practice: Practice, *, behind: Column, rounds: Column
) -> Column:
    """Return the exposed communication of gradients and weights of a step; `behind` is a micro-batch's time."""
    # Experts are reduced over fewer ranks; the time is about that of their bytes, as rings are long.
    parameters = stage_parameters(work.model, plans)
    group = plans.dp * plans.cp
    inner = np.clip(np.floor(machine.domain_gpus / plans.tp), 1, group)
    shard_inner = np.minimum(inner, plans.shard)

    def over(group_inner: Column, ranks: Column, size: Column) -> Column:
        far = machine.far(size / group_inner)
        return two_level_half(group_inner, np.ceil(ranks / group_inner), size, machine.near, far)

    gradients = over(inner, group, parameters * practice.gradient_bytes)
    weights = over(shard_inner, plans.shard, parameters * practice.value_bytes)
    # Sharded gradients leave after each micro-batch; fully sharded weights are gathered for each, in both passes.
    # Hybrid sharding reduces what its groups have summed over their copies once more.
    scattered = over(shard_inner, plans.shard, parameters * practice.gradient_bytes)
    copies = group / plans.shard
    across = over(np.ones_like(copies), copies, 2 * parameters / plans.shard * practice.gradient_bytes)
    volumes = [2 * gradients, gradients + weights, rounds * scattered + weights, rounds * (2 * weights + scattered)]
    total = np.choose(plans.zero.astype(np.int64), volumes) + np.where(copies > 1, across, 0.0)
    if practice.overlap_data:
        # What is done for each micro-batch hides behind each one's compute; the rest behind the last one's.
        times = np.where(plans.zero >= SHARD_GRADIENTS, rounds, 1.0)
        first = total / times / stage_layers(work.model.layers, plans)[0]
        total = first + np.maximum(0.0, total - first - times * behind)
    return np.where(group > 1, total, 0.0)
