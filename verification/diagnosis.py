"""Seeded jobs with a planted cause: how many culprits `weft.diagnosis` names, and how often it blames the innocent.

    python -m verification.diagnosis --worlds 500 --seed 0

Prints a row for each cause; status 1 if fewer than 97 in a hundred are named right or anybody is blamed in a healthy job.
"""

import argparse
import sys
from collections import Counter
from typing import get_args

import numpy as np

from weft.diagnosis.accusation import accuse
from weft.diagnosis.finding import DiagnosisFinding
from weft.diagnosis.step_program import step_program
from weft.testing.timed_jobs import PlantedCause, TimedJob, timed_job

LEAST_RIGHT = 0.97
_SAME_NAME = {"intermittent-rank": "slow-rank", "slow-since": "slow-rank"}
_CAUSES: tuple[PlantedCause, ...] = get_args(PlantedCause)


def drawn(number: int, seed: int) -> TimedJob:
    """Draw a job: its shape, its noise, its cause and the culprit."""
    chance = np.random.default_rng([seed, number])
    cause = _CAUSES[number % len(_CAUSES)]
    replicas, stages = int(chance.choice([1, 2, 3, 4, 8])), int(chance.choice([1, 2, 3, 4, 6]))
    if cause in {"slow-stage", "slow-link"}:
        stages = max(2, stages)
    else:
        replicas = max(2, replicas)
    culprits = {
        "slow-stage": range(stages), "slow-link": range(replicas, replicas * stages), "input-stall": range(replicas)
    }.get(cause, range(replicas * stages))  # fmt: skip
    return TimedJob(
        number, replicas, stages, int(chance.choice([4, 8, 12, 16])), int(chance.choice([8, 12, 20])), cause,
        float(chance.choice([0.002, 0.01, 0.02])), float(chance.uniform(1.2, 2.0)),
        int(chance.choice(list(culprits))),
    )  # fmt: skip


def is_right(job: TimedJob, found: list[DiagnosisFinding]) -> bool:
    """Return whether the first finding names the planted cause and its culprit, or nobody where there is none."""
    if job.cause == "none":
        return not found
    if not found or found[0].cause != _SAME_NAME.get(job.cause, job.cause):
        return False
    worst = found[0]
    if worst.cause in {"slow-rank", "input-stall"}:
        return worst.ranks == (job.culprit,)
    if worst.cause == "slow-stage":
        return worst.subject.startswith(f"stage {job.culprit}")
    return worst.cause != "slow-link" or job.culprit in worst.ranks


def main() -> int:
    """Run the worlds and print the score."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--worlds", type=int, default=160)
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()
    tried: Counter[str] = Counter()
    right: Counter[str] = Counter()
    for number in range(asked.worlds):
        job = drawn(number, asked.seed)
        program = step_program(timed_job(job))
        assert program is not None
        found = [one for one in accuse(program).sorted() if one.verdict != "note"]
        tried[job.cause] += 1
        if is_right(job, found):
            right[job.cause] += 1
        else:
            print(f"missed: {job}: {[(one.cause, one.subject) for one in found]}")
    for cause in _CAUSES:
        print(f"{cause:20} {right[cause]:4} of {tried[cause]:4}")
    share = right.total() / tried.total()
    print(f"named right: {share:.1%} of {tried.total()} jobs")
    return int(share < LEAST_RIGHT or right["none"] < tried["none"])


if __name__ == "__main__":
    sys.exit(main())
