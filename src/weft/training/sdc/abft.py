"""Matrix products that check themselves by the sums of their rows and columns (Huang and Abraham, 1984).

The columns of a product must add up to the product of the columns' sums, and so must its rows. Both sums are taken in
double precision, so all that may differ is the rounding of the product itself, for which the standard bound holds: an
element that adds K products is off by at most gamma(K) = K u / (1 - K u) times the sum of their magnitudes (Higham,
Accuracy and Stability of Numerical Algorithms, section 3.1). What exceeds the bound is wrong for certain; what stays
below it, the low bits of an element among many, looks like rounding and is not seen. Costs grow with the
areas of the matrices, those of the product with their volume.
"""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import nn

_UNIT = {torch.float32: 2.0**-24, torch.bfloat16: 2.0**-8, torch.float16: 2.0**-11, torch.float64: 2.0**-53}
_DOUBLE = _UNIT[torch.float64]


def _gamma(count: int, unit: float) -> float:
    return count * unit / max(1 - count * unit, 0.5)


def product_bound(inner: int, outer: int, accumulate: torch.dtype) -> float:
    """Return by which share of the magnitudes a sum of `outer` elements, each of `inner` products, may be off."""
    return _gamma(inner, _UNIT[accumulate]) + 4 * _gamma(inner + outer, _DOUBLE)


def suspicious(left: torch.Tensor, right: torch.Tensor, product: torch.Tensor) -> torch.Tensor:
    """Return, as one boolean on the device, whether `product` cannot be left [n, k] times right [k, m], rounded."""
    if product.numel() == 0:
        return torch.zeros((), dtype=torch.bool, device=product.device)
    rows, inner = left.shape
    columns = right.shape[1]
    accumulate = torch.float32 if product.dtype in (torch.bfloat16, torch.float16) else product.dtype
    wide = [tensor.detach().double() for tensor in (left, right, product)]
    a, b, c = wide
    rounding = _UNIT[product.dtype] if product.dtype is not accumulate else 0.0
    by_column = (c.sum(0) - a.sum(0) @ b).abs()
    column_limit = (a.abs().sum(0) @ b.abs()) * product_bound(inner, rows, accumulate) + rounding * c.abs().sum(0)
    by_row = (c.sum(1) - a @ b.sum(1)).abs()
    row_limit = (a.abs() @ b.abs().sum(1)) * product_bound(inner, columns, accumulate) + rounding * c.abs().sum(1)
    # Written so that a difference that is not a number counts as suspicious.
    return ~((by_column <= column_limit).all() & (by_row <= row_limit).all())


def check_products(modules: Iterable[nn.Module], failed: Callable[[str], None]) -> list[Any]:
    """Check the product of every linear layer among `modules` in the forward pass; returns the handles of the hooks.

    `failed` is called with the name of a layer whose product is wrong.
    """
    handles = []
    for number, module in enumerate(modules):
        if isinstance(module, nn.Linear) and not hasattr(module.weight, "_local_tensor"):
            name = f"linear layer {number}, {module.in_features} to {module.out_features}"
            handles.append(module.register_forward_hook(_hook(name, failed)))
    return handles


def _hook(name: str, failed: Callable[[str], None]) -> Callable[[nn.Module, tuple[Any, ...], Any], None]:
    def check(module: nn.Module, inputs: tuple[Any, ...], output: Any) -> None:
        assert isinstance(module, nn.Linear)
        with torch.no_grad():
            given = inputs[0].detach().reshape(-1, module.in_features).to(output.dtype)
            product = output.detach().reshape(-1, module.out_features)
            bias = module.bias
            if bias is not None:
                # The bias is one more product in every element: its row and column are added to the factors.
                given = torch.cat([given, given.new_ones(len(given), 1)], dim=1)
            weight = module.weight if bias is None else torch.cat([module.weight, bias[:, None]], dim=1)
            if bool(suspicious(given, weight.detach().to(output.dtype).T, product)):
                failed(name)

    return check
