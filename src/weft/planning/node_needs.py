"""What a job needs of each node that it runs on, and which of it a node that was measured does not reach. Pure.

The matrix products of the job's blocks under its plan, the memory's rate and the sums over the node's ranks, each at
the speed that the planner expects of the site. A node that is measured doing the same (`training.launch.machine_times`)
is held against that: the job's own needs, not fixed thresholds.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from weft.planning.calibration.microbenchmarks import MachineTimes, MessageTime, ProductTime
from weft.planning.cost_model.exchange import half
from weft.planning.cost_model.kernels import KernelTimes
from weft.planning.cost_model.machine import Machine, machine_of
from weft.planning.cost_model.plans import Dimensions, Plans, Workload
from weft.specs.site import SiteSpec
from weft.specs.software import SoftwareSpec

_BUCKET = 25 * 2**20
"""Bytes of gradients that torch sums up at once."""
_MOST_TOKENS = 8192
"""Rows of a product: from here on they change its speed no more, and memory is short."""
_VALUE_BYTES = 2
_FP32_BYTES = 4


@dataclass(frozen=True)
class NodeNeeds:
    """What each rank of a node has to reach, while all of them are busy."""

    ranks: int
    """Ranks of one node."""
    products: tuple[ProductTime, ...]
    """The plan's matrix products, and the time that the planner expects each to take."""
    memory_bytes_per_s: float
    """Rate at which a plain addition reads and writes."""
    messages: tuple[MessageTime, ...]
    """All-reduces over the node's ranks; none where a node has one."""


@dataclass(frozen=True)
class NeedMet:
    """One need beside what was measured."""

    check: str
    """Which check it belongs to: "matmul", "memory" or "link"."""
    what: str
    """What was done."""
    needed: float
    """What the plan needs, in `unit`."""
    measured: float
    """What the node reaches, in `unit`."""
    unit: str

    @property
    def share(self) -> float:
        """Return the share of the need that is reached."""
        return self.measured / self.needed


def needs_of(site: SiteSpec, work: Workload, plans: Plans, row: int = 0) -> NodeNeeds:
    """Return what the plan in `row` needs of a node of the site.

    Processors of one machine are described as nodes of a rank each; all of them together are the node here.
    """
    machine = machine_of(site)
    on_cpu = site.gpu.kind == "CPU"
    ranks = site.fabric.gpus if on_cpu else machine.node_gpus
    one = plans.take(np.array([row]))
    tokens = max(1, min(_MOST_TOKENS, round(float(one.micro[0] * work.length / one.cp[0]))))
    kernels = KernelTimes(machine, SoftwareSpec(precision="fp32" if on_cpu else "bf16"))
    products = tuple(
        ProductTime(
            tokens, n, k, float(kernels.product(*(np.array([float(side)]) for side in (tokens, n, k))).forward[0])
        )
        for n, k in dict.fromkeys(_matrices(work.model, int(one.tp[0])))
    )
    value_bytes = _FP32_BYTES if on_cpu else _VALUE_BYTES
    sizes = {_BUCKET} | ({tokens * work.model.width * value_bytes} if one.tp[0] > 1 else set())
    messages = tuple(MessageTime(size, _sum_s(machine, ranks, size)) for size in sorted(sizes)) if ranks > 1 else ()
    return NodeNeeds(ranks, products, machine.memory_rate, messages)


def _matrices(model: Dimensions, tp: int) -> Iterator[tuple[int, int]]:
    """Yield outputs and inputs of every kind of matrix that a rank holds, its part where tensor parallelism cuts it."""
    for inputs, outputs, inputs_cut, outputs_cut in model.attention_matrices:
        yield _part(outputs, tp, cut=outputs_cut), _part(inputs, tp, cut=inputs_cut)
    inner = _part(model.ffn, tp, cut=True)
    yield (2 if model.gated else 1) * inner, model.width
    yield model.width, inner


def _part(side: int, tp: int, *, cut: bool) -> int:
    return max(1, side // tp) if cut else side


def _sum_s(machine: Machine, ranks: int, size: int) -> float:
    """Return the time of an all-reduce over a node's ranks: scattered sums, and gathering them again."""
    inner = min(ranks, machine.domain_gpus)
    within, beyond, amount = (np.array([float(each)]) for each in (inner, ranks / inner, size))
    return 2 * float(half(machine, within, beyond, amount)[0])


def compared(needs: NodeNeeds, times: MachineTimes) -> list[NeedMet]:
    """Return every need beside what was measured of it; the measured products and messages are those of the needs."""
    found = [
        NeedMet("matmul", f"product {need.m:,} x {need.k:,} x {need.n:,}", _speed(need), _speed(made), "TFLOP/s")
        for need, made in zip(needs.products, times.products, strict=True)
    ]
    found.append(NeedMet("memory", "addition", needs.memory_bytes_per_s / 1e9, times.copy_bytes_per_s / 1e9, "GB/s"))
    return found + [
        NeedMet("link", f"all-reduce of {need.size / 2**20:,.3g} MiB over {needs.ranks} ranks",
                _bus(need, needs.ranks), _bus(made, needs.ranks), "GB/s")
        for need, made in zip(needs.messages, times.messages, strict=True)
    ]  # fmt: skip


def _speed(each: ProductTime) -> float:
    return 2e-12 * each.m * each.n * each.k / each.seconds


def _bus(each: MessageTime, ranks: int) -> float:
    """Return the bus bandwidth as nccl-tests count it: what each rank's link carries."""
    return 2e-9 * (ranks - 1) / ranks * each.size / each.seconds


def unmet(found: Sequence[NeedMet], least: float) -> list[NeedMet]:
    """Return the needs that are not met to the share `least`, the worst first."""
    return sorted((one for one in found if one.share < least), key=lambda one: one.share)
