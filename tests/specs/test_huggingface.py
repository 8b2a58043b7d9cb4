import json
from pathlib import Path
from typing import Any

import pytest

from weft.core.errors import SpecError, UsageError
from weft.specs import load_job
from weft.specs.files import load_any
from weft.specs.huggingface import CLASSES, config_of, model_spec, model_type
from weft.specs.job import ExpertsSpec, ModelSpec, RopeScalingSpec

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
    with pytest.raises(UsageError, match=r"type 'gpt2'; weft builds llama, mistral"):
        model_spec({"model_type": "gpt2"})


def test_all_missing_keys_and_everything_unsupported_are_named_at_once() -> None:
    config = {**LLAMA_31_8B, "hidden_act": "gelu", "mlp_bias": True, "rope_scaling": {"type": "yarn"}}
    del config["hidden_size"], config["vocab_size"]
    with pytest.raises(UsageError) as caught:
        model_spec(config, "my.json")
    for part in ("my.json", "hidden_size, vocab_size", 'hidden_act = "gelu"', "mlp_bias = true", "'yarn'"):
        assert part in str(caught.value)


def test_a_sliding_window_is_refused_unless_it_is_turned_off() -> None:
    mistral = {**LLAMA_31_8B, "model_type": "mistral", "rope_scaling": None, "sliding_window": 4096}
    with pytest.raises(UsageError, match="sliding_window = 4096"):
        model_spec(mistral)
    qwen = {**mistral, "model_type": "qwen2", "use_sliding_window": False}
    assert model_spec(qwen).qkv_bias


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
