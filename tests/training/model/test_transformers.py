"""The five families of the library `transformers`, with drawn configs: its logits and ours, its files and ours."""

import random
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor

from weft.training.model import Decoder
from weft.training.model.huggingface import load_weights, save_weights

FAMILIES = ("llama", "qwen2", "qwen3", "mixtral", "deepseek", "gpt2")
LENGTH = 40
CLOSE = 1e-5


def rope(chance: random.Random) -> dict[str, Any]:
    found: dict[str, Any] = {"rope_theta": chance.choice([100.0, 1e4, 5e5])}
    kind = chance.choice(["default", "linear", "llama3", "yarn"])
    if kind == "default":
        return found
    found |= {"rope_type": kind, "factor": chance.choice([2.0, 4.0, 8.0])}
    if kind == "llama3":
        found |= {"low_freq_factor": 1.0, "high_freq_factor": 4.0}
    if kind == "yarn":
        found |= chance.choice([
            {}, {"beta_fast": 8.0, "beta_slow": 2.0}, {"attention_factor": 1.3}, {"truncate": False},
            {"mscale": 1.0, "mscale_all_dim": 0.7},
        ])  # fmt: skip
    return found | ({} if kind == "linear" else {"original_max_position_embeddings": 16})


def drawn(family: str, chance: random.Random) -> Any:
    groups = chance.choice([1, 2, 3])
    heads, each = groups * chance.choice([1, 2, 3]), 2 * chance.randint(2, 8)
    keys: dict[str, Any] = {
        "vocab_size": chance.randint(50, 150), "num_hidden_layers": chance.randint(1, 3), "num_attention_heads": heads,
        "hidden_size": heads * chance.randint(5, 20), "num_key_value_heads": groups, "head_dim": each,
        "intermediate_size": chance.randint(9, 40), "rms_norm_eps": chance.choice([1e-6, 1e-5, 1e-3]),
        "tie_word_embeddings": chance.random() < 0.5, "max_position_embeddings": 64, "rope_parameters": rope(chance),
        "initializer_range": 0.1, "hidden_act": chance.choice(["silu", "silu", "gelu", "gelu_pytorch_tanh"]),
    }  # fmt: skip
    if family == "gpt2":
        return transformers.GPT2Config(
            vocab_size=keys["vocab_size"], n_layer=keys["num_hidden_layers"], n_head=heads, n_embd=heads * each,
            n_inner=chance.choice([None, 33]), n_positions=64, tie_word_embeddings=keys["tie_word_embeddings"],
            activation_function=chance.choice(["gelu_new", "gelu", "relu"]), initializer_range=0.1,
            layer_norm_epsilon=keys["rms_norm_eps"],
        )  # fmt: skip
    if family == "deepseek":
        return deepseek(keys, chance)
    if family in ("qwen2", "qwen3"):
        if family == "qwen2":
            keys["hidden_size"] = heads * keys.pop("head_dim")
        if chance.random() < 0.5:
            window = {"sliding_window": chance.randint(3, 12), "max_window_layers": chance.randint(0, 2)}
            keys |= {"use_sliding_window": True, **window}
        return {"qwen2": transformers.Qwen2Config, "qwen3": transformers.Qwen3Config}[family](**keys)
    if family == "mixtral":
        keys["sliding_window"] = chance.choice([None, chance.randint(3, 12)])
        count = chance.randint(2, 6)
        return transformers.MixtralConfig(**keys, num_local_experts=count, num_experts_per_tok=chance.randint(1, count))
    return transformers.LlamaConfig(**keys)


def deepseek(keys: dict[str, Any], chance: random.Random) -> Any:
    del keys["head_dim"]
    layers, groups = keys["num_hidden_layers"] + 1, chance.choice([1, 2, 3])
    count, used = groups * chance.randint(2, 4), chance.randint(1, groups)
    keys |= {"num_hidden_layers": layers, "num_key_value_heads": keys["num_attention_heads"]}
    return transformers.DeepseekV3Config(
        **keys, n_routed_experts=count, n_group=groups, topk_group=used, num_mtp_layers=0,
        num_experts_per_tok=chance.randint(1, min(4, count // groups * used)), n_shared_experts=chance.choice([1, 2]),
        moe_intermediate_size=chance.randint(5, 20), first_k_dense_replace=chance.randint(0, layers - 1),
        q_lora_rank=chance.choice([None, 7, 12]), kv_lora_rank=chance.randint(5, 20),
        qk_rope_head_dim=2 * chance.randint(1, 6), qk_nope_head_dim=chance.randint(3, 9),
        v_head_dim=chance.randint(3, 12), norm_topk_prob=chance.random() < 0.7,
        routed_scaling_factor=chance.choice([1.0, 2.5]), rope_interleave=chance.random() < 0.7,
    )  # fmt: skip


def options(family: str) -> dict[str, str]:
    # Its grouped products want widths of multiples of 16 bytes.
    return {"experts_implementation": "eager"} if family in ("mixtral", "deepseek") else {}


def theirs(family: str, seed: int) -> Any:
    torch.manual_seed(seed)
    config = drawn(family, random.Random(f"{family} {seed}"))
    model: Any = transformers.AutoModelForCausalLM.from_config(config, **options(family)).eval()
    corrections = (buffer for name, buffer in model.named_buffers() if "correction" in name)
    with torch.no_grad():
        for tensor in (*model.parameters(), *corrections):
            tensor.add_(torch.randn_like(tensor), alpha=0.1)
    return model


def logits_of(model: Any, tokens: Tensor) -> Tensor:
    with torch.no_grad():
        found = model(tokens)
    return found if isinstance(found, Tensor) else found.logits


def round_trip(family: str, seed: int, folder: Path) -> None:
    model = theirs(family, seed)
    model.save_pretrained(folder / "theirs")
    spec, state = load_weights(folder / "theirs")
    ours = Decoder(spec).eval()
    ours.load_state_dict(state)
    tokens = torch.randint(spec.vocabulary, (2, LENGTH), generator=torch.Generator().manual_seed(seed))
    wanted = logits_of(model, tokens)
    torch.testing.assert_close(logits_of(ours, tokens), wanted, rtol=0, atol=CLOSE)
    largest = 10**9 if seed % 2 else 9000
    save_weights(ours.state_dict(), spec, folder / "ours", length=64, largest_file_bytes=largest)
    loaded: Any = transformers.AutoModelForCausalLM.from_pretrained(
        folder / "ours", output_loading_info=True, **options(family)
    )
    again, report = loaded
    assert not any(report[problem] for problem in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    torch.testing.assert_close(logits_of(again.eval(), tokens), wanted, rtol=0, atol=CLOSE)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("family", FAMILIES)
def test_logits_are_those_of_transformers_on_the_way_in_and_out(family: str, seed: int, tmp_path: Path) -> None:
    round_trip(family, seed, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4, 44))
@pytest.mark.parametrize("family", FAMILIES)
def test_logits_are_those_of_transformers_for_many_configs(family: str, seed: int, tmp_path: Path) -> None:
    round_trip(family, seed, tmp_path)
