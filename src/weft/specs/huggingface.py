"""A Hugging Face config.json read as the `[model]` table of a job file, and written back.

Translation between two sets of words, in both directions, with no weights and no torch. `[model] config` and `[model]
from` in a job file lead here. Key names are those of the `transformers` library's configuration classes. A key that
asks for what weft's decoder does not compute is refused by its name; keys that `transformers` itself does not read in
such a model are not looked at.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from weft.core.errors import UsageError
from weft.core.input_files import json_of, read_bytes
from weft.specs.huggingface_kinds import (
    ACTIVATIONS,
    MustBe,
    activation_name,
    deepseek_config,
    deepseek_details,
    deepseek_experts,
    deepseek_problems,
    gpt2_config,
    gpt2_problems,
    gpt2_table,
    unknown_activation,
    unsupported,
)
from weft.specs.huggingface_planned import BEYOND, PLANNED, planned_table
from weft.specs.huggingface_rope import rope_of, rope_problems, rope_scaling_of, written_rope
from weft.specs.job import ModelSpec

SPARSE = ("mixtral", "qwen3_moe")
CLASSES = {
    "llama": "LlamaForCausalLM",
    "mistral": "MistralForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
    "mixtral": "MixtralForCausalLM",
    "qwen3_moe": "Qwen3MoeForCausalLM",
    "deepseek_v3": "DeepseekV3ForCausalLM",
    "gpt2": "GPT2LMHeadModel",
}
"""The `transformers` class of each `model_type` that can be trained."""

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
_DEFAULT_WINDOW = {"mistral": 4096, "qwen2": 4096, "qwen3": 4096, "qwen3_moe": 4096}
_WINDOW_LAYERS = 28
_LOCAL_EXPERTS = "num_local_experts"
"""What Mixtral calls its experts, and `transformers` 5 those of Qwen 3 too."""

_MUST_BE: MustBe = {
    "attention_bias": (False,),
    "mlp_bias": (False,),
    "attention_dropout": (0, 0.0),
    "pretraining_tp": (1,),
    "mlp_only_layers": ([], None),
    "decoder_sparse_step": (1,),
    "router_jitter_noise": (0, 0.0),
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
    if kind in BEYOND:
        raise UsageError(f"{shown} describes a {kind}, which has {BEYOND[kind]}; weft neither plans nor trains those")
    if kind is None:
        raise UsageError(f"{shown} has no model_type; a model's config.json says what kind of model it is")
    if kind not in CLASSES and kind not in PLANNED:
        known, more = ", ".join(CLASSES), ", ".join(each for each in PLANNED if each not in CLASSES)
        raise UsageError(f"{shown} describes a model of type {kind!r}; weft builds {known}, and plans {more} too")
    problems = _problems(config, str(kind))
    if problems:
        raise UsageError(f"{shown} cannot be built: " + "; ".join(problems))
    if kind == "gpt2":
        return gpt2_table(config)
    if kind == "deepseek_v3":
        planned = planned_table(config, shown)
        routed = {**planned["experts"], **deepseek_experts(config)}
        return {**planned, **deepseek_details(config), "experts": routed}
    return planned_table(config, shown) if kind in PLANNED else _llama_table(config, str(kind))


def _problems(config: Mapping[str, Any], kind: str) -> list[str]:
    if kind == "gpt2":
        return gpt2_problems(config)
    if kind == "deepseek_v3":
        return deepseek_problems(config)
    return [] if kind in PLANNED else [*_missing(config, kind), *_unsupported(config, kind)]


def _llama_table(config: Mapping[str, Any], kind: str) -> dict[str, Any]:
    table = {ours: config[theirs] for ours, theirs in _NEEDED.items()}
    if config.get("num_key_value_heads") is not None:
        table["kv_heads"] = config["num_key_value_heads"]
    each = config.get("head_dim", _DEFAULT_HEAD.get(kind))
    if each is not None and each * table["heads"] != table["width"]:
        table["head_width"] = each
    rope = rope_of(config)
    table |= {
        "tied": bool(config.get("tie_word_embeddings", False)),
        "norm_epsilon": float(config.get("rms_norm_eps", _DEFAULT_EPSILON.get(kind, 1e-6))),
        "rope_base": float(rope.get("rope_theta", config.get("rope_theta", _DEFAULT_BASE.get(kind, 10_000.0)))),
        "qkv_bias": kind == "qwen2",
        "qk_norm": kind in ("qwen3", "qwen3_moe"),
        "activation": ACTIVATIONS[config.get("hidden_act", "silu")],
    }
    window, first = _window(config, kind)
    if window and first < table["layers"]:
        table |= {"window": window, "window_from": first}
    scaling = rope_scaling_of(config, latent=False)
    if scaling is not None:
        table["rope_scaling"] = scaling
    if kind in SPARSE:
        table["experts"] = _experts(config, kind)
    return table


def config_of(spec: ModelSpec, length: int) -> dict[str, Any]:
    """Return `spec` as a Hugging Face config.json for texts of up to `length` tokens."""
    kind = model_type(spec)
    config: dict[str, Any] = {"architectures": [CLASSES[kind]], "model_type": kind, "torch_dtype": "float32"}
    config |= {"use_cache": True} | (gpt2_config(spec) if kind == "gpt2" else _llama_config(spec, kind, length))
    # Whatever is not the same when it is read back has no key there.
    same = {"deviation": spec.deviation, "weights": spec.weights}
    if kind == "gpt2":
        same |= {"kv_heads": spec.kv_heads, "head_width": spec.head_width, "rope_base": spec.rope_base}
    again = model_spec(config).model_copy(update=same)
    for key, value in _normal(spec).items():
        if _normal(again)[key] != value:
            raise UsageError(
                f"Hugging Face's {kind} has no model.{key} = {json.dumps(spec.as_written().get(key))};"
                " weights of it cannot be written for others"
            )
    return config


def _normal(spec: ModelSpec) -> dict[str, Any]:
    """Return a model with what may be left out spelt out."""
    more = {"kv_heads": spec.kv_heads or spec.heads, "head_width": spec.head_width or spec.width // spec.heads}
    experts = spec.experts
    if experts is not None and experts.dense_layers == 0:
        more["ffn"] = 0  # nothing has it
    return {**spec.model_dump(), **more}


def _llama_config(spec: ModelSpec, kind: str, length: int) -> dict[str, Any]:
    config: dict[str, Any] = {
        **{theirs: getattr(spec, ours) for ours, theirs in _NEEDED.items()},
        "num_key_value_heads": spec.kv_heads or spec.heads,
        "head_dim": spec.head_width or spec.width // spec.heads,
        "hidden_act": activation_name(spec),
        "max_position_embeddings": length,
        "rms_norm_eps": spec.norm_epsilon,
        "rope_theta": spec.rope_base,
        "tie_word_embeddings": spec.tied,
    }
    if kind in ("llama", "qwen3", "qwen3_moe"):
        config["attention_bias"] = False
    if kind in ("mixtral", "mistral"):
        config["sliding_window"] = spec.window or None
    elif spec.window:
        first = spec.layers if spec.window_from is None else spec.window_from
        config |= {"use_sliding_window": True, "sliding_window": spec.window, "max_window_layers": first}
    if spec.rope_scaling is not None:
        config["rope_scaling"] = written_rope(spec.rope_scaling)
    if kind == "deepseek_v3":
        del config["head_dim"]
        return config | deepseek_config(spec)
    if spec.experts is not None:
        config |= {
            "num_experts_per_tok": spec.experts.top_k,
            "router_aux_loss_coef": spec.experts.balance,
        }
        if kind == "mixtral":
            config |= {"num_local_experts": spec.experts.count, "intermediate_size": spec.experts.ffn}
        else:
            config |= {"num_experts": spec.experts.count, "moe_intermediate_size": spec.experts.ffn}
            config |= {"norm_topk_prob": spec.experts.normalised, "decoder_sparse_step": 1, "mlp_only_layers": []}
    return config


def model_type(spec: ModelSpec) -> str:
    """Return the Hugging Face `model_type` whose architecture `spec` is, or is nearest to."""
    if spec.qkv_bias and (spec.qk_norm or spec.experts is not None):
        found = "qkv_bias with qk_norm" if spec.qk_norm else "qkv_bias with experts"
        raise UsageError(f"Hugging Face has no architecture with {found}; weights of it cannot be written for others")
    if spec.latent is not None and spec.experts is None:
        raise UsageError("Hugging Face has no architecture with latent attention and no experts; it cannot be written")
    if spec.norm == "layer" or spec.latent is not None:
        return "gpt2" if spec.norm == "layer" else "deepseek_v3"
    if spec.experts is not None:
        return "qwen3_moe" if spec.qk_norm else "mixtral"
    if spec.qk_norm:
        return "qwen3"
    plain = "mistral" if spec.window else "llama"
    return "qwen2" if spec.qkv_bias else plain


def _missing(config: Mapping[str, Any], kind: str) -> list[str]:
    # Only Llama's class takes all heads where the key is absent; the others would fall back to a number of their own.
    needed = [*_NEEDED.values(), *(["num_key_value_heads"] if kind != "llama" else [])]
    if kind == "mixtral":
        needed += ["num_local_experts", "num_experts_per_tok"]
    if kind == "qwen3_moe":
        needed += ["num_experts", "num_experts_per_tok", "moe_intermediate_size"]
    missing = [key for key in needed if config.get(key) is None]
    if kind == "qwen3_moe" and config.get(_LOCAL_EXPERTS) is not None:
        missing = [key for key in missing if key != "num_experts"]
    return [f"it lacks {', '.join(missing)}"] if missing else []


def _unsupported(config: Mapping[str, Any], kind: str) -> list[str]:
    problems = unsupported(config, _MUST_BE) + unknown_activation(config) + rope_problems(config)
    wanted = _layer_types(config, *_window(config, kind))
    if (config.get("layer_types") or wanted) != wanted:
        problems.append("layer_types other than full_attention up to a layer and sliding_attention from it on is not"
                        " supported")  # fmt: skip
    if kind == "qwen2" and config.get("qkv_bias", True) is not True:
        problems.append("qwen2 without qkv_bias is not supported")
    return problems


def _window(config: Mapping[str, Any], kind: str) -> tuple[int, int]:
    """Return how many tokens the layers with a window see, 0 for all, and the first such layer."""
    window = config.get("sliding_window", _DEFAULT_WINDOW.get(kind)) or 0
    if kind in ("mistral", "mixtral"):
        return window, 0
    if kind == "qwen3_moe":
        # Its class gives every layer the window, whatever max_window_layers says.
        return (window, 0) if config.get("use_sliding_window", False) else (0, 0)
    if kind == "llama" or not config.get("use_sliding_window", False):
        return 0, 0
    layers = config.get("layer_types") or []
    first = layers.index("sliding_attention") if "sliding_attention" in layers else len(layers)
    return window, first if layers else config.get("max_window_layers", _WINDOW_LAYERS)


def _layer_types(config: Mapping[str, Any], window: int, first: int) -> list[str]:
    count = config.get("num_hidden_layers") or 0
    return ["sliding_attention" if window and number >= first else "full_attention" for number in range(count)]


def _experts(config: Mapping[str, Any], kind: str) -> dict[str, Any]:
    mixtral = kind == "mixtral"
    counted = _LOCAL_EXPERTS if mixtral or config.get("num_experts") is None else "num_experts"
    return {
        "count": config[counted],
        "top_k": config["num_experts_per_tok"],
        "ffn": config["intermediate_size" if mixtral else "moe_intermediate_size"],
        "balance": float(config.get("router_aux_loss_coef", 0.001)),
        "normalised": mixtral or bool(config.get("norm_topk_prob", False)),
    }
