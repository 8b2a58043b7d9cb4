"""A sample of the drawn disturbances; `python -m verification.disturbances` runs as many as one likes."""

import hashlib
import subprocess
from pathlib import Path

import pytest
from verification.disturbances import KINDS, PLANS, drawn, run

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
    assert {one.plan for one in found if one.kind == "flip"} <= {"dp", "MoE"}


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_disturbed_runs_have_the_same_bits_or_are_refused_with_reason() -> None:
    seed = seed_of_this_tree()
    wrong = [one for one in run(12, seed, limit_s=300) if one["outcome"] not in ("same", "refused")]
    assert wrong == [], f"python -m verification.disturbances --seed {seed}"
