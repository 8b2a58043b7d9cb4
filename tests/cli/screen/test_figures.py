"""Figures as people write them: a change is a share, or a factor where it is large; an interval has one unit."""

from hypothesis import given
from hypothesis import strategies as st

from weft.cli.screen.figures import day_range, second_range, share


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
