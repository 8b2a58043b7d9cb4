"""The Helm chart says what the kustomization says. It is rendered by Go's own text/template, as Helm does it.

The chart uses no function of Helm's own (those of Sprig), so that this engine alone renders it.
"""

import re
import subprocess
import sys
from collections.abc import Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import yaml

_DEPLOY = Path(__file__).parents[3] / "deploy"
_CHART = _DEPLOY / "helm" / "weft"
_VALUES = yaml.safe_load((_CHART / "values.yaml").read_text(encoding="utf-8"))
_RENDER = "import sys, go_template; go_template.render_template(*sys.argv[1:])"
Object = dict[str, Any]


def rendered(folder: Path, values: Object, namespace: str = "weft-system") -> list[Object]:
    """Return the objects of the chart; in a process of its own, because Go brings its own runtime."""
    given, out = folder / "values.yaml", folder / "out.yaml"
    given.write_text(yaml.safe_dump({"Values": values, "Release": {"Namespace": namespace, "Name": "weft"}}))
    found: list[Object] = []
    for path in sorted((_CHART / "templates").iterdir()):
        out.unlink(missing_ok=True)
        command = [sys.executable, "-c", _RENDER, str(path), str(given), str(out)]
        subprocess.run(command, check=True, capture_output=True, timeout=60)
        text = out.read_text(encoding="utf-8")
        assert "<no value>" not in text, f"{path.name} names a value that is not there"
        found += [one for one in yaml.safe_load_all(text) if one]
    return found


def _kustomized(folder: str) -> list[Object]:
    """Return the objects of a kustomization: its files, with the images that it names."""
    root = _DEPLOY / folder
    said = yaml.safe_load((root / "kustomization.yaml").read_text(encoding="utf-8"))
    tags = {one["name"]: f"{one['name']}:{one['newTag']}" for one in said.get("images") or ()}
    found = [one for name in said["resources"] for one in yaml.safe_load_all((root / name).read_text(encoding="utf-8"))]
    for one in found:
        for container in _containers(one):
            container["image"] = tags.get(container["image"], container["image"])
    return found


def _containers(item: Object) -> list[Object]:
    return ((item.get("spec") or {}).get("template") or {}).get("spec", {}).get("containers", [])


def _named(items: list[Object]) -> dict[tuple[str, str], Object]:
    found = {(one["kind"], one["metadata"]["name"]): one for one in items}
    assert len(found) == len(items), "every object stands once"
    return found


def _with(**given: Any) -> Object:
    values = deepcopy(_VALUES)
    for path, value in given.items():
        *tables, last = path.split("__")
        at = values
        for table in tables:
            at = at[table]
        assert last in at, f"{path} is a value of the chart"
        at[last] = value
    return values


def test_the_chart_holds_what_the_kustomization_holds(tmp_path: Path) -> None:
    theirs = _named(_kustomized("kubernetes"))
    # Helm makes the namespace itself, and takes what is in `crds` as it is.
    ours = _named(rendered(tmp_path, _VALUES) + list(yaml.safe_load_all((_CHART / "crds/kinds.yaml").read_text())))
    del theirs["Namespace", "weft-system"]
    assert ours == theirs


def test_with_admission_it_holds_the_policies_too(tmp_path: Path) -> None:
    both = _named(_kustomized("kubernetes") + _kustomized("admission"))
    ours = _named(rendered(tmp_path, _with(admission__enabled=True)))
    assert set(both) - set(ours) == {
        ("Namespace", "weft-system"), *(key for key in both if key[0] == "CustomResourceDefinition"),
    }  # fmt: skip
    assert {key: both[key] for key in ours} == ours


@pytest.mark.parametrize(
    "given",
    [
        {"image": "registry.example/weft:2", "engine__replicas": 3, "tickets__url": "https://t.example", "pool": "gpu"},
        {"tickets__claim": "tickets", "agent__resetCommand": 'nvidia-smi --gpu-reset -i {gpu} "x"'},
        {"agent__enabled": False, "workloads__enabled": False},
    ],
)
def test_every_value_does_what_it_says(tmp_path: Path, given: Object) -> None:
    objects = _named(rendered(tmp_path, _with(**given), "elsewhere"))
    assert {one["metadata"].get("namespace", "elsewhere") for one in objects.values()} == {"elsewhere"}
    assert "weft-system" not in yaml.safe_dump(list(objects.values()))
    assert (("DaemonSet", "weft-agent") in objects) == given.get("agent__enabled", True)
    assert (("ClusterRole", "weft-workloads") in objects) == given.get("workloads__enabled", True)
    engine = objects["Deployment", "weft-engine"]["spec"]
    assert engine["replicas"] == given.get("engine__replicas", 2)
    (container,) = engine["template"]["spec"]["containers"]
    assert container["image"] == given.get("image", "weft:latest")
    variables = {one["name"]: one.get("value") for one in container["env"]}
    assert variables["WEFT_IMAGE"] == container["image"]
    assert variables["WEFT_TICKETS_URL"] == given.get("tickets__url", "")
    assert ("--pool=gpu" in container["command"]) == ("pool" in given)
    (volume,) = engine["template"]["spec"]["volumes"]
    assert ("persistentVolumeClaim" in volume) == ("tickets__claim" in given)
    if "agent__resetCommand" in given:
        (agent,) = objects["DaemonSet", "weft-agent"]["spec"]["template"]["spec"]["containers"]
        assert f"--reset-command={given['agent__resetCommand']}" in agent["command"]


def test_every_value_is_used_and_every_use_is_a_value() -> None:
    used = set()
    for path in (_CHART / "templates").iterdir():
        used |= set(re.findall(r"\.Values\.([A-Za-z.]+)", path.read_text(encoding="utf-8")))
    assert used == set(_leaves(_VALUES))


def _leaves(values: Object, before: str = "") -> Iterator[str]:
    for name, value in values.items():
        if isinstance(value, dict):
            yield from _leaves(value, f"{before}{name}.")
        else:
            yield f"{before}{name}"


def test_the_chart_describes_itself_as_helm_asks() -> None:
    said = yaml.safe_load((_CHART / "Chart.yaml").read_text(encoding="utf-8"))
    assert said["apiVersion"] == "v2"
    assert re.fullmatch(r"\d+\.\d+\.\d+", said["version"])
    assert {"name", "description", "type", "appVersion", "kubeVersion"} <= set(said)
    assert said["name"] == _CHART.name
