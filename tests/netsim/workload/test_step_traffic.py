"""A training step as traffic: what is sent, what waits for what, and how long it takes."""

import dataclasses

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import weft
from weft.core.errors import UsageError
from weft.netsim.workload.schedules import Near
from weft.netsim.workload.step_traffic import MOST_FLOWS, StepTraffic, step_flows, step_of
from weft.specs import load_job, load_site
from weft.specs.scenario import ScenarioSpec

NEAR = Near(1000, 10**11)


def made(**more: int) -> StepTraffic:
    base = {"tp": 1, "cp": 1, "dp": 2, "pp": 2, "rounds": 3, "activation": 100, "gradients": 1000, "forward_ps": 10,
            "backward_ps": 20, "domain": 1}  # fmt: skip
    return StepTraffic(**{**base, **more}, near=NEAR)


@given(st.integers(1, 2), st.integers(1, 2), st.integers(1, 4), st.integers(1, 4), st.integers(1, 3), st.integers(1, 4))
@settings(max_examples=80)
def test_every_flow_waits_only_for_flows_before_it(tp: int, cp: int, dp: int, pp: int, rounds: int, domain: int):
    assume(pp > 1 or cp * dp > domain)
    step = made(tp=tp, cp=cp, dp=dp, pp=pp, rounds=rounds, domain=domain * tp)
    flows = step_flows(step)
    assert len({flow.name for flow in flows}) == len(flows)
    for number, flow in enumerate(flows):
        assert flow.source != flow.destination
        assert max(flow.source, flow.destination) < step.ranks
        assert all(before < number for before in flow.after)
    between = [flow for flow in flows if flow.name[0] in "FB"]
    assert len(between) == 2 * tp * cp * dp * (pp - 1) * rounds


def test_a_reduction_waits_for_the_last_gradients_of_its_stage():
    flows = step_flows(made())
    number = {flow.name: n for n, flow in enumerate(flows)}
    first = next(flow for flow in flows if flow.name.startswith("reduce0.0.0"))
    assert {number["B2.0:1-0"], number["B2.1:1-0"]} == set(first.after)


def test_what_stays_inside_a_domain_is_not_sent():
    step = made(pp=1, dp=4, domain=2)
    flows = step_flows(step)
    assert all(flow.source // 2 != flow.destination // 2 for flow in flows)
    with pytest.raises(UsageError, match="crosses the fabric"):
        step_flows(dataclasses.replace(step, domain=4))


def test_a_step_of_too_many_flows_is_refused():
    with pytest.raises(UsageError, match=f"{MOST_FLOWS:,}"):
        step_flows(made(dp=4096))


def test_a_job_runs_as_a_scenario_near_its_bound():
    spec = ScenarioSpec.model_validate({"name": "step", "site": "laptop", "job": "tiny-gpt"})
    (report,) = weft.simulate(spec, fast=False)
    over = report.over_ideal()
    assert over is not None
    # Both reductions of a stage share nothing, so that only acknowledgements and the pipeline's overlap are above it.
    assert 1 <= over < 1.15


def test_a_share_of_a_job_has_a_share_of_its_bytes_and_times():
    whole, half = (step_of(load_job("tiny-gpt"), load_site("laptop"), share) for share in (1.0, 0.5))
    assert half.gradients == whole.gradients // 2
    assert half.forward_ps == pytest.approx(whole.forward_ps / 2, rel=1e-6)


def test_a_plan_that_is_too_large_is_named():
    site = load_site("laptop")
    small = site.model_copy(update={"fabric": site.fabric.model_copy(update={"gpus": 2})})
    with pytest.raises(UsageError, match="needs 4 GPUs"):
        step_of(load_job("tiny-gpt"), small)
