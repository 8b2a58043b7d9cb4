"""The one registry of rules: every rule runs as plain Python, and is compiled with numba where that is asked for.

Compiled code can not call a plain Python function. So a rule is marked with `rule`, and `compiled` makes a copy of it
in which every other rule that it names is replaced by that rule's compiled copy. The plain functions stay as they are:
nothing is switched, both forms live side by side, and the same source serves both.

Conventions that keep the two forms equal: whole numbers only; columns are signed, because numba turns int64 with uint64
into floats; rules are imported by name, never called through a module; what could pass 2^63 goes through `int` first.
This is the only module that imports numba.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from types import FunctionType
from typing import Any, NamedTuple, TypeVar, cast

RuleT = TypeVar("RuleT", bound=Callable[..., Any])

_RULES: dict[str, FunctionType] = {}
_COMPILED: dict[tuple[FunctionType, str, bool], Any] = {}
_KEPT: list[str] = []
_TWINS: dict[FunctionType, FunctionType] = {}


def rule(function: RuleT) -> RuleT:
    """Register `function` as a rule and return it unchanged."""
    assert isinstance(function, FunctionType), "a rule is a plain function"
    _RULES[f"{function.__module__}.{function.__qualname__}"] = function
    return function


def compiled_variant(function: Callable[..., Any], other: Callable[..., Any]) -> None:
    """Let compiled code use rule `other` for `function`: the same result by arithmetic that wraps only there."""
    assert isinstance(function, FunctionType), "a rule is a plain function"
    assert isinstance(other, FunctionType), "a rule is a plain function"
    _TWINS[function] = other


def prefetch(column: Any, row: int, place: int) -> None:
    """Bring a place in a row of a column nearer to the processor; compiled only, and changes nothing.

    A place is an entry of the row, or where a row is one entry, a byte of it.
    """


def lowest_set(word: int) -> int:
    """Return the position of the lowest bit that is set in a word other than 0; compiled, one instruction."""
    return (int(word) & -int(word)).bit_length() - 1


def blank(sheet: Any) -> Any:
    """Return a row like those of the pool of `sheet` that nobody else has; compiled, it stands where the caller stands.

    So it is gone when the rule that asked for it ends, and most of it never gets beyond the processor's registers.
    """
    return sheet.pool[0].copy()


def copy_four(target: Any, source: Any, first: int) -> None:
    """Copy four numbers of 64 bits, from place `first` on, from one row to another; compiled, in one piece."""
    target[first : first + 4] = source[first : first + 4]


def rules() -> dict[str, FunctionType]:
    """Return every rule registered so far, by its full name."""
    return dict(_RULES)


def keep_compiled(folder: str) -> None:
    """Let numba keep what it compiles from now on in `folder`, and take it from there.

    Numba notices an edit of a rule but not of a rule that it calls: name the folder by a digest of all sources.
    """
    from numba import config

    # The module makes its variables when it is loaded, so that nothing can be known of them before.
    config.__dict__["CACHE_DIR"] = folder
    _KEPT.append(folder)


class Specialisation(NamedTuple):
    """Rules that take the place of others wherever those are called."""

    name: str
    """What the copies that are made with it are called after."""
    instead: Mapping[Callable[..., Any], Callable[..., Any]]
    """From a rule to the one that takes its place."""


def compiled(function: Callable[..., Any], swap: Specialisation | None = None) -> Any:
    """Return the compiled form of a rule; it takes the same arguments and leaves the same state behind."""
    return _compiled(function, swap, entry=True)


def _compiled(function: Callable[..., Any], swap: Specialisation | None, *, entry: bool) -> Any:
    """Return a rule compiled to be called from outside, or by other compiled rules only.

    The latter take no part in what Python needs, the unpacking of arguments and the keeping of code, which costs far
    more time to compile than most rules do.
    """
    assert isinstance(function, FunctionType), "only rules can be compiled"
    assert _is_rule(function), f"{function.__qualname__} is not a rule; decorate it with @rule"
    if swap is not None:
        function = swap.instead.get(function, function)
        assert isinstance(function, FunctionType), "only rules take the place of rules"
        if not _reaches(function, swap, set()):
            swap = None
    suffix = "" if swap is None else f"_{swap.name}"
    known = _COMPILED.get((function, suffix, entry))
    if known is not None:
        return known
    import numba

    names = dict(function.__globals__)
    copy = FunctionType(function.__code__, names, function.__name__, function.__defaults__)
    # The compiler keeps what it made by this name, so that copies which call other rules must not share it.
    copy.__module__, copy.__qualname__ = function.__module__, function.__qualname__ + suffix
    # Rules make no arrays, so nothing is to be counted or freed; counting references would cost more than the rules do.
    # They divide by nothing that could be zero, so no check for it is wanted either.
    options: dict[str, Any] = {"nogil": True, "_nrt": False, "error_model": "numpy"}
    if entry:
        options["cache"] = bool(_KEPT)
    else:
        options |= {"no_cpython_wrapper": True, "no_cfunc_wrapper": True, "forceinline": True}
    made: Any = numba.njit(copy, **options)
    _take_wide(made)
    _count_from_the_front(made)
    _COMPILED[function, suffix, entry] = made
    for name in function.__code__.co_names:
        called = names.get(name)
        if isinstance(called, FunctionType):
            names[name] = _inner(called, swap)
    return made


def _inner(called: FunctionType, swap: Specialisation | None) -> Any:
    """Return what compiled rules call for a function: its compiled form where it has one."""
    if swap is not None:
        called = cast("FunctionType", swap.instead.get(called, called))
    if called in _PARTICULAR:
        return _PARTICULAR[called]()
    return _compiled(_TWINS.get(called, called), swap, entry=False) if _is_rule(called) else called


def _reaches(function: FunctionType, swap: Specialisation, seen: set[FunctionType]) -> bool:
    """Return whether a rule calls, itself or through others, one that another takes the place of."""
    seen.add(function)
    called = [function.__globals__.get(name) for name in function.__code__.co_names]
    rules_called = [each for each in called if isinstance(each, FunctionType) and _is_rule(each)]
    if any(each in swap.instead for each in rules_called):
        return True
    return any(_reaches(each, swap, seen) for each in rules_called if each not in seen)


def _take_wide(made: Any) -> None:
    """Let compiled code call `made` with whole numbers of any width, and compile it for the widest alone.

    Constants and numbers from narrow columns would otherwise make a copy of a rule for every constant and every mixture
    of widths that it is called with, which takes several times as long to compile and computes the same.
    """
    from numba import types as known

    types: Any = known
    template = made.get_call_template
    narrow = (*types.signed_domain, *types.unsigned_domain)
    narrow = tuple(one for one in narrow if one not in (types.int64, types.uint64))

    def wide(arguments: Any, named: Any) -> Any:
        plain = [types.unliteral(one) for one in arguments]
        return template(tuple(types.int64 if one in narrow else one for one in plain), named)

    made.get_call_template = wide


@cache
def _prefetch() -> Any:
    """Return what takes the place of `prefetch` in compiled code: the processor's own hint."""
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
            told = cgutils.get_or_insert_function(builder.module, shape, "llvm.prefetch.p0")
            builder.call(told, [at, number(0), number(3), number(1)])
            return context.get_dummy_value()

        return kinds.void(column, row, place), make

    return hint


@cache
def _lowest_set() -> Any:
    """Return what takes the place of `lowest_set` in compiled code: the processor counts zeros."""
    from llvmlite import ir
    from numba import types
    from numba.extending import intrinsic

    kinds: Any = types

    @intrinsic
    def count(_context: Any, word: Any) -> Any:
        def make(context: Any, builder: Any, signature: Any, given: Any) -> Any:
            wide = context.cast(builder, given[0], signature.args[0], kinds.int64)
            return builder.cttz(wide, ir.IntType(1)(1))

        return kinds.int64(word), make

    return count


@cache
def _blank() -> Any:
    """Return what takes the place of `blank` in compiled code: room on the stack, which need not be cleared."""
    from numba.core import cgutils
    from numba.extending import intrinsic

    @intrinsic
    def local(_context: Any, sheet: Any) -> Any:
        kind = sheet.types[sheet.fields.index("pool")].dtype

        def make(context: Any, builder: Any, _signature: Any, _given: Any) -> Any:
            room = cgutils.alloca_once(builder, context.get_data_type(kind))
            room.align = 8
            return room

        return kind(sheet), make

    return local


@cache
def _copy_four() -> Any:
    """Return what takes the place of `copy_four` in compiled code: one load and one store of 32 bytes."""
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
            builder.store(builder.load(out_of, align=8), into, align=8)
            return context.get_dummy_value()

        return kinds.void(target, source, first), make

    return copy


_PARTICULAR = {prefetch: _prefetch, lowest_set: _lowest_set, blank: _blank, copy_four: _copy_four}
"""Functions that are no rules and have a form of their own in compiled code."""


def _count_from_the_front(made: Any) -> None:
    """Let compiled code take every index as it is: rules never count from the end of a column.

    The question whether an index is negative would be asked some hundred times for each packet.
    """
    compile_one = made.compile

    def compile_plainly(signature: Any) -> Any:
        with _plain_indices():
            return compile_one(signature)

    made.compile = compile_plainly


@contextmanager
def _plain_indices() -> Iterator[None]:
    """Let numba, as long as this lasts, make no case of negative indices."""
    from numba import types as known
    from numba.np import arrayobj

    types: Any = known
    module: Any = arrayobj
    before = module.fix_integer_index

    def plain(context: Any, builder: Any, kind: Any, index: Any, _size: Any) -> Any:
        return context.cast(builder, index, kind, types.intp if kind.signed else types.uintp)

    module.fix_integer_index = plain
    try:
        yield
    finally:
        module.fix_integer_index = before


def _is_rule(function: FunctionType) -> bool:
    return _RULES.get(f"{function.__module__}.{function.__qualname__}") is function
