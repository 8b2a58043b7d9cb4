"""The guilty part of a job is named, and nobody is in a healthy one: seeded jobs with a planted cause."""

from dataclasses import replace
from typing import get_args

import numpy as np
import pytest
from verification.timed_jobs import PlantedCause, TimedJob, TimedSchedule, timed_job

from weft.diagnosis.accusation import accuse
from weft.diagnosis.finding import Diagnosis
from weft.diagnosis.operations import Operations, operation_class
from weft.diagnosis.step_program import step_program

NAMED = {
    "slow-rank": "slow-rank",
    "intermittent-rank": "slow-rank",
    "slow-since": "slow-rank",
    "slow-stage": "slow-stage",
    "slow-link": "slow-link",
    "uneven-sequences": "uneven-sequences",
    "input-stall": "input-stall",
    "pauses": "pauses",
}


def diagnosed(job: TimedJob) -> Diagnosis:
    program = step_program(timed_job(job))
    assert program is not None
    return accuse(program)


def drawn(cause: PlantedCause, seed: int) -> TimedJob:
    """Draw a job in which the cause can be told: peers beside a rank, neighbours beside a stage."""
    chance = np.random.default_rng([41, seed])
    replicas, stages = int(chance.integers(1, 6)), int(chance.integers(1, 6))
    if cause not in {"slow-stage", "slow-link"}:
        replicas = max(2, replicas)
    else:
        stages = max(2, stages)
    ranks = replicas * stages
    culprits = {
        "slow-stage": range(stages), "slow-link": range(replicas, ranks), "input-stall": range(replicas)
    }.get(cause, range(ranks))  # fmt: skip
    return TimedJob(
        seed, replicas, stages, int(chance.choice([4, 8, 12])), int(chance.choice([8, 12, 20])), cause,
        float(chance.choice([0.002, 0.01, 0.02])), float(chance.uniform(1.3, 2.0)), int(chance.choice(list(culprits))),
    )  # fmt: skip


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("cause", list(NAMED))
def test_a_planted_cause_is_named_with_its_culprit(cause: PlantedCause, seed: int) -> None:
    job = drawn(cause, seed)
    found = [one for one in diagnosed(job).sorted() if one.verdict != "note"]
    assert found, job
    worst = found[0]
    assert worst.cause == NAMED[cause], (job, worst)
    if NAMED[cause] in {"slow-rank", "input-stall"}:
        assert worst.ranks == (job.culprit,), (job, worst)
    if cause == "slow-stage":
        assert worst.subject.startswith(f"stage {job.culprit}"), (job, worst)
    if cause == "slow-link":
        assert job.culprit in worst.ranks, (job, worst)


@pytest.mark.parametrize("seed", range(5))
def test_nobody_is_blamed_in_a_healthy_job(seed: int) -> None:
    job = drawn("none", seed)
    assert diagnosed(job).healthy, job


def test_a_rank_that_turned_slow_is_dated() -> None:
    found = diagnosed(TimedJob(3, 4, 2, 8, 20, "slow-since", 0.005, 1.6, 5)).sorted()[0]
    assert found.persistence == "since"
    assert found.since_step is not None
    assert 20 // 3 <= found.since_step < 2 * 20 // 3


def test_a_rank_that_is_slow_now_and_then_is_called_intermittent() -> None:
    assert (
        diagnosed(TimedJob(3, 4, 2, 8, 20, "intermittent-rank", 0.005, 1.6, 5)).sorted()[0].persistence
        == "intermittent"
    )


def test_the_slowdown_of_a_rank_is_what_its_removal_saves() -> None:
    slow = diagnosed(TimedJob(7, 4, 1, 8, 12, "slow-rank", 0.001, 1.5, 2)).figures
    well = diagnosed(TimedJob(7, 4, 1, 8, 12, "none", 0.001, 1.5, 2)).figures
    saved = float(slow["step_s"]) / float(well["step_s"])
    assert diagnosed(TimedJob(7, 4, 1, 8, 12, "slow-rank", 0.001, 1.5, 2)).sorted()[0].slowdown == pytest.approx(
        saved, rel=0.02
    )


def test_the_order_and_names_of_ranks_do_not_matter() -> None:
    job = TimedJob(5, 3, 3, 8, 10, "slow-rank", 0.005, 1.6, 4)
    rows = timed_job(job)
    order = np.random.default_rng(1).permutation(len(rows))
    renamed = 100 + 7 * rows.rank
    mixed = Operations(
        renamed[order], rows.replica[order], rows.stage[order], rows.step[order], rows.name[order], rows.start_s[order],
        rows.duration_s[order], rows.micro_batch[order], rows.names,
    )  # fmt: skip
    program = step_program(mixed)
    assert program is not None
    assert accuse(program).sorted()[0].ranks == (100 + 7 * 4,)


def test_a_replay_takes_what_was_measured_if_nobody_is_late() -> None:
    program = step_program(timed_job(TimedJob(2, 3, 4, 8, 6, "slow-stage", 0.02, 1.5, 1)))
    assert program is not None
    assert program.replay(program.durations()) == pytest.approx(program.step_seconds(), rel=2e-3)


def test_a_step_with_another_program_is_left_out() -> None:
    rows = timed_job(TimedJob(2, 2, 2, 4, 12))
    kept = ~((rows.step == 5) & (rows.rank == 1) & (np.array(rows.names)[rows.name] == "forward-compute"))
    cut = Operations(
        rows.rank[kept], rows.replica[kept], rows.stage[kept], rows.step[kept], rows.name[kept], rows.start_s[kept],
        rows.duration_s[kept], rows.micro_batch[kept], rows.names,
    )  # fmt: skip
    program = step_program(cut)
    assert program is not None
    assert program.left_out == 1
    assert 5 not in program.steps


@pytest.mark.parametrize("number", range(4))
@pytest.mark.parametrize("schedule", get_args(TimedSchedule))
def test_a_cause_is_named_in_every_schedule_on_skewed_clocks_whoever_wrote_the_table(
    schedule: TimedSchedule, number: int
) -> None:
    cause = [one for one in get_args(PlantedCause) if one != "none"][number % len(NAMED)]
    job = replace(drawn(cause, number), schedule=schedule, clock_skew_s=0.003, noise=0.01, steps=8, micro_batches=6)
    rows = timed_job(job)
    if number % 2:  # tables of passes alone: who waits for whom is found without sends and receives
        rows = rows.chosen(np.array([operation_class(name) != "send-receive" for name in rows.names])[rows.name])
    program = step_program(rows)
    assert program is not None
    found = [one for one in accuse(program).sorted() if one.verdict != "note"]
    assert found, job
    assert found[0].cause == NAMED[cause], (job, found)


def test_jitter_is_told_and_nobody_is_blamed_for_it() -> None:
    found = diagnosed(TimedJob(5, 4, 4, 12, 8, "none", 0.25))
    assert found.healthy
    assert [one.cause for one in found.findings] == ["jitter"]


def test_of_one_rank_alone_nobody_is_blamed() -> None:
    rows = timed_job(TimedJob(5, 4, 4, 8, 8, "slow-rank", 0.01, 1.8, 6))
    program = step_program(rows.chosen(rows.rank == 0))
    assert program is not None
    found = accuse(program)
    assert found.healthy
    assert "waits-unknown" in [one.cause for one in found.findings]


def test_passes_are_known_by_the_letters_of_schedules() -> None:
    assert [operation_class(name) for name in ("F0", "B_12", "w3", "I1", "backward-input", "input")] == [
        "compute", "compute", "compute", "compute", "compute", "input",
    ]  # fmt: skip
