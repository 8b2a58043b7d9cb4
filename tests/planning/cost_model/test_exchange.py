"""Traffic: a larger domain and a faster link are never slower, hiding has a price, and experts fold over a stage."""

from dataclasses import replace

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from weft.planning.cost_model.exchange import data_traffic, inside, pipeline_traffic
from weft.planning.cost_model.machine import usual_machine
from weft.planning.cost_model.plans import Dimensions, Latent, Plans, Workload, one_plan
from weft.planning.cost_model.step import step_times
from weft.specs.software import PRESETS, SoftwareSpec

MACHINE = usual_machine("GB200", 4608, 400 * 10**9)
MIXTURE = Dimensions(
    61, 7168, 128, 128, 128, 2048, 129_280, tied=False, experts=256, top_k=8, shared=2048, dense_layers=3,
    dense_ffn=18_432, nodes=4, mtp=1, latent=Latent(512, 1536, 64, 128),
)  # fmt: skip
DENSE = Dimensions(64, 8192, 64, 8, 128, 28_672, 128_256, tied=False)


@st.composite
def plans(draw: st.DrawFn) -> Plans:
    tp, cp = draw(st.sampled_from([1, 2, 4, 8])), draw(st.sampled_from([1, 2]))
    dp = draw(st.sampled_from([1, 2, 8, 9, 16, 64]))
    ep = draw(st.sampled_from([each for each in (1, 2, 4, 8, 16, 32, 64) if dp * tp * cp % each == 0]))
    pp = draw(st.sampled_from([1, 2, 4, 8, 16]))
    return one_plan(dp=dp, tp=tp, cp=cp, pp=pp, ep=ep, zero=draw(st.integers(0, 3)))


def seconds(model: Dimensions, plan: Plans, machine=MACHINE, software: SoftwareSpec = PRESETS["nemo-2025"]) -> float:
    work = Workload(model, 16 * int(plan.dp[0]), 4096)
    return float(step_times(work, plan, machine, software).step_s[0])


@given(plans(), st.sampled_from([MIXTURE, DENSE]), st.integers(1, 144), st.integers(1, 144))
@settings(max_examples=120, deadline=None)
def test_a_larger_domain_is_never_slower(plan: Plans, model: Dimensions, one: int, other: int):
    small, large = (replace(MACHINE, domain_gpus=each) for each in sorted((one, other)))
    assert seconds(model, plan, large) <= seconds(model, plan, small) * (1 + 1e-9)


@given(plans(), st.sampled_from([MIXTURE, DENSE]), st.sampled_from(["nic_rate", "domain_rate", "memory_rate"]))
@settings(max_examples=80, deadline=None)
def test_more_bandwidth_is_never_slower(plan: Plans, model: Dimensions, what: str):
    faster = replace(MACHINE, **{what: 1.7 * getattr(MACHINE, what)})
    assert seconds(model, plan, faster) <= seconds(model, plan) * (1 + 1e-9)


@given(plans(), st.floats(0, 1), st.floats(0, 1))
@settings(max_examples=60, deadline=None)
def test_what_hiding_costs_is_between_nothing_and_not_hiding(plan: Plans, one: float, other: float):
    low, high = (SoftwareSpec(price=each, overlap_expert=True) for each in sorted((one, other)))
    names = ("tensor", "tensor_backward", "context", "data", "pipeline", "expert")
    bare = SoftwareSpec().model_copy(update={f"overlap_{name}": False for name in names})
    times = [seconds(MIXTURE, plan, software=each) for each in (low, high, bare)]
    assert times == sorted(times) or np.allclose(times, sorted(times), rtol=1e-9)


@given(st.integers(1, 512), st.integers(1, 64), st.integers(1, 256))
@settings(max_examples=100, deadline=None)
def test_a_domain_holds_the_largest_equal_part_of_a_group(domain: int, stride: int, size: int):
    machine = replace(MACHINE, domain_gpus=domain)
    found = int(inside(machine, np.array([float(stride)]), np.array([float(size)]))[0])
    fits = [part for part in range(1, size + 1) if size % part == 0 and part * stride <= max(domain, stride)]
    assert found == max(fits)


def test_sixty_four_of_a_rack_of_seventy_two_stay_inside_it():
    machine = replace(MACHINE, domain_gpus=72)
    assert inside(machine, np.array([1.0]), np.array([64.0]))[0] == 64


def test_folded_experts_may_use_tensor_parallel_ranks_too():
    plan = one_plan(dp=8, tp=8, ep=64)
    folded, cut = (seconds(MIXTURE, plan, software=SoftwareSpec(fold=each)) for each in (True, False))
    assert folded < cut


@given(st.sampled_from([2, 4, 8, 16, 32, 64]))
def test_a_busier_expert_and_wider_dispatch_cost_time(ep: int):
    plan = one_plan(dp=64, ep=ep)
    base = seconds(MIXTURE, plan, software=SoftwareSpec(dispatch_bytes=1))
    assert seconds(MIXTURE, plan, software=SoftwareSpec(dispatch_bytes=2)) > base
    assert seconds(MIXTURE, plan, software=SoftwareSpec(dispatch_bytes=1, imbalance=0.3)) > base


def reduced(model: Dimensions, plan: Plans, software: SoftwareSpec, domain: int = 8) -> float:
    machine, ones = replace(MACHINE, domain_gpus=domain), np.ones(1)
    return float(data_traffic(Workload(model, 64, 4096), plan, machine, software, behind=0 * ones, rounds=ones)[0])


@given(st.sampled_from([8, 16, 64]), st.sampled_from([0, 1, 2, 3]))
@settings(max_examples=20, deadline=None)
def test_experts_that_no_other_rank_has_are_not_reduced(dp: int, zero: int):
    plan, software = one_plan(dp=dp, ep=dp, zero=zero), PRESETS["nemo-2025"]
    more = replace(MIXTURE, experts=2 * MIXTURE.experts)
    router = MIXTURE.width * MIXTURE.experts * MIXTURE.layers
    few, many = (reduced(model, plan, software) for model in (MIXTURE, more))
    assert many - few <= 8 * router / MACHINE.far_rate(np.ones(1))[0]


def test_experts_that_fill_a_domain_are_reduced_over_the_fabric_alone():
    software, plan = PRESETS["nemo-2025"], one_plan(dp=64, ep=8, zero=1)
    bytes_held = 4 * 58 * 32 * 3 * 7168 * 2048
    # Both halves move 7/8 of what a rank holds, and no neighbour carries a part of it.
    assert reduced(MIXTURE, plan, software) >= 7 / 8 * bytes_held / MACHINE.far_rate(np.ones(1))[0]


@given(st.sampled_from([2, 4, 8, 16]), st.sampled_from([1, 4, 16, 64]), st.integers(1, 72), st.booleans())
@settings(max_examples=60, deadline=None)
def test_stages_send_over_the_fabric_where_they_share_no_domain(pp: int, dp: int, domain: int, overlap: bool):
    work, plan = Workload(DENSE, 64 * dp, 4096), one_plan(dp=dp, pp=pp)
    software = SoftwareSpec(overlap_pipeline=overlap)
    slow, fast = (replace(MACHINE, domain_gpus=domain, nic_rate=each) for each in (1e9, 2e9))
    sent = [float(pipeline_traffic(work, plan, each, software, np.array([64.0]))[0]) for each in (slow, fast)]
    assert (sent[0] > sent[1]) == (domain < dp * pp)


@given(plans(), st.sampled_from([MIXTURE, DENSE]))
@settings(max_examples=40, deadline=None)
def test_what_is_gathered_narrower_takes_no_longer(plan: Plans, model: Dimensions):
    work = Workload(model, 16 * int(plan.dp[0]), 4096)
    tensor = [
        float(step_times(work, plan, MACHINE, SoftwareSpec(precision=each, overlap_tensor=False)).tensor_s[0])
        for each in ("nvfp4", "fp8", "mxfp8", "bf16")
    ]
    assert tensor == sorted(tensor)
