"""Frozen records as plain values and back: what goes to logs, databases and other processes.

One rule for every dataclass of this package: fields that hold their default are left out, enumerations are their text,
tuples are lists. An action carries its class's name under "do". A field whose name has changed keeps its old key (in
its metadata), so that logs and databases of earlier versions are read, and ours by them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import MISSING, fields, is_dataclass
from enum import Enum
from functools import cache
from types import NoneType, UnionType
from typing import Any, Literal, TypeVar, get_args, get_origin, get_type_hints

from weft.cluster.records.actions import Action

Record = TypeVar("Record")


def as_plain(value: Any) -> Any:
    """Return a record, or any value of a field, as plain values."""
    if is_dataclass(value) and not isinstance(value, type):
        return {
            key: as_plain(found)
            for name, key, default in _fields(type(value))
            if (found := getattr(value, name)) != default
        }
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [as_plain(item) for item in value]
    if isinstance(value, Mapping):
        return {str(key): as_plain(item) for key, item in value.items()}
    return value


def from_plain(kind: type[Record], plain: Mapping[str, Any]) -> Record:
    """Return the record of type `kind` that `plain` describes."""
    known = _hints(kind)
    unknown = plain.keys() - known.keys()
    if unknown:
        raise ValueError(f"a {kind.__name__.lower()} has no {', '.join(sorted(unknown))}")
    found = {name: _read(hint, plain[key]) for key, (name, hint) in known.items() if key in plain}
    return kind(**found)


def action_as_plain(action: Action) -> dict[str, Any]:
    """Return an action as plain values, with its kind."""
    return {"do": type(action).__name__.lower(), **as_plain(action)}


@cache
def _hints(kind: type) -> dict[str, tuple[str, Any]]:
    """Return name and type of each field, by its key."""
    hints = get_type_hints(kind)
    return {key: (name, hints[name]) for name, key, _ in _fields(kind)}


@cache
def _fields(kind: type) -> tuple[tuple[str, str, Any], ...]:
    """Return name, key and default of each field."""
    return tuple(
        (each.name, each.metadata.get("key", each.name),
         each.default_factory() if each.default_factory is not MISSING else each.default)
        for each in fields(kind)
    )  # fmt: skip


def _read(hint: Any, value: Any) -> Any:
    origin, arguments = get_origin(hint), get_args(hint)
    if isinstance(hint, UnionType):
        return None if value is None else _read(next(each for each in arguments if each is not NoneType), value)
    if origin is tuple:
        return tuple(_read(arguments[0], item) for item in value)
    if origin is not None and origin is not Literal and issubclass(origin, Mapping):
        return {key: _read(arguments[1], item) for key, item in value.items()}
    if isinstance(hint, type) and is_dataclass(hint):
        return from_plain(hint, value)
    if isinstance(hint, type) and issubclass(hint, Enum):
        return hint(value)
    return value
