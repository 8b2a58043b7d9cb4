"""Quantities: what people write is what is meant, to the last digit."""

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weft.core import quantity
from weft.core.quantity import Dimension, QuantityError, significant

DIMENSIONS = [value for value in vars(quantity).values() if isinstance(value, Dimension)]


@pytest.mark.parametrize("dimension", DIMENSIONS, ids=lambda d: d.name)
@given(amount=st.integers(min_value=-(10**30), max_value=10**30))
def test_written_and_read_again_is_the_same(dimension: Dimension, amount: int):
    assert dimension.parse(dimension.format(amount)) == amount


@given(
    number=st.decimals(min_value=0, max_value=10**6, places=3),
    unit=st.sampled_from(sorted(quantity.RATE.units)),
    gap=st.sampled_from(["", " ", "  "]),
)
def test_a_rate_is_its_number_times_its_unit(number, unit, gap):
    text = f"{number}{gap}{unit}"
    expected = quantity.RATE.units[unit] * (int(number * 1000)) / 1000
    if expected.denominator == 1:
        assert quantity.RATE.parse(text) == expected
    else:
        with pytest.raises(QuantityError, match="whole number"):
            quantity.RATE.parse(text)


@pytest.mark.parametrize(
    ("dimension", "text", "amount"),
    [
        (quantity.RATE, "800 Gb/s", 800 * 10**9),
        (quantity.RATE, "800Gbps", 800 * 10**9),
        (quantity.RATE, "51.2 Tb/s", 51_200 * 10**9),
        (quantity.RATE, "1 GB/s", 8 * 10**9),
        (quantity.SIZE, "4 KiB", 4096),
        (quantity.SIZE, "186 GB", 186 * 10**9),
        (quantity.TIME, "12 us", 12_000_000),
        (quantity.TIME, "12 µs", 12_000_000),
        (quantity.POWER, "700 W", 700_000),
        (quantity.FAILURE_RATE, "3 /1e6 h", 3000),
        (quantity.FAILURE_RATE, "300 FIT", 300),
        (quantity.FAILURE_RATE, "6.5 /1000 d", 270_833),
        (quantity.SPEED, "989 TFLOP/s", 989 * 10**12),
        (quantity.LENGTH, "30 m", 30_000),
    ],
)
def test_what_people_write_is_understood(dimension: Dimension, text: str, amount: int):
    assert dimension.parse(text) == amount


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("800", "no unit"),
        ("800 GB", "not a unit"),
        ("800 gb/s", "did you mean Gb/s"),
        ("", "is not a rate"),
        ("fast", "is not a rate"),
        ("1e9999 b/s", "out of any range"),
        ("0.5 b/s", "whole number"),
        ("1 Gb/s " + "x" * 100, "is not a rate"),
    ],
)
def test_a_wrong_rate_says_what_would_be_right(text: str, hint: str):
    with pytest.raises(QuantityError, match=hint):
        quantity.RATE.parse(text)


@given(text=st.text(max_size=80))
def test_any_text_is_a_quantity_or_a_clear_refusal(text: str):
    for dimension in DIMENSIONS:
        with contextlib.suppress(QuantityError):
            assert isinstance(dimension.parse(text), int)


def test_failures_in_no_time_are_refused():
    with pytest.raises(QuantityError, match="no time"):
        quantity.FAILURE_RATE.parse("3 /0 h")


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0"), (1234.5, "1,230"), (0.00390625, "0.00391"), (12, "12"), (999.6, "1,000"), (-2.5, "-2.5")],
)
def test_figures_for_people_keep_three_digits(value: float, text: str):
    assert significant(value) == text


def test_about_uses_the_largest_unit_that_fits():
    assert quantity.POWER.about(20_700_000_123) == "20.7 MW"
    assert quantity.TIME.about(0) == "0 ps"
