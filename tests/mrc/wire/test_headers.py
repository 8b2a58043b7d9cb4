"""Every header by its table: sizes, places, ranges, and what is refused."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weft.mrc.wire.headers import BITS_PER_BYTE, HEADERS, Bth, DecodeError, Header

SIZES = {
    "Bth": 12,
    "Meth": 4,
    "Tseth": 4,
    "Reth": 16,
    "ImmDt": 4,
    "Seth": 28,
    "CcState": 8,
    "Neth": 20,
    "Peth": 16,
    "Erth": 16,
    "Eeth": 36,
    "Aeth": 4,
}
"""Bytes of each header as the public record has them (facts section 3)."""
FIELDS = [(header, name, width) for header in HEADERS for name, width in header.layout if name]


def _limits(width: int) -> tuple[int, int]:
    """Return the least and the greatest number of a field; a negative width is a signed one."""
    bits = abs(width)
    return (-(1 << (bits - 1)), (1 << (bits - 1)) - 1) if width < 0 else (0, (1 << bits) - 1)


def _zero(header: type[Header]) -> dict[str, int]:
    return {name: 0 for name, _ in header.layout if name}


@st.composite
def headers(draw: st.DrawFn) -> Header:
    kind = draw(st.sampled_from(HEADERS))
    return kind(**{name: draw(st.integers(*_limits(width))) for name, width in kind.layout if name})


def test_sizes_are_those_of_the_specification() -> None:
    assert {header.__name__: header.size() for header in HEADERS} == SIZES


@given(headers(), st.binary(max_size=8), st.binary(max_size=8))
def test_a_header_reads_back_wherever_it_stands(header: Header, before: bytes, after: bytes) -> None:
    assert type(header).decode(before + header.encode() + after, len(before)) == header


@pytest.mark.parametrize(("header", "name", "width"), FIELDS)
def test_a_field_lies_where_its_table_says(header: type[Header], name: str, width: int) -> None:
    values = _zero(header) | {name: -1 if width < 0 else (1 << width) - 1}
    whole = int.from_bytes(header(**values).encode(), "big")
    last = header.byte_of(name) + (header.shift_of(name) + abs(width) - 1) // BITS_PER_BYTE
    behind = (header.size() - 1 - last) * BITS_PER_BYTE + header.shift_of(name)
    assert whole == ((1 << abs(width)) - 1) << behind


@pytest.mark.parametrize(("header", "name", "width"), FIELDS)
def test_the_limits_of_a_field_fit_and_one_more_does_not(header: type[Header], name: str, width: int) -> None:
    low, high = _limits(width)
    for value in (low, high):
        made = header(**(_zero(header) | {name: value}))
        assert getattr(header.decode(made.encode()), name) == value
    for value in (low - 1, high + 1):
        with pytest.raises(AssertionError, match=f"{header.__name__}.{name} = {value} does not fit {abs(width)} bits"):
            header(**(_zero(header) | {name: value})).encode()


@pytest.mark.parametrize("header", HEADERS)
def test_a_header_that_is_cut_off_says_what_it_needs(header: type[Header]) -> None:
    size = header.size()
    for length in range(size):
        with pytest.raises(DecodeError, match=f"{header.__name__} needs {size} bytes at 0, found {length}"):
            header.decode(bytes(length))
    with pytest.raises(DecodeError, match="found 0"):
        header.decode(bytes(size), size + 3)


@pytest.mark.parametrize("header", HEADERS)
def test_reserved_bits_are_sent_as_zero_and_not_read(header: type[Header]) -> None:
    every = header.decode(b"\xff" * header.size())
    reserved = sum(width for name, width in header.layout if not name)
    ones = int.from_bytes(every.encode(), "big").bit_count()
    assert ones == header.size() * BITS_PER_BYTE - reserved


def test_a_table_that_does_not_fill_whole_bytes_is_refused() -> None:
    with pytest.raises(AssertionError, match="Odd"):
        type("Odd", (Header,), {"layout": (("field", 7),)})


def test_the_flags_of_a_base_transport_header_share_a_byte() -> None:
    names = ("ack_request", "retransmission", "timestamped")
    assert {Bth.byte_of(name) for name in names} == {8}
    assert [Bth.shift_of(name) for name in names] == [7, 5, 4]
