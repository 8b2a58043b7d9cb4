"""The families of the library `transformers`, with drawn configs: its logits and ours, its files and ours."""

import json
import random
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor

from weft.core.errors import UsageError, WeftError
from weft.training.model import Decoder
from weft.training.model.huggingface import load_weights, save_weights

FAMILIES = ("llama", "mistral", "qwen2", "qwen3", "qwen3_moe", "mixtral", "deepseek", "gpt2")
SPARSE = ("mixtral", "qwen3_moe", "deepseek")
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


def drawn(family: str, chance: random.Random) -> Any:  # noqa: PLR0911 - a config for each family
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
    if family == "qwen3_moe":
        count = chance.randint(2, 6)
        return transformers.Qwen3MoeConfig(
            **keys, num_experts=count, num_experts_per_tok=chance.randint(1, count), moe_intermediate_size=11,
            norm_topk_prob=chance.random() < 0.5,
        )  # fmt: skip
    if family in ("qwen2", "qwen3"):
        if family == "qwen2":
            keys["hidden_size"] = heads * keys.pop("head_dim")
        if chance.random() < 0.5:
            window = {"sliding_window": chance.randint(3, 12), "max_window_layers": chance.randint(0, 2)}
            keys |= {"use_sliding_window": True, **window}
        return {"qwen2": transformers.Qwen2Config, "qwen3": transformers.Qwen3Config}[family](**keys)
    if family in ("mistral", "mixtral"):
        keys["sliding_window"] = chance.choice([None, chance.randint(3, 12)])
        if family == "mistral":
            return transformers.MistralConfig(**keys)
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
    return {"experts_implementation": "eager"} if family in SPARSE else {}


def theirs(family: str, config: Any, seed: int) -> Any:
    torch.manual_seed(seed)
    model: Any = transformers.AutoModelForCausalLM.from_config(config, **options(family)).eval()
    corrections = (buffer for name, buffer in model.named_buffers() if "correction" in name)
    with torch.no_grad():
        for tensor in (*model.parameters(), *corrections):
            tensor.add_(torch.randn_like(tensor), alpha=0.1)
    return model


def store(model: Any, folder: Path, seed: int) -> None:
    """Store a model in one file or several, in fp32, bf16 or fp16."""
    dtype = (torch.float32, torch.bfloat16, torch.float16)[seed % 3]
    model.to(dtype).save_pretrained(folder, max_shard_size="9KB" if seed % 2 else "1GB")


def loaded(family: str, folder: Path) -> Any:
    """Return the model in a folder as `transformers` has it in fp32, or nothing where a tensor is not in its place."""
    found: Any = transformers.AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, output_loading_info=True, **options(family)
    )
    model, report = found
    misplaced = any(report[problem] for problem in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    return None if misplaced else model.eval()


def read_back(folder: Path) -> tuple[Any, Any]:
    spec, state = load_weights(folder)
    ours = Decoder(spec).eval()
    ours.load_state_dict(state)
    return spec, ours


def logits_of(model: Any, tokens: Tensor) -> Tensor:
    with torch.no_grad():
        found = model(tokens)
    return found if isinstance(found, Tensor) else found.logits


def round_trip(family: str, seed: int, folder: Path) -> None:
    config = drawn(family, random.Random(f"{family} {seed}"))
    store(theirs(family, config, seed), folder / "theirs", seed)
    model = loaded(family, folder / "theirs")
    spec, ours = read_back(folder / "theirs")
    tokens = torch.randint(spec.vocabulary, (2, LENGTH), generator=torch.Generator().manual_seed(seed))
    wanted = logits_of(model, tokens)
    torch.testing.assert_close(logits_of(ours, tokens), wanted, rtol=0, atol=CLOSE)
    largest = 10**9 if seed % 2 else 9000
    save_weights(ours.state_dict(), spec, folder / "ours", length=64, largest_file_bytes=largest)
    again = loaded(family, folder / "ours")
    torch.testing.assert_close(logits_of(again, tokens), wanted, rtol=0, atol=CLOSE)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("family", FAMILIES)
def test_logits_are_those_of_transformers_on_the_way_in_and_out(family: str, seed: int, tmp_path: Path) -> None:
    round_trip(family, seed, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4, 44))
@pytest.mark.parametrize("family", FAMILIES)
def test_logits_are_those_of_transformers_for_many_configs(family: str, seed: int, tmp_path: Path) -> None:
    round_trip(family, seed, tmp_path)


SMALL = {
    "vocab_size": 61, "num_hidden_layers": 2, "num_attention_heads": 4, "hidden_size": 24, "num_key_value_heads": 2,
    "intermediate_size": 20, "max_position_embeddings": 64, "tie_word_embeddings": False,
}  # fmt: skip
ROUTED = {"num_experts_per_tok": 2, "moe_intermediate_size": 12}
FAMILY: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("LlamaConfig", SMALL),
    "mistral": ("MistralConfig", SMALL | {"sliding_window": None}),
    "qwen2": ("Qwen2Config", SMALL | {"use_sliding_window": True, "sliding_window": 5, "max_window_layers": 1}),
    "qwen3": ("Qwen3Config", SMALL | {"head_dim": 8}),
    "qwen3_moe": ("Qwen3MoeConfig", SMALL | ROUTED | {"head_dim": 8, "num_experts": 4}),
    "mixtral": ("MixtralConfig", SMALL | {"num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": None}),
    "deepseek": ("DeepseekV3Config", SMALL | ROUTED | {
        "num_key_value_heads": 4, "n_routed_experts": 4, "n_group": 2, "topk_group": 1, "n_shared_experts": 1,
        "first_k_dense_replace": 1, "q_lora_rank": 8, "kv_lora_rank": 8, "qk_rope_head_dim": 4, "qk_nope_head_dim": 6,
        "v_head_dim": 6,
    }),
    "gpt2": ("GPT2Config", {"vocab_size": 61, "n_layer": 2, "n_head": 4, "n_embd": 24, "n_positions": 64}),
}  # fmt: skip
# What names files, tokens and lists of another kind, and says nothing about logits.
_NO_FIGURE = {
    "architectures", "transformers_version", "model_type", "dtype", "bos_token_id", "eos_token_id", "pad_token_id",
    "layer_types", "rope_parameters", "is_encoder_decoder",
}  # fmt: skip


def another(key: str, value: Any, chance: random.Random) -> Any:
    """Return another value than `value` for a key of a config."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return chance.choice([value + 1, 2 * value or 3])
    if isinstance(value, float):
        return 3 * value + 0.5 if value < 0.4 else value / 2
    if isinstance(value, str) and "act" in key:
        return chance.choice(["relu", "gelu", "gelu_new", "quick_gelu", "tanh", "gelu_fast"])
    return chance.choice([1, 5, 0.5]) if value is None else value


def check_key(family: str, key: str, chance: random.Random, folder: Path) -> str:
    """Change `key`, or leave it out of the file; returns what came of it."""
    name, base = FAMILY[family]
    made, left_out = getattr(transformers, name), chance.random() < 0.4
    value = another(key, made(**base).to_dict()[key], chance)
    try:
        config = made(**base) if left_out else made(**{**base, key: value})
        store(theirs(family, config, 1), folder, chance.randint(0, 5))
        if left_out:
            written = json.loads((folder / "config.json").read_text())
            written.pop(key, None)
            (folder / "config.json").write_text(json.dumps(written))
        model = loaded(family, folder)
        tokens = torch.randint(50, (2, LENGTH), generator=torch.Generator().manual_seed(1))
        wanted = logits_of(model, tokens)
    except Exception:  # noqa: BLE001 - whatever it raises: there is no model to compare with
        return "no model"
    try:
        _, ours = read_back(folder)
    except WeftError:
        return "refused"
    torch.testing.assert_close(
        logits_of(ours, tokens), wanted, rtol=0, atol=CLOSE, msg=lambda m: f"{family} {key}: {m}"
    )
    return "equal"


def keys_of(family: str) -> list[str]:
    name, base = FAMILY[family]
    return sorted(set(getattr(transformers, name)(**base).to_dict()) - _NO_FIGURE)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_key_of_a_config_gives_their_logits_or_is_refused(family: str, tmp_path: Path) -> None:
    chance = random.Random(f"keys of {family}")
    found = [check_key(family, key, chance, tmp_path / key) for key in chance.sample(keys_of(family), 6)]
    assert "equal" in found


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
def test_every_key_of_a_config_gives_their_logits_or_is_refused(family: str, tmp_path: Path) -> None:
    chance = random.Random(f"every key of {family}")
    found = [check_key(family, key, chance, tmp_path / key) for key in keys_of(family)]
    assert found.count("equal") > len(found) / 3


_SCALED = {"factor": 4.0, "original_max_position_embeddings": 16}
WRITTEN: dict[str, dict[str, Any]] = {
    "as older versions do": {"rope_parameters": None, "rope_theta": 5000.0, "rope_scaling": None},
    "linear, as older versions do": {"rope_parameters": None, "rope_scaling": {"type": "linear", "factor": 2.0}},
    "yarn, added to what is there": {"rope_scaling": {"type": "yarn", **_SCALED}},
    "linear, added to what is there": {"rope_scaling": {"rope_type": "linear", "factor": 4.0}, "rope_theta": 100.0},
    "of a kind that weft lacks": {"rope_scaling": {"type": "dynamic", "factor": 2.0}},
    "of a part": {"partial_rotary_factor": 0.5},
}


@pytest.mark.parametrize("how", WRITTEN)
@pytest.mark.parametrize("family", ["llama", "qwen3_moe", "deepseek"])
def test_rotary_positions_are_read_however_they_are_written(family: str, how: str, tmp_path: Path) -> None:
    name, base = FAMILY[family]
    store(theirs(family, getattr(transformers, name)(**base), 1), tmp_path, 0)
    config = json.loads((tmp_path / "config.json").read_text()) | WRITTEN[how]
    (tmp_path / "config.json").write_text(json.dumps({key: one for key, one in config.items() if one is not None}))
    if how.startswith("of a"):
        with pytest.raises(UsageError, match=r"dynamic|partial_rotary_factor"):
            read_back(tmp_path)
        return
    tokens = torch.randint(50, (2, LENGTH), generator=torch.Generator().manual_seed(1))
    wanted = logits_of(loaded(family, tmp_path), tokens)
    torch.testing.assert_close(logits_of(read_back(tmp_path)[1], tokens), wanted, rtol=0, atol=CLOSE)
