from pathlib import Path

import pytest
import torch
from tests.training.ranks import job_of

from weft.planning.legality import CHUNKS
from weft.specs.job import PlanSpec
from weft.training.parallel.pipeline import SCHEDULES, measure_layers, stage_numbers, stages_of

plans = [PlanSpec.model_validate({"pp": pp, "schedule": schedule}) for pp in (2, 3, 4) for schedule in CHUNKS]


@pytest.mark.parametrize("plan", plans, ids=lambda plan: f"{plan.schedule}-{plan.pp}")
def test_every_stage_is_held_by_one_rank(plan: PlanSpec):
    held = [number for rank in range(plan.pp) for number in stage_numbers(plan, rank)]
    assert sorted(held) == list(range(stages_of(plan)))
    assert all(len(stage_numbers(plan, rank)) == CHUNKS[plan.schedule] for rank in range(plan.pp))


@pytest.mark.parametrize("schedule", ["zbv", "dualpipev"])
def test_a_v_shaped_schedule_turns_at_the_last_rank(schedule: str):
    plan = PlanSpec.model_validate({"pp": 3, "schedule": schedule})
    assert [stage_numbers(plan, rank) for rank in range(3)] == [(0, 5), (1, 4), (2, 3)]


def test_a_looped_schedule_goes_round_again():
    plan = PlanSpec(pp=3, schedule="interleaved")
    assert [stage_numbers(plan, rank) for rank in range(3)] == [(0, 3), (1, 4), (2, 5)]


def test_without_a_pipeline_there_is_one_stage():
    plan = PlanSpec(schedule="interleaved")
    assert stages_of(plan) == 1
    assert stage_numbers(plan, 0) == (0,)


def test_every_schedule_that_a_plan_may_name_exists():
    assert SCHEDULES.keys() == CHUNKS.keys()


def test_layers_cost_alike_and_the_last_one_bears_the_ends(tmp_path: Path):
    costs = measure_layers(job_of(tmp_path), torch.device("cpu"))
    assert len(costs) == 4
    assert costs[0] == costs[1] == costs[2] > 0
    assert costs[3] > costs[0]
