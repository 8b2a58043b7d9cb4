"""Typed values as JSON and back: what a kept run holds besides its columns. Decides nothing, and reads no files.

A dataclass or named tuple is the list of its fields, a dictionary the list of its pairs, a set the sorted list. Reading
goes by the declared types and looks at every value, so a file cannot make anything but what is declared.
"""

from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from functools import cache
from types import UnionType
from typing import Any, Literal, TypeVar, get_args, get_origin, get_type_hints

Value = TypeVar("Value")


def as_json(value: Any) -> Any:
    """Return a value as lists, texts and numbers."""
    if is_dataclass(value) and not isinstance(value, type):
        return [as_json(getattr(value, each.name)) for each in fields(value)]
    if isinstance(value, Mapping):
        return [[as_json(key), as_json(item)] for key, item in value.items()]
    if isinstance(value, set):
        return sorted(value)
    if value is None or isinstance(value, bool | str):
        return value
    if isinstance(value, Sequence):
        return [as_json(item) for item in value]
    # Numbers may be numpy's.
    number: Any = value
    return int(number)


def from_json(kind: type[Value], found: Any) -> Value:
    """Return the value of type `kind` that `found` describes; raises `ValueError` where it describes none."""
    return _read(kind, found)


@cache
def _hints(kind: type) -> tuple[Any, ...]:
    hints = get_type_hints(kind)
    names = [each.name for each in fields(kind)] if is_dataclass(kind) else list(getattr(kind, "_fields", ()))
    return tuple(hints[name] for name in names)


def _read(hint: Any, found: Any) -> Any:
    if isinstance(hint, UnionType):
        return None if found is None else _read(get_args(hint)[0], found)
    if get_origin(hint) is Literal:
        return _wanted(found, found in get_args(hint), hint)
    if hint in (int, str, bool):
        return _wanted(found, type(found) is hint, hint)
    _wanted(found, isinstance(found, list), hint)
    return _record(hint, found) if get_origin(hint) is None else _collection(hint, found)


def _collection(hint: Any, found: list[Any]) -> Any:
    origin, kinds = get_origin(hint), get_args(hint)
    if origin is dict:
        return {_read(kinds[0], key): _read(kinds[1], item) for key, item in found}
    if origin is tuple and kinds[-1] is not ...:
        return tuple(_read(each, item) for each, item in zip(kinds, found, strict=True))
    return origin(_read(kinds[0], item) for item in found)


def _record(kind: Any, found: list[Any]) -> Any:
    values = [_read(each, item) for each, item in zip(_hints(kind), found, strict=True)]
    if not is_dataclass(kind):
        return kind(*values)
    made = object.__new__(kind)
    for each, value in zip(fields(kind), values, strict=True):
        # Neither __init__ nor __post_init__: they begin anew what here goes on; and frozen ones are made here too.
        object.__setattr__(made, each.name, value)
    return made


def _wanted(found: Any, fits: bool, hint: Any) -> Any:
    if not fits:
        raise ValueError(f"{str(found)[:40]!r} is no {getattr(hint, '__name__', hint)}")
    return found
