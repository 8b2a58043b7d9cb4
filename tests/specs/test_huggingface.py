import json
from pathlib import Path
from typing import Any

import pytest

from weft.core.errors import SpecError, UsageError
from weft.planning.cost_model.plans import dimensions_of
from weft.planning.legality import problems
from weft.specs import load_job
from weft.specs.files import load_any
from weft.specs.huggingface import CLASSES, config_of, model_spec, model_type
from weft.specs.job import BatchSpec, ExpertsSpec, ModelSpec, PlanSpec, RopeScalingSpec

# Dimensions as published in the models' own config.json files.
LLAMA_31_8B = {
    "architectures": ["LlamaForCausalLM"],
    "attention_bias": False,
    "hidden_act": "silu",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "max_position_embeddings": 131072,
    "mlp_bias": False,
    "model_type": "llama",
    "num_attention_heads": 32,
    "num_hidden_layers": 32,
    "num_key_value_heads": 8,
    "rms_norm_eps": 1e-05,
    "rope_scaling": {
        "factor": 8.0,
        "high_freq_factor": 4.0,
        "low_freq_factor": 1.0,
        "original_max_position_embeddings": 8192,
        "rope_type": "llama3",
    },
    "rope_theta": 500000.0,
    "tie_word_embeddings": False,
    "vocab_size": 128256,
}
MIXTRAL_8X7B = {
    "hidden_act": "silu",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "model_type": "mixtral",
    "num_attention_heads": 32,
    "num_experts_per_tok": 2,
    "num_hidden_layers": 32,
    "num_key_value_heads": 8,
    "num_local_experts": 8,
    "rms_norm_eps": 1e-05,
    "rope_theta": 1000000.0,
    "router_aux_loss_coef": 0.02,
    "sliding_window": None,
    "tie_word_embeddings": False,
    "vocab_size": 32000,
}

JOB = """
name = "big"
steps = 10
[model]
config = "models/config.json"
{extra}
[batch]
sequences = 8
micro = 1
length = 64
"""


def written(folder: Path, config: dict[str, Any], extra: str = "") -> str:
    (folder / "models").mkdir()
    (folder / "models" / "config.json").write_text(json.dumps(config))
    (folder / "job.toml").write_text(JOB.format(extra=extra))
    return str(folder / "job.toml")


def test_llama_is_read() -> None:
    assert model_spec(LLAMA_31_8B) == ModelSpec(
        layers=32, width=4096, heads=32, kv_heads=8, ffn=14336, vocabulary=128256, tied=False, rope_base=500000.0,
        rope_scaling=RopeScalingSpec(factor=8.0, length=8192),
    )  # fmt: skip


def test_mixtral_is_read() -> None:
    spec = model_spec(MIXTRAL_8X7B)
    assert spec.experts == ExpertsSpec(count=8, top_k=2, ffn=14336, balance=0.02)
    assert (spec.rope_base, spec.qk_norm, spec.qkv_bias) == (1e6, False, False)


def test_rotary_settings_are_read_in_their_newer_place() -> None:
    newer = {key: value for key, value in LLAMA_31_8B.items() if not key.startswith("rope")}
    newer["rope_parameters"] = {**LLAMA_31_8B["rope_scaling"], "rope_theta": 500000.0}
    assert model_spec(newer) == model_spec(LLAMA_31_8B)


@pytest.mark.parametrize("shape", [
    {},
    {"head_width": 24, "tied": False},
    {"qkv_bias": True},
    {"qk_norm": True, "rope_base": 1e6},
    {"rope_scaling": RopeScalingSpec(factor=4.0, length=32)},
    {"experts": ExpertsSpec(count=4, top_k=2, ffn=48)},
    {"experts": ExpertsSpec(count=4, top_k=2, ffn=20), "qk_norm": True},
])  # fmt: skip
def test_a_model_survives_the_way_out_and_back(shape: dict[str, Any]) -> None:
    spec = ModelSpec(layers=2, width=32, heads=4, kv_heads=2, ffn=48, norm_epsilon=1e-6, **shape)
    config = json.loads(json.dumps(config_of(spec, 64)))
    assert model_spec(config) == spec
    assert config["architectures"] == [CLASSES[model_type(spec)]]


def test_an_unknown_architecture_is_named_with_the_known_ones() -> None:
    with pytest.raises(UsageError, match=r"type 'bert'; weft builds llama, mistral.*plans deepseek_v2"):
        model_spec({"model_type": "bert"})


def test_all_missing_keys_and_everything_unsupported_are_named_at_once() -> None:
    config = {**LLAMA_31_8B, "hidden_act": "mish", "mlp_bias": True, "rope_scaling": {"type": "longrope"}}
    del config["hidden_size"], config["vocab_size"]
    with pytest.raises(UsageError) as caught:
        model_spec(config, "my.json")
    for part in ("my.json", "hidden_size, vocab_size", 'hidden_act = "mish"', "mlp_bias = true", "'longrope'"):
        assert part in str(caught.value)


def test_a_sliding_window_is_read_as_each_family_means_it() -> None:
    def window(**keys: Any) -> tuple[int, int | None]:
        spec = model_spec({**LLAMA_31_8B, "rope_scaling": None, "sliding_window": 512, **keys})
        return spec.window, spec.window_from

    assert window(model_type="mistral") == (512, 0)
    assert window(model_type="llama") == (0, None)
    assert window(model_type="qwen2", use_sliding_window=False) == (0, None)
    assert window(model_type="qwen2", use_sliding_window=True, max_window_layers=30) == (512, 30)
    assert window(model_type="qwen2", use_sliding_window=True, max_window_layers=32) == (0, None)
    types = ["full_attention"] * 31 + ["sliding_attention"]
    assert window(model_type="qwen3", use_sliding_window=True, layer_types=types) == (512, 31)
    with pytest.raises(UsageError, match="layer_types"):
        window(model_type="qwen3", use_sliding_window=True, layer_types=types[::-1])


def test_a_combination_that_nobody_else_has_cannot_be_written() -> None:
    with pytest.raises(UsageError, match="qkv_bias with qk_norm"):
        config_of(ModelSpec(layers=1, width=8, heads=2, ffn=8, qkv_bias=True, qk_norm=True), 8)


def test_a_job_file_points_to_a_config_beside_it_and_its_own_keys_win(tmp_path: Path) -> None:
    job = load_job(written(tmp_path, LLAMA_31_8B, extra="layers = 2"))
    assert (job.model.layers, job.model.width, job.model.config) == (2, 4096, None)
    assert "config" not in job.as_written()["model"]
    kind, same = load_any(str(tmp_path / "job.toml"))
    assert (kind, same) == ("job", job)


def test_a_missing_config_is_named_with_its_path(tmp_path: Path) -> None:
    path = written(tmp_path, LLAMA_31_8B)
    (tmp_path / "models" / "config.json").unlink()
    with pytest.raises(UsageError, match=r"job\.toml:5  model\.config\n.*there is no file .*models/config\.json"):
        load_job(path)


@pytest.mark.parametrize(
    ("content", "problem"), [("{", "is not JSON"), ("[]", "it holds a list"), ("\xff", "not JSON")]
)
def test_a_config_that_is_none_is_refused(tmp_path: Path, content: str, problem: str) -> None:
    path = written(tmp_path, LLAMA_31_8B)
    (tmp_path / "models" / "config.json").write_bytes(content.encode("latin-1"))
    with pytest.raises(UsageError, match=problem):
        load_job(path)


def test_dimensions_that_do_not_fit_are_blamed_on_the_model_table(tmp_path: Path) -> None:
    path = written(tmp_path, {**LLAMA_31_8B, "num_key_value_heads": 5})
    with pytest.raises(SpecError) as caught:
        load_job(path)
    assert [mistake.key for mistake in caught.value.mistakes] == ["model.kv_heads"]


def test_an_odd_head_is_refused() -> None:
    with pytest.raises(ValueError, match="an even width"):
        ModelSpec(layers=1, width=9, heads=3, ffn=8)


DEEPSEEK_V3 = {
    "first_k_dense_replace": 3, "hidden_size": 7168, "intermediate_size": 18432, "kv_lora_rank": 512,
    "model_type": "deepseek_v3", "moe_intermediate_size": 2048, "n_group": 8, "n_routed_experts": 256,
    "n_shared_experts": 1, "num_attention_heads": 128, "num_experts_per_tok": 8, "num_hidden_layers": 61,
    "num_key_value_heads": 128, "num_nextn_predict_layers": 0, "q_lora_rank": 1536, "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64, "topk_group": 4, "v_head_dim": 128, "vocab_size": 129280,
}  # fmt: skip
DEEPSEEK_V2 = DEEPSEEK_V3 | {
    "first_k_dense_replace": 1, "hidden_size": 5120, "intermediate_size": 12288, "model_type": "deepseek_v2",
    "moe_intermediate_size": 1536, "n_routed_experts": 160, "n_shared_experts": 2, "num_experts_per_tok": 6,
    "num_hidden_layers": 60, "vocab_size": 102400,
}  # fmt: skip
KIMI_K2 = DEEPSEEK_V3 | {
    "first_k_dense_replace": 1, "model_type": "kimi_k2", "n_group": 1, "n_routed_experts": 384,
    "num_attention_heads": 64, "num_key_value_heads": 64, "topk_group": 1, "vocab_size": 163840,
}  # fmt: skip
GPT_OSS_120B = {
    "head_dim": 64, "hidden_size": 2880, "intermediate_size": 2880, "model_type": "gpt_oss", "num_attention_heads": 64,
    "num_experts_per_tok": 4, "num_hidden_layers": 36, "num_key_value_heads": 8, "num_local_experts": 128,
    "sliding_window": 128, "vocab_size": 201088,
}  # fmt: skip
NEMOTRON_340B = {
    "hidden_size": 18432, "intermediate_size": 73728, "model_type": "nemotron", "num_attention_heads": 96,
    "num_hidden_layers": 96, "num_key_value_heads": 8, "vocab_size": 256000,
}  # fmt: skip
QWEN_57B = {
    "hidden_size": 3584, "intermediate_size": 18944, "model_type": "qwen2_moe", "moe_intermediate_size": 2560,
    "num_attention_heads": 28, "num_experts": 64, "num_experts_per_tok": 8, "num_hidden_layers": 28,
    "num_key_value_heads": 4, "shared_expert_intermediate_size": 20480, "vocab_size": 151936,
}  # fmt: skip


GEMMA_2_27B = {
    "head_dim": 128, "hidden_size": 4608, "intermediate_size": 36864, "model_type": "gemma2", "num_attention_heads": 32,
    "num_hidden_layers": 46, "num_key_value_heads": 16, "sliding_window": 4096, "vocab_size": 256000,
}  # fmt: skip
GEMMA_3_27B = {"model_type": "gemma3", "text_config": {
    "head_dim": 128, "hidden_size": 5376, "intermediate_size": 21504, "model_type": "gemma3_text",
    "num_attention_heads": 32, "num_hidden_layers": 62, "num_key_value_heads": 16, "sliding_window": 1024,
}}  # fmt: skip
SCOUT = {"model_type": "llama4", "text_config": {
    "attention_chunk_size": 8192, "head_dim": 128, "hidden_size": 5120, "intermediate_size": 8192,
    "intermediate_size_mlp": 16384, "interleave_moe_layer_step": 1, "model_type": "llama4_text",
    "num_attention_heads": 40, "num_experts_per_tok": 1, "num_hidden_layers": 48, "num_key_value_heads": 8,
    "num_local_experts": 16, "vocab_size": 202048,
}}  # fmt: skip
MAVERICK = {**SCOUT, "text_config": SCOUT["text_config"] | {"interleave_moe_layer_step": 2, "num_local_experts": 128}}
GLM_355B = {
    "attention_bias": True, "first_k_dense_replace": 3, "head_dim": 128, "hidden_size": 5120,
    "intermediate_size": 12288, "model_type": "glm4_moe", "moe_intermediate_size": 1536, "n_routed_experts": 160,
    "n_shared_experts": 1, "num_attention_heads": 96, "num_experts_per_tok": 8, "num_hidden_layers": 92,
    "num_key_value_heads": 8, "vocab_size": 151552,
}  # fmt: skip


# Totals and active parameters as published with each model.
@pytest.mark.parametrize(
    ("config", "total", "active"),
    [
        (DEEPSEEK_V3, 671e9, 37e9),
        (DEEPSEEK_V2, 236e9, 21e9),
        (KIMI_K2, 1.03e12, 32e9),
        (GPT_OSS_120B, 116.8e9, 5.7e9),
        (NEMOTRON_340B, 341e9, 341e9),
        (QWEN_57B, 57.4e9, 14.3e9),
        (GEMMA_2_27B, 27.2e9, 27.2e9),
        (GEMMA_3_27B, 27.0e9, 27.0e9),
        (SCOUT, 107.8e9, 17e9),
        (MAVERICK, 400e9, 17e9),
        # 32 billion without the embedding and the output.
        (GLM_355B, 353e9, 33.6e9),
    ],
    ids=lambda value: value["model_type"] if isinstance(value, dict) else "",
)
def test_models_that_are_only_planned_have_their_published_sizes(config: dict[str, Any], total: float, active: float):
    model = dimensions_of(model_spec(config))
    assert model.total_parameters == pytest.approx(total, rel=0.01)
    assert model.active_parameters == pytest.approx(active, rel=0.05)


DEEPSEEK_V3_WHOLE = DEEPSEEK_V3 | {"num_nextn_predict_layers": 1}


@pytest.mark.parametrize(
    "config", [DEEPSEEK_V3_WHOLE, DEEPSEEK_V2, KIMI_K2, GPT_OSS_120B, NEMOTRON_340B, QWEN_57B, SCOUT]
)
def test_the_trainer_refuses_what_it_can_only_plan(config: dict[str, Any]):
    found = problems(PlanSpec(), model_spec(config), BatchSpec(sequences=1, micro=1, length=64))
    assert any("it can be planned only" in each for each in found)


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({"model_type": "nemotron_h"}, "a nemotron_h, which has blocks with a state"),
        ({"model_type": "qwen3_next"}, "which has linear attention"),
        ({"model_type": "brand_new"}, "a model of type 'brand_new'; weft builds llama"),
        ({}, "has no model_type"),
    ],
)
def test_a_kind_that_cannot_be_planned_is_refused_with_what_it_has(config: dict[str, Any], said: str):
    with pytest.raises(UsageError, match=said):
        model_spec(config)


@pytest.mark.parametrize("config", [DEEPSEEK_V3, GPT_OSS_120B, NEMOTRON_340B, QWEN_57B])
def test_a_config_to_plan_that_lacks_a_key_is_refused_by_its_name(config: dict[str, Any]):
    for key in ("hidden_size", *(each for each in ("kv_lora_rank", "sliding_window", "num_experts") if each in config)):
        with pytest.raises(UsageError, match=key):
            model_spec({name: value for name, value in config.items() if name != key})
