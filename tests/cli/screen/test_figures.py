"""Figures as people write them: a change is a share, or a factor where it is large; an interval has one unit."""

from collections.abc import Callable

from hypothesis import given
from hypothesis import strategies as st

from weft.cli.screen.figures import day_range, days, kilograms, kilowatt_hours, money, second_range, share


@given(st.floats(1e-6, 1e9), st.floats(0.01, 1), st.floats(1, 100))
def test_an_interval_is_written_in_one_unit(middle: float, below: float, above: float):
    ends, _, unit = second_range(middle * below, middle, middle * above).rpartition(" ")
    low, _, high = ends.partition(" to ")
    assert second_range(middle, middle, middle).endswith(f" {unit}")
    assert float(low.replace(",", "")) <= float(high.replace(",", ""))


def test_an_interval_around_a_unit_stays_in_that_of_its_middle():
    assert day_range(0.9, 1.37, 1.5) == "0.9 to 1.5 d"
    assert second_range(0.9, 0.95, 1.01) == "900 to 1,010 ms"


def test_a_large_change_is_a_factor_and_none_has_no_sign():
    assert [share(change) for change in (0.00001, -0.0003, -0.095, 0.417, 1.0, 56.7)] == [
        "0.0%", "0.0%", "-9.5%", "+41.7%", "x 2", "x 57.7",
    ]  # fmt: skip


@given(
    st.floats(1e-9, 1e12),
    st.sampled_from([days, kilograms, kilowatt_hours, lambda value: money(value, "USD")]),
)
def test_nobody_has_to_count_noughts(value: float, written: Callable[[float], str]):
    figure = written(value)
    digits = "".join(letter for letter in figure if letter.isdigit())
    assert not digits.startswith("0000"), figure
    assert len(digits) <= 12, figure


def test_amounts_are_in_the_unit_that_people_use():
    assert [money(each, "USD") for each in (0, 0.0000971, 0.0247, 24.7, 12_300)] == [
        "0 USD", "under 0.01 USD", "0.02 USD", "24.70 USD", "12,300 USD",
    ]  # fmt: skip
    assert [days(each) for each in (136, 1_000, 70_500)] == ["136 d", "1,000 d", "193 years"]
    assert day_range(63_400, 70_500, 77_500) == "174 to 212 years"
    assert kilograms(0.0000000475) == "under 0.01 g"
    assert kilowatt_hours(38.5e9) == "38.5 TWh"
