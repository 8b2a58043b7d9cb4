"""From times measured on a machine to the figures that the planner knows it by.

Few constants, each from the measurement that shows it: the speed of products and how it falls with their shortest side
from products; the software's own time from a block too small to compute anything; the memory's rate from a plain
addition, and the share of it that blocks reach from what an ordinary one takes besides its products and attention;
latency and rate of messages from all-reduces of two sizes. What only a whole step of training shows is `fit`'s matter.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from weft.core.units import BitsPerSecond, Bytes, FlopsPerSecond
from weft.planning.cost_model.blocks import block_times
from weft.planning.cost_model.machine import USUAL_PAYLOAD_SHARE, Machine
from weft.planning.cost_model.plans import Workload, dimensions_of, one_plan
from weft.specs.efficiency import EfficiencySpec
from weft.specs.job import ModelSpec
from weft.specs.site import SiteSpec
from weft.specs.software import SoftwareSpec

_MICROSECONDS = 1e6
_LEAST = 1e-3
_FP32_BYTES = 4
_SUMS_BYTES = 20
"""Of a parameter and a micro-batch: its gradient copied into a bucket (8), and added to another one's (12)."""


@dataclass(frozen=True)
class ProductTime:
    """One matrix product (m x k) (k x n)."""

    m: int
    """Rows of the result."""
    n: int
    """Columns of the result."""
    k: int
    """What is summed over."""
    seconds: float
    """Time of one."""


@dataclass(frozen=True)
class BlockTime:
    """One block of a decoder, forward and backward."""

    model: ModelSpec
    """Its dimensions."""
    batch: int
    """Sequences."""
    length: int
    """Tokens of each."""
    seconds: float
    """Time of both passes."""


@dataclass(frozen=True)
class AttentionTime:
    """One causal attention kernel, forward."""

    operations: float
    """Its operations, of causal pairs alone."""
    seconds: float
    """Time of one."""


@dataclass(frozen=True)
class MessageTime:
    """An all-reduce over all ranks."""

    size: int
    """Bytes on each rank."""
    seconds: float
    """Time of one."""


@dataclass(frozen=True)
class MachineTimes:
    """Everything that was timed, with all ranks busy."""

    device: str
    """Name of the device, or "cpu"."""
    ranks: int
    """Ranks that were busy."""
    value_bytes: int
    """Bytes of a value: 4 in fp32, 2 in bf16."""
    products: tuple[ProductTime, ...]
    """Matrix products, small to large."""
    blocks: tuple[BlockTime, ...]
    """A block too small to compute anything, then ordinary ones."""
    attention: AttentionTime
    """The attention of the first ordinary block."""
    copy_bytes_per_s: float
    """Bytes read and written by an addition."""
    messages: tuple[MessageTime, ...]
    """All-reduces, small to large; none with one rank."""


@dataclass(frozen=True)
class Calibration:
    """What the planner needs to know of a machine."""

    flops: float
    """Speed of a very large product."""
    memory_bytes_per_s: float
    """Rate of a plain addition."""
    network_bytes_per_s: float
    """Rate of one rank in a collective of all."""
    efficiency: EfficiencySpec
    """The rest, as a site file holds it."""


def speed_of(products: Sequence[ProductTime]) -> tuple[float, float]:
    """Return the speed of a very large product, and the shortest side that halves it.

    By least squares over relative errors of time = operations / speed x (1 + side / shortest): linear in 1 / speed and
    side / speed.
    """
    operations = np.array([2.0 * each.m * each.n * each.k for each in products])
    shortest = np.array([float(min(each.m, each.n, each.k)) for each in products])
    seconds = np.array([each.seconds for each in products])
    table = np.stack([operations / seconds, operations / shortest / seconds], axis=1)
    (slope, extra), *_ = np.linalg.lstsq(table, np.ones(len(products)), rcond=None)
    slope = slope if slope > 0 else 1 / (operations / seconds).max()
    return float(1 / slope), float(max(0.0, extra / slope))


def network_of(messages: Sequence[MessageTime], ranks: int) -> tuple[float, float]:
    """Return the time of one small message and the bytes per second of a rank, by a ring's cost."""
    if ranks == 1 or not messages:
        return 0.0, 1e12
    steps = 2 * (ranks - 1)
    small, large = messages[0], messages[-1]
    per_byte = max(1e-13, (large.seconds - small.seconds) / (large.size - small.size))
    return small.seconds / steps, steps / ranks / per_byte


def calibrate(times: MachineTimes, cores: int) -> Calibration:
    """Return the planner's figures of a machine with `cores` processors for its ranks."""
    flops, small = speed_of(times.products)
    message_s, network = network_of(times.messages, times.ranks)
    # A GPU works while the software prepares what comes next; a processor does one after the other.
    software_s = times.blocks[0].seconds if times.device == "cpu" else 0.0
    attention = min(1.0, times.attention.operations / times.attention.seconds / flops)
    share = EfficiencySpec(
        matmul=1.0, small=round(small, 2), attention=round(attention, 4), memory=1.0, link=1.0, nic=1.0,
        message_us=round(message_s * _MICROSECONDS, 1), kernel_us=0.0,
        block_us=round(software_s * _MICROSECONDS, 1), ranks_per_core=max(1.0, times.ranks / cores),
        overlaps=times.device != "cpu", sums_bytes=_SUMS_BYTES if times.device == "cpu" else 0.0,
        usable=0.9, source=f"measured with {times.ranks} busy ranks on {times.device}",
    )  # fmt: skip
    return Calibration(
        flops=flops,
        memory_bytes_per_s=times.copy_bytes_per_s,
        network_bytes_per_s=network,
        efficiency=share.model_copy(update={"elementwise": round(_elementwise(times, flops, share), 4)}),
    )


def _elementwise(times: MachineTimes, flops: float, share: EfficiencySpec) -> float:
    """Return the share of the memory's rate at which blocks do what is neither product nor attention nor software."""
    practice = SoftwareSpec(precision="fp32" if times.value_bytes == _FP32_BYTES else "bf16")
    left_s = moved = 0.0
    for block in times.blocks[1:]:
        work = Workload(dimensions_of(block.model), block.batch, block.length)
        plan = one_plan(micro=block.batch)
        # An endless memory leaves the arithmetic; with one byte a second, seconds are bytes.
        endless = block_times(work, plan, _bare(flops, share, 1e30), practice)
        slowest = block_times(work, plan, _bare(flops, share, 1.0), practice)
        arithmetic = float(endless.forward[0] + endless.backward[0])
        left_s += max(0.0, block.seconds - share.block_us / _MICROSECONDS - arithmetic)
        moved += 3 * float(slowest.elementwise[0])
    return max(_LEAST, min(1.0, moved / left_s / times.copy_bytes_per_s)) if left_s > 0 else 1.0


def _bare(flops: float, share: EfficiencySpec, memory_rate: float) -> Machine:
    """Return a machine of one GPU with nothing but its arithmetic and its memory."""
    return Machine(
        kind="CPU", gpus=1, node_gpus=1, domain_gpus=1, memory_bytes=1e15, bf16_flops=flops, fp8_flops=flops,
        fp4_flops=flops, fp32_flops=flops, efficiency=share, memory_rate=memory_rate, pieces_s=0.0, domain_rate=1e30,
        domain_latency_s=0.0,
        nic_rate=1e30, fabric_latency_s=0.0, power_w=0.0, idle_power_w=0.0,
    )  # fmt: skip


def measured_site(base: SiteSpec, found: Calibration, *, name: str, ranks: int, memory_bytes: int) -> SiteSpec:
    """Return `base` with `ranks` GPUs of the measured kind, one to a node, on one plane as fast as they exchange."""
    rate = BitsPerSecond(max(1, round(8 * found.network_bytes_per_s / USUAL_PAYLOAD_SHARE)))
    gpu = base.gpu.model_copy(
        update={
            "memory": Bytes(memory_bytes),
            "memory_rate": BitsPerSecond(round(8 * found.memory_bytes_per_s)),
            "bf16": FlopsPerSecond(round(found.flops)),
            "fp32": FlopsPerSecond(round(found.flops)) if base.gpu.kind == "CPU" else base.gpu.fp32,
            "source": found.efficiency.source,
        }
    )
    parts = {part: spec.model_copy(update={"rate": rate}) for part, spec in _rated(base)}
    switch = base.fabric.parts.switch.model_copy(update={"capacity": BitsPerSecond(rate * max(2, ranks))})
    fabric = base.fabric.model_copy(
        update={
            "gpus": ranks,
            "nic_rate": rate,
            "planes": 1,
            "port_rate": rate,
            "tiers": 1,
            "radix": max(2, ranks),
            "parts": base.fabric.parts.model_copy(update={**parts, "switch": switch}),
        }
    )
    table = base.model_copy(
        update={
            "name": name,
            "description": f"measured: {ranks} ranks",
            "gpu": gpu,
            "fabric": fabric,
            "efficiency": found.efficiency,
        }
    )
    return SiteSpec.model_validate(table.as_written())


def _rated(base: SiteSpec) -> list[tuple[str, Any]]:
    return [("nic", base.fabric.parts.nic), ("optic", base.fabric.parts.optic)]
