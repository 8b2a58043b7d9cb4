"""A figure is held against what is expected: one that is missing is as bad as one that is too low."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weft.cluster.health.expected_figures import LEAST_SHARE, read_expected, shortfalls
from weft.core.errors import UsageError


@given(value=st.floats(1e-3, 1e12), share=st.floats(0, 2))
def test_what_is_below_the_share_fails_and_nothing_else(value: float, share: float) -> None:
    reports = [{"program": "devices", "figures": {"gb_per_s": share * value}}]
    assert bool(shortfalls(reports, {"devices.gb_per_s": value})) == (share * value < LEAST_SHARE * value)


def test_what_was_not_measured_fails() -> None:
    found = shortfalls([{"program": "devices", "figures": {}}], {"devices.busbw_gb_per_s": 400})
    assert found == [("devices", "busbw_gb_per_s was not measured; 400 are expected")]


@pytest.mark.parametrize("text", ["devices=4", "devices.x=", "devices.x=-1", "devices.x=fast", "x"])
def test_what_is_no_expectation_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match=r"CHECK\.FIGURE=VALUE"):
        read_expected([text])


def test_expectations_are_read() -> None:
    assert read_expected(["devices.a=4.5", "memory.b=1"]) == {"devices.a": 4.5, "memory.b": 1.0}
