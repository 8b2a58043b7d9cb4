"""How long kernels take on one type of GPU: matrix products, attention, and what moves through memory.

Products follow the measured form of the catalogue (`ProductsSpec`): operations at the sustained speed, and memory
traffic beside them. Where a type was not measured, its data sheet's peak is taken by the share that the shortest side
allows. Which products a block has is `blocks`' matter.
"""

from dataclasses import dataclass

import numpy as np

from weft.collectives.costs import Column
from weft.planning.cost_model.machine import Machine
from weft.specs.efficiency import ProductsSpec
from weft.specs.software import SoftwareSpec

_USUAL_HEAD = 128
_TURNED_BYTES = 10
"""Traffic of a gradient that is read in half precision, written in full precision and read again to be added."""


@dataclass(frozen=True)
class Pass:
    """Forward and backward time of the same work."""

    forward: Column
    """In the forward pass."""
    backward: Column
    """In the backward pass."""

    def __add__(self, other: "Pass") -> "Pass":
        """Return the time of both, one after the other."""
        return Pass(self.forward + other.forward, self.backward + other.backward)


class KernelTimes:
    """Kernels of one machine under one software's habits."""

    def __init__(self, machine: Machine, software: SoftwareSpec) -> None:
        """Look up the measured products of the software's precision."""
        self.machine = machine
        self.software = software
        self.pace = machine.efficiency.pace
        share = machine.efficiency
        self.usual = (
            (machine.fp32_flops if software.fp32 else machine.bf16_flops),
            (None if software.fp32 else share.bf16),
        )
        self.narrow = (
            (machine.peak_flops(software.precision or "bf16"), self._narrow()) if software.quantised else self.usual
        )

    def _narrow(self) -> ProductsSpec | None:
        share = self.machine.efficiency
        table = {"fp8": share.fp8, "fp8-block": share.fp8_block, "mxfp8": share.fp8_block, "nvfp4": share.nvfp4}
        return table[str(self.software.precision)]

    def product(self, m: Column, n: Column, k: Column, *, count: Column | float = 1.0, usual: bool = False) -> Pass:
        """Return the times of `count` products of inputs m x k and weights k x n; `usual` ones are never quantised."""
        peak, known = self.usual if usual else self.narrow
        if known is None:
            each = self.pace * self._by_peak(m, n, k, peak, count)
            return Pass(each, 2 * each)
        full = self.machine.full_memory_rate
        speed = peak * known.peak * self.machine.efficiency.sustained
        arithmetic = 2 * m * n * k / speed
        launch = 0.0 if self.software.cuda_graphs else known.launch_us * 1e-6
        # Values that come in are measured, rounded and turned, once for the product and once for its gradients.
        left = self.machine.efficiency.quantise if self.software.quantised and not usual else known.left
        forward = (left * m * k + known.right * k * n + known.out * m * n) / full
        # Gradients of the input: (m x n) (n x k), then of the weights: (k x m) (m x n), added to what is there.
        inputs = (left * m * n + known.right * k * n + known.out * m * k) / full
        bytes_added = 2 * self.software.gradient_bytes + (0 if self.software.fused_sums else _TURNED_BYTES)
        added = bytes_added * k * n / self.machine.memory_rate
        weights = (known.right * (m * k + m * n) + known.out * k * n) / full + added
        backward = 2 * arithmetic + inputs + weights
        return Pass(self.pace * (count * (arithmetic + forward) + launch), self.pace * (count * backward + 2 * launch))

    def _by_peak(self, m: Column, n: Column, k: Column, peak: float, count: Column | float) -> Column:
        """Return the time of products of a type whose kernels were not measured one by one."""
        share = self.machine.efficiency
        shortest = np.minimum(np.minimum(m, n), k)
        arithmetic = 2 * m * n * k / (peak * share.matmul / (1 + share.small / shortest))
        traffic = self.software.value_bytes * (m * k + k * n + m * n) / self.machine.memory_rate
        return count * np.maximum(arithmetic, traffic) + share.kernel_us * 1e-6

    def attention(self, operations: Column, length: int, head_width: int) -> Pass:
        """Return the times of a fused causal kernel that does `operations` forward."""
        share = self.machine.efficiency
        peak = self.machine.fp32_flops if self.software.fp32 else self.machine.bf16_flops
        # Narrow heads leave more exponentials for each product.
        narrow = min(1.0, (head_width / _USUAL_HEAD) ** 0.5) if share.attention_half else 1.0
        forward = operations / (peak * share.attention * narrow) * (1 + share.attention_half / length)
        backward = share.attention_backward or share.attention
        again = operations / (peak * backward * narrow) * (1 + 2 * share.attention_half / length)
        # The backward pass has five products for the forward's two.
        return Pass(self.pace * forward, self.pace * 2.5 * again)

    def traffic(self, amount: Column) -> Column:
        """Return the time that `amount` bytes take to or from memory."""
        return self.pace * amount / self.machine.memory_rate

    def rows(self, tokens: Column) -> Column:
        """Return the time of one pass over a block's rows, besides their bytes."""
        return tokens * self.machine.efficiency.token_us * 1e-6

    def parameters(self, amount: Column) -> Column:
        """Return the time of `amount` bytes that are moved for each parameter, not for each token."""
        return self.traffic(amount / self.machine.efficiency.update)

    def elementwise(self, amount: Column) -> Column:
        """Return the time of what would be `amount` bytes with values of two bytes."""
        return self.traffic(amount * (self.software.value_bytes / 2) / self.machine.efficiency.elementwise)
