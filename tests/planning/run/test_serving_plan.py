"""Serving with prefill and decode apart: targets are kept, looser ones and better hardware never cost more."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from weft.planning.cost_model.machine import Machine, usual_machine
from weft.planning.cost_model.plans import Dimensions, Latent
from weft.planning.run.inference import ServedPrecision, kv_bytes_per_token
from weft.planning.run.serving_plan import ServingPlan, ServingRequest, serving_plan

DENSE = Dimensions(80, 8192, 64, 8, 128, 28672, 128256, tied=False)
MIXTURE = Dimensions(
    61, 7168, 128, 128, 128, 2048, 129_280, tied=False, experts=256, top_k=8, shared=2048, dense_layers=3,
    dense_ffn=18_432, latent=Latent(512, 1536, 64, 128),
)  # fmt: skip
RACK = usual_machine("GB200", 64, 400 * 10**9)
MODELS = {"dense": DENSE, "mixture": MIXTURE}
PRECISIONS: tuple[ServedPrecision, ...] = ("bf16", "fp8", "nvfp4")


@st.composite
def requests(draw: st.DrawFn) -> ServingRequest:
    return ServingRequest(
        prompt=draw(st.integers(64, 16_384)), output=draw(st.integers(16, 2048)), ttft_s=draw(st.floats(0.2, 10)),
        tpot_s=draw(st.floats(0.01, 0.2)), precision=draw(st.sampled_from(PRECISIONS)),
        kv_precision=draw(st.sampled_from(PRECISIONS)),
    )  # fmt: skip


@given(st.sampled_from(sorted(MODELS)), requests())
@settings(max_examples=25, deadline=None)
def test_a_plan_keeps_both_targets_and_its_memory(name: str, asked: ServingRequest):
    found = serving_plan(MODELS[name], RACK, asked)
    if isinstance(found, str):
        assert "ask for" in found or "holds the weights" in found
        return
    assert found.ttft_s <= asked.ttft_s
    assert found.tpot_s <= asked.tpot_s
    assert 0 < found.prefill_share < 1
    kept = found.decode.batch * (asked.prompt + asked.output) * found.kv_bytes_per_token
    assert kept <= found.decode.gpus * RACK.memory_bytes * max(1, found.decode.tp)
    prefill, decode = found.gpus_for(100.0)
    assert prefill + decode >= 100.0 / found.requests_per_s_per_gpu * (1 - 1e-9)


def served(model: Dimensions, asked: ServingRequest, machine: Machine = RACK) -> float:
    found = serving_plan(model, machine, asked)
    return found.tokens_per_s_per_gpu if isinstance(found, ServingPlan) else 0.0


@given(
    st.sampled_from(sorted(MODELS)), requests(),
    st.sampled_from(["memory_bytes", "memory_rate", "domain_rate", "nic_rate", "domain_gpus", "ttft", "tpot"]),
)  # fmt: skip
@settings(max_examples=25, deadline=None)
def test_looser_targets_and_better_hardware_never_serve_fewer(name: str, asked: ServingRequest, what: str):
    model = MODELS[name]
    before = served(model, asked)
    if what in ("ttft", "tpot"):
        looser = replace(asked, **{f"{what}_s": 2 * getattr(asked, f"{what}_s")})
        # A looser TPOT may take a batch whose first step comes later; the time to the first token is not tightened.
        assert served(model, replace(looser, ttft_s=max(looser.ttft_s, asked.ttft_s + looser.tpot_s))) >= before
        return
    better = replace(RACK, **{what: 2 * getattr(RACK, what)})
    assert served(model, replace(asked, ttft_s=asked.ttft_s + asked.tpot_s), better) >= before * (1 - 1e-9)


def test_latent_attention_keeps_one_narrow_vector():
    # DeepSeek-V3, arXiv 2412.19437: 61 blocks x (512 + 64) values.
    assert kv_bytes_per_token(MIXTURE) == 61 * 576 * 2


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        (ServingRequest(2048, 512, 1.0, 1e-4), "ask for a TPOT"),
        (ServingRequest(2048, 512, 1e-3, 0.1), "ask for a TTFT"),
    ],
)
def test_what_cannot_be_kept_is_said(asked: ServingRequest, said: str):
    found = serving_plan(DENSE, RACK, asked)
    assert isinstance(found, str)
    assert said in found


def test_a_model_that_no_domain_holds_is_refused():
    found = serving_plan(MIXTURE, usual_machine("H100", 64, 400 * 10**9), ServingRequest(2048, 512, 1.0, 0.1))
    assert isinstance(found, str)
    assert "holds the weights" in found
