"""The compiled helpers do what their plain twins do."""

import zlib

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from weft.transport.memory.arithmetic import BITWISE, ELEMENTS, OPERATIONS, kind_of, reduce_at
from weft.transport.memory.native import CRC_SCRATCH, crc_at

_SCRATCH = np.zeros(CRC_SCRATCH, np.uint8)


@given(st.binary(max_size=1500), st.integers(0, 2**32 - 1), st.integers(0, 15))
def test_the_folded_crc_is_zlibs(data, start, shift) -> None:
    held = np.frombuffer(bytes(shift) + data + b"\0", np.uint8)
    assert crc_at(held.ctypes.data + shift, len(data), start, _SCRATCH) == zlib.crc32(data, start)


_TWINS = {"sum": np.add, "product": np.multiply, "min": np.minimum, "max": np.maximum}
_TWINS |= {"band": np.bitwise_and, "bor": np.bitwise_or, "bxor": np.bitwise_xor}


def test_reductions_are_numpys() -> None:
    chance = np.random.default_rng(3)
    for operation in OPERATIONS:
        for element in ELEMENTS:
            a, b = chance.integers(0, 100, (2, 1003)).astype(element)
            if element.startswith("float"):
                a[5], b[9] = np.nan, np.nan
            with np.errstate(over="ignore"):
                wanted = _TWINS[operation](a, b)
            reduce_at(kind_of(operation, element), a.ctypes.data, b.ctypes.data, len(a))
            assert np.array_equal(a, wanted, equal_nan=element.startswith("float")), (operation, element)


def test_bits_are_combined_as_bytes() -> None:
    for operation in BITWISE:
        a, b = np.random.default_rng(4).integers(-(2**40), 2**40, (2, 17))
        wanted = _TWINS[operation](a, b)
        reduce_at(kind_of(operation, "int64"), a.ctypes.data, b.ctypes.data, a.nbytes)
        assert np.array_equal(a, wanted)


def test_averages_divide_by_one_number() -> None:
    for element in ("float32", "float64"):
        a, by = np.arange(9).astype(element), np.array([3], element)
        wanted = a / by
        reduce_at(kind_of("divide", element), a.ctypes.data, by.ctypes.data, len(a))
        assert np.array_equal(a, wanted)
