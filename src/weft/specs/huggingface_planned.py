"""Hugging Face configs of models that weft plans and does not train: DeepSeek-V2, gpt-oss, Nemotron, Gemma, Llama 4 ...

Dimensions alone: what decides parameters, operations and traffic. Rotary scaling, routing functions and biases are not
read, so each is marked as `planned`, which the trainer refuses. DeepSeek-V3's dimensions are read here too.
"""

from collections.abc import Callable, Mapping
from typing import Any

from weft.core.errors import UsageError

_COMMON = {
    "layers": "num_hidden_layers",
    "width": "hidden_size",
    "heads": "num_attention_heads",
    "kv_heads": "num_key_value_heads",
    "ffn": "intermediate_size",
    "vocabulary": "vocab_size",
}


def planned_table(config: Mapping[str, Any], shown: str) -> dict[str, Any]:
    """Return a `config` of one of `PLANNED` as the values of a `ModelSpec`, or raise with what it lacks."""
    kind = str(config["model_type"])
    more, needed = PLANNED[kind]
    if isinstance(config.get("text_config"), Mapping):
        # The part that reads text; what sees and hears beside it is not planned.
        config = {**_SILENT.get(kind, {}), **config["text_config"]}
    missing = [key for key in (*_COMMON.values(), *needed) if config.get(key) is None]
    if missing:
        raise UsageError(f"{shown} cannot be planned: it lacks {', '.join(missing)}")
    table: dict[str, Any] = {ours: config[theirs] for ours, theirs in _COMMON.items()}
    table["tied"] = bool(config.get("tie_word_embeddings", kind in _TIED))
    table |= more(config)
    return table if kind in TRAINED else {**table, "planned": kind}


def _deepseek(config: Mapping[str, Any]) -> dict[str, Any]:
    inner = config["moe_intermediate_size"]
    grouped = (config.get("n_group") or 1) > 1
    return {
        "head_width": config["qk_nope_head_dim"],
        "mtp": config.get("num_nextn_predict_layers") or 0,
        "latent": {
            "kv_rank": config["kv_lora_rank"],
            "query_rank": config.get("q_lora_rank") or 0,
            "rope_width": config["qk_rope_head_dim"],
            "value_width": config["v_head_dim"],
        },
        "experts": {
            "count": config["n_routed_experts"],
            "top_k": config["num_experts_per_tok"],
            "ffn": inner,
            "shared": inner * (config.get("n_shared_experts") or 0),
            "dense_layers": config.get("first_k_dense_replace") or 0,
            # Groups of experts are laid out on nodes, and a token's experts come from so many of them.
            "nodes": (config.get("topk_group") or 0) if grouped else 0,
        },
    }


def _gpt_oss(config: Mapping[str, Any]) -> dict[str, Any]:
    experts = {
        "count": config["num_local_experts"],
        "top_k": config["num_experts_per_tok"],
        "ffn": config["intermediate_size"],
        "biases": True,
        "clamped": True,
    }
    return {"head_width": config["head_dim"], "qkv_bias": True, "window": config["sliding_window"], "experts": experts}


def _nemotron(config: Mapping[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {"gated": False}
    if config.get("head_dim"):
        found["head_width"] = config["head_dim"]
    return found


def _qwen2_moe(config: Mapping[str, Any]) -> dict[str, Any]:
    experts = {
        "count": config["num_experts"],
        "top_k": config["num_experts_per_tok"],
        "ffn": config["moe_intermediate_size"],
        "shared": config["shared_expert_intermediate_size"],
    }
    return {"qkv_bias": True, "experts": experts}


def _glm4_moe(config: Mapping[str, Any]) -> dict[str, Any]:
    inner = config["moe_intermediate_size"]
    experts = {
        "count": config["n_routed_experts"],
        "top_k": config["num_experts_per_tok"],
        "ffn": inner,
        "shared": inner * (config.get("n_shared_experts") or 0),
        "dense_layers": config.get("first_k_dense_replace") or 0,
    }
    mtp = config.get("num_nextn_predict_layers") or 0
    return {"head_width": config["head_dim"], "qkv_bias": bool(config.get("attention_bias")), "mtp": mtp} | {
        "experts": experts
    }


def _gemma(config: Mapping[str, Any]) -> dict[str, Any]:
    # Gemma 2 has a window in every other block, Gemma 3 in five of six; how many there are decides what a step takes.
    pattern = config.get("sliding_window_pattern") or (2 if config.get("model_type") == "gemma2" else 6)
    window = config["sliding_window"]
    return {"head_width": config["head_dim"], "window": window, "window_from": config["num_hidden_layers"] // pattern}


def _llama4(config: Mapping[str, Any]) -> dict[str, Any]:
    step = config.get("interleave_moe_layer_step") or 1
    experts = {
        "count": config["num_local_experts"],
        "top_k": config["num_experts_per_tok"],
        "ffn": config["intermediate_size"],
        # Every token passes one expert more; with a step of 2 every other block has experts, here the last half.
        "shared": config["intermediate_size"],
        "dense_layers": config["num_hidden_layers"] - config["num_hidden_layers"] // step,
    }
    found = {"head_width": config["head_dim"], "ffn": config["intermediate_size_mlp"], "experts": experts}
    if config.get("attention_chunk_size"):
        found |= {"window": config["attention_chunk_size"], "window_from": config["num_hidden_layers"] // 4}
    return found


_LATENT = ("kv_lora_rank", "qk_rope_head_dim", "qk_nope_head_dim", "v_head_dim", "moe_intermediate_size",
           "n_routed_experts", "num_experts_per_tok")  # fmt: skip
_TIED = ("gemma2", "gemma3", "gemma3_text")
"""Kinds whose output is the embedding where the config is silent."""
_SILENT = {"gemma3": {"vocab_size": 262_208, "head_dim": 256}}
"""What transformers assumes where a published config is silent (Gemma3TextConfig)."""
_WINDOWED = (_gemma, ("head_dim", "sliding_window"))
_FOUR = (_llama4, ("head_dim", "num_local_experts", "num_experts_per_tok", "intermediate_size_mlp"))
BEYOND = {
    "nemotron_h": "blocks with a state (Mamba)",
    "nemotron_h_moe": "blocks with a state (Mamba)",
    "jamba": "blocks with a state (Mamba)",
    "falcon_h1": "blocks with a state (Mamba)",
    "mamba2": "blocks with a state (Mamba)",
    "qwen3_next": "linear attention (gated delta rule)",
    "qwen3_5_moe": "linear attention (gated delta rule)",
    "kimi_linear": "linear attention (gated delta rule)",
    "minimax": "linear attention",
    "deepseek_v32": "attention to chosen tokens (an indexer)",
}
"""Kinds that cannot be planned, with what the planner has no times for."""
TRAINED = ("deepseek_v3",)
"""Those of `PLANNED` that are trained too: what else their configs say is read by others."""
PLANNED: dict[str, tuple[Callable[[Mapping[str, Any]], dict[str, Any]], tuple[str, ...]]] = {
    "deepseek_v2": (_deepseek, _LATENT),
    "deepseek_v3": (_deepseek, _LATENT),
    "kimi_k2": (_deepseek, _LATENT),
    "gpt_oss": (_gpt_oss, ("head_dim", "num_local_experts", "num_experts_per_tok", "sliding_window")),
    "nemotron": (_nemotron, ()),
    "gemma2": _WINDOWED,
    "gemma3": _WINDOWED,
    "gemma3_text": _WINDOWED,
    "llama4": _FOUR,
    "llama4_text": _FOUR,
    "kimi_k25": (_deepseek, _LATENT),
    "glm4_moe": (_glm4_moe, ("head_dim", "n_routed_experts", "num_experts_per_tok", "moe_intermediate_size")),
    "qwen2_moe": (
        _qwen2_moe,
        ("num_experts", "num_experts_per_tok", "moe_intermediate_size", "shared_expert_intermediate_size"),
    ),
}
"""How each `model_type` is read, and the keys that it needs beside the common ones."""
