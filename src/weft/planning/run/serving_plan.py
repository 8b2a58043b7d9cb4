"""A served model with prefill and decode on GPUs of their own: replicas, batches and the split that meet two targets.

Prefill is a forward pass of measured kernels; a decode step reads the weights that its tokens meet and all keys and
values. A replica stays in one scale-up domain: tensor-parallel attention, experts over all of its GPUs. Waiting is that
of a queue with arrivals by chance and equal service (M/D/1) at a given load. `inference` has the plain figures of one
replica that does both.
"""

import math
from dataclasses import dataclass

import numpy as np

from weft.collectives.costs import best_half
from weft.planning.cost_model.blocks import block_times
from weft.planning.cost_model.exchange import expert_traffic, tensor_traffic
from weft.planning.cost_model.machine import Machine
from weft.planning.cost_model.plans import Dimensions, Workload, one_plan
from weft.planning.run.inference import ServedPrecision, active_bytes, kv_bytes_per_token, value_bytes
from weft.specs.software import SoftwareSpec

LOAD = 0.7
"""Share of the time for which a replica works; the rest absorbs bursts."""
_KERNELS, _EXPERT_KERNELS = 8, 14
"""Kernels of one block in a decode step, without and with experts."""
_LARGEST_BATCH = 1 << 16


@dataclass(frozen=True)
class ServingRequest:
    """What is asked of a served model."""

    prompt: int
    """Tokens of a prompt."""
    output: int
    """Tokens of an answer."""
    ttft_s: float
    """Longest time to the first token, on average."""
    tpot_s: float
    """Longest time between two tokens."""
    precision: ServedPrecision = "bf16"
    """Arithmetic of the products."""
    kv_precision: ServedPrecision = "bf16"
    """What keys and values are kept in."""


@dataclass(frozen=True)
class ServingPool:
    """Replicas of one kind."""

    gpus: int
    """GPUs of a replica."""
    tp: int
    """Tensor-parallel ranks of attention."""
    ep: int
    """Ranks that experts are spread over."""
    batch: int
    """Sequences that a replica works on at once."""
    seconds: float
    """Time of a prompt, or of a token for the whole batch."""
    gpu_seconds: float
    """GPU time of one request, idle time at the load included."""


@dataclass(frozen=True)
class ServingPlan:
    """How a model is served."""

    prefill: ServingPool
    """Replicas that read prompts."""
    decode: ServingPool
    """Replicas that write answers."""
    transfer_s: float
    """Time in which a prompt's keys and values go from one to the other over the fabric."""
    ttft_s: float
    """Time to the first token, on average: waiting, prefill, transfer and one decode step."""
    tpot_s: float
    """Time between two tokens."""
    prefill_share: float
    """Share of GPUs that prefill takes."""
    kv_bytes_per_token: int
    """Keys and values of a token."""
    requests_per_s_per_gpu: float
    """Requests that a GPU of the whole serves in a second."""
    tokens_per_s_per_gpu: float
    """Tokens that it writes in a second."""

    def gpus_for(self, requests_per_s: float) -> tuple[int, int]:
        """Return the GPUs for prefill and for decode, in whole replicas, that serve so many requests."""
        pools = (self.prefill, self.decode)
        prefill, decode = (
            pool.gpus * max(1, int(np.ceil(requests_per_s * pool.gpu_seconds / pool.gpus - 1e-9))) for pool in pools
        )
        return prefill, decode


def serving_plan(model: Dimensions, machine: Machine, asked: ServingRequest) -> ServingPlan | str:
    """Return the plan that serves most requests for a GPU within both targets, or a sentence on what is in the way."""
    prefills = [found for shape in _shapes(model, machine) if (found := _prefill(model, machine, asked, *shape))]
    if not prefills:
        return f"no scale-up domain of {machine.domain_gpus} GPUs holds the weights in {asked.precision}"
    decodes = [found for shape in _shapes(model, machine) if (found := _decode(model, machine, asked, *shape))]
    if not decodes:
        fitting = [shape for shape in _shapes(model, machine) if _room(model, machine, asked, *shape) > 0]
        least = min(decode_s(model, machine, asked, shape, 1) for shape in fitting)
        return f"a token takes {1e3 * least:.3g} ms even with one sequence at a time; ask for a TPOT of no less"
    decode = min(decodes, key=lambda each: each.gpu_seconds)
    kept = kv_bytes_per_token(model, asked.kv_precision)
    # Every GPU of a replica sends its part over its own NIC.
    rate = machine.nic_rate or math.inf
    transfers = {each.gpus: asked.prompt * kept / (rate * each.gpus) + machine.fabric_latency_s for each in prefills}
    waits = LOAD / (2 * (1 - LOAD))

    def first_token(pool: ServingPool) -> float:
        return pool.seconds * (1 + waits) + transfers[pool.gpus] + decode.seconds

    quick = [each for each in prefills if first_token(each) <= asked.ttft_s]
    if not quick:
        least = min(first_token(each) for each in prefills)
        return f"a first token takes {1e3 * least:.3g} ms at best; ask for a TTFT of no less, or for shorter prompts"
    prefill = min(quick, key=lambda each: (each.gpu_seconds, each.gpus))
    both = prefill.gpu_seconds + decode.gpu_seconds
    return ServingPlan(
        prefill=prefill,
        decode=decode,
        transfer_s=transfers[prefill.gpus],
        ttft_s=first_token(prefill),
        tpot_s=decode.seconds,
        prefill_share=prefill.gpu_seconds / both,
        kv_bytes_per_token=kept,
        requests_per_s_per_gpu=1 / both,
        tokens_per_s_per_gpu=asked.output / both,
    )


def _shapes(model: Dimensions, machine: Machine) -> list[tuple[int, int]]:
    """Return GPUs and tensor-parallel ranks of every replica that a domain holds."""
    sizes = [2**power for power in range(machine.domain_gpus.bit_length()) if 2**power <= machine.domain_gpus]
    if model.experts == 1:
        return [(size, size) for size in sizes if model.heads % size == 0]
    return [(size, tp) for size in sizes if model.experts % size == 0 for tp in sizes if size % tp == 0
            and model.heads % tp == 0]  # fmt: skip


def _room(model: Dimensions, machine: Machine, asked: ServingRequest, gpus: int, tp: int) -> float:
    """Return the bytes of each GPU that its part of the weights leaves."""
    experts = (model.layers - model.dense_layers) * model.experts * model.feed_parameters if model.experts > 1 else 0
    held = (model.total_parameters - experts) / tp + experts / gpus
    return machine.memory_bytes - held * value_bytes(asked.precision)


def _prefill(model: Dimensions, machine: Machine, asked: ServingRequest, gpus: int, tp: int) -> ServingPool | None:
    """Return a replica that reads one prompt for each of its attention groups at a time; none where it does not fit."""
    groups = gpus // tp
    kept = asked.prompt * kv_bytes_per_token(model, asked.kv_precision) / _kv_split(model, tp)
    if _room(model, machine, asked, gpus, tp) < kept:
        return None
    software = SoftwareSpec(
        precision=asked.precision, overlap_tensor=False, overlap_tensor_backward=False, cuda_graphs=True, fold=True,
    )  # fmt: skip
    work = Workload(model, groups, asked.prompt)
    plan = one_plan(dp=groups, tp=tp, ep=gpus if model.experts > 1 else 1)
    total = 0.0
    for sparse, count in ((False, model.dense_layers), (True, model.layers - model.dense_layers)):
        if not count:
            continue
        routed = sparse and model.experts > 1
        block = block_times(work, plan, machine, software, sparse=routed)
        # Traffic is counted for both passes; neither is hidden here, and both take as long.
        sent = tensor_traffic(work, plan, machine, software, block, sparse=routed)
        if routed:
            sent = sent + expert_traffic(work, plan, machine, software, block)
        total += count * float(block.forward[0] + sent[0] / 2)
    return ServingPool(gpus, tp, int(plan.ep[0]), groups, total, gpus * total / groups / LOAD)


def _decode(model: Dimensions, machine: Machine, asked: ServingRequest, gpus: int, tp: int) -> ServingPool | None:
    """Return a replica with as many sequences as its memory and the time for a token allow; none where not even one."""
    length = asked.prompt + asked.output
    each = length * kv_bytes_per_token(model, asked.kv_precision) / _kv_split(model, tp)
    groups = gpus // tp
    most = min(_LARGEST_BATCH, int(_room(model, machine, asked, gpus, tp) // each)) * groups
    batch = 0
    # The time rises with the batch: the largest that is quick enough, bit by bit.
    for bit in reversed(range(most.bit_length())):
        wider = batch + (1 << bit)
        if wider <= most and decode_s(model, machine, asked, (gpus, tp), wider) <= asked.tpot_s:
            batch = wider
    if not batch:
        return None
    seconds = decode_s(model, machine, asked, (gpus, tp), batch)
    return ServingPool(gpus, tp, gpus if model.experts > 1 else 1, batch, seconds,
                       gpus * asked.output * seconds / batch / LOAD)  # fmt: skip


def _kv_split(model: Dimensions, tp: int) -> int:
    """Return over how many ranks a sequence's keys and values are cut: latent ones are not, heads are."""
    return 1 if model.latent else min(tp, model.kv_heads)


def decode_s(model: Dimensions, machine: Machine, asked: ServingRequest, shape: tuple[int, int], batch: int) -> float:
    """Return the time of one token for each of `batch` sequences on a replica of `shape`: GPUs and tensor ranks."""
    gpus, tp = shape
    middle = asked.prompt + asked.output // 2
    own = batch * tp / gpus
    each = value_bytes(asked.precision)
    if model.experts > 1:
        routed = (model.layers - model.dense_layers) * model.experts * model.feed_parameters
        plain = (model.total_parameters - routed) * each
        weights = plain / tp + (active_bytes(model, batch, each) - plain) / gpus
    else:
        weights = model.total_parameters * each / tp
    kept = own * middle * kv_bytes_per_token(model, asked.kv_precision) / _kv_split(model, tp)
    reading = (weights + kept) / machine.memory_rate
    operations = model.flops_per_token(2 * middle, causal=True) / 3 * batch / gpus
    arithmetic = operations / (machine.peak_flops(asked.precision) * machine.efficiency.matmul)
    sparse = model.layers - model.dense_layers if model.experts > 1 else 0
    launches = (model.layers - sparse) * _KERNELS + sparse * _EXPERT_KERNELS
    sent = model.layers * _halves(machine, tp, 2.0 * own * model.width)
    if sparse and gpus > 1:
        values = 2.0 * batch / gpus * model.top_k * model.width * (gpus - 1) / gpus
        sent += sparse * 2 * (machine.domain_latency_s * float(np.log2(gpus)) + values / machine.domain_rate)
    return max(reading, arithmetic) + launches * machine.efficiency.kernel_us * 1e-6 + sent


def _halves(machine: Machine, tp: int, size: float) -> float:
    """Return the time of one block's tensor-parallel all-reduces in a decode step."""
    if tp == 1:
        return 0.0
    return 4 * float(best_half(np.array([float(tp)]), np.array([size]), *machine.near)[0])
