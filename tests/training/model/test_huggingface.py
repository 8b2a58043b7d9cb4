import json
import tempfile
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

from weft.core.errors import FailedError, UsageError
from weft.core.seeds import Seed
from weft.specs.job import ExpertsSpec, LatentSpec, ModelSpec, RopeScalingSpec
from weft.training.model import Decoder, initialise
from weft.training.model.huggingface import load_weights, save_weights

SHAPES: dict[str, dict[str, Any]] = {
    "llama": {"tied": False, "rope_scaling": RopeScalingSpec(factor=8.0, length=16), "rope_base": 500.0},
    "tied": {},
    "qwen2": {"qkv_bias": True},
    "qwen3": {"qk_norm": True, "head_width": 16},
    "mixtral": {"experts": ExpertsSpec(count=4, top_k=2, ffn=24)},
    "window": {"window": 8, "window_from": 0},
    "gpt2": {
        "kv_heads": None,
        "norm": "layer",
        "biases": True,
        "gated": False,
        "activation": "gelu_tanh",
        "learned_positions": 64,
        "dropout": 0.1,
    },
    "deepseek": {
        "kv_heads": 4,
        "head_width": 6,
        "latent": LatentSpec(kv_rank=12, query_rank=10, rope_width=4, value_width=5),
        "experts": ExpertsSpec(
            count=8,
            top_k=2,
            ffn=12,
            shared=24,
            dense_layers=1,
            scoring="sigmoid",
            correction=True,
            scale=2.5,
            groups=4,
            nodes=2,
        ),
    },
    "qwen3_moe": {"experts": ExpertsSpec(count=4, top_k=2, ffn=12), "qk_norm": True, "tied": False},
}


def model_of(shape: str) -> Decoder:
    dimensions: dict[str, Any] = {"layers": 2, "width": 32, "heads": 4, "kv_heads": 2, "ffn": 24, "vocabulary": 64}
    spec = ModelSpec(**{**dimensions, **SHAPES[shape]})
    model = Decoder(spec)
    initialise(model, Seed(2))
    chance = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=chance), alpha=0.2)
    return model


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("largest", [10**9, 5000])
def test_weights_survive_the_way_out_and_back(shape: str, largest: int, tmp_path: Path) -> None:
    model = model_of(shape)
    save_weights(model.state_dict(), model.spec, tmp_path / "out", length=64, largest_file_bytes=largest)
    spec, state = load_weights(tmp_path / "out")
    assert spec == model.spec
    again = Decoder(spec)
    again.load_state_dict(state)
    assert all(torch.equal(one, again.state_dict()[name]) for name, one in model.state_dict().items())
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
    index = tmp_path / "out" / "model.safetensors.index.json"
    assert index.exists() == (largest == 5000)
    if index.exists():
        for name, file in json.loads(index.read_text())["weight_map"].items():
            assert name in load_file(tmp_path / "out" / file)


def test_names_are_those_that_others_look_for(tmp_path: Path) -> None:
    for shape in ("llama", "tied", "mixtral"):
        model = model_of(shape)
        save_weights(model.state_dict(), model.spec, tmp_path / shape, length=64)
    llama = load_file(tmp_path / "llama" / "model.safetensors")
    inner = [
        "self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj", "mlp.gate_proj", "mlp.up_proj",
        "mlp.down_proj", "input_layernorm", "post_attention_layernorm",
    ]  # fmt: skip
    assert set(llama) == {"model.embed_tokens.weight", "model.norm.weight", "lm_head.weight"} | {
        f"model.layers.{layer}.{name}.weight" for layer in range(2) for name in inner
    }
    assert llama["model.layers.0.self_attn.k_proj.weight"].shape == (16, 32)
    assert "lm_head.weight" not in load_file(tmp_path / "tied" / "model.safetensors")
    mixtral = load_file(tmp_path / "mixtral" / "model.safetensors")
    assert mixtral["model.layers.1.block_sparse_moe.experts.3.w2.weight"].shape == (32, 24)
    assert mixtral["model.layers.1.block_sparse_moe.gate.weight"].shape == (4, 32)


def test_weights_can_be_written_in_another_type(tmp_path: Path) -> None:
    model = model_of("tied")
    state = {name: tensor.to(torch.bfloat16) for name, tensor in model.state_dict().items()}
    save_weights(state, model.spec, tmp_path / "out", length=64)
    kept = load_file(tmp_path / "out" / "model.safetensors")
    assert {tensor.dtype for tensor in kept.values()} == {torch.bfloat16}
    assert json.loads((tmp_path / "out" / "config.json").read_text())["torch_dtype"] == "bfloat16"


def test_a_stage_is_not_a_model(tmp_path: Path) -> None:
    model = model_of("tied")
    state = {name: tensor for name, tensor in model.state_dict().items() if not name.startswith("layers.1.")}
    with pytest.raises(FailedError, match=r"lacks layers\.1\.attention_norm\.weight.* and 5 more"):
        save_weights(state, model.spec, tmp_path / "out", length=64)
    assert not list(tmp_path.iterdir())


def test_nothing_is_overwritten(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("here")
    model = model_of("tied")
    with pytest.raises(UsageError, match="not empty"):
        save_weights(model.state_dict(), model.spec, tmp_path, length=64)


def test_weights_that_do_not_fit_their_config_are_refused(tmp_path: Path) -> None:
    model = model_of("tied")
    save_weights(model.state_dict(), model.spec, tmp_path / "out", length=64)
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    (tmp_path / "out" / "config.json").write_text(json.dumps({**config, "num_hidden_layers": 3, "vocab_size": 65}))
    with pytest.raises(UsageError, match=r"embed_tokens\.weight as \(64, 32\), not \(65, 32\).*layers\.2\."):
        load_weights(tmp_path / "out")
    (tmp_path / "out" / "model.safetensors").write_bytes(b"\x10")
    with pytest.raises(UsageError, match="not a whole safetensors file"):
        load_weights(tmp_path / "out")


DAMAGES = {
    "a tensor is missing": ("lacks model.norm.weight", lambda held: held.pop("model.norm.weight")),
    "a tensor too many": (
        "has model.layers.0.self_attn.q_proj.bias, which",
        lambda held: held.update({"model.layers.0.self_attn.q_proj.bias": torch.zeros(32)}),
    ),
    "another shape": (
        r"has model.norm.weight as \(31,\), not \(32,\)",
        lambda held: held.update({"model.norm.weight": torch.zeros(31)}),
    ),
    "quantised": (
        "has model.norm.weight as I8, and quantised",
        lambda held: held.update({"model.norm.weight": torch.zeros(32, dtype=torch.int8)}),
    ),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_every_damage_is_one_sentence(damage: str, tmp_path: Path) -> None:
    model = model_of("tied")
    save_weights(model.state_dict(), model.spec, tmp_path / "out", length=64)
    file = tmp_path / "out" / "model.safetensors"
    held = load_file(file)
    said, harm = DAMAGES[damage]
    harm(held)
    save_file(held, file)
    with pytest.raises(UsageError, match=said):
        load_weights(tmp_path / "out")


@settings(max_examples=25, deadline=None)
@given(st.data())
def test_a_file_cut_anywhere_is_refused(data: st.DataObject) -> None:
    with tempfile.TemporaryDirectory() as root:
        folder = Path(root) / "out"
        model = model_of("tied")
        save_weights(model.state_dict(), model.spec, folder, length=64)
        file = folder / "model.safetensors"
        content = file.read_bytes()
        file.write_bytes(content[: data.draw(st.integers(0, len(content) - 1))])
        with pytest.raises(UsageError, match=r"model\.safetensors is not a whole safetensors file"):
            load_weights(folder)


def test_weights_said_to_be_quantised_are_refused(tmp_path: Path) -> None:
    model = model_of("tied")
    save_weights(model.state_dict(), model.spec, tmp_path / "out", length=64)
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    (tmp_path / "out" / "config.json").write_text(json.dumps({**config, "quantization_config": {"bits": 4}}))
    with pytest.raises(UsageError, match="has quantization_config"):
        load_weights(tmp_path / "out")


def test_an_index_that_names_a_missing_file_is_refused(tmp_path: Path) -> None:
    model = model_of("tied")
    save_weights(model.state_dict(), model.spec, tmp_path / "out", length=64, largest_file_bytes=5000)
    (tmp_path / "out" / "model-00002-of-00010.safetensors").unlink(missing_ok=True)
    next((tmp_path / "out").glob("*.safetensors")).unlink()
    with pytest.raises(UsageError, match="which its index names"):
        load_weights(tmp_path / "out")
