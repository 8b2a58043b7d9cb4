"""Serving a model: prefill and decode times, memory of keys and values, tokens per second, from the same arithmetic.

One replica is `tp` GPUs of a scale-up domain. Prefill is a forward pass; a decode step reads every weight and every
kept key and value once and does two operations for each. Queues and arrivals are not modelled.
"""

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np

from weft.collectives.costs import best_half
from weft.planning.cost_model.machine import Machine
from weft.planning.cost_model.plans import Dimensions

ServedPrecision = Literal["bf16", "fp8", "nvfp4"]
"""Arithmetic of a served model's products, and bytes of its keys and values."""
_BYTES = {"bf16": 2.0, "fp8": 1.0, "nvfp4": 0.5625}
"""Bytes of a value; in fp4 sixteen of them share a scale of one byte."""
_KERNELS = 8
"""Kernels of one block in a decode step."""


@dataclass(frozen=True)
class Serving:
    """What one replica of a served model does."""

    tp: int
    """GPUs of the replica."""
    prefill_s: float
    """Time of one prompt."""
    decode_s: float
    """Time of one token for the whole batch."""
    batch: int
    """Sequences decoded together: what memory allows."""
    kv_bytes_per_token: int
    """Keys and values of one token, over all GPUs of the replica."""
    weights_bytes: int
    """Weights, over all GPUs of the replica."""
    tokens_per_s_per_gpu: float
    """Tokens made by one GPU in a second, prefill of the same sequences included."""


def kv_bytes_per_token(model: Dimensions, precision: str = "bf16") -> int:
    """Return the bytes of keys and values that one token leaves behind in blocks that see the whole text.

    Latent attention keeps one narrow vector for all heads. What a block with a window keeps does not grow with the text
    and is not counted.
    """
    each = 2 * model.kv_heads * model.head_width
    if model.latent is not None:
        each = model.latent.kv_rank + model.latent.rope_width
    return round((model.layers - model.windowed) * each * _BYTES[precision])


def value_bytes(precision: str) -> float:
    """Return the bytes of a weight in a precision."""
    return _BYTES[precision]


def serve(
    model: Dimensions, machine: Machine, *, tp: int, prompt: int, output: int, precision: str = "bf16"
) -> Serving | None:
    """Return what a replica of `tp` GPUs does with prompts and answers of these lengths; none where it does not fit."""
    weights = round(model.total_parameters * _BYTES[precision])
    kept = kv_bytes_per_token(model, precision)
    room = machine.memory_bytes * tp - weights
    batch = int(room // (kept * (prompt + output))) if room > 0 else 0
    if batch < 1:
        return None
    peak = machine.peak_flops(precision)
    forward = model.flops_per_token(prompt, causal=True) / 3
    prefill = forward * prompt / (tp * peak * machine.efficiency.matmul) + _reductions(model, machine, tp, prompt)
    middle = prompt + output // 2
    active = active_bytes(model, batch, _BYTES[precision])
    reading = (active + batch * middle * kept) / (tp * machine.memory_rate)
    arithmetic = batch * model.flops_per_token(2 * middle, causal=True) / 3 / (tp * peak * machine.efficiency.matmul)
    kernels = model.layers * _KERNELS * machine.efficiency.kernel_us * 1e-6
    decode = max(reading, arithmetic) + kernels + _reductions(model, machine, tp, batch)
    return Serving(
        tp=tp,
        prefill_s=prefill,
        decode_s=decode,
        batch=batch,
        kv_bytes_per_token=kept,
        weights_bytes=weights,
        tokens_per_s_per_gpu=batch * output / (batch * prefill + output * decode) / tp,
    )


def best_serving(
    model: Dimensions, machine: Machine, *, prompt: int, output: int, precision: str = "bf16"
) -> Serving | None:
    """Return the replica that makes most tokens for a GPU, or none where no scale-up domain holds the model."""
    sizes = [2**power for power in range(machine.domain_gpus.bit_length()) if 2**power <= machine.domain_gpus]
    found = [
        serving
        for tp in sizes
        if model.heads % tp == 0
        and (serving := serve(model, machine, tp=tp, prompt=prompt, output=output, precision=precision)) is not None
    ]
    return max(found, key=lambda each: each.tokens_per_s_per_gpu, default=None)


def active_bytes(model: Dimensions, batch: float, each: float) -> float:
    """Return the bytes of weights that one decode step reads: of experts only those that some token is sent to."""
    if model.experts == 1:
        return model.total_parameters * each
    met = 1 - math.pow(1 - model.top_k / model.experts, batch)
    idle = (model.layers - model.dense_layers) * model.experts * model.feed_parameters * (1 - met)
    return (model.total_parameters - idle) * each


def _reductions(model: Dimensions, machine: Machine, tp: int, tokens: int) -> float:
    """Return the time of the tensor-parallel all-reduces of one forward pass."""
    if tp == 1:
        return 0.0
    size = np.array([2.0 * tokens * model.width])
    half = best_half(np.array([float(tp)]), size, machine.domain_latency_s, machine.domain_rate)
    return 4 * model.layers * float(half[0])
