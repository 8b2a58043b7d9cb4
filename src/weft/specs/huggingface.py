"""A Hugging Face config.json read as the `[model]` table of a job file, and written back.

Translation between two sets of words, in both directions, with no weights and no torch. `[model] config` in a job file
leads here. Key names are those of the `transformers` library's `LlamaConfig`, `MistralConfig`, `Qwen2Config`,
`Qwen3Config`, `MixtralConfig` and `Qwen3MoeConfig`.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from weft.core.errors import UsageError
from weft.core.input_files import json_of, read_bytes
from weft.specs.huggingface_planned import PLANNED, planned_table
from weft.specs.job import ModelSpec

DENSE = ("llama", "mistral", "qwen2", "qwen3")
SPARSE = ("mixtral", "qwen3_moe")
CLASSES = {
    "llama": "LlamaForCausalLM",
    "mistral": "MistralForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
    "mixtral": "MixtralForCausalLM",
    "qwen3_moe": "Qwen3MoeForCausalLM",
}
"""The `transformers` class of each `model_type` that can be read."""

_NEEDED = {
    "layers": "num_hidden_layers",
    "width": "hidden_size",
    "heads": "num_attention_heads",
    "ffn": "intermediate_size",
    "vocabulary": "vocab_size",
}

# What `transformers` assumes where a config.json is silent: the same classes, their defaults.
_DEFAULT_EPSILON = {"mixtral": 1e-5}
_DEFAULT_BASE = {"mixtral": 1e6}
_DEFAULT_HEAD = {"qwen3": 128}

# A key, and the values that mean "not used": anything else asks for what the decoder does not have.
_MUST_BE: dict[str, tuple[Any, ...]] = {
    "hidden_act": ("silu",),
    "attention_bias": (False,),
    "mlp_bias": (False,),
    "use_sliding_window": (False,),
    "attention_dropout": (0, 0.0),
    "pretraining_tp": (1,),
    "norm_topk_prob": (True,),
    "mlp_only_layers": ([],),
    "decoder_sparse_step": (1,),
}

_LARGEST_FILE_BYTES = 4 * 2**20


def read_model(path: Path) -> dict[str, Any]:
    """Return what the config.json at `path` says as the `[model]` table of a job file."""
    return model_table(read_config(path), str(path))


def read_config(path: Path) -> dict[str, Any]:
    """Return what the config.json at `path` says, unchecked."""
    try:
        config = json_of(read_bytes(path, _LARGEST_FILE_BYTES))
    except FileNotFoundError:
        raise UsageError(f"there is no file {path}; a config.json is wanted") from None
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}") from None
    except ValueError as error:
        raise UsageError(f"{path} is not JSON: {error}") from None
    if not isinstance(config, dict):
        raise UsageError(f"{path} is not a model config: it holds a {type(config).__name__}, not an object")
    return config


def model_spec(config: Mapping[str, Any], shown: str = "config.json") -> ModelSpec:
    """Return the model that a Hugging Face `config` describes; `shown` names it in messages."""
    from weft.core.specfile import validate

    return validate(model_table(config, shown), ModelSpec, shown)


def model_table(config: Mapping[str, Any], shown: str = "config.json") -> dict[str, Any]:
    """Return a Hugging Face `config` as the values of a `ModelSpec`, or raise with everything that is in the way."""
    kind = config.get("model_type")
    if kind in PLANNED:
        return planned_table(config, shown)
    if kind not in CLASSES:
        known, more = ", ".join(CLASSES), ", ".join(PLANNED)
        raise UsageError(f"{shown} describes a model of type {kind!r}; weft builds {known}, and plans {more} too")
    problems = [*_missing(config, kind), *_unsupported(config, kind)]
    if problems:
        raise UsageError(f"{shown} cannot be built: " + "; ".join(problems))
    table = {ours: config[theirs] for ours, theirs in _NEEDED.items()}
    if config.get("num_key_value_heads") is not None:
        table["kv_heads"] = config["num_key_value_heads"]
    each = config.get("head_dim", _DEFAULT_HEAD.get(kind))
    if each is not None and each * table["heads"] != table["width"]:
        table["head_width"] = each
    rope = _rope(config)
    table |= {
        "tied": bool(config.get("tie_word_embeddings", False)),
        "norm_epsilon": float(config.get("rms_norm_eps", _DEFAULT_EPSILON.get(kind, 1e-6))),
        "rope_base": float(rope.get("rope_theta", config.get("rope_theta", _DEFAULT_BASE.get(kind, 10_000.0)))),
        "qkv_bias": kind == "qwen2",
        "qk_norm": kind in ("qwen3", "qwen3_moe"),
    }
    if _rope_type(rope) == "llama3":
        table["rope_scaling"] = {
            "factor": float(rope["factor"]),
            "low": float(rope["low_freq_factor"]),
            "high": float(rope["high_freq_factor"]),
            "length": rope["original_max_position_embeddings"],
        }
    if kind in SPARSE:
        table["experts"] = _experts(config, kind)
    return table


def config_of(spec: ModelSpec, length: int) -> dict[str, Any]:
    """Return `spec` as a Hugging Face config.json for texts of up to `length` tokens."""
    kind = model_type(spec)
    config: dict[str, Any] = {
        "architectures": [CLASSES[kind]],
        "model_type": kind,
        **{theirs: getattr(spec, ours) for ours, theirs in _NEEDED.items()},
        "num_key_value_heads": spec.kv_heads or spec.heads,
        "head_dim": spec.head_width or spec.width // spec.heads,
        "hidden_act": "silu",
        "max_position_embeddings": length,
        "rms_norm_eps": spec.norm_epsilon,
        "rope_theta": spec.rope_base,
        "tie_word_embeddings": spec.tied,
        "torch_dtype": "float32",
        "use_cache": True,
    }
    if kind in ("llama", "qwen3", "qwen3_moe"):
        config["attention_bias"] = False
    if spec.rope_scaling is not None:
        config["rope_scaling"] = {
            "rope_type": "llama3",
            "factor": spec.rope_scaling.factor,
            "low_freq_factor": spec.rope_scaling.low,
            "high_freq_factor": spec.rope_scaling.high,
            "original_max_position_embeddings": spec.rope_scaling.length,
        }
    if spec.experts is not None:
        config |= {
            "num_experts_per_tok": spec.experts.top_k,
            "router_aux_loss_coef": spec.experts.balance,
        }
        if kind == "mixtral":
            config |= {"num_local_experts": spec.experts.count, "intermediate_size": spec.experts.ffn}
        else:
            config |= {"num_experts": spec.experts.count, "moe_intermediate_size": spec.experts.ffn}
            config |= {"norm_topk_prob": True, "decoder_sparse_step": 1, "mlp_only_layers": []}
    return config


def model_type(spec: ModelSpec) -> str:
    """Return the Hugging Face `model_type` whose architecture `spec` is."""
    if spec.qkv_bias and (spec.qk_norm or spec.experts is not None):
        found = "qkv_bias with qk_norm" if spec.qk_norm else "qkv_bias with experts"
        raise UsageError(f"Hugging Face has no architecture with {found}; weights of it cannot be written for others")
    if spec.experts is not None:
        return "qwen3_moe" if spec.qk_norm else "mixtral"
    if spec.qk_norm:
        return "qwen3"
    return "qwen2" if spec.qkv_bias else "llama"


def _missing(config: Mapping[str, Any], kind: str) -> list[str]:
    # Only Llama's class takes all heads where the key is absent; the others would fall back to a number of their own.
    needed = [*_NEEDED.values(), *(["num_key_value_heads"] if kind != "llama" else [])]
    if kind == "mixtral":
        needed += ["num_local_experts", "num_experts_per_tok"]
    if kind == "qwen3_moe":
        needed += ["num_experts", "num_experts_per_tok", "moe_intermediate_size"]
    missing = [key for key in needed if config.get(key) is None]
    return [f"it lacks {', '.join(missing)}"] if missing else []


def _unsupported(config: Mapping[str, Any], kind: str) -> list[str]:
    problems = [
        f"{key} = {json.dumps(config[key])} is not supported, only {json.dumps(good[0])}"
        for key, good in _MUST_BE.items()
        if key in config and config[key] not in good
    ]
    # Qwen configs state a window that `use_sliding_window` turns off.
    if config.get("sliding_window") is not None and "use_sliding_window" not in config:
        problems.append(f"sliding_window = {config['sliding_window']} is not supported, only null")
    layer_types = config.get("layer_types") or []
    if any(kind_of_layer != "full_attention" for kind_of_layer in layer_types):
        problems.append("layer_types other than full_attention are not supported")
    rope = _rope(config)
    found = _rope_type(rope)
    if found not in ("default", "llama3"):
        problems.append(f"rotary scaling of type {found!r} is not supported, only 'llama3'")
    elif found == "llama3":
        wanted = ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings")
        missing = [key for key in wanted if rope.get(key) is None]
        problems += [f"its rope_scaling lacks {', '.join(missing)}"] if missing else []
    if rope.get("partial_rotary_factor", 1) != 1 or config.get("partial_rotary_factor", 1) != 1:
        problems.append("partial_rotary_factor other than 1 is not supported")
    if kind == "qwen2" and config.get("qkv_bias", True) is not True:
        problems.append("qwen2 without qkv_bias is not supported")
    return problems


def _rope(config: Mapping[str, Any]) -> Mapping[str, Any]:
    # `transformers` 5 writes rope_parameters, older versions rope_scaling with rope_theta beside it.
    for key in ("rope_parameters", "rope_scaling"):
        if isinstance(config.get(key), Mapping):
            return config[key]
    return {}


def _rope_type(rope: Mapping[str, Any]) -> str:
    return str(rope.get("rope_type", rope.get("type", "default")))


def _experts(config: Mapping[str, Any], kind: str) -> dict[str, Any]:
    mixtral = kind == "mixtral"
    return {
        "count": config["num_local_experts" if mixtral else "num_experts"],
        "top_k": config["num_experts_per_tok"],
        "ffn": config["intermediate_size" if mixtral else "moe_intermediate_size"],
        "balance": float(config.get("router_aux_loss_coef", 0.001)),
    }
