"""What a step sends and how much of it shows: tensor, context, expert and pipeline traffic, gradients and weights.

Collectives take the closed forms of `weft.collectives`, near inside a scale-up domain and far over the fabric. What
software hides behind compute is taken off, and costs the compute above it a share of its own time (`software.price`).
"""

import numpy as np

from weft.collectives.costs import Column, best_half
from weft.planning.cost_model.blocks import BlockTimes, expert_copies, fullest_stage, stage_layers
from weft.planning.cost_model.machine import Machine
from weft.planning.cost_model.plans import FULL, SHARD_GRADIENTS, Dimensions, Plans, Workload
from weft.specs.software import SoftwareSpec

_WIDE = 1 << 20


def inside(machine: Machine, stride: Column, size: Column) -> Column:
    """Return how many ranks of a group at `stride` share a scale-up domain, whichever group it is.

    Groups are cut into equal parts, each within a domain: of 72 GPUs a group of 64 uses 64, and the others stand idle
    or go to other groups. So a larger domain is never worse.
    """
    slots = np.clip(machine.domain_gpus // stride, 1, size).astype(np.int64)
    codes, place = np.unique(slots * _WIDE + size.astype(np.int64), return_inverse=True)
    best = [max(q for q in range(1, code // _WIDE + 1) if code % _WIDE % q == 0) for code in codes.tolist()]
    return np.array(best, dtype=np.float64)[place].reshape(np.shape(size))


def half(machine: Machine, inner: Column, outer: Column, size: Column, rate: float = 1.0) -> Column:
    """Return the time of a reduce-scatter or all-gather over `outer` domains of `inner` ranks each.

    Every rank of a domain carries its own part over the fabric, at a share `rate` of what it reaches.
    """
    pieces = np.sqrt(size / machine.domain_rate * machine.pieces_s * machine.efficiency.link)
    near = best_half(inner, size, *machine.near) + np.where(inner > 1, pieces, 0.0)
    latency, speed = machine.far(size / inner)
    return near + best_half(outer, size / inner, latency, speed * rate)


def _shown(total: Column, first: Column, behind: Column, price: float) -> Column:
    """Return what shows of traffic of which `first` hides behind nothing and the rest behind compute."""
    rest = total - first
    return first + np.maximum(0.0, rest - behind) + price * np.minimum(rest, behind)


def tensor_traffic(
    work: Workload, plans: Plans, machine: Machine, software: SoftwareSpec, block: BlockTimes, *, sparse: bool
) -> Column:
    """Return the exposed tensor-parallel communication of one block: forward, backward and recomputation."""
    values = plans.micro * work.length / plans.cp * work.model.width
    inner = inside(machine, np.ones_like(plans.tp), plans.tp)
    # Two all-reduces, or two all-gathers and two reduce-scatters: the same four halves. Folded experts take tokens
    # from their parts of the sequence, and a block whose two sides share an input needs one pair.
    halves = 2 if work.model.parallel or (sparse and software.fold and not work.model.shared) else 4
    gathered, summed = (half(machine, inner, plans.tp / inner, values * size) for size in _sides(software))
    one_pass = halves / 2 * (gathered + summed)
    forward, backward = one_pass, one_pass
    if software.overlap_tensor:
        # Pieces of a collective run under pieces of the product beside it; the first piece has nothing to hide behind.
        first = one_pass / plans.tp
        forward = _shown(one_pass, first, block.products.forward, software.price)
        backward = _shown(one_pass, first, block.products.backward, software.price)
    elif software.overlap_tensor_backward:
        # With sequence parallelism only what a product waits for is left: half of the halves.
        waited = one_pass / 2 if software.sequence_parallel else 0.0 * one_pass
        backward = _shown(one_pass, waited, block.products.backward / 2, software.price)
    return np.where(plans.tp > 1, forward * np.where(plans.recompute == FULL, 2, 1) + backward, 0.0)


def _sides(software: SoftwareSpec) -> tuple[float, float]:
    """Return the bytes of a value that is gathered, and of one that is summed and scattered."""
    # Without sequence parallelism both halves belong to one sum.
    whole = float(software.value_bytes)
    return (software.gathered_bytes if software.sequence_parallel else whole), whole


def context_traffic(
    work: Workload, plans: Plans, machine: Machine, software: SoftwareSpec, block: BlockTimes
) -> Column:
    """Return the exposed communication of keys and values of one block, both passes."""
    model = work.model
    keys = np.ceil(model.kv_heads / plans.tp) * (model.query_width + model.value_width)
    size = plans.micro * work.length * keys * software.value_bytes
    inner = inside(machine, plans.tp, plans.cp)
    once = half(machine, inner, plans.cp / inner, size)
    forward, backward = once, 2 * once
    if software.overlap_context:
        first = once / plans.cp
        forward = _shown(once, first, block.scores.forward, software.price)
        backward = _shown(2 * once, 2 * first, block.scores.backward, software.price)
    return np.where(plans.cp > 1, forward * np.where(plans.recompute == FULL, 2, 1) + backward, 0.0)


def expert_traffic(work: Workload, plans: Plans, machine: Machine, software: SoftwareSpec, block: BlockTimes) -> Column:
    """Return the exposed exchanges of one block: tokens to their experts and back, in both passes."""
    stride = np.ones_like(plans.tp) if software.fold else plans.tp * plans.cp
    inner = inside(machine, stride, plans.ep)
    found = _exchanges(inner, work, plans, machine, software, block=block)
    if software.overlap_far_expert:
        # However well it hides, an exchange over the fabric takes no less than one that shows inside a domain.
        found = np.maximum(found, _exchanges(plans.ep, work, plans, machine, software, block=block))
    return np.where(plans.ep > 1, found, 0.0)


def _exchanges(
    inner: Column, work: Workload, plans: Plans, machine: Machine, software: SoftwareSpec, *, block: BlockTimes
) -> Column:
    """Return the same where `inner` ranks of each group exchange inside their domain, the others over the fabric."""
    model = work.model
    tokens = plans.micro * work.length / plans.cp / (plans.tp if software.fold or software.sequence_parallel else 1.0)
    away = plans.ep - inner
    copies = _crossings(model, software, plans.ep / inner)

    def one_way(each: int) -> Column:
        values = tokens * model.width * each * (1 + software.imbalance)
        sent = values * model.top_k * (inner - 1) / plans.ep
        sent = sent + np.where(away > 0, values * (model.top_k - copies) * away / plans.ep, 0.0)
        pieces = np.sqrt(sent / machine.domain_rate * machine.pieces_s * machine.efficiency.link)
        near = np.where(inner > 1, np.log2(np.maximum(inner, 2)) * machine.domain_latency_s + pieces, 0.0)
        out = values * copies * away / plans.ep
        # Messages to other domains are posted together, so their latencies overlap.
        far = out / machine.far_rate(out) + np.where(away > 0, machine.fabric_latency_s, 0.0)
        return near + sent / machine.domain_rate + far

    out, back = one_way(min(software.dispatch_bytes, software.value_bytes)), one_way(software.value_bytes)
    forward, backward = out + back, 2 * back
    # The exchange of one micro-batch runs under another's compute.
    hidden = (away > 0) if software.overlap_far_expert else np.zeros_like(away, dtype=bool)
    hidden = hidden | software.overlap_expert
    forward = np.where(hidden, _shown(forward, 0.0 * forward, block.forward, software.price), forward)
    backward = np.where(hidden, _shown(backward, 0.0 * backward, block.backward, software.price), backward)
    return forward + backward + np.where(plans.recompute == FULL, forward, 0.0)


def _crossings(model: Dimensions, software: SoftwareSpec, domains: Column) -> Column:
    """Return how often a token is sent to some domain, its own included, where experts are spread over `domains`.

    Sent once for each expert, unless nodes are limited. Deduplicated, once for each domain that any of its experts is
    in: of k experts drawn from all, none is in a certain domain with the chance (1 - 1/domains)^k, or a little less.
    """
    most = float(min(model.top_k, model.nodes) if model.nodes else model.top_k)
    if not software.deduplicate:
        return np.full_like(domains, most)
    return np.minimum(most, domains * (1 - (1 - 1 / domains) ** model.top_k))


def pipeline_traffic(work: Workload, plans: Plans, machine: Machine, software: SoftwareSpec, rounds: Column) -> Column:
    """Return the exposed sends between stages over a step."""
    size = plans.micro * work.length / plans.cp * work.model.width * software.value_bytes / plans.tp
    near = machine.domain_latency_s + size / machine.domain_rate
    far = machine.fabric_latency_s + size / machine.far_rate(size)
    near = np.minimum(near, far)
    # Whole stages stand side by side in a domain, and only those at its edge send to another one.
    stages = np.maximum(1.0, machine.domain_gpus // (plans.ranks / plans.pp))
    crossed = np.ceil(plans.pp / stages) - 1
    inner = plans.pp - 1 - crossed
    # The slowest stage stands at an edge: it sends one way inside and the other way outside, or both where it is alone.
    edge = np.where(crossed == 0, near, np.where(stages > 1, (near + far) / 2, far))
    # Without sequence parallelism a stage sends a part from each tensor-parallel rank and puts them together again.
    joined = 0.0 if software.sequence_parallel else best_half(plans.tp, size * plans.tp, *machine.near)
    fill = inner * near + crossed * far + (plans.pp - 1) * joined
    steady = (edge + joined) * rounds * plans.chunks
    return np.where(plans.pp > 1, 2 * (fill + steady * (software.price if software.overlap_pipeline else 1.0)), 0.0)


def data_traffic(
    work: Workload, plans: Plans, machine: Machine, software: SoftwareSpec, *, behind: Column, rounds: Column
) -> Column:
    """Return the exposed communication of gradients and weights of a step; `behind` is a micro-batch's time."""
    rate = 1 / machine.node_gpus if software.one_nic else 1.0

    def reduced(parameters: Column, stride: Column, group: Column, shard: Column) -> Column:
        """Return the time, hidden or not, in which `group` ranks at `stride` reduce gradients and gather weights."""

        def over(ranks: Column, size: Column, inner: Column | None = None) -> Column:
            inner = inside(machine, stride, ranks) if inner is None else inner
            return half(machine, inner, ranks / inner, size, rate)

        gradients = over(group, parameters * software.gradient_bytes)
        weights = over(shard, parameters * software.value_bytes)
        # Sharded gradients leave after each micro-batch; fully sharded weights are gathered for each, in both passes.
        # Hybrid sharding reduces what its groups have summed over their copies once more.
        scattered = over(shard, parameters * software.gradient_bytes)
        copies = group / shard
        across = over(copies, 2 * parameters / shard * software.gradient_bytes, np.ones_like(copies))
        volumes = [2 * gradients, gradients + weights, rounds * scattered + weights, rounds * (2 * weights + scattered)]
        total = np.choose(plans.zero.astype(np.int64), volumes) + np.where(copies > 1, across, 0.0)
        return np.where(group > 1, total, 0.0)

    shared, experts = fullest_stage(work.model, plans, software)
    group = plans.dp * plans.cp
    total = reduced(shared, plans.tp, group, plans.shard)
    if work.model.experts > 1:
        # Other ranks have the same experts only at every ep-th place, so that fewer of them share a domain.
        copies, sharded = (expert_copies(plans, each, software) for each in (group, plans.shard))
        total = total + reduced(experts, plans.ep if software.fold else plans.ep * plans.tp, copies, sharded)
    if software.overlap_data:
        # What is done for each micro-batch hides behind each one's compute; the rest behind the last one's.
        times = np.where(plans.zero >= SHARD_GRADIENTS, rounds, 1.0)
        first = total / times / stage_layers(work.model.layers, plans)[0]
        total = _shown(total, np.minimum(first, total), times * behind, software.price)
    return total
