"""The document that describes an HTTP interface, made from its routes and from our specs."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from weft.core.spec import Spec
from weft.core.version import VERSION

Method = Literal["GET", "POST"]
_REF = "#/components/schemas/{model}"


@dataclass(frozen=True)
class Parameter:
    """A part of the path or of the query."""

    name: str
    place: Literal["path", "query"]
    """Where it stands."""
    schema: Mapping[str, Any]
    text: str


@dataclass(frozen=True)
class Operation:
    """One route: how it is called and what it answers."""

    method: Method
    path: str
    """Its path, with {names}."""
    name: str
    """The function that answers, and the operation's id."""
    text: str
    """What it does, in a line."""
    answer: Mapping[str, Any]
    """Schema of what it answers."""
    parameters: tuple[Parameter, ...] = ()
    """What it takes besides a body."""
    body: type[Spec] | None = None
    """What its JSON body holds."""
    archive: bool = False
    """Whether its body is a tar archive."""
    open: bool = False
    """Whether it answers without the token."""
    refusals: tuple[int, ...] = field(default=())
    """Statuses besides 200 and those that every such route has."""
    always: tuple[int, ...] = (401, 503, 507)
    """Statuses of every closed route."""
    media: str = "application/json"
    """What its answer is."""


_CLUSTER = ("weft cluster", "Jobs and nodes of a local cluster.")


def described(operations: Sequence[Operation], title: tuple[str, str] = _CLUSTER) -> dict[str, Any]:
    """Return the OpenAPI document of `operations`; `title` is the name of the interface and what it is for."""
    schemas: dict[str, Any] = {
        "Refusal": {
            "type": "object", "required": ["error"],
            "properties": {"error": {"type": "string", "description": "What was wrong and what would be right."}},
        }
    }  # fmt: skip
    paths: dict[str, Any] = {}
    for operation in operations:
        if operation.body is not None:
            schemas |= _schemas(operation.body)
        paths.setdefault(operation.path, {})[operation.method.lower()] = _described(operation)
    return {
        "openapi": "3.1.0",
        "info": {"title": title[0], "version": VERSION, "description": title[1]},
        "paths": paths,
        "components": {"schemas": schemas, "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}}},
    }


def _described(operation: Operation) -> dict[str, Any]:
    found: dict[str, Any] = {
        "operationId": operation.name, "summary": operation.text,
        "security": [] if operation.open else [{"token": []}],
        "responses": {
            "200": _answer("As asked.", operation.answer, operation.media),
            **{str(status): _refusal(status) for status in _statuses(operation)},
        },
    }  # fmt: skip
    if operation.parameters:
        found["parameters"] = [
            {"name": one.name, "in": one.place, "required": one.place == "path", "schema": dict(one.schema),
             "description": one.text}
            for one in operation.parameters
        ]  # fmt: skip
    if operation.body is not None:
        reference = {"$ref": _REF.format(model=operation.body.__name__)}
        found["requestBody"] = {"required": True, "content": {"application/json": {"schema": reference}}}
    if operation.archive:
        binary = {"type": "string", "contentMediaType": "application/octet-stream"}
        found["requestBody"] = {"required": True, "content": {"application/octet-stream": {"schema": binary}}}
    return found


def _statuses(operation: Operation) -> list[int]:
    always = () if operation.open else operation.always
    asked = [400] if operation.parameters or operation.body or operation.archive else []
    sized = [413, 415] if operation.body or operation.archive else []
    return sorted({*always, *asked, *sized, *operation.refusals})


_WORDS = {
    400: "The request was wrong; nothing was done.", 401: "The token is missing or wrong.",
    403: "The token is missing or wrong, or the request comes from a page of another site.",
    404: "There is no such job or node.", 409: "Not in this state.", 413: "Too large.", 415: "Another content type.",
    503: "Too busy, or the disk fails; nothing was done.", 507: "The disk is full; nothing was done.",
}  # fmt: skip


def _refusal(status: int) -> dict[str, Any]:
    return _answer(_WORDS[status], {"$ref": _REF.format(model="Refusal")})


def _answer(text: str, schema: Mapping[str, Any], media: str = "application/json") -> dict[str, Any]:
    return {"description": text, "content": {media: {"schema": dict(schema)}}}


def _schemas(model: type[Spec]) -> dict[str, Any]:
    """Return the JSON schemas of a spec and of everything in it."""
    whole = model.model_json_schema(ref_template=_REF)
    inner = whole.pop("$defs", {})
    return {model.__name__: whole, **inner}
