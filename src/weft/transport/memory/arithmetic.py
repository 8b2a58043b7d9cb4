"""Sums and other reductions of two pieces of memory, element by element, as compiled loops.

One kind for each pair of operation and element type; the kind is a number that programs carry. The order of operations
is the order of calls, nothing else: an element is combined with exactly one other. Types that have no loop of their own
(16-bit floats, short integers) are widened by whoever asks. The loops are written for LLVM directly: they work on bare
addresses, which compiled rules, that know no references, cannot turn into arrays.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.core import cgutils
from numba.core.typing import BaseContext as TypingContext
from numba.extending import intrinsic

from weft.core.compile.rules import rule
from weft.transport.memory.native import Call, apart

# Its types describe what makes an intrinsic, not what one is called with.
_intrinsic: Any = intrinsic

OPERATIONS = ("sum", "product", "min", "max")
ELEMENTS = ("float32", "float64", "int32", "int64", "uint8")
BITWISE = ("band", "bor", "bxor")
"""Operations on bits, which do not care how wide an element is; their counts are in bytes."""
DIVIDED = ("float32", "float64")
"""Types whose elements can all be divided by the one number at `given`."""
_BITWISE_FROM = len(OPERATIONS) * len(ELEMENTS)
_DIVIDE_FROM = _BITWISE_FROM + len(BITWISE)
_TYPES = {
    "float32": ir.FloatType(),
    "float64": ir.DoubleType(),
    "int32": ir.IntType(32),
    "int64": ir.IntType(64),
    "uint8": ir.IntType(8),
}
_BYTES = {"float32": 4, "float64": 8, "int32": 4, "int64": 8, "uint8": 1}
_WIDTHS = np.array([*[_BYTES[each] for each in ELEMENTS] * len(OPERATIONS), *[1] * len(BITWISE)], np.int64)


def kind_of(operation: str, element: str) -> int:
    """Return the number of a reduction; for operations on bits the element does not matter."""
    if operation == "divide":
        return _DIVIDE_FROM + DIVIDED.index(element)
    if operation in BITWISE:
        return _BITWISE_FROM + BITWISE.index(operation)
    return OPERATIONS.index(operation) * len(ELEMENTS) + ELEMENTS.index(element)


def _combined(builder: ir.IRBuilder, operation: str, element: str, held: ir.Value, given: ir.Value) -> ir.Value:
    """Return the value that `operation` makes of what is held and what is given."""
    floating = element.startswith("float")
    plain: dict[str, Callable[[], Any]] = {
        "sum": lambda: builder.fadd(held, given) if floating else builder.add(held, given),
        "divide": lambda: builder.fdiv(held, given),
        "product": lambda: builder.fmul(held, given) if floating else builder.mul(held, given),
        "band": lambda: builder.and_(held, given),
        "bor": lambda: builder.or_(held, given),
        "bxor": lambda: builder.xor(held, given),
    }
    if operation in plain:
        return plain[operation]()
    sign = "<" if operation == "min" else ">"
    if floating:
        # A NaN on either side stays one, as in torch.
        wins = builder.or_(builder.fcmp_ordered(sign, given, held), builder.fcmp_unordered("uno", given, given))
    elif element == "uint8":
        wins = builder.icmp_unsigned(sign, given, held)
    else:
        wins = builder.icmp_signed(sign, given, held)
    return builder.select(wins, given, held)


def _loop(builder: ir.IRBuilder, operation: str, element: str, arguments: Sequence[ir.Value]) -> None:
    """Write the loop (to, from, count) for one operation on one type."""
    pointed = _TYPES[element].as_pointer()
    to, source = (builder.inttoptr(one, pointed) for one in arguments[:2])
    with cgutils.for_range(builder, arguments[2]) as loop:
        target = builder.gep(to, [loop.index])
        # A division has one divisor for all elements: its index stays at the first.
        other = ir.Constant(loop.index.type, 0) if operation == "divide" else loop.index
        given = builder.load(builder.gep(source, [other]))
        builder.store(_combined(builder, operation, element, builder.load(target), given), target)


@_intrinsic
def _reduce(typing: TypingContext, kind: types.Type, to: types.Type, given: types.Type, count: types.Type) -> Any:
    """Combine as `kind` says: one loop for each, behind a comparison."""
    del typing, kind, to, given, count

    def code(*call: *Call) -> object:
        context, builder, _, arguments = call
        loops = [(operation, element) for operation in OPERATIONS for element in ELEMENTS]
        loops += [*((one, "uint8") for one in BITWISE), *(("divide", one) for one in DIVIDED)]
        # Comparisons in a row, not a jump table: one of them is true for thousands of elements, so it costs nothing.
        for number, (operation, element) in enumerate(loops):
            wanted = ir.Constant(ir.IntType(64), number)
            with builder.if_then(builder.icmp_signed("==", arguments[0], wanted)):
                _loop(builder, operation, element, arguments[1:])
        return context.get_dummy_value()

    return types.none(types.intp, types.intp, types.intp, types.intp), code


@rule
def width_of(kind: int) -> int:
    """Return the bytes of what reduction `kind` counts by."""
    return _WIDTHS[kind]


@njit(nogil=True)
def reduce_at(kind: int, to: int, given: int, count: int) -> None:
    """Combine `count` elements at `given` into those at `to`, as `kind` says."""
    apart()
    _reduce(kind, to, given, count)
