"""Blocks and stages: every model is held whole, whatever it is made of and however it is cut."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from weft.planning.cost_model.blocks import Stage, block_times, held_parameters, stage_blocks, stage_parameters
from weft.planning.cost_model.machine import usual_machine
from weft.planning.cost_model.memory import memory_of, stage_memory
from weft.planning.cost_model.plans import Dimensions, Latent, Workload, one_plan
from weft.planning.cost_model.step import step_times
from weft.specs.software import PRESETS, SoftwareSpec

MACHINE = usual_machine("H100", 1024, 400 * 10**9)
LATENT = Latent(kv_rank=256, query_rank=768, rope_width=32, value_width=128)


@st.composite
def models(draw: st.DrawFn) -> Dimensions:
    layers = draw(st.integers(4, 64))
    model = Dimensions(
        layers, 2048, 16, draw(st.sampled_from([4, 16])), 128, 4096, 32_000, tied=False, gated=draw(st.booleans()),
        parallel=draw(st.booleans()), mtp=draw(st.integers(0, 2)), window=draw(st.sampled_from([0, 512])),
    )  # fmt: skip
    if draw(st.booleans()):
        dense = draw(st.integers(0, 3))
        model = replace(model, experts=16, top_k=2, shared=draw(st.sampled_from([0, 2048])), dense_layers=dense,
                        dense_ffn=8192 if dense else 0)  # fmt: skip
    return replace(model, kv_heads=16, latent=LATENT) if draw(st.booleans()) else model


@given(models(), st.sampled_from([1, 2, 3, 4, 7]))
@settings(max_examples=80, deadline=None)
def test_the_stages_hold_every_block_once(model: Dimensions, pp: int):
    plan = one_plan(pp=pp)
    stages: tuple[Stage, ...] = ("first", "middle", "last")
    dense, routed = zip(*(stage_blocks(model, plan, stage) for stage in stages), strict=True)
    first, middle, last = (float((one + other)[0]) for one, other in zip(dense, routed, strict=True))
    if pp == 1:
        assert last == model.layers + model.mtp
        return
    held = first + (pp - 2) * middle + last
    # Where more blocks lack than a stage has, the last stage is empty and the others are counted full.
    assert held == model.layers + model.mtp or last == model.mtp
    assert first <= middle
    assert last <= middle + model.mtp
    if model.experts > 1:
        assert float(dense[0][0]) == min(model.dense_layers, first)


@pytest.mark.parametrize(("pp", "last"), [(2, 30), (4, 13), (8, 5), (16, 1)])
def test_the_last_stage_of_deepseek_lacks_what_its_published_layouts_say(pp: int, last: int):
    model = Dimensions(61, 7168, 128, 128, 128, 2048, 129_280, experts=256, top_k=8, dense_layers=3, mtp=1)
    dense, routed = stage_blocks(model, one_plan(pp=pp), "last")
    assert float((dense + routed)[0]) == last + model.mtp


@given(models(), st.booleans(), st.booleans())
@settings(max_examples=40, deadline=None)
def test_biases_and_clamps_of_experts_cost_only_where_they_are_not_fused(
    model: Dimensions, biases: bool, clamped: bool
):
    work, plan = Workload(replace(model, expert_biases=biases, clamped=clamped), 8, 2048), one_plan(dp=8)
    apart, fused = (
        float(block_times(work, plan, MACHINE, SoftwareSpec(fused_experts=each)).forward[0]) for each in (False, True)
    )
    assert (apart > fused) == (model.experts > 1 and (biases or clamped))


@given(models())
@settings(max_examples=60, deadline=None)
def test_one_gpu_holds_the_whole_model(model: Dimensions):
    shared, experts = held_parameters(model, one_plan(), "last", fold=False)
    held = float((shared + experts)[0])
    assert held == pytest.approx(model.total_parameters, rel=2e-3)
    assert float(stage_parameters(model, one_plan())[0]) == pytest.approx(held)


@given(models(), st.sampled_from([1, 2, 4, 8]))
@settings(max_examples=60, deadline=None)
def test_cutting_over_tensor_ranks_never_holds_or_takes_more(model: Dimensions, tp: int):
    whole, cut = one_plan(dp=8), one_plan(dp=8, tp=tp)
    assert float(stage_parameters(model, cut)[0]) <= float(stage_parameters(model, whole)[0])
    work = Workload(model, 8, 2048)
    times = [block_times(work, plan, MACHINE, SoftwareSpec()) for plan in (whole, cut)]
    assert float(times[1].forward[0]) <= float(times[0].forward[0]) * (1 + 1e-9)


@given(models(), st.sampled_from(sorted(PRESETS)), st.sampled_from([1, 2, 4]), st.sampled_from(["none", "full"]))
@settings(max_examples=60, deadline=None)
def test_every_model_has_a_step_and_a_peak_under_every_preset(model: Dimensions, preset: str, pp: int, recompute: str):
    plan = one_plan(dp=8, pp=pp, ep=4 if model.experts > 1 else 1, zero=1, recompute=recompute)
    work, software = Workload(model, 64, 2048), PRESETS[preset]
    step = float(step_times(work, plan, MACHINE, software).step_s[0])
    floor = model.flops_per_token(2048, causal=True) * work.tokens / (float(plan.ranks[0]) * MACHINE.bf16_flops)
    assert step > floor
    peak = float(memory_of(work, plan, software).total[0])
    ends: tuple[Stage, ...] = ("first", "last")
    assert peak == max(float(stage_memory(work, plan, software, stage).total[0]) for stage in ends)
    state = float(stage_parameters(model, plan, software)[0]) * (software.value_bytes + software.gradient_bytes)
    assert peak > 0.9 * state


def test_a_window_shortens_attention_and_nothing_else():
    model = Dimensions(8, 2048, 16, 16, 128, 4096, 32_000)
    work = Workload(model, 8, 8192)
    near = Workload(replace(model, window=128), 8, 8192)
    full, cut = (block_times(each, one_plan(), MACHINE, SoftwareSpec()) for each in (work, near))
    assert 0.5 < float(cut.scores.forward[0] / full.scores.forward[0]) < 0.55
    assert np.array_equal(full.products.forward, cut.products.forward)
