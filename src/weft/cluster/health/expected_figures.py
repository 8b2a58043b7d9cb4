"""What a healthy node reaches in an active test, and how far below it a node may be. Pure."""

from collections.abc import Iterable, Mapping
from typing import Any

from weft.core.errors import UsageError

LEAST_SHARE = 0.9
"""A figure below this share of the expected value fails the test: what is left is the spread of healthy parts."""


def read_expected(texts: Iterable[str]) -> dict[str, float]:
    """Return expected values by figure from CHECK.FIGURE=VALUE."""
    found: dict[str, float] = {}
    for text in texts:
        name, _, value = text.partition("=")
        try:
            number = float(value)
        except ValueError:
            number = 0.0
        if "." not in name or number <= 0:
            raise UsageError(f"--expect {text}: write CHECK.FIGURE=VALUE, such as devices.median_tflop_per_s=480")
        found[name] = number
    return found


def shortfalls(reports: Iterable[Mapping[str, Any]], expected: Mapping[str, float]) -> list[tuple[str, str]]:
    """Return check and text of every figure that is too low; one that was not measured at all is too low as well.

    Figures named with `per_s` are rates, and so are those of bus bandwidth: the higher the better.
    """
    figures = {f"{one['program']}.{name}": float(value) for one in reports for name, value in one["figures"].items()}
    found: list[tuple[str, str]] = []
    for name, value in expected.items():
        check, _, figure = name.partition(".")
        reached = figures.get(name)
        if reached is None:
            found.append((check, f"{figure} was not measured; {value:g} are expected"))
        elif reached < LEAST_SHARE * value:
            found.append((check, f"{figure} is {reached:g}, {reached / value:.0%} of the expected {value:g}"))
    return found


def test_result(reports: list[Mapping[str, Any]], expected: Mapping[str, float]) -> tuple[str, str]:
    """Return what a test has found, in words, and the first check that failed; both empty where it passed."""
    found = [
        (str(each["program"]), str(one["text"]))
        for each in reports
        for one in each["findings"]
        if one["severity"] == "fatal"
    ]
    measured = {str(each["program"]) for each in reports}
    found += shortfalls(reports, {name: value for name, value in expected.items() if name.split(".")[0] in measured})
    return "; ".join(text for _, text in found), found[0][0] if found else ""
