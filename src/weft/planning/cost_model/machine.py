"""The machine as the planner sees it: speeds that are reached, not printed, and the distances between GPUs.

`machine_of` takes the sizes from a site and the shares of its data sheet that real kernels reach from the catalogue of
GPU types. Everything is plain numbers in seconds, bytes and operations, because plans are evaluated as columns.
"""

from dataclasses import dataclass, replace

import numpy as np

from weft.collectives.costs import Column
from weft.core.units import PICOSECONDS_PER_SECOND
from weft.fabric.limits import latency_floor_ps
from weft.mrc.wire.overhead import payload_share
from weft.specs.efficiency import EfficiencySpec
from weft.specs.gpus import gpu_type, is_known
from weft.specs.site import GpuSpec, ScaleUpSpec, SiteSpec

USUAL_PAYLOAD_SHARE = payload_share(4096)
"""Share of the wire that carries payload in packets of the usual size."""


@dataclass(frozen=True)
class FabricTable:
    """What collectives reach on a fabric, as simulated or measured: shares of the NIC's payload rate by size."""

    sizes_bytes: tuple[float, ...]
    """Bytes that a rank moves in one collective, rising."""
    shares: tuple[float, ...]
    """Share of the rate that was reached at each size."""
    source: str
    """What made the table: a simulation with its seed, or a measurement."""


@dataclass(frozen=True)
class Machine:
    """Speeds, sizes and distances of a site, as a planner needs them."""

    kind: str
    """Type of the GPU."""
    gpus: int
    """GPUs of the site."""
    node_gpus: int
    """GPUs of a node."""
    domain_gpus: int
    """GPUs of a scale-up domain."""
    memory_bytes: float
    """Memory of one GPU that a job may fill."""
    bf16_flops: float
    """Dense bf16 speed of the data sheet."""
    fp8_flops: float
    """Dense fp8 speed of the data sheet; bf16 where there is none."""
    fp4_flops: float
    """Dense fp4 speed of the data sheet; fp8's where there is none."""
    fp32_flops: float
    """Dense fp32 speed; half of bf16 where the data sheet is silent."""
    efficiency: EfficiencySpec
    """Shares of the data sheet that kernels reach."""
    memory_rate: float
    """Bytes per second from memory, reached."""
    pieces_s: float
    """What cutting a collective into pieces costs inside a domain: the root of this times its bare time is added."""
    domain_rate: float
    """Bytes per second of one GPU into its scale-up domain, reached."""
    domain_latency_s: float
    """One small transfer inside the domain."""
    nic_rate: float
    """Payload bytes per second of one NIC."""
    fabric_latency_s: float
    """One small transfer over the longest path of the fabric."""
    power_w: float
    """One GPU under full load."""
    idle_power_w: float
    """One GPU that waits."""
    table: FabricTable | None = None
    """What collectives reach on this fabric, where it is known; a constant share of the rate otherwise."""

    def far_rate(self, size: Column) -> Column:
        """Return the bytes per second that a rank reaches over the fabric in a collective of `size` bytes."""
        if self.table is None:
            return np.full_like(size, self.nic_rate)
        known = np.log2(np.array(self.table.sizes_bytes))
        share = np.interp(np.log2(np.maximum(size, 1.0)), known, np.array(self.table.shares))
        return self.nic_rate / self.efficiency.nic * share

    def peak_flops(self, precision: str) -> float:
        """Return the data sheet's speed in a precision; the next wider one's where the GPU lacks it."""
        narrow = {"bf16": self.bf16_flops, "fp32": self.fp32_flops, "nvfp4": self.fp4_flops}
        return narrow.get(precision, self.fp8_flops)

    @property
    def full_memory_rate(self) -> float:
        """Return the data sheet's memory bandwidth."""
        return self.memory_rate / self.efficiency.memory

    @property
    def near(self) -> tuple[float, float]:
        """Return latency and rate of one rank inside its scale-up domain."""
        return self.domain_latency_s, self.domain_rate

    def far(self, size: Column) -> tuple[float, Column]:
        """Return latency and rate of one rank over the fabric in a collective of `size` bytes."""
        return self.fabric_latency_s, self.far_rate(size)


_POWER_EXPONENT = 0.69
"""How fast products go with the power limit: B200 at 1,000 W keeps 1,172 TFLOP/s of them in published steps, GB200, the
same processor, 1,329 at 1,200 W (the catalogue's `sustained` by `peak` of both, bf16)."""


def capped(gpu: GpuSpec, share: EfficiencySpec) -> EfficiencySpec:
    """Return what is reached where a GPU's power limit is below that of its data sheet: products are slower."""
    usual = gpu_type(gpu.kind).gpu.power if is_known(gpu.kind) else gpu.power
    if gpu.power >= usual:
        return share
    slower = (gpu.power / usual) ** _POWER_EXPONENT
    speeds = {name: getattr(share, name) * slower for name in ("sustained", "matmul", "attention")}
    if share.attention_backward:
        speeds["attention_backward"] = share.attention_backward * slower
    return share.model_copy(update=speeds)


def machine_of(site: SiteSpec) -> Machine:
    """Return the planner's view of a site."""
    share = site.efficiency or capped(site.gpu, gpu_type(site.gpu.like or site.gpu.kind).efficiency)
    down, up = site.fabric.oversubscription if site.fabric.tiers > 1 else (1, 1)
    return replace(
        _machine(site.gpu, site.scale_up, share),
        gpus=site.fabric.gpus,
        node_gpus=site.node.gpus,
        domain_gpus=max(site.scale_up.gpus, site.node.gpus),
        nic_rate=site.fabric.nic_rate / 8 * payload_share(site.fabric.packet) * share.nic * min(1.0, up / down),
        fabric_latency_s=latency_floor_ps(site.fabric) / PICOSECONDS_PER_SECOND + share.message_us * 1e-6,
    )


def usual_machine(kind: str, gpus: int, nic_bps: int, *, latency_s: float = 3e-6) -> Machine:
    """Return a cluster of a catalogue type as it is usually built: whole scale-up domains on one fabric."""
    known = gpu_type(kind)
    share = known.efficiency
    return replace(
        _machine(known.gpu, known.scale_up, share),
        gpus=gpus,
        nic_rate=nic_bps / 8 * USUAL_PAYLOAD_SHARE * share.nic,
        fabric_latency_s=latency_s + share.message_us * 1e-6,
    )


def _machine(gpu: GpuSpec, scale_up: ScaleUpSpec, share: EfficiencySpec) -> Machine:
    """Return one scale-up domain without a fabric."""
    return Machine(
        kind=gpu.kind,
        gpus=scale_up.gpus,
        node_gpus=scale_up.gpus,
        domain_gpus=scale_up.gpus,
        memory_bytes=gpu.memory * share.usable,
        bf16_flops=gpu.bf16,
        fp8_flops=gpu.fp8 or gpu.bf16,
        fp4_flops=gpu.fp4 or gpu.fp8 or gpu.bf16,
        fp32_flops=gpu.fp32 or gpu.bf16 / 2,
        efficiency=share,
        memory_rate=gpu.memory_rate / 8 * share.memory,
        pieces_s=share.pieces_us * 1e-6,
        domain_rate=scale_up.rate / 8 * share.link,
        domain_latency_s=scale_up.latency / PICOSECONDS_PER_SECOND + share.near_us * 1e-6,
        nic_rate=0.0,
        fabric_latency_s=0.0,
        power_w=gpu.power / 1000,
        idle_power_w=gpu.idle_power / 1000,
    )


def with_efficiency(machine: Machine, **shares: float) -> Machine:
    """Return `machine` with some shares of its data sheet replaced; for fitting them to measured runs."""
    return replace(machine, efficiency=machine.efficiency.model_copy(update=shares))
