"""The chart, rendered, is taken by a real API server, which keeps every field of it: nothing is dropped in silence."""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.engines.kubernetes.stage import Theatre
from tests.engines.kubernetes.test_chart import _CHART, _VALUES, rendered

from weft.engines.kubernetes.api.resources import Resource

pytestmark = [pytest.mark.kube, pytest.mark.timeout(300)]
_PLURALS = {"NetworkPolicy": "networkpolicies", "PriorityClass": "priorityclasses"}
_OF_ALL = ("ClusterRole", "ClusterRoleBinding", "CustomResourceDefinition", "PriorityClass")


def _resource(item: dict[str, Any]) -> Resource:
    group, _, version = item["apiVersion"].rpartition("/")
    kind = item["kind"]
    plural = _PLURALS.get(kind, f"{kind.lower()}s")
    return Resource(group, version, plural, kind, namespaced=kind not in _OF_ALL)


def _missing(ours: Any, theirs: Any, path: str = "") -> Iterator[str]:
    """Yield the places of what was sent that the server holds otherwise, or not at all."""
    if isinstance(ours, dict) and isinstance(theirs, dict):
        for key, value in ours.items():
            if value not in (None, "", [], {}):
                yield from _missing(value, theirs.get(key), f"{path}.{key}")
    elif isinstance(ours, list) and isinstance(theirs, list) and len(ours) == len(theirs):
        for number, (one, other) in enumerate(zip(ours, theirs, strict=True)):
            yield from _missing(one, other, f"{path}[{number}]")
    elif ours != theirs and str(ours) != str(theirs):
        yield f"{path}: {ours!r} became {theirs!r}"


def test_a_server_takes_the_chart_and_keeps_all_of_it(theatre: Theatre, tmp_path: Path) -> None:
    items = rendered(tmp_path, _VALUES, theatre.name)
    items += list(yaml.safe_load_all((_CHART / "crds" / "kinds.yaml").read_text(encoding="utf-8")))

    async def life() -> list[str]:
        wrong: list[str] = []
        async with theatre.open() as client:
            for item in items:
                resource, name = _resource(item), item["metadata"]["name"]
                space = theatre.name if resource.namespaced else None
                await client.apply(resource, item, space)
                there = await client.get(resource, name, space)
                wrong += [f"{item['kind']} {name}{each}" for each in _missing(item, there)]
        return wrong

    assert len({item["kind"] for item in items}) >= 6
    assert asyncio.run(life()) == []
