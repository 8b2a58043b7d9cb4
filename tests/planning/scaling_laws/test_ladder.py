"""Ladders: rungs are the target made smaller, far below it and within the budget."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weft.core.errors import UsageError
from weft.planning.scaling_laws.ladder import (
    LEAST_STEPS,
    LEAST_TIMES,
    LENGTHS,
    SIZES,
    TRANSIENT_STEPS,
    cautions,
    ladder,
    rung_of,
)
from weft.specs import load_job
from weft.specs.job import JobSpec

TARGET = load_job("ladder-gpt")


@given(st.floats(3e10, 1e13))
def test_a_ladder_is_within_its_budget_and_far_below_its_target(budget: float):
    try:
        rungs = ladder(TARGET, budget)
    except UsageError:
        assert budget < 3e11, "a tenth of the target leaves room for a ladder"
        return
    top = rung_of(TARGET)
    assert sum(rung.flops for rung in rungs) <= budget
    assert top.flops >= LEAST_TIMES * max(rung.flops for rung in rungs)
    assert len({rung.params for rung in rungs}) == SIZES
    assert len({rung.tokens for rung in rungs}) == LENGTHS
    assert min(rung.job.steps for rung in rungs) >= LEAST_STEPS
    assert [rung.flops for rung in rungs] == sorted(rung.flops for rung in rungs)


def test_rungs_are_valid_jobs_that_differ_from_the_target_in_size_and_length_alone():
    for rung in ladder(TARGET):
        again = JobSpec.model_validate(rung.job.as_written())
        assert again == rung.job
        assert (again.data, again.batch, again.seed) == (TARGET.data, TARGET.batch, TARGET.seed)
        assert again.model.layers == TARGET.model.layers
        assert again.evaluation.every == again.steps
        started = again.model.deviation**2 * again.model.width
        assert started == pytest.approx(TARGET.model.deviation**2 * TARGET.model.width), "narrower ones start larger"
        rate = again.optimizer.learning_rate * again.model.width
        assert rate == pytest.approx(TARGET.optimizer.learning_rate * TARGET.model.width), (
            "narrower models learn faster"
        )
        assert again.optimizer.warmup / again.steps == pytest.approx(TARGET.optimizer.warmup / TARGET.steps, rel=0.05)


def test_runs_too_short_to_be_told_apart_are_named():
    assert cautions(ladder(TARGET)) == ()
    short = ladder(TARGET.model_copy(update={"steps": TRANSIENT_STEPS}))
    assert "below 1,000 losses scatter" in cautions(short)[0]


@pytest.mark.parametrize("budget", [0.0, -1.0, float("nan"), float("inf"), 1.0])
def test_a_budget_for_which_there_is_no_ladder_is_refused(budget: float):
    with pytest.raises(UsageError, match="budget of"):
        ladder(TARGET, budget)


def test_a_target_that_is_too_small_itself_is_refused():
    with pytest.raises(UsageError, match="leave no ladder"):
        ladder(TARGET.model_copy(update={"steps": 100}))
