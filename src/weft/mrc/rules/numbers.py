"""Arithmetic that the rules share: packet sequence numbers, mixed bits, bit positions.

Inside the rules a packet is known by its sequence number, a counter that never wraps; the wire carries the low 24 bits,
the PSN. `seq_near` turns a PSN back into the sequence number closest to one that is known, which is unambiguous
because a window (at most 255 x 128 packets) is far smaller than half the PSN space.
"""

from weft.core.compile.intrinsics import lowest_set
from weft.core.compile.rules import compiled_variant, rule
from weft.mrc.columns import LOW32, SenderRow

PSN_MASK = 0xFFFFFF
_PSN_SPACE = 0x1000000
_PSN_HALF = 0x800000


@rule
def psn_of(seq: int) -> int:
    """Return the 24 bits that stand for sequence number `seq` on the wire."""
    return seq & PSN_MASK


@rule
def seq_near(psn: int, near: int) -> int:
    """Return the sequence number with the low bits `psn` that is nearest to `near`."""
    # The distance modulo 2^24, taken as signed: at most half the space ahead or behind.
    ahead = (psn - near) & PSN_MASK
    if ahead >= _PSN_HALF:
        ahead -= _PSN_SPACE
    return near + ahead


@rule
def lowest_bit(word: int) -> int:
    """Return the position of the lowest set bit of a `word` that is not 0."""
    return lowest_set(word)


_GOLDEN = 0x9E3779B97F4A7C15 - 2**64
_FIRST = 0xBF58476D1CE4E5B9 - 2**64
_SECOND = 0x94D049BB133111EB - 2**64


@rule
def mix64(word: int, counter: int) -> int:
    """Return all 64 bits that `weft.core.seeds.mix` makes, as a signed number; compiled only, where products wrap."""
    # SplitMix64. A signed shift drags the sign in; the masks make each of them a logical one.
    z = word + _GOLDEN * (counter + 1)
    z = (z ^ ((z >> 30) & 0x3FFFFFFFF)) * _FIRST
    z = (z ^ ((z >> 27) & 0x1FFFFFFFFF)) * _SECOND
    return z ^ ((z >> 31) & 0x1FFFFFFFF)


@rule
def _mix32_wrapping(word: int, counter: int) -> int:
    """Return what `mix32` returns; compiled only, where 64-bit products wrap by themselves."""
    return (mix64(word, counter) >> 32) & LOW32


@rule
def _times(high: int, low: int, by_high: int, by_low: int) -> tuple[int, int]:
    """Return the low 64 bits of a product of two 64-bit numbers, all in 32-bit parts."""
    product = low * by_low
    # The product of the two high parts lies above bit 63 and is left out.
    return ((product >> 32) + high * by_low + low * by_high) & LOW32, product & LOW32


@compiled_variant(_mix32_wrapping)
@rule
def mix32(word: int, counter: int) -> int:
    """Return the upper 32 of the 64 bits that `weft.core.seeds.mix` makes of (word, counter).

    In 32-bit parts, so that signed 64-bit arithmetic gives the same bits as unbounded integers do.
    """
    word = int(word)
    step = int(counter) + 1
    high, low = _times((step >> 32) & LOW32, step & LOW32, 0x9E3779B9, 0x7F4A7C15)
    low += word & LOW32
    high = (high + ((word >> 32) & LOW32) + (low >> 32)) & LOW32
    low &= LOW32
    low, high = low ^ (((low >> 30) | (high << 2)) & LOW32), high ^ (high >> 30)
    high, low = _times(high, low, 0xBF58476D, 0x1CE4E5B9)
    low, high = low ^ (((low >> 27) | (high << 5)) & LOW32), high ^ (high >> 27)
    high, low = _times(high, low, 0x94D049BB, 0x133111EB)
    return high ^ (high >> 31)


@rule
def next_draw(qp: SenderRow, below: int) -> int:
    """Return the next of the even draws that a row's `word` gives, and have the one after it ready in `drawn`.

    Writes `draws` and `drawn`.
    """
    found = (qp["drawn"] * below) >> 32
    qp["draws"] += 1
    qp["drawn"] = mix32(qp["word"], qp["draws"])
    return found


@rule
def draw(word: int, counter: int, below: int) -> int:
    """Return number `counter` of the even draws from 0 to `below` - 1 that `word` gives; `below` under 2^31."""
    return (mix32(word, counter) * int(below)) >> 32
