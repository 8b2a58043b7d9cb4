"""Values of any nesting as named tensors and back: what optimizers, schedulers and loops keep besides plain tensors.

A tensor goes under its own name. Numbers become tensors without dimensions, lists, tuples and dictionaries that hold
tensors are taken apart, and everything else is JSON in a tensor of bytes; what it was is written in the name, so that
names alone give the value back in its own types. Whatever has no exact form is refused.
"""

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

import torch

from weft.core.errors import UsageError

_INTEGERS = range(-(2**63), 2**63)
_ROOM = 256
"""JSON is padded to a multiple of this, so that a growing number seldom changes a tensor's size."""
_NUMBERS = {"bool": torch.bool, "int": torch.int64, "float": torch.float64}
_PART = re.compile(r"\[(\d+)\]|\((\d+)\)|\{")


def flatten(name: str, value: Any) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield `value` as named tensors that begin with `name`; raises `UsageError` where it has no exact form."""
    if isinstance(value, torch.Tensor):
        yield name, value.detach()
    elif isinstance(value, bool | float) or (isinstance(value, int) and value in _INTEGERS):
        kind = type(value).__name__
        if kind not in _NUMBERS:
            raise UsageError(f"{name} is of type {kind}, which cannot be stored exactly; keep a plain number there")
        yield f"{name}:{kind}", torch.tensor(value, dtype=_NUMBERS[kind])
    elif type(value) in (list, tuple) and _holds_tensor(value):
        ends = "[]" if type(value) is list else "()"
        for number, part in enumerate(value):
            yield from flatten(f"{name}{ends[0]}{number}{ends[1]}", part)
    elif isinstance(value, Mapping) and _holds_tensor(value):
        for key, part in value.items():
            if type(key) not in (str, int):
                raise UsageError(f"{name} has a key of type {type(key).__name__} for a tensor; use texts or numbers")
            yield from flatten(f"{name}{{{json.dumps(key)}}}", part)
    else:
        text = json.dumps(_tagged(name, value)).encode()
        text += b" " * (-len(text) % _ROOM)
        yield f"{name}:json", torch.frombuffer(bytearray(text), dtype=torch.uint8)


def rebuild(parts: Mapping[str, torch.Tensor]) -> Any:
    """Return the value whose `flatten` gave `parts`, under names without what `flatten` was given."""
    if len(parts) == 1:
        ((name, tensor),) = parts.items()
        if name == "":
            return tensor
        if name == ":json":
            return _plain(json.loads(bytes(tensor.tolist())))
        if name[0] == ":":
            return tensor.item()
    inside: dict[Any, dict[str, torch.Tensor]] = {}
    kind = next(iter(parts))[0]
    for name, tensor in parts.items():
        key, rest = _first_part(name)
        inside.setdefault(key, {})[rest] = tensor
    if kind == "{":
        return {key: rebuild(held) for key, held in inside.items()}
    values = [rebuild(inside[number]) for number in range(len(inside))]
    return values if kind == "[" else tuple(values)


def _first_part(name: str) -> tuple[Any, str]:
    """Return the key of the outermost container in `name`, and what is left."""
    found = _PART.match(name)
    assert found is not None, f"{name!r} was made by `flatten`"
    if found[0] == "{":
        key, end = json.JSONDecoder().raw_decode(name, 1)
        return key, name[end + 1 :]
    return int(found[1] or found[2]), name[found.end() :]


def _holds_tensor(value: Any) -> bool:
    if isinstance(value, Mapping):
        return any(_holds_tensor(part) for part in value.values())
    return isinstance(value, torch.Tensor) or (type(value) in (list, tuple) and any(map(_holds_tensor, value)))


def _tagged(name: str, value: Any) -> Any:
    """Return `value` in types that JSON tells apart."""
    if value is None or type(value) in (bool, int, float, str):
        return value
    if type(value) in (list, tuple):
        return [type(value).__name__, *(_tagged(name, part) for part in value)]
    if isinstance(value, Mapping):
        return ["dict", *([_tagged(name, key), _tagged(name, part)] for key, part in value.items())]
    raise UsageError(
        f"{name} is of type {type(value).__name__}, which cannot be stored exactly; keep tensors, numbers, texts,"
        " lists, tuples or dictionaries there"
    )


def _plain(value: Any) -> Any:
    if not isinstance(value, list):
        return value
    kind, *parts = value
    if kind == "dict":
        return {_plain(key): _plain(part) for key, part in parts}
    return [_plain(part) for part in parts] if kind == "list" else tuple(_plain(part) for part in parts)
