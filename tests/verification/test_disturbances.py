"""Drawn disturbances, other ones for every commit: a few, and 200 in `make test-long`.

`python -m verification.disturbances` runs as many as one likes.
"""

import hashlib
import subprocess
from pathlib import Path

import pytest
from verification.disturbances import KINDS, OPTIMIZERS, PLANS, REPLICATED, drawn, run

HERE = Path(__file__).parent


def seed_of_this_tree() -> int:
    """Return a number that changes with every commit, so that the sample does."""
    asked = subprocess.run(["git", "rev-parse", "HEAD"], cwd=HERE, capture_output=True, text=True, check=False)
    return int(hashlib.sha256(asked.stdout.encode()).hexdigest()[:8], 16)


def test_draws_reach_every_kind_and_plan_and_repeat() -> None:
    found = [drawn(3, number) for number in range(400)]
    assert {one.kind for one in found} == set(KINDS)
    assert {one.plan for one in found} == set(PLANS)
    assert found == [drawn(3, number) for number in range(400)]
    # Only replicas can tell that a weight has been flipped.
    assert {one.plan for one in found if one.kind == "flip"} <= set(REPLICATED)
    assert {one.optimizer for one in found} == set(OPTIMIZERS)


SAMPLE, LARGE, PART = 8, 200, 10


def of_this_tree(first: int, count: int) -> list[dict[str, object]]:
    """Carry out draws of this commit and return those that are neither equal nor refused with reason."""
    return [one for one in run(count, seed_of_this_tree(), first) if one["outcome"] not in ("same", "refused")]


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("number", range(SAMPLE))
def test_a_disturbed_run_has_the_same_bits_or_is_refused_with_reason(number: int) -> None:
    assert of_this_tree(number, 1) == [], f"python -m verification.disturbances --seed {seed_of_this_tree()}"


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("first", range(SAMPLE, SAMPLE + LARGE, PART))
def test_two_hundred_disturbed_runs_have_the_same_bits_or_are_refused_with_reason(first: int) -> None:
    assert of_this_tree(first, PART) == [], f"python -m verification.disturbances --seed {seed_of_this_tree()}"
