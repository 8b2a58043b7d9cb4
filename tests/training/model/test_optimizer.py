import itertools

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from weft.specs.job import OptimizerSpec
from weft.training.model.optimizer import adamw, learning_rate

schedules = st.sampled_from(["constant", "cosine", "linear"])


def spec_of(schedule: str, warmup: int = 0, final: float = 0.1, rate: float = 1e-3) -> OptimizerSpec:
    return OptimizerSpec.model_validate(
        {"learning_rate": rate, "warmup": warmup, "schedule": schedule, "final_share": final}
    )


@given(schedules, st.integers(0, 20), st.integers(1, 200), st.floats(0, 1))
def test_the_rate_never_leaves_its_bounds(schedule: str, warmup: int, steps: int, final: float):
    spec = spec_of(schedule, warmup, final)
    rates = [learning_rate(spec, step, steps) for step in range(steps)]
    assert all(0 <= rate <= spec.learning_rate * (1 + 1e-12) for rate in rates)
    after = rates[warmup:]
    if schedule == "constant":
        assert all(rate == spec.learning_rate for rate in after)
    else:
        assert all(rate >= spec.learning_rate * final * (1 - 1e-12) for rate in after)


@given(schedules, st.integers(1, 20), st.integers(1, 200))
def test_the_rise_is_linear_and_the_fall_never_rises(schedule: str, warmup: int, steps: int):
    spec = spec_of(schedule, warmup)
    rates = [learning_rate(spec, step, steps + warmup) for step in range(steps + warmup)]
    for step in range(warmup):
        assert rates[step] == pytest.approx(spec.learning_rate * (step + 1) / warmup)
    after = rates[warmup:]
    assert all(left >= right for left, right in itertools.pairwise(after))


@pytest.mark.parametrize(("schedule", "half"), [("cosine", 0.55), ("linear", 0.55), ("constant", 1.0)])
def test_half_way_every_schedule_is_where_its_formula_says(schedule: str, half: float):
    assert learning_rate(spec_of(schedule), 50, 100) == pytest.approx(half * 1e-3)


def test_a_quarter_of_the_way_tells_cosine_from_linear():
    cosine, linear = (learning_rate(spec_of(kind, final=0.0), 25, 100) for kind in ("cosine", "linear"))
    assert cosine == pytest.approx(1e-3 * (1 + 2**-0.5) / 2)
    assert linear == pytest.approx(0.75e-3)


def test_a_run_longer_than_its_schedule_divides_by_no_zero():
    spec = spec_of("linear", warmup=5)
    assert learning_rate(spec, 5, 5) == pytest.approx(spec.learning_rate)


def test_matrices_decay_and_norms_and_biases_do_not():
    model = nn.Sequential(nn.Linear(3, 4), nn.LayerNorm(4))
    spec = OptimizerSpec(learning_rate=1e-2, weight_decay=0.3)
    optimizer = adamw(model.parameters(), spec)
    decays = {id(one): group["weight_decay"] for group in optimizer.param_groups for one in group["params"]}
    for parameter in model.parameters():
        assert decays[id(parameter)] == (0.3 if parameter.dim() > 1 else 0.0)
    assert {group["lr"] for group in optimizer.param_groups} == {1e-2}
    assert {group["betas"] for group in optimizer.param_groups} == {tuple(spec.betas)}
    assert {group["eps"] for group in optimizer.param_groups} == {spec.epsilon}


def test_one_step_moves_a_weight_by_the_learning_rate():
    weight = nn.Parameter(torch.ones(1))
    weight.grad = torch.full((1,), 3.0)
    adamw([weight], OptimizerSpec(learning_rate=0.25)).step()
    assert float(weight.detach()) == pytest.approx(0.75)
