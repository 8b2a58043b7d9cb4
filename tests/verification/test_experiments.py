"""The experiments: each meets its criterion, notices that its mechanism is off, and is the same on both simulators."""

import pytest
from verification.runner import ALL, run_one

LARGEST = 150_000
"""Bytes that no picture may have."""
WHOLE = ("scale", "scale-64", "full-131k")
"""Experiments of ten minutes and more: `make test-long` runs them, and `make verify` records them."""
EXPERIMENTS = [pytest.param(name, marks=pytest.mark.long) if name in WHOLE else name for name in ALL]


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("name", EXPERIMENTS)
def test_an_experiment_meets_its_criteria(name: str) -> None:
    _, found, picture, _ = run_one(name)
    assert [row.what for row in found.findings if not row.holds and not row.why] == []
    assert any(row.what.startswith("off:") for row in found.findings) or name in ("htsim", "full-131k")
    assert picture is None or len(picture) < LARGEST


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", ["S11", "S13"])
def test_both_simulators_find_the_same(name: str) -> None:
    first, second = (run_one(name, engine)[1] for engine in ("engine", "reference"))
    assert first.findings == second.findings


def test_every_experiment_is_known_by_its_name() -> None:
    numbers = (2, 9, 10, 11, 12, 13, 14, 15, 16, 18)
    assert {name for name in ALL if name.startswith("S")} == {f"S{n}" for n in numbers}
