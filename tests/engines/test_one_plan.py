"""A job file that leaves its plan open means the same plan for `weft train`, `weft submit` and `weft submit --on`."""

from typing import Any

import pytest

from weft.core.errors import UsageError
from weft.engines.kubernetes.commands.submission import body_of
from weft.engines.local.launches import prepared
from weft.specs import JobSpec, load_job
from weft.specs.job import PlanSpec
from weft.specs.submission import SubmissionSpec
from weft.training.parallel import auto_plan
from weft.training.parallel.auto_plan import planned

JOB_NAMES = ("tiny-gpt", "own-loop")
PROCESSORS = (1, 2, 3, 4, 8)


@pytest.fixture(params=PROCESSORS)
def machine(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    """A machine with so many processors."""
    monkeypatch.setattr(auto_plan, "processors", lambda: request.param)
    return request.param


def open_job(name: str, **changes: Any) -> JobSpec:
    return JobSpec.model_validate({**load_job(name).as_written(), "plan": "auto", **changes})


def submitted_here(job: JobSpec, **more: Any) -> tuple[PlanSpec, Any]:
    table = {"kind": "training", "job": job.as_written(), **more}
    record, launch = prepared(SubmissionSpec.model_validate(table), 0)[0]
    assert launch.training is not None
    return PlanSpec.model_validate(launch.training["plan"]), record.gang


def submitted_elsewhere(job: JobSpec, **more: Any) -> tuple[PlanSpec, dict[str, Any]]:
    body = body_of({"kind": "training", "job": job.as_written(), **more}, "image", (), None)
    return PlanSpec.model_validate(body["training"]["plan"]), body


@pytest.mark.parametrize("name", JOB_NAMES)
def test_one_job_file_means_one_plan_wherever_it_is_handed_in(name: str, machine: int):
    job = open_job(name)
    wanted = planned(job).plan
    here, gang = submitted_here(job)
    elsewhere, body = submitted_elsewhere(job)
    assert isinstance(wanted, PlanSpec)
    assert here == wanted == elsewhere
    assert gang.nodes == wanted.ranks + job.recovery.spares
    assert body["nodes"] * body["gpusPerNode"] == wanted.ranks
    assert 1 <= wanted.ranks <= machine


@pytest.mark.parametrize("sequences", [1, 2, 3, 8])
def test_the_plan_fits_the_batch_on_every_machine(sequences: int, machine: int):
    job = open_job("tiny-gpt", batch={"sequences": sequences, "micro": 1, "length": 8})
    wanted = planned(job).plan
    assert isinstance(wanted, PlanSpec)
    assert wanted.ranks <= min(machine, sequences)
    assert submitted_here(job)[0] == wanted == submitted_elsewhere(job)[0]


@pytest.mark.parametrize("dp", [1, 2, 4])
def test_a_plan_that_is_spelled_out_stays_as_it_is(dp: int, machine: int):
    job = open_job("tiny-gpt", plan={"dp": dp})
    assert planned(job).plan == PlanSpec(dp=dp)
    assert submitted_here(job)[0] == PlanSpec(dp=dp)
    assert submitted_elsewhere(job)[0] == PlanSpec(dp=dp)
    assert machine  # the machine has no say


def test_more_processors_never_mean_fewer_ranks(monkeypatch: pytest.MonkeyPatch):
    job = open_job("tiny-gpt")
    found: list[int] = []
    for count in PROCESSORS:
        monkeypatch.setattr(auto_plan, "processors", lambda count=count: count)
        plan = planned(job).plan
        assert isinstance(plan, PlanSpec)
        found.append(plan.ranks)
    assert found == sorted(found)


def test_each_job_of_a_sweep_is_planned_for_itself(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(auto_plan, "processors", lambda: 8)
    job = open_job("tiny-gpt", batch={"sequences": 8, "micro": 1, "length": 8})
    table = {"kind": "training", "job": job.as_written(), "sweep": {"batch.sequences": ["1", "4"]}}
    found = prepared(SubmissionSpec.model_validate(table), 0)
    ranks = [PlanSpec.model_validate((launch.training or {})["plan"]).ranks for _, launch in found]
    assert ranks[0] == 1 < ranks[1] <= 4
    assert [record.gang.nodes for record, _ in found] == [each + job.recovery.spares for each in ranks]


def test_a_sweep_may_spell_out_a_plan_that_was_open():
    table = {"kind": "training", "job": open_job("tiny-gpt").as_written(), "sweep": {"plan.dp": ["1", "2"]}}
    found = prepared(SubmissionSpec.model_validate(table), 0)
    assert [(launch.training or {})["plan"]["dp"] for _, launch in found] == [1, 2]


@pytest.mark.parametrize("gpus", [2, 3, 4])
def test_nodes_whose_gpus_do_not_divide_the_ranks_are_refused_on_kubernetes(gpus: int):
    job = open_job("tiny-gpt", plan={"dp": 5}, batch={"sequences": 5, "micro": 1, "length": 8})
    with pytest.raises(UsageError, match="5 ranks"):
        submitted_elsewhere(job, gpus_per_node=gpus)


@pytest.mark.parametrize(("dp", "gpus", "nodes", "each"), [(4, 1, 4, 1), (4, 2, 2, 2), (4, 4, 1, 4), (3, 4, 1, 3)])
def test_ranks_are_packed_onto_the_nodes_of_the_local_cluster(dp: int, gpus: int, nodes: int, each: int):
    job = open_job(
        "tiny-gpt", plan={"dp": dp}, recovery={"spares": 0}, batch={"sequences": 12, "micro": 1, "length": 8}
    )
    gang = submitted_here(job, gpus_per_node=gpus)[1]
    assert (gang.nodes, gang.gpus_per_node) == (nodes, each)
