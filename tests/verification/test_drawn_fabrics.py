"""Fabrics drawn from a seed: the same every time, within what was asked for, and a case that does not hold is said."""

import itertools

import pytest
from verification.drawn_fabrics import KINDS, Case, drawn, healthy


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", [0, 1, 2**40])
def test_a_seed_draws_the_same_cases_that_fit(kind: str, seed: int) -> None:
    first, again = (list(itertools.islice(drawn(seed, kind, 400_000), 20)) for _ in range(2))
    assert first == again
    assert len(set(first)) == len(first)
    for case in first:
        assert 2 <= case.t0s <= 64
        assert 2**18 <= case.size <= 2**25
        assert (case.fan > 0) == (kind == "incast")
        assert case.nics > case.fan + case.down or not case.fan


@pytest.mark.slow
def test_a_case_that_does_not_hold_is_said() -> None:
    case = Case(2, 16, 2, 100, 2**20, "permutation", 1)
    assert healthy(case)["wrong"] == []
    # Two EVs in a plane meet those of others, and silence is believed far too soon.
    few = {
        "ev": {"active": 4, "backup": 0, "min_active": 1, "placed": False},
        "skip": False,
        "loss": {"spread": "1 us"},
    }
    assert healthy(case, transport={"mrc": few})["wrong"] != []
