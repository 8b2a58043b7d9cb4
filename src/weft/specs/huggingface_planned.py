"""Hugging Face configs of models that weft plans and does not train: DeepSeek-V2, gpt-oss, Nemotron, Qwen 2's mixtures.

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
    missing = [key for key in (*_COMMON.values(), *needed) if config.get(key) is None]
    if missing:
        raise UsageError(f"{shown} cannot be planned: it lacks {', '.join(missing)}")
    table: dict[str, Any] = {ours: config[theirs] for ours, theirs in _COMMON.items()}
    table["tied"] = bool(config.get("tie_word_embeddings", False))
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


_LATENT = ("kv_lora_rank", "qk_rope_head_dim", "qk_nope_head_dim", "v_head_dim", "moe_intermediate_size",
           "n_routed_experts", "num_experts_per_tok")  # fmt: skip
TRAINED = ("deepseek_v3",)
"""Those of `PLANNED` that are trained too: what else their configs say is read by others."""
PLANNED: dict[str, tuple[Callable[[Mapping[str, Any]], dict[str, Any]], tuple[str, ...]]] = {
    "deepseek_v2": (_deepseek, _LATENT),
    "deepseek_v3": (_deepseek, _LATENT),
    "kimi_k2": (_deepseek, _LATENT),
    "gpt_oss": (_gpt_oss, ("head_dim", "num_local_experts", "num_experts_per_tok", "sliding_window")),
    "nemotron": (_nemotron, ()),
    "qwen2_moe": (
        _qwen2_moe,
        ("num_experts", "num_experts_per_tok", "moe_intermediate_size", "shared_expert_intermediate_size"),
    ),
}
"""How each `model_type` is read, and the keys that it needs beside the common ones."""
