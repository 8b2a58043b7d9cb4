import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from weft.core.errors import FailedError, UsageError
from weft.core.seeds import Seed
from weft.specs.job import ExpertsSpec, ModelSpec, RopeScalingSpec
from weft.training.model import Decoder, initialise
from weft.training.model.huggingface import load_weights, save_weights

SHAPES: dict[str, dict[str, Any]] = {
    "llama": {"tied": False, "rope_scaling": RopeScalingSpec(factor=8.0, length=16), "rope_base": 500.0},
    "tied": {},
    "qwen2": {"qkv_bias": True},
    "qwen3": {"qk_norm": True, "head_width": 16},
    "mixtral": {"experts": ExpertsSpec(count=4, top_k=2, ffn=24)},
    "qwen3_moe": {"experts": ExpertsSpec(count=4, top_k=2, ffn=12), "qk_norm": True, "tied": False},
}


def model_of(shape: str) -> Decoder:
    spec = ModelSpec(layers=2, width=32, heads=4, kv_heads=2, ffn=24, vocabulary=64, **SHAPES[shape])
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
    save_weights(model.state_dict(), model.spec, tmp_path / "out", length=64, dtype=torch.bfloat16)
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


@pytest.mark.slow
@pytest.mark.parametrize("shape", SHAPES)
def test_the_library_of_others_computes_the_same_from_our_files(shape: str, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    model = model_of(shape)
    save_weights(model.state_dict(), model.spec, tmp_path / "out", length=64)
    theirs, report = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "out", output_loading_info=True)
    assert not any(report[problem] for problem in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    tokens = torch.randint(64, (2, 32), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        torch.testing.assert_close(theirs.eval()(tokens).logits, model(tokens), rtol=1e-4, atol=1e-4)
