"""Rotary positions in a Hugging Face config.json: which stretching it asks for, read and written.

`transformers` 5 writes all of it as rope_parameters; older versions write rope_scaling with rope_theta beside it.
"""

import math
from collections.abc import Mapping
from typing import Any

from weft.specs.job import RopeScalingSpec

_NEEDED = {
    "default": (),
    "linear": ("factor",),
    "llama3": ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"),
    "yarn": ("factor", "original_max_position_embeddings"),
}
_YARN_FAST, _YARN_SLOW = 32.0, 1.0


def rope_of(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return what a config says about rotary positions, wherever it stands; of both, rope_scaling counts."""
    for key in ("rope_scaling", "rope_parameters"):
        if config.get(key) and isinstance(config[key], Mapping):
            return config[key]
    return {}


def rope_problems(config: Mapping[str, Any]) -> list[str]:
    """Return what about a config's rotary positions cannot be computed."""
    rope = rope_of(config)
    kind = _kind(rope)
    if kind not in _NEEDED:
        known = ", ".join(repr(each) for each in _NEEDED)
        return [f"rotary scaling of type {kind!r} is not supported, only {known}"]
    missing = [key for key in _NEEDED[kind] if rope.get(key) is None]
    problems = [f"its rope_scaling lacks {', '.join(missing)}"] if missing else []
    if rope.get("partial_rotary_factor", 1) != 1 or config.get("partial_rotary_factor", 1) != 1:
        problems.append("partial_rotary_factor other than 1 is not supported")
    return problems


def rope_scaling_of(config: Mapping[str, Any], *, latent: bool) -> dict[str, Any] | None:
    """Return the `rope_scaling` table of a config without problems, where it stretches anything."""
    rope = rope_of(config)
    kind = _kind(rope)
    if kind == "default":
        return None
    factor = float(rope["factor"])
    table: dict[str, Any] = {"kind": kind, "factor": factor}
    if kind == "linear":
        table["length"] = 1
    else:
        table["length"] = rope["original_max_position_embeddings"]
    if kind == "llama3":
        table |= {"low": float(rope["low_freq_factor"]), "high": float(rope["high_freq_factor"])}
    if kind == "yarn":
        table |= {
            "low": float(rope.get("beta_slow") or _YARN_SLOW),
            "high": float(rope.get("beta_fast") or _YARN_FAST),
            "gain": _gain(rope, factor),
            "rounded": bool(rope.get("truncate", True)),
        }
    if latent and rope.get("mscale_all_dim"):
        table["mscale_all_dim"] = float(rope["mscale_all_dim"])
    return table


def written_rope(scaling: RopeScalingSpec) -> dict[str, Any]:
    """Return `scaling` as the rope_scaling of a config."""
    written: dict[str, Any] = {"rope_type": scaling.kind, "factor": scaling.factor}
    if scaling.kind == "llama3":
        written |= {"low_freq_factor": scaling.low, "high_freq_factor": scaling.high}
    if scaling.kind == "yarn":
        written |= {"beta_slow": scaling.low, "beta_fast": scaling.high, "attention_factor": scaling.gain}
        written |= {"truncate": scaling.rounded}
    if scaling.kind != "linear":
        written["original_max_position_embeddings"] = scaling.length
    if scaling.mscale_all_dim:
        written["mscale_all_dim"] = scaling.mscale_all_dim
    return written


def mscale(factor: float, share: float = 1.0) -> float:
    """Return YaRN's growth of scores for texts `factor` times as long (arXiv 2309.00071, section 3.4)."""
    return 0.1 * share * math.log(factor) + 1.0 if factor > 1 else 1.0


def _kind(rope: Mapping[str, Any]) -> str:
    return str(rope.get("rope_type", rope.get("type", "default")))


def _gain(rope: Mapping[str, Any], factor: float) -> float:
    if rope.get("attention_factor") is not None:
        return float(rope["attention_factor"])
    if rope.get("mscale") and rope.get("mscale_all_dim"):
        return mscale(factor, rope["mscale"]) / mscale(factor, rope["mscale_all_dim"])
    return mscale(factor)
