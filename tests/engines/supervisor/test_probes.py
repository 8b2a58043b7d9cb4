"""Probes are trained as any job, in turns."""

import pytest

from weft.engines.supervisor.probes import in_turns, probe_jobs
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
