"""The quick experiments: each meets its criterion, and each notices that its mechanism is off."""

import pytest
from verification.runner import ALL, LONGEST_FIRST, run_one

QUICK = tuple(name for name in ALL if name not in LONGEST_FIRST)


@pytest.mark.slow
@pytest.mark.trial
@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", QUICK)
def test_an_experiment_meets_its_criteria(name: str) -> None:
    _, found, picture, _ = run_one(name)
    assert [row.what for row in found.findings if not row.holds and not row.why] == []
    assert picture is None or len(picture) < 150_000, "pictures stay small"


def test_every_experiment_is_known_by_its_name() -> None:
    assert {name for name in ALL if name.startswith("S")} == {
        "S2",
        *(f"S{n}" for n in (9, 10, 11, 12, 13, 14, 15, 16, 18)),
    }
