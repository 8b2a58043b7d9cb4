"""The keyed hashes of `weft.mrc.wire.tags` for compiled code: the same numbers, at the speed of memory.

They work on bare addresses and are written for LLVM directly: SipHash because its words wrap and shift without signs,
NH because its words are taken sixteen at a time, in whatever registers the processor has.
"""

from typing import Any

from llvmlite import ir
from numba import njit, types
from numba.core import cgutils
from numba.core.typing import BaseContext as TypingContext
from numba.extending import intrinsic

from weft.mrc.wire.tags import BLOCK_BYTES, STEP_BYTES, SUM_BYTES
from weft.transport.memory.native import Call, apart, move

# Its types describe what makes an intrinsic, not what one is called with.
_intrinsic: Any = intrinsic
_I64 = ir.IntType(64)
_STARTS = (0x736F6D6570736575, 0x646F72616E646F6D, 0x6C7967656E657261, 0x7465646279746573)
_SUM_WORDS = SUM_BYTES // 8
_TOEPLITZ = 8
TAIL_BYTES = STEP_BYTES
"""Room that `sums_at` needs beside."""


def _at(builder: ir.IRBuilder, base: ir.Value, offset: int, kind: ir.Type) -> ir.Value:
    """Return what lies `offset` bytes behind an address, which may be any."""
    return builder.load(builder.inttoptr(builder.add(base, _I64(offset)), kind.as_pointer()), align=1)


def _sip_round(builder: ir.IRBuilder, v: list[ir.Value]) -> list[ir.Value]:
    """Write one round over the four words of the state."""

    def left(word: ir.Value, bits: int) -> ir.Value:
        return builder.or_(builder.shl(word, _I64(bits)), builder.lshr(word, _I64(64 - bits)))

    v0, v1, v2, v3 = v
    v0, v2 = builder.add(v0, v1), builder.add(v2, v3)
    v1, v3 = builder.xor(left(v1, 13), v0), builder.xor(left(v3, 16), v2)
    v0 = left(v0, 32)
    v0, v2 = builder.add(v0, v3), builder.add(v2, v1)
    v3, v1 = builder.xor(left(v3, 21), v0), builder.xor(left(v1, 17), v2)
    return [v0, v1, left(v2, 32), v3]


@_intrinsic
def _siphash(typing: TypingContext, key: types.Type, address: types.Type, words: types.Type) -> Any:
    """Return SipHash-2-4 of `words` words at `address` under the 16 bytes at `key`."""
    del typing, key, address, words

    def code(*call: *Call) -> object:
        _, builder, _, (key, address, count) = call
        held = [cgutils.alloca_once(builder, _I64) for _ in _STARTS]
        for place, start in enumerate(_STARTS):
            half = _at(builder, key, 8 * (place % 2), _I64)
            builder.store(builder.xor(half, ir.Constant(_I64, start)), held[place])

        def take(word: ir.Value) -> None:
            v = [builder.load(one) for one in held]
            v[3] = builder.xor(v[3], word)
            for _ in range(2):
                v = _sip_round(builder, v)
            v[0] = builder.xor(v[0], word)
            for one, place in zip(v, held, strict=True):
                builder.store(one, place)

        with cgutils.for_range(builder, count) as loop:
            take(_at(builder, builder.add(address, builder.mul(loop.index, _I64(8))), 0, _I64))
        # The standard's last word: the length in its upper byte.
        take(builder.shl(builder.mul(count, _I64(8)), _I64(56)))
        v = [builder.load(one) for one in held]
        v[2] = builder.xor(v[2], _I64(0xFF))
        for _ in range(4):
            v = _sip_round(builder, v)
        return builder.xor(builder.xor(v[0], v[1]), builder.xor(v[2], v[3]))

    return types.int64(types.intp, types.intp, types.intp), code


@_intrinsic
def _nh(typing: TypingContext, key: types.Type, address: types.Type, steps: types.Type, out: types.Type) -> Any:
    """Add both sums of `steps` steps at `address` to the two words at `out`."""
    del typing, key, address, steps, out
    narrow, wide = ir.VectorType(ir.IntType(32), STEP_BYTES // 4), ir.VectorType(_I64, STEP_BYTES // 8)
    lanes = STEP_BYTES // 8

    def code(*call: *Call) -> object:
        context, builder, _, (key, address, count, out) = call
        low, half = (ir.Constant(wide, [number] * lanes) for number in (0xFFFFFFFF, 32))
        sums = [cgutils.alloca_once(builder, wide) for _ in range(_SUM_WORDS)]
        for each in sums:
            builder.store(ir.Constant(wide, [0] * lanes), each)
        with cgutils.for_range(builder, count) as loop:
            offset = builder.mul(loop.index, _I64(STEP_BYTES))
            given = _at(builder, builder.add(address, offset), 0, narrow)
            for turn, each in enumerate(sums):
                mixed = builder.add(given, _at(builder, builder.add(key, offset), turn * _TOEPLITZ, narrow))
                # Lower and upper half of each lane: processors multiply those to 64 bits in one instruction.
                pair = builder.bitcast(mixed, wide)
                product = builder.mul(builder.and_(pair, low), builder.lshr(pair, half))
                builder.store(builder.add(builder.load(each), product), each)
        for turn, each in enumerate(sums):
            place = builder.inttoptr(builder.add(out, _I64(8 * turn)), _I64.as_pointer())
            total, lane = builder.load(place), builder.load(each)
            for number in range(lanes):
                total = builder.add(total, builder.extract_element(lane, ir.IntType(32)(number)))
            builder.store(total, place)
        return context.get_dummy_value()

    return types.none(types.intp, types.intp, types.intp, types.intp), code


@_intrinsic
def _clear(typing: TypingContext, address: types.Type) -> Any:
    """Set the two words of a block to zero."""
    del typing, address
    return types.none(types.intp), _clearing(SUM_BYTES)


@_intrinsic
def _clear_step(typing: TypingContext, address: types.Type) -> Any:
    """Set the bytes of one step to zero."""
    del typing, address
    return types.none(types.intp), _clearing(STEP_BYTES)


def _clearing(size: int) -> Any:
    def code(*call: *Call) -> object:
        context, builder, _, (address,) = call
        for at in range(0, size, 8):
            place = builder.inttoptr(builder.add(address, _I64(at)), _I64.as_pointer())
            builder.store(_I64(0), place, align=1)
        return context.get_dummy_value()

    return code


@njit(nogil=True)
def sip_at(key: int, address: int, words: int) -> int:
    """Return SipHash-2-4 of `words` words at `address` under the 16 bytes at `key`, as a signed word."""
    apart()
    return _siphash(key, address, words)


@njit(nogil=True)
def sums_at(key: int, address: int, size: int, out: int, tail: int) -> int:
    """Write both NH sums of every block of `size` bytes at `address` to `out`; return how many words those are.

    `tail` is room for `TAIL_BYTES`.
    """
    apart()
    words = 0
    while size > 0:
        block = min(size, BLOCK_BYTES)
        at = out + 8 * words
        _clear(at)
        steps = block // STEP_BYTES
        _nh(key, address, steps, at)
        rest = block - steps * STEP_BYTES
        if rest > 0:
            # What is left is taken beside and filled up with zeros: nothing behind a payload may be read.
            _clear_step(tail)
            move(tail, address + steps * STEP_BYTES, rest)
            _nh(key + steps * STEP_BYTES, tail, 1, at)
        address += block
        size -= block
        words += _SUM_WORDS
    return words
