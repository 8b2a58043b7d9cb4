"""Serving: memory of keys and values, and the two regimes of time."""

from dataclasses import replace

import pytest

from weft.planning.cost_model.machine import usual_machine
from weft.planning.cost_model.plans import Dimensions
from weft.planning.run.inference import best_serving, kv_bytes_per_token, serve

LLAMA_70B = Dimensions(80, 8192, 64, 8, 128, 28672, 128256, tied=False)
H100 = usual_machine("H100", 8, 400 * 10**9)


def test_keys_and_values_of_llama_70b_are_320_kib_a_token():
    assert kv_bytes_per_token(LLAMA_70B) == 320 * 1024
    assert kv_bytes_per_token(LLAMA_70B, "fp8") == 160 * 1024


def test_what_does_not_fit_is_not_served():
    assert serve(LLAMA_70B, H100, tp=1, prompt=1024, output=256) is None
    assert serve(LLAMA_70B, H100, tp=4, prompt=1024, output=256) is not None


def test_a_decode_step_is_never_faster_than_reading_the_weights():
    found = serve(LLAMA_70B, H100, tp=8, prompt=1024, output=256)
    assert found is not None
    assert found.decode_s > found.weights_bytes / 8 / H100.memory_rate
    assert found.batch * (1024 + 256) * found.kv_bytes_per_token <= 8 * H100.memory_bytes - found.weights_bytes


def test_prefill_is_bound_by_arithmetic():
    short, long = (serve(LLAMA_70B, H100, tp=8, prompt=prompt, output=64) for prompt in (1024, 8192))
    assert short is not None
    assert long is not None
    assert 7 < long.prefill_s / short.prefill_s < 12
    operations = LLAMA_70B.flops_per_token(1024, causal=True) / 3 * 1024
    assert short.prefill_s > operations / (8 * H100.bf16_flops)


def test_the_best_replica_is_the_best_of_all():
    best = best_serving(LLAMA_70B, H100, prompt=1024, output=256)
    assert best is not None
    for tp in (4, 8):
        other = serve(LLAMA_70B, H100, tp=tp, prompt=1024, output=256)
        assert other is None or other.tokens_per_s_per_gpu <= best.tokens_per_s_per_gpu


def test_few_tokens_meet_few_experts():
    sparse = replace(LLAMA_70B, experts=8, top_k=2, ffn=7168)
    small = replace(H100, memory_bytes=H100.memory_bytes * 0.6)
    found, dense = (serve(replace(sparse, top_k=top_k), small, tp=8, prompt=100_000, output=100) for top_k in (2, 8))
    assert found is not None
    assert dense is not None
    assert found.batch == dense.batch
    assert found.decode_s < dense.decode_s


def test_fp8_serves_faster():
    bf16, fp8 = (best_serving(LLAMA_70B, H100, prompt=2048, output=256, precision=p) for p in ("bf16", "fp8"))
    assert bf16 is not None
    assert fp8 is not None
    assert fp8.tokens_per_s_per_gpu > 1.2 * bf16.tokens_per_s_per_gpu


def test_a_model_larger_than_the_domain_is_not_served():
    assert best_serving(replace(LLAMA_70B, layers=2000), H100, prompt=10, output=10) is None


def test_precision_must_be_known():
    with pytest.raises(KeyError):
        kv_bytes_per_token(LLAMA_70B, "int3")
