"""The step's time: it adds up, moves the right way, and meets the closed forms."""

import itertools
from dataclasses import fields, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from weft.planning.cost_model.blocks import block_times, stage_parameters
from weft.planning.cost_model.machine import FabricTable, Machine, machine_of, usual_machine, with_efficiency
from weft.planning.cost_model.plans import Dimensions, Plans, Workload, dimensions_of, one_plan
from weft.planning.cost_model.step import StepTimes, step_times
from weft.planning.cost_model.timeline import timeline
from weft.specs import load_job, load_site
from weft.specs.software import SoftwareSpec

MODEL = Dimensions(32, 4096, 32, 8, 128, 14336, 32000, tied=False)
WORK = Workload(MODEL, 256, 4096)
H100 = usual_machine("H100", 1024, 400 * 10**9)


def seconds(
    plan: Plans, *, work: Workload = WORK, machine: Machine = H100, practice: SoftwareSpec | None = None
) -> float:
    return float(step_times(work, plan, machine, practice or SoftwareSpec()).step_s[0])


@st.composite
def plans(draw: st.DrawFn) -> Plans:
    power = st.sampled_from([1, 2, 4, 8])
    pp = draw(power)
    return one_plan(
        dp=draw(power), tp=draw(power), pp=pp, cp=draw(st.sampled_from([1, 2])), micro=draw(st.sampled_from([1, 2, 4])),
        zero=draw(st.integers(0, 3)), recompute=draw(st.sampled_from(["none", "selective", "full"])),
        schedule=draw(st.sampled_from(["1f1b", "zero-bubble"])),
    )  # fmt: skip


@given(plans())
@settings(max_examples=60, deadline=None)
def test_the_parts_are_the_whole_and_none_is_negative(plan: Plans):
    times = step_times(WORK, plan, H100, SoftwareSpec(jitter=0.01))
    parts = [float(getattr(times, each.name)[0]) for each in fields(StepTimes)]
    assert min(parts) >= 0
    assert sum(parts[:-2]) == pytest.approx(float(times.step_s[0]))


@given(plans())
@settings(max_examples=60, deadline=None)
def test_no_step_is_faster_than_the_arithmetic_allows(plan: Plans):
    operations = MODEL.flops_per_token(WORK.length, causal=True) * WORK.tokens
    floor = operations / (float(plan.ranks[0]) * H100.bf16_flops)
    assert seconds(plan) > floor


@given(plans(), st.sampled_from(["nic_rate", "domain_rate", "memory_rate", "bf16_flops"]))
@settings(max_examples=80, deadline=None)
def test_a_faster_machine_is_never_slower(plan: Plans, what: str):
    faster = replace(H100, **{what: 2 * getattr(H100, what)})
    assert seconds(plan, machine=faster) <= seconds(plan) * (1 + 1e-12)


@given(plans())
@settings(max_examples=40, deadline=None)
def test_recomputing_costs_time(plan: Plans):
    none, full = (replace(plan, recompute=np.array([value])) for value in (0.0, 2.0))
    # Not dearer only where a network that is slower than both hides all of it.
    assert seconds(none) <= seconds(full) * (1 + 1e-12)
    assert seconds(full) < 1.6 * seconds(none)


@given(plans())
@settings(max_examples=40, deadline=None)
def test_hiding_communication_never_costs(plan: Plans):
    bare = SoftwareSpec(
        overlap_tensor=False, overlap_tensor_backward=False, overlap_context=False, overlap_data=False,
        overlap_pipeline=False,
    )  # fmt: skip
    assert seconds(plan) <= seconds(plan, practice=bare) * (1 + 1e-12)


def test_columns_give_what_single_plans_give():
    several = [one_plan(tp=tp, dp=dp, micro=2) for tp in (1, 2, 8) for dp in (1, 4)]
    table = Plans(**{f.name: np.concatenate([getattr(p, f.name) for p in several]) for f in fields(Plans)})
    together = step_times(WORK, table, H100, SoftwareSpec()).step_s
    assert together == pytest.approx([seconds(plan) for plan in several])


@pytest.mark.parametrize(("stages", "rounds", "chunks"), [(4, 8, 1), (4, 8, 2), (8, 16, 4), (2, 6, 3), (1, 5, 1)])
def test_bubbles_are_those_of_the_drawn_schedule(stages: int, rounds: int, chunks: int):
    forward, backward = 1.0, 2.0
    bars = timeline(stages, rounds, forward, backward, chunks=chunks)
    assert len(bars) == 2 * stages * rounds * chunks
    end = max(bar.end_s for bar in bars)
    assert end == pytest.approx(rounds * 3.0 + (stages - 1) * 3.0 / chunks)


def test_bars_of_a_stage_never_overlap():
    bars = timeline(4, 12, 1.0, 2.0, weights_s=1.0)
    for stage in range(4):
        own = sorted((bar.start_s, bar.end_s) for bar in bars if bar.stage == stage)
        assert all(before[1] <= after[0] + 1e-9 for before, after in itertools.pairwise(own))


def test_doing_weights_late_shortens_the_pipeline():
    plain = max(bar.end_s for bar in timeline(8, 16, 1.0, 2.0))
    late = max(bar.end_s for bar in timeline(8, 16, 1.0, 2.0, weights_s=1.0))
    ideal = 16 * 3.0
    assert ideal < late < ideal + (plain - ideal) * 0.55


def test_dimensions_agree_with_the_exact_arithmetic():
    from weft.planning.cost_model.arithmetic import flops_per_token, parameters

    for name in ("gpt-1t", "llama3-405b", "gpt3-175b", "tiny-gpt"):
        job = load_job(name)
        model = dimensions_of(job.model)
        assert model.total_parameters == parameters(job.model).total
        for causal in (False, True):
            exact = flops_per_token(job.model, job.batch.length, causal=causal).total
            assert model.flops_per_token(job.batch.length, causal=causal) == pytest.approx(exact, rel=1e-6)


def test_stages_hold_the_whole_model():
    plan = one_plan(tp=4, pp=8)
    held = float(stage_parameters(MODEL, plan)[0]) * 32
    assert MODEL.total_parameters <= held < 1.15 * MODEL.total_parameters


def test_experts_exchange_and_spread():
    model = replace(MODEL, experts=16, top_k=2, ffn=4096)
    work = Workload(model, 256, 4096)
    alone, spread = (one_plan(dp=16, ep=ep, zero=1) for ep in (1, 16))
    times = step_times(work, spread, H100, SoftwareSpec())
    assert float(times.expert_s[0]) > 0
    assert float(step_times(work, alone, H100, SoftwareSpec()).expert_s[0]) == 0
    assert float(stage_parameters(model, spread)[0]) < float(stage_parameters(model, alone)[0]) / 4


def test_payload_share_of_the_fabric_is_the_published_one():
    site = load_site("gb200-8x100g-131k")
    machine = machine_of(site)
    assert machine.nic_rate / machine.efficiency.nic * 8 / 800e9 == pytest.approx(0.961, abs=0.001)


def test_a_group_that_a_domain_cuts_is_paid_for():
    wide = replace(H100, domain_gpus=12)
    odd = replace(MODEL, heads=48, kv_heads=48)
    work = Workload(odd, 256, 4096)
    whole, cut = (float(step_times(work, one_plan(tp=tp), wide, SoftwareSpec(price=0.0)).tensor_s[0]) for tp in (8, 16))
    assert cut > 3 * whole


def test_a_table_of_the_fabric_replaces_the_constant_share():
    plan = one_plan(dp=128, zero=3)
    constant = H100.efficiency.nic
    same = replace(H100, table=FabricTable((1.0, 2.0**40), (constant, constant), "test"))
    assert seconds(plan, machine=same) == pytest.approx(seconds(plan))
    worse = replace(H100, table=FabricTable((1.0, 2.0**40), (constant / 50, constant / 50), "a spine lost"))
    assert seconds(plan, machine=worse) > 2 * seconds(plan)
    sizes = np.array([2.0**10, 2.0**20, 2.0**30])
    rising = replace(H100, table=FabricTable((2.0**10, 2.0**30), (0.1, 0.9), "test"))
    assert rising.far_rate(sizes) * constant / H100.nic_rate == pytest.approx([0.1, 0.5, 0.9])


def crowded(ranks_per_core: float) -> Machine:
    return with_efficiency(H100, ranks_per_core=ranks_per_core, overlaps=False)


@given(plans())
@settings(max_examples=40, deadline=None)
def test_a_processor_that_does_both_hides_no_communication(plan: Plans):
    alone = with_efficiency(H100, overlaps=False)
    steady = SoftwareSpec(jitter=0.0)
    assert seconds(plan, machine=alone, practice=steady) >= seconds(plan, practice=steady) * (1 - 1e-12)


@given(plans(), st.floats(1.5, 8))
@settings(max_examples=40, deadline=None)
def test_ranks_that_share_processors_fill_each_others_bubbles(plan: Plans, crowd: float):
    times, alone = (step_times(WORK, plan, crowded(each), SoftwareSpec()) for each in (crowd, 1.0))
    assert float(times.bubble_s[0]) <= float(alone.bubble_s[0]) * (1 + 1e-12)
    assert float(times.step_s[0]) <= float(alone.step_s[0]) * (1 + 1e-12)


def test_a_long_pipeline_of_few_micro_batches_still_waits_on_shared_processors():
    few = Workload(MODEL, 1, 4096)
    assert float(step_times(few, one_plan(pp=8), crowded(2.0), SoftwareSpec()).bubble_s[0]) > 0
    assert float(step_times(few, one_plan(pp=8), crowded(8.0), SoftwareSpec()).bubble_s[0]) == 0


@pytest.mark.parametrize(
    ("name", "plan"),
    [
        ("tensor_us", {"tp": 2}),
        ("shard_us", {"dp": 2, "zero": 3}),
        ("block_us", {}),
        ("micro_us", {}),
        ("step_us", {}),
        ("update_us", {}),
        ("token_us", {}),
        ("stage_us", {"pp": 2}),
        ("spread_us", {"tp": 2}),
        ("spread_us", {"dp": 2, "zero": 3}),
    ],
)
def test_the_softwares_own_time_counts_once_for_what_it_is(name: str, plan: dict[str, Any]):
    counts = {
        "micro_us": 256 // plan.get("dp", 1), "step_us": 1, "tensor_us": (MODEL.layers + 1) * 256,
        "shard_us": (MODEL.layers + 1) * 128, "spread_us": MODEL.layers,
        "update_us": MODEL.layers, "token_us": 3 * (MODEL.layers + 1) * 256 * 4096, "stage_us": 256 + 1 + MODEL.tied,
    }  # fmt: skip
    expected = 1e-3 * counts.get(name, MODEL.layers * 256 // plan.get("dp", 1))
    slower = with_efficiency(crowded(2.0), **{name: getattr(H100.efficiency, name) + 1e3})
    longer = seconds(one_plan(**plan), machine=slower) - seconds(one_plan(**plan), machine=crowded(2.0))
    assert longer == pytest.approx(expected)
    if plan:
        assert seconds(one_plan(), machine=slower) == seconds(one_plan(), machine=crowded(2.0))


def test_stages_that_displace_each_other_take_longer_by_a_share_of_what_caches_serve():
    machine = with_efficiency(crowded(2.0), block_us=1e3)
    slower = with_efficiency(machine, crowding=0.1)
    longer = seconds(one_plan(pp=2), machine=slower) - seconds(one_plan(pp=2), machine=machine)
    each = 3 * float(block_times(WORK, one_plan(pp=2), machine, SoftwareSpec()).elementwise[0]) + 1e-3
    assert longer == pytest.approx(0.1 * each * 256 * MODEL.layers / 2)
    assert seconds(one_plan(), machine=slower) == seconds(one_plan(), machine=machine)


def test_copies_of_cut_activations_take_as_long_as_their_bytes():
    slower = with_efficiency(crowded(2.0), tensor_bytes=100.0)
    longer = seconds(one_plan(tp=2), machine=slower) - seconds(one_plan(tp=2), machine=crowded(2.0))
    moved = 100.0 * 256 * 4096 * MODEL.width * (MODEL.layers + 1)
    assert longer == pytest.approx(moved / slower.memory_rate)
    assert seconds(one_plan(), machine=slower) == seconds(one_plan(), machine=crowded(2.0))
