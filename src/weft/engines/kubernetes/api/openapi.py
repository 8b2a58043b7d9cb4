"""From our specs to the schemas that an API server takes: structural, valid on 1.20 and newer.

A spec's own JSON schema says more than a server can hold: unions of tables, references, constants. What can be said is
said; where a value may have several forms the server keeps it as it is and the controller, which reads it with the spec
itself, has the last word.
"""

from collections.abc import Mapping
from typing import Any

from weft.core.spec import Spec

_KEPT = ("description", "pattern", "enum", "minimum", "maximum", "minLength", "maxLength", "minItems", "maxItems")
_LARGEST = 2**53


def structural(spec: type[Spec]) -> dict[str, Any]:
    """Return the structural schema of a spec."""
    whole = spec.model_json_schema(by_alias=True)
    return _converted(whole, whole.get("$defs", {}))


def _converted(schema: Mapping[str, Any], known: Mapping[str, Any]) -> dict[str, Any]:
    if "$ref" in schema:
        target = known[schema["$ref"].rpartition("/")[2]]
        described = {"description": schema["description"]} if "description" in schema else {}
        return {**_converted(target, known), **described}
    variants = [one for one in schema.get("anyOf", schema.get("oneOf", ())) if one.get("type") != "null"]
    if variants:
        described = {"description": schema["description"]} if "description" in schema else {}
        if len(variants) == 1:
            nullable = {"nullable": True} if len(schema.get("anyOf", ())) > 1 else {}
            return {**_converted(variants[0], known), **described, **nullable}
        return {**described, "x-kubernetes-preserve-unknown-fields": True}
    made = {key: schema[key] for key in _KEPT if key in schema and not _too_large(schema[key])}
    if "const" in schema:
        made["enum"] = [schema["const"]]
    _bounds(schema, made)
    kind = schema.get("type") or _kind_of(made)
    if kind is None:
        return {**made, "x-kubernetes-preserve-unknown-fields": True}
    made["type"] = kind
    if kind == "integer":
        made["format"] = "int64"
    elif kind == "object":
        made |= _object(schema, known)
    elif kind == "array":
        made |= _array(schema, known)
    return made


def _too_large(value: Any) -> bool:
    """Say whether a bound cannot be held exactly by a server that keeps bounds as floating-point numbers."""
    return isinstance(value, int) and abs(value) > _LARGEST


def _bounds(schema: Mapping[str, Any], made: dict[str, Any]) -> None:
    """Write open bounds the way OpenAPI 3.0 does: a number and a flag beside it."""
    for name, plain in (("exclusiveMinimum", "minimum"), ("exclusiveMaximum", "maximum")):
        if name in schema and not _too_large(schema[name]):
            made[plain] = schema[name]
            made[name] = True


def _kind_of(made: Mapping[str, Any]) -> str | None:
    values = made.get("enum")
    return "string" if values and all(isinstance(value, str) for value in values) else None


def _object(schema: Mapping[str, Any], known: Mapping[str, Any]) -> dict[str, Any]:
    fields = schema.get("properties")
    if fields:
        made: dict[str, Any] = {"properties": {name: _converted(one, known) for name, one in fields.items()}}
        if schema.get("required"):
            made["required"] = schema["required"]
        return made
    values = schema.get("additionalProperties")
    if isinstance(values, Mapping):
        return {"additionalProperties": _converted(values, known)}
    return {"x-kubernetes-preserve-unknown-fields": True}


def _array(schema: Mapping[str, Any], known: Mapping[str, Any]) -> dict[str, Any]:
    if "prefixItems" in schema:
        each = [_converted(one, known) for one in schema["prefixItems"]]
        return {"items": each[0], "minItems": len(each), "maxItems": len(each)}
    return {"items": _converted(schema.get("items", {}), known)}
