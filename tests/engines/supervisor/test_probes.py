"""Probes are trained as any job, in turns."""

import pytest

from weft.engines.supervisor.probes import ProbeTraining, in_turns, probe_jobs, undisturbed
from weft.planning.calibration.step_probes import ProbeTime
from weft.specs import JobSpec

RANKS = 2


def jobs(*names: str) -> list[JobSpec]:
    return [job for job in probe_jobs(RANKS) if job.name.removeprefix("probe-") in names]


@pytest.mark.slow
def test_more_micro_batches_take_longer():
    told: list[None] = []
    step, micro = in_turns(jobs("step", "micro"), rounds=2, tell=lambda: told.append(None))
    assert len(told) == 4
    assert 0 < 2 * step.seconds < micro.seconds
    assert 0 <= step.others < 1


@pytest.mark.parametrize("ranks", [1, 2, 3, 4, 8])
def test_every_probe_has_all_ranks(ranks: int):
    assert {job.plan.ranks for job in probe_jobs(ranks) if job.plan != "auto"} == {ranks}


def test_a_rank_without_a_partner_has_no_probes_of_pairs():
    assert {job.plan.pp for job in probe_jobs(3) if job.plan != "auto"} == {1}
    assert len(probe_jobs(4)) > len(probe_jobs(3)) > len(probe_jobs(1))


def test_the_least_tenth_of_all_steps_counts_whichever_rounds_they_are_from():
    (job,) = jobs("step")
    slow, calm = ProbeTraining((3.0,) * 13 + (1.1,), 0.0), ProbeTraining((3.0,) * 5 + (0.9,), 0.0)
    assert undisturbed(job, [slow, calm]).seconds == pytest.approx(1.0)


def test_two_steps_count_at_least():
    (job,) = jobs("step")
    assert undisturbed(job, [ProbeTraining((1.0, 1.2, 9.0), 0.0)]).seconds == pytest.approx(1.1)


def test_trainings_that_others_disturbed_do_not_count():
    (job,) = jobs("step")
    found = undisturbed(
        job, [ProbeTraining((1.0, 1.0), 0.0), ProbeTraining((0.1, 0.1), 0.4), ProbeTraining((1.0, 1.0), 0.02)]
    )
    assert found.seconds == pytest.approx(0.98)
    assert found.others == pytest.approx(0.02)


def test_where_all_were_disturbed_alike_what_others_took_is_taken_off():
    (job,) = jobs("step")
    assert undisturbed(job, [ProbeTraining((2.0,) * 4, 0.25)] * 3) == ProbeTime(job, 1.5, 0.25)
