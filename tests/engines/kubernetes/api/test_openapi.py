from typing import Any

import pytest

from weft.engines.kubernetes.api.crds import BODIES, definition
from weft.engines.kubernetes.api.openapi import structural
from weft.engines.kubernetes.api.resources import OURS

_FORBIDDEN = ("$ref", "$defs", "anyOf", "oneOf", "allOf", "const", "prefixItems", "title", "examples", "default")


def _walk(schema: dict[str, Any], path: str) -> None:
    assert not [key for key in _FORBIDDEN if key in schema], path
    free = schema.get("x-kubernetes-preserve-unknown-fields")
    assert free or "type" in schema, f"{path} has no type"
    for open_, plain in (("exclusiveMinimum", "minimum"), ("exclusiveMaximum", "maximum")):
        assert open_ not in schema or (schema[open_] is True and plain in schema), path
    for name, one in schema.get("properties", {}).items():
        _walk(one, f"{path}.{name}")
    if schema.get("type") == "array":
        _walk(schema["items"], f"{path}[]")
    if isinstance(schema.get("additionalProperties"), dict):
        assert "properties" not in schema, path
        _walk(schema["additionalProperties"], f"{path}.*")


@pytest.mark.parametrize("resource", OURS, ids=lambda one: one.kind)
def test_a_schema_says_nothing_that_a_server_cannot_hold(resource):
    _walk(structural(BODIES[resource]), resource.kind)


@pytest.mark.parametrize("resource", OURS, ids=lambda one: one.kind)
def test_every_column_points_at_a_field_that_exists(resource):
    version = definition(resource)["spec"]["versions"][0]
    fields = version["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"]
    for column in version["additionalPrinterColumns"]:
        _, root, name = column["jsonPath"].split(".")[:3]
        assert root != "spec" or name in fields, column


def test_every_field_of_a_job_is_described():
    fields = structural(BODIES[OURS[0]])["properties"]
    assert all(one.get("description") for one in fields.values())
