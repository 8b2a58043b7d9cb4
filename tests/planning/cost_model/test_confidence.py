"""Intervals: narrow where runs were seen, wide where nothing was, and a mark on classes that no run confirms."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from weft.planning.cost_model.confidence import Confidence, confidence_of, latest_s
from weft.planning.cost_model.machine import usual_machine, with_efficiency
from weft.planning.cost_model.plans import Dimensions, Plans, Workload, one_plan
from weft.specs.software import SoftwareSpec

DENSE = Dimensions(32, 4096, 32, 8, 128, 14336, 32000)
MIXTURE = replace(DENSE, experts=64, top_k=4, ffn=2048)


def doubt(kind: str, precision: str, plan: Plans, model: Dimensions = DENSE) -> Confidence:
    software = SoftwareSpec.model_validate({"precision": precision, "fold": True})
    return confidence_of(Workload(model, 64, 4096), plan, 0, usual_machine(kind, 64, 400 * 10**9), software)


def test_what_was_seen_is_known_best():
    seen = doubt("H100", "bf16", one_plan(dp=8)).share
    sister = doubt("H200", "bf16", one_plan(dp=8)).share
    unseen = doubt("GB300", "nvfp4", one_plan(dp=8)).share
    machine = replace(usual_machine("H100", 8, 10**11), kind="MI300X")
    bare = with_efficiency(machine, bf16=None, fp8=None)  # pyrefly: ignore[bad-argument-type]
    sheet = confidence_of(Workload(DENSE, 64, 4096), one_plan(dp=8), 0, bare, SoftwareSpec())
    assert seen < sister < unseen < sheet.share
    assert "data sheet" in sheet.basis


@pytest.mark.parametrize(("ep", "marked"), [(1, False), (8, False), (16, True), (64, True)])
def test_experts_that_leave_a_domain_are_marked(ep: int, marked: bool):
    found = doubt("H100", "bf16", one_plan(dp=64, ep=ep), MIXTURE)
    assert (found.unmatched is not None) == marked
    assert found.share > doubt("H100", "bf16", one_plan(dp=64)).share


@pytest.mark.parametrize(("zero", "shard", "marked"), [(1, 64, False), (2, 64, False), (3, 8, False), (3, 64, True)])
def test_weights_that_are_sharded_over_domains_are_marked(zero: int, shard: int, marked: bool):
    found = doubt("H100", "bf16", one_plan(dp=64, zero=zero, shard=shard))
    assert (found.unmatched is not None) == marked


@pytest.mark.parametrize(
    ("chunks", "preset", "model", "marked"),
    [
        (8, "nemo-2025", MIXTURE, True), (4, "nemo-2025", MIXTURE, True), (2, "nemo-2025", MIXTURE, False),
        (8, "megatron-2026", MIXTURE, False), (8, "weft", MIXTURE, False), (8, "nemo-2025", DENSE, False),
    ],
)  # fmt: skip
def test_short_chunks_of_experts_that_are_launched_one_by_one_are_marked(
    chunks: int, preset: str, model: Dimensions, marked: bool
):
    software = SoftwareSpec.model_validate({"preset": preset}).resolved()
    plan = one_plan(dp=4, pp=4, schedule="interleaved", chunks=chunks)
    found = confidence_of(Workload(model, 64, 4096), plan, 0, usual_machine("H100", 64, 400 * 10**9), software)
    assert (found.unmatched is not None) == marked
    assert ("chunks" in found.basis) == marked


@pytest.mark.parametrize(("schedule", "marked"), [("1f1b", False), ("zero-bubble", True), ("zbv", True)])
def test_schedules_that_no_run_used_are_marked(schedule: str, marked: bool):
    found = doubt("H100", "bf16", one_plan(dp=8, pp=8, schedule=schedule))
    assert (found.unmatched is not None) == marked


@given(
    model=st.sampled_from([DENSE, MIXTURE, replace(MIXTURE, window=128)]),
    kind=st.sampled_from(["A100", "H100", "GB300", "MI300X"]),
    precision=st.sampled_from(["bf16", "fp8", "nvfp4"]),
    plan=st.fixed_dictionaries(
        {
            "dp": st.sampled_from([8, 64]),
            "pp": st.sampled_from([1, 8]),
            "ep": st.sampled_from([1, 4, 64]),
            "zero": st.sampled_from([1, 3]),
            "shard": st.sampled_from([8, 64]),
            "schedule": st.sampled_from(["1f1b", "zero-bubble"]),
        }
    ),
)
def test_plans_are_ranked_by_the_upper_end_of_their_interval(
    model: Dimensions, kind: str, precision: str, plan: dict[str, Any]
):
    work, plans = Workload(model, 64, 4096), one_plan(**plan)
    machine, software = usual_machine(kind, 64, 400 * 10**9), SoftwareSpec.model_validate({"precision": precision})
    upper = confidence_of(work, plans, 0, machine, software).interval(3.0)[1]
    assert latest_s(np.array([3.0]), work, plans, machine, software)[0] == pytest.approx(upper)
