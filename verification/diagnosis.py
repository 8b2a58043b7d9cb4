"""Seeded jobs with a planted cause: how many culprits `weft.diagnosis` names, and how often it blames the innocent.

    python -m verification.diagnosis --worlds 500 --seed 0

Prints a row for each cause; status 1 if fewer than 97 in a hundred are named right or anybody is blamed in a healthy job.
"""

import argparse
import sys
from collections import Counter
from typing import get_args

import numpy as np

from verification.hung_jobs import HangCause, HungJob, groups_of, hung_calls
from verification.timed_jobs import PlantedCause, TimedJob, TimedSchedule, timed_job
from weft.diagnosis.accusation import accuse
from weft.diagnosis.collective_calls import find_hangs
from weft.diagnosis.finding import DiagnosisFinding
from weft.diagnosis.operations import Operations, operation_class
from weft.diagnosis.step_program import step_program

LEAST_RIGHT = 0.97
_SAME_NAME = {"intermittent-rank": "slow-rank", "slow-since": "slow-rank"}
_CAUSES: tuple[PlantedCause, ...] = get_args(PlantedCause)
_SCHEDULES: tuple[TimedSchedule, ...] = get_args(TimedSchedule)
_HANGS: tuple[HangCause, ...] = get_args(HangCause)
_MOST_RANKS, _LOST = 128, 2e-5
_HUNG_IN = 9
"""One world in so many is a hang."""


def drawn(number: int, seed: int) -> TimedJob:
    """Draw a job: its shape, its noise, its cause and the culprit."""
    chance = np.random.default_rng([seed, number])
    cause = _CAUSES[number % len(_CAUSES)]
    schedule = _SCHEDULES[number // len(_CAUSES) % len(_SCHEDULES)]
    replicas, stages = int(chance.choice([1, 2, 3, 4, 8])), int(chance.choice([1, 2, 3, 4, 6, 8]))
    if cause in {"slow-stage", "slow-link"}:
        stages = max(2, stages)
    else:
        replicas = max(2, replicas)
    culprits = {
        "slow-stage": range(stages), "slow-link": range(replicas, replicas * stages), "input-stall": range(replicas)
    }.get(cause, range(replicas * stages))  # fmt: skip
    return TimedJob(
        number, replicas, stages, int(chance.choice([4, 8, 12, 16])), int(chance.choice([8, 12, 20])), cause,
        float(chance.choice([0.002, 0.01, 0.02, 0.05])), float(chance.uniform(1.2, 2.0)),
        int(chance.choice(list(culprits))), schedule, clock_skew_s=float(chance.choice([0.0, 0.0, 0.002])),
    )  # fmt: skip


def drawn_wide(number: int, seed: int) -> tuple[TimedJob, str]:
    """Draw a job at the ends of the range, and what is done to its table: see `spoiled`."""
    chance = np.random.default_rng([seed, number, 2])
    cause = _CAUSES[number % len(_CAUSES)]
    stages = int(chance.choice([1, 2, 4, 8, 12, 16]))
    replicas = int(chance.choice([one for one in (1, 2, 4, 8, 16, 32, 64) if one * stages <= _MOST_RANKS]))
    if cause in {"slow-stage", "slow-link"}:
        stages = max(2, stages)
    else:
        replicas = max(2, replicas)
    if cause in {"slow-rank", "slow-since", "intermittent-rank"} and stages > 1:
        replicas = max(3, replicas)  # of two peers in a stage, the other stages say which is odd; of one, nobody does
    culprits = {
        "slow-stage": range(stages), "slow-link": range(replicas, replicas * stages), "input-stall": range(replicas)
    }.get(cause, range(replicas * stages))  # fmt: skip
    small = cause == "slow-rank" and chance.random() < 0.5
    job = TimedJob(
        number, replicas, stages, max(stages, int(chance.choice([4, 8, 16]))), int(chance.choice([8, 10, 16])), cause,
        float(chance.choice([0.002, 0.01] if small else [0.002, 0.01, 0.03])),
        float(chance.uniform(1.04, 1.1) if small else chance.uniform(1.2, 2.0)), int(chance.choice(list(culprits))),
        _SCHEDULES[int(chance.integers(len(_SCHEDULES)))], int(chance.choice([2, 3])),
        float(chance.choice([0.0, 0.002, 0.2])), uneven=float(chance.choice([0.0, 0.0, 0.15])) if not small else 0.0,
    )  # fmt: skip
    return job, str(chance.choice(["whole", "rows missing", "a step missing", "no transfers"], p=[0.4, 0.2, 0.2, 0.2]))


def spoiled(rows: Operations, how: str, seed: int) -> Operations:
    """Return a table as it comes from a tracer that loses rows, loses a rank's step, or traces no transfers."""
    chance = np.random.default_rng(seed)
    if how == "rows missing":
        return rows.chosen(chance.random(len(rows)) > _LOST)
    if how == "a step missing":
        return rows.chosen((rows.step != rows.step.max()) | (rows.rank != 0))
    if how == "no transfers":
        transfers = np.array([operation_class(name) == "send-receive" for name in rows.names])
        return rows.chosen(~transfers[rows.name])
    return rows


def drawn_hang(number: int, seed: int) -> HungJob:
    """Draw a job of collectives and how it hangs."""
    chance = np.random.default_rng([seed, number, 1])
    replicas, stages = int(chance.choice([2, 3, 4, 8])), int(chance.choice([1, 2, 3, 4]))
    return HungJob(
        number, replicas, stages, 4, _HANGS[number // _HUNG_IN % len(_HANGS)], int(chance.integers(replicas * stages)),
        int(chance.integers(1, 15)),
    )  # fmt: skip


def is_right(job: TimedJob, found: list[DiagnosisFinding]) -> bool:
    """Return whether the first finding names the planted cause and its culprit, or nobody where there is none."""
    if job.uneven and job.cause != "uneven-sequences":  # it may be named besides, as nobody's fault
        found = [one for one in found if one.cause != "uneven-sequences"]
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
    parser.add_argument("--wide", action="store_true", help="larger jobs, smaller slowdowns, spoiled tables")
    asked = parser.parse_args()
    tried: Counter[str] = Counter()
    right: Counter[str] = Counter()
    for number in range(asked.worlds):
        if number % _HUNG_IN == _HUNG_IN - 1:
            hung = drawn_hang(number, asked.seed)
            members = groups_of(hung)
            found = find_hangs(hung_calls(hung), members, range(hung.replicas * hung.stages)).sorted()
            cause, ok, what = "hang", bool(found) and found[0].ranks == (hung.culprit,), str(hung)
        else:
            index = number - number // _HUNG_IN
            job, how = drawn_wide(index, asked.seed) if asked.wide else (drawn(index, asked.seed), "whole")
            program = step_program(spoiled(timed_job(job), how, index))
            found = [] if program is None else [one for one in accuse(program).sorted() if one.verdict != "note"]
            cause, ok, what = job.cause, is_right(job, found), f"{job} {how}"
        tried[cause] += 1
        right[cause] += ok
        if not ok:
            print(f"missed: {what}: {[(one.cause, one.subject) for one in found]}")
    for cause in (*_CAUSES, "hang"):
        print(f"{cause:20} {right[cause]:4} of {tried[cause]:4}")
    share = right.total() / tried.total()
    print(f"named right: {share:.1%} of {tried.total()} jobs")
    return int(share < LEAST_RIGHT or right["none"] < tried["none"])


if __name__ == "__main__":
    sys.exit(main())
