"""What an explanation is made of: values show the digits that mean something, and verdicts follow the errors."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weft.fabric.explain.base import ClosedFormCheck, Unit, curves, points, shown, shown_pair
from weft.fabric.theory.estimate import Estimate

UNITS: tuple[Unit, ...] = ("", "share", "x", "us", "frames", "packets")


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (0.5, "share", "50 %"), (1.2345, "x", "1.23 x"), (12.5, "us", "12.5 us"), (0.0, "", "0"),
        (2e-5, "", "2.00e-05"), (2e-7, "share", "2.00e-05 %"),
    ],
)  # fmt: skip
def test_a_value_is_shown_with_its_unit(value: float, unit: Unit, text: str):
    assert shown(value, unit) == text


@pytest.mark.parametrize(
    ("value", "error", "unit", "pair"),
    [
        (0.5, 0.01, "share", ("50.0 %", "± 1.0")),
        (12.3456, 0.0123, "us", ("12.346 us", "± 0.012")),
        (1234.5, 25.0, "frames", ("1,234 frames", "± 25")),
        (1e-8, 1e-9, "", ("1.00e-08", "± 1.0e-09")),
        (3.0, 0.0, "x", ("3 x", "0")),
    ],
)
def test_an_estimate_is_shown_to_the_digits_that_its_error_leaves(
    value: float, error: float, unit: Unit, pair: tuple[str, str]
):
    assert shown_pair(Estimate(value, error, 100), unit) == pair


@given(st.floats(-1e6, 1e6), st.floats(1e-6, 10), st.floats(0, 10))
def test_a_check_agrees_within_four_standard_errors_and_not_beyond(closed: float, error: float, away: float):
    check = ClosedFormCheck("a figure", "x", "", closed, Estimate(closed + away * error, error, 100))
    if away < 3.9:
        assert check.verdict == "agrees"
    elif away * error > 4 * error + 1e-3 * abs(closed) + 1e-6:
        assert check.verdict == "disagrees"
    assert check.as_json()["verdict"] == check.verdict


def test_what_has_no_formula_is_simulated_only():
    assert ClosedFormCheck("a figure", "", "us", None, Estimate(1.0, 0.1, 10)).verdict == "simulated only"


@pytest.mark.parametrize("unit", UNITS)
def test_an_approximation_may_be_off_by_what_it_says(unit: Unit):
    estimate = Estimate(1.05, 0.001, 100)
    assert ClosedFormCheck("a figure", "x", unit, 1.0, estimate).verdict == "disagrees"
    assert ClosedFormCheck("a figure", "x", unit, 1.0, estimate, tolerance=0.05).verdict == "agrees"


def test_points_carry_their_errors_and_curves_share_their_abscissae():
    simulated = points("simulated", [1.0, 2.0], [Estimate(3.0, 0.1, 9), Estimate(4.0, 0.2, 9)])
    assert (simulated.marks, simulated.y, simulated.error) == ("points", (3.0, 4.0), (0.1, 0.2))
    assert [(line.name, line.x) for line in curves([1.0], {"a": [2.0], "b": [3.0]})] == [("a", (1.0,)), ("b", (1.0,))]
