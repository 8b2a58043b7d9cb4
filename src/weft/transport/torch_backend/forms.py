"""Tensors as the engine takes them: flat, in one piece, of a type that it can add; and as they were.

The engine adds float32, float64, int32, int64 and uint8. Sixteen-bit floats are added as float32 and rounded once in
the end; short integers as int32; bool as uint8; complex numbers as pairs. Nothing here talks to anybody.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial

import torch
import torch.distributed as dist

from weft.core.errors import UsageError
from weft.transport.memory.arithmetic import BITWISE, ELEMENTS, kind_of
from weft.transport.messages.programs import VectorShape

_WIDER = {
    torch.float16: torch.float32,
    torch.bfloat16: torch.float32,
    torch.int8: torch.int32,
    torch.int16: torch.int32,
}
_PLAIN = (torch.float32, torch.float64, torch.int32, torch.int64, torch.uint8)
_NAMES = {
    "SUM": "sum", "AVG": "sum", "PRODUCT": "product", "MIN": "min", "MAX": "max", "BAND": "band", "BOR": "bor",
    "BXOR": "bxor",
}  # fmt: skip
_ON_BOOL = {"sum": "max", "product": "min", "min": "min", "max": "max"}


@dataclass(frozen=True)
class Reduction:
    """A reduction by its name."""

    name: str
    """As the engine calls it."""
    average: bool
    """Whether the sum is divided by the number of ranks."""


def reduction_of(wanted: dist.ReduceOp | dist.ReduceOp.RedOpType) -> Reduction:
    """Return the reduction that torch asks for."""
    for name, ours in _NAMES.items():
        if wanted == getattr(dist.ReduceOp, name):
            return Reduction(ours, name == "AVG")
    raise UsageError("mrc reduces by sum, average, product, minimum, maximum and the operations on bits, nothing else")


@dataclass(frozen=True)
class Form:
    """A tensor made ready."""

    flat: torch.Tensor
    """What the engine works on, in one piece."""
    back: Callable[[], None] | None
    """Brings the result to where it was asked for, where that is not the same memory."""

    @property
    def memory(self) -> tuple[int, int]:
        """Return address and bytes."""
        return self.flat.data_ptr(), self.flat.numel() * self.flat.element_size()


def _copy(target: torch.Tensor, given: torch.Tensor) -> None:
    target.copy_(given)


def refuse_others(tensors: Iterable[torch.Tensor]) -> None:
    """Refuse what is not dense and on the CPU."""
    for tensor in tensors:
        if tensor.device.type != "cpu":
            raise UsageError(f"mrc is a CPU backend, and this tensor is on {tensor.device}; GPUs use nccl")
        if tensor.is_sparse:
            raise UsageError("mrc carries dense tensors only; make this one dense")


def plain(tensor: torch.Tensor) -> Form:
    """Return a tensor in one piece, as bytes to be carried."""
    if tensor.is_contiguous():
        return Form(tensor.detach(), None)
    whole = tensor.detach().contiguous()
    return Form(whole, partial(_copy, tensor.detach(), whole))


def widened(tensor: torch.Tensor) -> Form:
    """Return a tensor in one piece and of a type that the engine can add."""
    if tensor.dtype in _PLAIN and tensor.is_contiguous():
        return Form(tensor, None)
    given = tensor.detach()
    if given.is_complex():
        given = torch.view_as_real(given)
    if given.dtype is torch.bool and given.is_contiguous():
        return Form(given.view(torch.uint8), None)
    wider = _WIDER.get(given.dtype, torch.uint8 if given.dtype is torch.bool else given.dtype)
    if str(wider).removeprefix("torch.") not in ELEMENTS:
        raise UsageError(f"mrc cannot reduce {given.dtype}; convert the tensor to float32 first")
    if wider is given.dtype and given.is_contiguous():
        return Form(given, None)
    whole = given.to(wider).contiguous() if wider is not given.dtype else given.contiguous()
    return Form(whole, partial(_copy, given, whole))


def shape_of(flat: torch.Tensor, operation: Reduction, *, boolean: bool) -> VectorShape:
    """Return what the engine has to know of a reduction of `flat`."""
    element = str(flat.dtype).removeprefix("torch.")
    name = _ON_BOOL.get(operation.name, operation.name) if boolean else operation.name
    if operation.average and not flat.is_floating_point():
        raise UsageError(f"an average of {flat.dtype} is none; use a sum")
    if name in BITWISE and flat.is_floating_point():
        raise UsageError(f"there are no bits to combine in {flat.dtype}; use sum, min or max")
    scale = kind_of("divide", element) if operation.average else -1
    return VectorShape(flat.numel(), flat.element_size(), kind_of(name, element), scale, bits=name in BITWISE)
