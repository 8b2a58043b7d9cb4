"""Functions with a form of their own in compiled code: one instruction, or memory on the stack, instead of their body.

Each stands here twice: the plain function that Python runs, and the maker of its compiled form. `INTRINSICS` ties them;
`rules` puts the compiled form in place wherever a compiled rule calls the plain one.
"""

from collections.abc import Callable
from functools import cache
from typing import Any, Protocol


class _Pooled(Protocol):
    """Anything with a column of rows called `pool`."""

    @property
    def pool(self) -> Any:
        """Return the rows."""
        ...


def prefetch(column: Any, row: int, place: int) -> None:
    """Bring a place in a row of a column into the cache; compiled only, and changes nothing.

    A place is an entry of the row, or where a row is one entry, a byte of it.
    """


def lowest_set(word: int) -> int:
    """Return the position of the lowest bit that is set in a word other than 0; compiled, one instruction."""
    return (int(word) & -int(word)).bit_length() - 1


def stack_row(owner: _Pooled) -> Any:
    """Return an uninitialised row like those of `owner.pool`; compiled, it lies on the stack of the calling rule.

    So it is gone when that rule ends, and most of it never leaves the processor's registers.
    """
    return owner.pool[0].copy()


def apart() -> None:
    """Keep the rule that calls this out of its callers: compiled, it stays one piece of code, whoever uses it.

    Compiled code grows by copies of what it calls; for rules that are called from many places, copies cost more time to
    compile than a call costs to make.
    """


def copy_four(target: Any, source: Any, first: int) -> None:
    """Copy four numbers of 64 bits, from place `first` on, from one row to another; compiled, in one piece."""
    target[first : first + 4] = source[first : first + 4]


@cache
def _prefetch() -> Any:
    """Return the compiled form of `prefetch`: the processor's own hint."""
    from llvmlite import ir
    from numba import types
    from numba.core import cgutils
    from numba.extending import intrinsic
    from numba.np.arrayobj import make_array

    kinds: Any = types

    @intrinsic
    def hint(_context: Any, column: Any, row: Any, place: Any) -> Any:
        def make(context: Any, builder: Any, signature: Any, given: Any) -> Any:
            array = make_array(signature.args[0])(context, builder, given[0])
            indices = [
                context.cast(builder, one, kind, kinds.intp)
                for one, kind in zip(given[1:], signature.args[1:], strict=True)
            ]
            at = cgutils.get_item_pointer(context, builder, signature.args[0], array, indices[: column.ndim])
            byte = ir.IntType(8).as_pointer()
            number = ir.IntType(32)
            at = builder.bitcast(at, byte)
            if column.ndim == 1:
                at = builder.gep(at, [indices[1]])
            shape = ir.FunctionType(ir.VoidType(), [byte, number, number, number])
            instruction = cgutils.get_or_insert_function(builder.module, shape, "llvm.prefetch.p0")
            # Read (0), keep in all levels of the cache (3), data and not code (1).
            builder.call(instruction, [at, number(0), number(3), number(1)])
            return context.get_dummy_value()

        return kinds.void(column, row, place), make

    return hint


@cache
def _lowest_set() -> Any:
    """Return the compiled form of `lowest_set`: the processor counts trailing zeros."""
    from llvmlite import ir
    from numba import types
    from numba.extending import intrinsic

    kinds: Any = types

    @intrinsic
    def count(_context: Any, word: Any) -> Any:
        def make(context: Any, builder: Any, signature: Any, given: Any) -> Any:
            wide = context.cast(builder, given[0], signature.args[0], kinds.int64)
            # The flag says that 0 is undefined, which spares the test for it.
            return builder.cttz(wide, ir.IntType(1)(1))

        return kinds.int64(word), make

    return count


@cache
def _stack_row() -> Any:
    """Return the compiled form of `stack_row`: room on the stack, which need not be cleared."""
    from numba.core import cgutils
    from numba.extending import intrinsic

    @intrinsic
    def local(_context: Any, owner: Any) -> Any:
        kind = owner.types[owner.fields.index("pool")].dtype

        def make(context: Any, builder: Any, _signature: Any, _given: Any) -> Any:
            room = cgutils.alloca_once(builder, context.get_data_type(kind))
            room.align = 8
            return room

        return kind(owner), make

    return local


@cache
def _copy_four() -> Any:
    """Return the compiled form of `copy_four`: one load and one store of 32 bytes."""
    from llvmlite import ir
    from numba import types
    from numba.extending import intrinsic
    from numba.np.arrayobj import make_array

    kinds: Any = types
    four = ir.VectorType(ir.IntType(64), 4)

    @intrinsic
    def copy(_context: Any, target: Any, source: Any, first: Any) -> Any:
        def make(context: Any, builder: Any, signature: Any, given: Any) -> Any:
            start = context.cast(builder, given[2], signature.args[2], kinds.intp)
            into, out_of = (
                builder.bitcast(builder.gep(make_array(kind)(context, builder, row).data, [start]), four.as_pointer())
                for kind, row in zip(signature.args[:2], given[:2], strict=True)
            )
            # Rows are aligned to 8 bytes only: an aligned move of 32 would fault.
            builder.store(builder.load(out_of, align=8), into, align=8)
            return context.get_dummy_value()

        return kinds.void(target, source, first), make

    return copy


@cache
def _apart() -> Any:
    """Return the compiled form of `apart`: marks of the rule that calls it."""
    from numba import types
    from numba.extending import intrinsic

    kinds: Any = types

    @intrinsic
    def stay(_context: Any) -> Any:
        def make(context: Any, builder: Any, _signature: Any, _given: Any) -> Any:
            # A rule that is put into others wherever it is called must not ask for that any more.
            builder.function.attributes.discard("alwaysinline")
            builder.function.attributes.add("noinline")
            return context.get_dummy_value()

        return kinds.none(), make

    return stay


INTRINSICS: dict[Callable[..., Any], Callable[[], Any]] = {
    prefetch: _prefetch,
    lowest_set: _lowest_set,
    stack_row: _stack_row,
    copy_four: _copy_four,
    apart: _apart,
}
"""From a plain function to the maker of its compiled form."""
