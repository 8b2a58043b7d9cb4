"""Probes are trained as any job, in turns."""

import pytest

from weft.engines.supervisor.probes import calmest, in_turns, probe_jobs
from weft.planning.fit import ProbeTime
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


def test_rounds_that_others_disturbed_do_not_count():
    (job,) = jobs("step")
    times = [ProbeTime(job, seconds, others) for seconds, others in ((1.0, 0.0), (9.0, 0.4), (1.2, 0.01), (1.1, 0.02))]
    assert calmest(times).seconds == pytest.approx(1.05)
    assert calmest(times[:2]) == times[0]


def test_where_all_rounds_were_disturbed_the_two_least_count():
    (job,) = jobs("step")
    assert calmest([ProbeTime(job, seconds, 0.3) for seconds in (3.0, 1.0, 2.0)]) == ProbeTime(job, 1.5, 0.3)
