"""What compiled code asks of the machine: libc's calls by name, memory by address, and a CRC by carry-less products.

Symbols are found by name in the process, so that what is compiled can be kept on disk; an address would change from run
to run. Nothing here holds state or knows the protocol. Plain Python can call them too, so that the thread runs without
a compiler.
"""

import ctypes
from collections.abc import Sequence
from typing import Any

import numpy as np
from llvmlite import binding, ir
from numba import njit, types
from numba.core import cgutils
from numba.core.base import BaseContext
from numba.core.typing import BaseContext as TypingContext
from numba.core.typing import Signature
from numba.extending import intrinsic, models, overload, register_model

from weft.core.compile.intrinsics import INTRINSICS, apart
from weft.core.compile.rules import compiled
from weft.mrc.columns import LOW32
from weft.mrc.wire.icrc import crc_over

# Its types describe what makes an intrinsic, not what one is called with.
_intrinsic: Any = intrinsic
_overload: Any = overload
Call = tuple[BaseContext, ir.IRBuilder, Signature, Sequence[ir.Value]]
"""What numba calls the code of an intrinsic with: its context, LLVM's builder, the signature, the values given."""
_I32, _U32, _WORD = types.int32, types.uint32, types.intp


_C_TYPES: dict[Any, Any] = {_I32: ctypes.c_int32, _U32: ctypes.c_uint32, _WORD: ctypes.c_ssize_t}
_LIBC = ctypes.CDLL(None, use_errno=True)


class _External(types.ExternalFunction):
    """A function of libc for compiled code, which plain Python can call as well."""

    def __call__(self, *arguments: int) -> int:
        """Call it from plain Python."""
        function: Any = getattr(_LIBC, self.symbol)
        function.argtypes = [_C_TYPES[one] for one in self.sig.args]
        function.restype = _C_TYPES[self.sig.return_type]
        return int(function(*arguments))


register_model(_External)(models.OpaqueModel)


def _external(name: str, returns: types.Type, *arguments: types.Type) -> Any:
    return _External(name, returns(*arguments))


_stay: Any = INTRINSICS[apart]()


@_overload(apart, inline="always")
def _apart() -> Any:
    """Let functions that are no rules ask for it, too."""
    return lambda: _stay()  # noqa: PLW0108 - numba wants a function of Python


sendmmsg = _external("sendmmsg", _I32, _I32, _WORD, _U32, _I32)
recvmmsg = _external("recvmmsg", _I32, _I32, _WORD, _U32, _I32, _WORD)
ppoll = _external("ppoll", _I32, _WORD, _WORD, _WORD, _WORD)
read = _external("read", _WORD, _I32, _WORD, _WORD)
write = _external("write", _WORD, _I32, _WORD, _WORD)
move = _external("memmove", _WORD, _WORD, _WORD, _WORD)
"""memmove(to, from, bytes)."""
_clock = _external("clock_gettime", _I32, _I32, _WORD)
_errno = _external("__errno_location", _WORD)

CLOCK_MONOTONIC = 1


def fence() -> None:
    """Make what was stored here seen elsewhere before anything is loaded afterwards."""


@_intrinsic
def _fenced(typing: TypingContext) -> Any:
    del typing

    def code(*call: *Call) -> object:
        context, builder, _, _ = call
        builder.fence("seq_cst")
        return context.get_dummy_value()

    return types.none(), code


@_overload(fence, inline="always")
def _fence() -> Any:
    return lambda: _fenced()  # noqa: PLW0108 - numba wants a function of Python


@_intrinsic
def load32(typing: TypingContext, address: types.Type) -> Any:
    """Read a 32-bit number at an address."""
    del typing

    def code(*call: *Call) -> object:
        _, builder, _, arguments = call
        return builder.load(builder.inttoptr(arguments[0], ir.IntType(32).as_pointer()))

    return (types.int32(types.intp), code) if isinstance(address, types.Integer) else None


@_intrinsic
def _load_fresh(typing: TypingContext, address: types.Type) -> Any:
    del typing

    def code(*call: *Call) -> object:
        _, builder, _, arguments = call
        return builder.load_atomic(builder.inttoptr(arguments[0], ir.IntType(64).as_pointer()), "acquire", 8)

    return (types.int64(types.intp), code) if isinstance(address, types.Integer) else None


@_intrinsic
def _store_shown(typing: TypingContext, address: types.Type, word: types.Type) -> Any:
    del typing, address, word

    def code(*call: *Call) -> object:
        context, builder, _, arguments = call
        place = builder.inttoptr(arguments[0], ir.IntType(64).as_pointer())
        builder.store_atomic(arguments[1], place, "release", 8)
        return context.get_dummy_value()

    return types.none(types.intp, types.int64), code


@njit(nogil=True)
def load_word(address: int) -> int:
    """Read 64 bits that others write, anew each time, before anything that comes after."""
    return _load_fresh(address)


@njit(nogil=True)
def store_word(address: int, word: int) -> None:
    """Write 64 bits that others read, after everything that came before."""
    _store_shown(address, word)


@njit(nogil=True)
def _errno_now() -> int:
    return load32(_errno()) + 0


def errno() -> int:
    """Return why the last call failed."""
    return ctypes.get_errno()


@_overload(errno, inline="always")
def _compiled_errno() -> Any:
    return lambda: _errno_now()  # noqa: PLW0108 - the same


@njit(nogil=True)
def now_ns(scratch: np.ndarray) -> int:
    """Return the monotonic time; `scratch` has room for two numbers."""
    _clock(CLOCK_MONOTONIC, scratch.ctypes.data)
    return scratch[0] * 1_000_000_000 + scratch[1]


# Carry-less folding of CRC-32 (the method is Gopal and others, "Fast CRC Computation Using PCLMULQDQ", Intel 2009):
# what four registers hold is carried four registers on by two products each, and what is left has the same remainder.
_POLYNOMIAL = 0x104C11DB7
FOLD, WIDE_FOLD = 64, 256
"""Bytes that a step folds: four registers of 16 or of 64."""
_FEATURES: dict[str, bool] = binding.get_host_cpu_features()
CAN_FOLD = bool(_FEATURES.get("pclmul", False))
"""Whether this CPU has the instruction; tables serve elsewhere."""
CAN_FOLD_WIDE = CAN_FOLD and all(_FEATURES.get(name, False) for name in ("vpclmulqdq", "avx512f"))
"""Whether it has the instruction for four times as much at once."""


def _power(exponent: int) -> int:
    """Return x^exponent modulo the polynomial, bits reversed and moved up by one, as folding wants it."""
    value = 1
    for _ in range(exponent):
        value <<= 1
        if value >> 32:
            value ^= _POLYNOMIAL
    return int(f"{value:032b}"[::-1], 2) << 1


def _folding(step: int, name: str) -> Any:
    """Return the intrinsic that folds `step` bytes at a time by the carry-less product called `name`."""
    size = step // 4
    word, whole = ir.IntType(64), ir.IntType(8 * size)
    register = ir.VectorType(word, size // 8)
    keys = [_power(8 * step + 32), _power(8 * step - 32)] * (size // 16)

    def fold(typing: TypingContext, address: types.Type, blocks: types.Type, start: types.Type, out: types.Type) -> Any:
        del typing
        if not all(isinstance(one, types.Integer) for one in (address, blocks, start, out)):
            return None

        def code(*call: *Call) -> object:
            context, builder, _, arguments = call
            multiply = cgutils.get_or_insert_function(
                builder.module, ir.FunctionType(register, [register, register, ir.IntType(8)]), name
            )
            key = ir.Constant(register, keys)
            given, count, begin, target = arguments

            def at(base: ir.Value, offset: int) -> ir.Value:
                return builder.inttoptr(builder.add(base, ir.Constant(word, offset)), register.as_pointer())

            held = [cgutils.alloca_once(builder, register) for _ in range(4)]
            for k in range(4):
                builder.store(builder.load(at(given, size * k), align=1), held[k])
            mixed = builder.xor(
                builder.bitcast(builder.load(held[0]), whole), builder.zext(builder.trunc(begin, ir.IntType(32)), whole)
            )
            builder.store(builder.bitcast(mixed, register), held[0])
            with cgutils.for_range(builder, count, start=ir.Constant(word, 1)) as loop:
                base = builder.add(given, builder.mul(loop.index, ir.Constant(word, step)))
                for k in range(4):
                    one = builder.load(held[k])
                    low = builder.call(multiply, [one, key, ir.Constant(ir.IntType(8), 0x00)])
                    high = builder.call(multiply, [one, key, ir.Constant(ir.IntType(8), 0x11)])
                    # Addresses come from anywhere, so every load says that it may not be aligned.
                    fresh = builder.load(at(base, size * k), align=1)
                    builder.store(builder.xor(builder.xor(low, high), fresh), held[k])
            for k in range(4):
                builder.store(builder.load(held[k]), at(target, size * k), align=1)
            return context.get_dummy_value()

        return types.none(types.intp, types.intp, types.int64, types.intp), code

    return _intrinsic(fold)


_fold = _folding(FOLD, "llvm.x86.pclmulqdq")
"""Fold blocks of bytes at an address, a CRC's register mixed in, into 64 bytes with the same remainder."""
_fold_wide = _folding(WIDE_FOLD, "llvm.x86.pclmulqdq.512")
"""The same into 256 bytes."""
_table_crc = compiled(crc_over)
_FOLDS, _FOLDS_WIDE = CAN_FOLD, CAN_FOLD_WIDE
CRC_SCRATCH = WIDE_FOLD + FOLD
"""Bytes that `crc_at` needs beside."""


@njit(nogil=True)
def crc_at(address: int, size: int, crc: int, scratch: np.ndarray) -> int:
    """Return `crc` carried on over `size` bytes at `address`; `scratch` has room for `CRC_SCRATCH` bytes."""
    apart()
    # Each fold leaves 64 bytes with the same remainder, so the table has to go over those alone, and over the rest.
    done = 0
    if _FOLDS_WIDE and size >= 2 * WIDE_FOLD:
        left = scratch.ctypes.data + FOLD
        _fold_wide(address, size // WIDE_FOLD, crc ^ LOW32, left)
        _fold(left, WIDE_FOLD // FOLD, 0, scratch.ctypes.data)
        crc = _table_crc(scratch, 0, FOLD, LOW32)
        done = size // WIDE_FOLD * WIDE_FOLD
    elif _FOLDS and size >= FOLD:
        _fold(address, size // FOLD, crc ^ LOW32, scratch.ctypes.data)
        crc = _table_crc(scratch, 0, FOLD, LOW32)
        done = size // FOLD * FOLD
    while done < size:
        piece = min(size - done, FOLD)
        move(scratch.ctypes.data, address + done, piece)
        crc = _table_crc(scratch, 0, piece, crc)
        done += piece
    return crc
