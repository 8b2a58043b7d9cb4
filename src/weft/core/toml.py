"""Writes plain values as TOML, rewrites a file without losing its comments, and reads single values."""

from collections.abc import Mapping, MutableMapping
from typing import Any

import tomlkit

from weft.core.input_files import toml_of


def written(table: Mapping[str, Any]) -> str:
    """Return `table` as TOML text: plain keys first, then tables, in the order given."""
    return tomlkit.dumps(table).rstrip("\n")


def rewritten(text: str, table: Mapping[str, Any]) -> str:
    """Return TOML `text` with the values of `table`; comments stay where their keys stay, other keys go."""
    document = tomlkit.parse(text)
    _replace(document, table)
    return document.as_string().rstrip("\n")


def _replace(document: MutableMapping[str, Any], table: Mapping[str, Any]) -> None:
    for key in [key for key in document if key not in table]:
        del document[key]
    for key, value in table.items():
        below = document.get(key)
        if isinstance(value, Mapping) and isinstance(below, MutableMapping):
            _replace(below, value)
        elif below is None or below != value:
            # An equal value keeps the way that a person wrote it, such as 1_000 or 'text'.
            document[key] = value


def value_of(text: str) -> Any:
    """Return `text` read as a TOML value, or as it stands where it is none: words on a command line need no quotes."""
    try:
        return toml_of(f"value = {text}")["value"]
    except ValueError:
        return text
