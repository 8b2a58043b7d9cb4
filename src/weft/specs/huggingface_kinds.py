"""GPT-2's and DeepSeek-V3's words for a model: what their config.json says as a `[model]` table, and back.

Both differ from the family of Llama in most keys (`weft.specs.huggingface`), so each has a reader of its own, which
names every key that asks for what the decoder cannot compute.
"""

import json
from collections.abc import Mapping
from typing import Any

from weft.specs.huggingface_rope import rope_of, rope_problems, rope_scaling_of
from weft.specs.job import ModelSpec

ACTIVATIONS = {
    "silu": "silu",
    "swish": "silu",
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "relu": "relu",
}
"""The nonlinearities that can be computed, by Hugging Face's names."""
_WRITTEN = {"silu": "silu", "gelu": "gelu", "gelu_tanh": "gelu_pytorch_tanh", "relu": "relu"}

MustBe = Mapping[str, tuple[Any, ...]]
"""A key, and the values that mean "not used": anything else asks for what the decoder does not have."""

_GPT2_MUST_BE: MustBe = {
    "scale_attn_weights": (True,),
    "scale_attn_by_inverse_layer_idx": (False,),
    "add_cross_attention": (False,),
    "is_encoder_decoder": (False,),
}
_GPT2_DROPOUT = ("resid_pdrop", "embd_pdrop", "attn_pdrop")
_GPT2_RATE = 0.1
_DEEPSEEK_MUST_BE: MustBe = {
    "attention_bias": (False,),
    "attention_dropout": (0, 0.0),
    "scoring_func": ("sigmoid",),
    "topk_method": ("noaux_tc",),
    "moe_layer_freq": (1,),
    "pretraining_tp": (1,),
}
_DEEPSEEK_BALANCE = 1e-4
"""Weight of the sequence-wise balance loss that DeepSeek-V3 was trained with (arXiv 2412.19437, section 4.2)."""


def unsupported(config: Mapping[str, Any], must_be: MustBe) -> list[str]:
    """Return a sentence for every key of `config` with a value other than those of `must_be`."""
    return [
        f"{key} = {json.dumps(config[key])} is not supported, only {json.dumps(good[0])}"
        for key, good in must_be.items()
        if key in config and config[key] not in good
    ]


def unknown_activation(config: Mapping[str, Any], key: str = "hidden_act") -> list[str]:
    """Return a sentence where a config's nonlinearity cannot be computed."""
    found = config.get(key, "silu")
    if found in ACTIVATIONS:
        return []
    return [f"{key} = {json.dumps(found)} is not supported, only {', '.join(ACTIVATIONS)}"]


def lacking(config: Mapping[str, Any], needed: tuple[str, ...]) -> list[str]:
    """Return a sentence for the keys of `needed` that a config does not have."""
    missing = [key for key in needed if config.get(key) is None]
    return [f"it lacks {', '.join(missing)}"] if missing else []


def gpt2_problems(config: Mapping[str, Any]) -> list[str]:
    """Return what about a GPT-2 config cannot be computed."""
    problems = lacking(config, ("n_layer", "n_embd", "n_head", "vocab_size"))
    problems += unsupported(config, _GPT2_MUST_BE) + unknown_activation(config, "activation_function")
    rates = {key: config.get(key, _GPT2_RATE) for key in _GPT2_DROPOUT}
    if len(set(rates.values())) > 1:
        problems.append(f"{', '.join(rates)} differ ({', '.join(map(str, rates.values()))}); weft has one rate for all")
    return problems


def gpt2_table(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return a GPT-2 config without problems as the values of a `ModelSpec`."""
    return {
        "layers": config["n_layer"],
        "width": config["n_embd"],
        "heads": config["n_head"],
        "ffn": config.get("n_inner") or 4 * config["n_embd"],
        "vocabulary": config["vocab_size"],
        "tied": bool(config.get("tie_word_embeddings", True)),
        "norm_epsilon": float(config.get("layer_norm_epsilon", 1e-5)),
        "norm": "layer",
        "biases": True,
        "gated": False,
        "activation": ACTIVATIONS[config.get("activation_function", "gelu_new")],
        "learned_positions": config.get("n_positions", 1024),
        "dropout": float(config.get("resid_pdrop", _GPT2_RATE)),
    }


def gpt2_config(spec: ModelSpec) -> dict[str, Any]:
    """Return what a GPT-2 config.json says of `spec`."""
    return {
        "n_layer": spec.layers,
        "n_embd": spec.width,
        "n_head": spec.heads,
        "n_inner": spec.ffn,
        "n_positions": spec.learned_positions,
        "n_ctx": spec.learned_positions,
        "vocab_size": spec.vocabulary,
        "layer_norm_epsilon": spec.norm_epsilon,
        "activation_function": "gelu_new" if spec.activation == "gelu_tanh" else _WRITTEN[spec.activation],
        "tie_word_embeddings": spec.tied,
        **dict.fromkeys(_GPT2_DROPOUT, spec.dropout),
    }


def activation_name(spec: ModelSpec) -> str:
    """Return Hugging Face's name of a model's nonlinearity."""
    return _WRITTEN[spec.activation]


def deepseek_problems(config: Mapping[str, Any]) -> list[str]:
    """Return what about a DeepSeek-V3 config cannot be computed."""
    problems = unsupported(config, _DEEPSEEK_MUST_BE) + unknown_activation(config) + rope_problems(config)
    heads = config.get("num_attention_heads")
    if config.get("num_key_value_heads", heads) not in (None, heads):
        problems.append("num_key_value_heads other than num_attention_heads is not supported with latent attention")
    return problems


def deepseek_details(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a DeepSeek-V3 config says beside dimensions, as values of a `ModelSpec`; experts come apart."""
    rope = rope_of(config)
    table: dict[str, Any] = {
        "norm_epsilon": float(config.get("rms_norm_eps", 1e-6)),
        "rope_base": float(rope.get("rope_theta", config.get("rope_theta", 10_000.0))),
        "activation": ACTIVATIONS[config.get("hidden_act", "silu")],
    }
    scaling = rope_scaling_of(config, latent=True)
    return table if scaling is None else {**table, "rope_scaling": scaling}


def deepseek_experts(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return how a DeepSeek-V3 config routes tokens, as values of an `ExpertsSpec`."""
    groups = config.get("n_group") or 1
    return {
        "scoring": "sigmoid",
        "normalised": bool(config.get("norm_topk_prob", True)),
        "scale": float(config.get("routed_scaling_factor", 2.5)),
        "correction": True,
        "groups": groups if groups > 1 else 0,
        "balance": float(config.get("aux_loss_alpha", _DEEPSEEK_BALANCE)),
    }


def deepseek_config(spec: ModelSpec) -> dict[str, Any]:
    """Return what a DeepSeek-V3 config.json says of `spec` beside the keys that all have."""
    latent, experts = spec.latent, spec.experts
    assert latent is not None
    assert experts is not None
    return {
        "num_key_value_heads": spec.heads,
        "qk_nope_head_dim": spec.head_width or spec.width // spec.heads,
        "qk_rope_head_dim": latent.rope_width,
        "kv_lora_rank": latent.kv_rank,
        "q_lora_rank": latent.query_rank or None,
        "v_head_dim": latent.value_width,
        "moe_intermediate_size": experts.ffn,
        "n_routed_experts": experts.count,
        "n_shared_experts": experts.shared // experts.ffn,
        "num_experts_per_tok": experts.top_k,
        "first_k_dense_replace": experts.dense_layers,
        "n_group": experts.groups or 1,
        "topk_group": experts.nodes or 1,
        "norm_topk_prob": experts.normalised,
        "routed_scaling_factor": experts.scale,
        "aux_loss_alpha": experts.balance,
        "scoring_func": "sigmoid",
        "topk_method": "noaux_tc",
        "moe_layer_freq": 1,
        "num_nextn_predict_layers": spec.mtp,
        "rope_interleave": True,
        "attention_bias": False,
    }
