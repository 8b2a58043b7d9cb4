"""Writes plain values as TOML, which the standard library only reads, and reads single values."""

import json
import tomllib
from collections.abc import Mapping, Sequence
from typing import Any


def written(table: Mapping[str, Any], prefix: str = "") -> str:
    """Return `table` as TOML text: plain keys first, then tables, in the order given."""
    lines = [f"{key} = {_value(value)}" for key, value in table.items() if not isinstance(value, Mapping)]
    for key, value in table.items():
        if isinstance(value, Mapping):
            name = f"{prefix}{key}"
            inner = written(value, f"{name}.")
            has_plain = any(not isinstance(below, Mapping) for below in value.values())
            lines += ["", f"[{name}]", inner] if has_plain or not value else [inner]
    return "\n".join(lines)


def value_of(text: str) -> Any:
    """Return `text` read as a TOML value, or as it stands where it is none: words on a command line need no quotes."""
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text


def _value(value: Any) -> str:
    if isinstance(value, Mapping):
        return "{ " + ", ".join(f"{key} = {_value(inner)}" for key, inner in value.items()) + " }"
    if isinstance(value, Sequence) and not isinstance(value, str):
        return "[" + ", ".join(_value(inner) for inner in value) + "]"
    # JSON's strings, numbers and booleans are TOML's too.
    return json.dumps(value, ensure_ascii=False)
