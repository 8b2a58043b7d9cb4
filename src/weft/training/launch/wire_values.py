"""Plain values and a closed set of records as JSON: what may travel between machines, and nothing else.

A list says first what it is: "l" a list, "t" a tuple, "d" a mapping with its keys and values in turn, or the name of a
record that both ends know, with its fields. Reading makes values of these kinds only; it never runs anything.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import fields, is_dataclass
from typing import Any

from weft.core.spec import Spec


class WireValues:
    """Writes and reads values with records of the given classes."""

    def __init__(self, classes: Iterable[type]) -> None:
        """Know `classes`: dataclasses and specs."""
        self._classes = {one.__name__: one for one in classes}

    def encode(self, value: object) -> bytes:
        """Return `value` as bytes; raises `TypeError` where something in it may not travel."""
        return json.dumps(self._plain(value), separators=(",", ":")).encode()

    def decode(self, content: bytes) -> Any:
        """Return the value of `content`; raises `ValueError` where it is none."""
        try:
            return self._value(json.loads(content))
        except (TypeError, KeyError, IndexError, RecursionError) as error:
            raise ValueError(f"this is no value that travels: {error}") from None

    def _plain(self, value: object) -> Any:
        name = type(value).__name__
        if self._classes.get(name) is type(value):
            if isinstance(value, Spec):
                return [name, value.as_written()]
            assert is_dataclass(value), "records are dataclasses or specs"
            return [name, *(self._plain(getattr(value, field.name)) for field in fields(value) if field.init)]
        if value is None or isinstance(value, (bool, int, float, str)):
            return value
        if isinstance(value, Mapping):
            return ["d", *(self._plain(part) for pair in value.items() for part in pair)]
        if isinstance(value, (list, tuple)):
            return ["l" if isinstance(value, list) else "t", *map(self._plain, value)]
        raise TypeError(f"a {name} does not travel between machines")

    def _value(self, plain: Any) -> Any:
        if isinstance(plain, dict):
            raise ValueError("a mapping travels as a list")  # noqa: TRY004 - what arrives is wrong, not the call
        if not isinstance(plain, list):
            return plain
        kind, *parts = plain
        if kind in self._classes and issubclass(self._classes[kind], Spec):
            return self._classes[kind].model_validate(parts[0])
        parts = [self._value(part) for part in parts]
        if kind == "d":
            return dict(zip(parts[::2], parts[1::2], strict=True))
        if kind in ("l", "t"):
            return parts if kind == "l" else tuple(parts)
        return self._classes[kind](*parts)
