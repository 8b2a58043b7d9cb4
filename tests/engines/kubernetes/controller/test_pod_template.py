"""The pods of a job: what it asks for is in them, what weft decides is not changed by it."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weft.core.errors import SpecError
from weft.core.specfile import validate
from weft.engines.kubernetes.api.crds import JobBody
from weft.engines.kubernetes.api.resources import GPU
from weft.engines.kubernetes.controller.observed import Owner, Placed
from weft.engines.kubernetes.controller.pod_template import WORK, PodContext, pod

STOCK = {"image": "pytorch/pytorch:2.9", "command": ["torchrun", "train.py"]}
FOLDER = {"folder": {"configMap": "c", "digest": "0" * 16}}


def made(nodes: int = 2, gpus: int = 8, **spec: Any) -> dict[str, Any]:
    body = validate({"nodes": nodes, "gpusPerNode": gpus, "command": ["true"], **spec}, JobBody, "job")
    placed = Placed(tuple(f"n{at}" for at in range(nodes)), gpus)
    around = PodContext({"n0": "10.0.0.1"}, image="registry/weft:1")
    return pod(Owner("space", "job", "uid"), body, placed, nodes - 1, around)


def job_container(item: dict[str, Any]) -> dict[str, Any]:
    return next(one for one in item["spec"]["containers"] if one["name"] == "job")


def test_a_stock_image_runs_its_command_unchanged_and_torchrun_finds_its_gang() -> None:
    item = made(3, 4, **STOCK)
    container = job_container(item)
    assert container["command"] == ["torchrun", "train.py"]
    assert "args" not in container
    told = {one["name"]: one["value"] for one in container["env"]}
    assert {"PET_NNODES": "3", "PET_NODE_RANK": "2", "PET_NPROC_PER_NODE": "4", "PET_MASTER_ADDR": "10.0.0.1",
            "PET_MASTER_PORT": told["MASTER_PORT"], "MASTER_ADDR": "10.0.0.1"}.items() <= told.items()  # fmt: skip
    assert item["spec"]["securityContext"] == {}, "which user an image runs as is its own business"
    assert "initContainers" not in item["spec"]


def test_a_folder_comes_into_a_stock_image_by_an_init_container() -> None:
    item = made(**STOCK, **FOLDER)
    (unpacker,) = item["spec"]["initContainers"]
    assert unpacker["image"] == "registry/weft:1"
    assert job_container(item)["workingDir"] == WORK
    shared = {one["mountPath"] for one in unpacker["volumeMounts"]} & {
        one["mountPath"] for one in job_container(item)["volumeMounts"]
    }
    assert WORK in shared


def test_no_user_is_forced_upon_weft_images_either() -> None:
    assert "runAsUser" not in made()["spec"]["securityContext"]
    item = made(template={"spec": {"securityContext": {"runAsUser": 1000, "fsGroup": 7}}})
    assert item["spec"]["securityContext"] == {"runAsNonRoot": True, "runAsUser": 1000, "fsGroup": 7}


def test_shared_memory_rdma_and_requests_are_in_the_pod() -> None:
    item = made(shm="64Gi", rdma="rdma/hca", requests={"cpu": "32"}, limits={"memory": "1Ti", "vendor.com/nic": "2"})
    container = job_container(item)
    assert container["resources"] == {
        "requests": {"cpu": "32", "vendor.com/nic": "2", GPU: "8", "rdma/hca": "1"},
        "limits": {"memory": "1Ti", "vendor.com/nic": "2", GPU: "8", "rdma/hca": "1"},
    }
    assert container["securityContext"]["capabilities"]["add"] == ["IPC_LOCK"]
    assert {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": "64Gi"}} in item["spec"]["volumes"]


def test_a_template_is_laid_over_the_pod() -> None:
    template = {
        "metadata": {"labels": {"a": "b"}, "annotations": {"c": "d"}},
        "spec": {
            "tolerations": [{"key": "x", "operator": "Exists"}], "imagePullSecrets": [{"name": "pull"}],
            "nodeSelector": {"cluster.weft/pool": "weft"}, "serviceAccountName": "sa",
            "resourceClaims": [{"name": "domain", "resourceClaimTemplateName": "compute-domain"}],
            "volumes": [{"name": "scratch", "emptyDir": {}}],
            "containers": [
                {"name": "job", "envFrom": [{"secretRef": {"name": "keys"}}],
                 "env": [{"name": "TOKEN", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}}],
                 "resources": {"claims": [{"name": "domain"}], "limits": {"memory": "1Gi"}},
                 "volumeMounts": [{"name": "scratch", "mountPath": "/scratch"}]},
                {"name": "sidecar", "image": "busybox"},
            ],
        },
    }  # fmt: skip
    plain, item = made(shm="1Gi"), made(shm="1Gi", template=template)
    container = job_container(item)
    assert container["command"] == job_container(plain)["command"]
    assert container["resources"]["limits"] == {GPU: "8", "memory": "1Gi"}
    assert container["resources"]["claims"] == [{"name": "domain"}]
    names = [one["name"] for one in container["env"]]
    assert names == [*(one["name"] for one in job_container(plain)["env"]), "TOKEN"]
    assert [one["mountPath"] for one in container["volumeMounts"]][-1] == "/scratch"
    spec = item["spec"]
    assert [one["name"] for one in spec["containers"]] == ["job", "sidecar"]
    assert spec["tolerations"] == [*plain["spec"]["tolerations"], {"key": "x", "operator": "Exists"}]
    assert spec["resourceClaims"] == template["spec"]["resourceClaims"]
    assert (spec["nodeName"], spec["schedulerName"], spec["restartPolicy"]) == ("n1", "weft", "Never")
    assert item["metadata"]["labels"] == {"a": "b", **plain["metadata"]["labels"]}
    assert item["metadata"]["annotations"] == {"c": "d"}


@pytest.mark.parametrize(
    ("template", "words"),
    [
        ({"spec": {"nodeName": "n"}}, "weft places its pods"),
        ({"spec": {"affinity": {}}}, "weft places its pods"),
        ({"spec": {"restartPolicy": "Always"}}, "write restarts"),
        ({"spec": {"contianers": []}}, "spec.contianers: no field"),
        ({"spec": {"containers": [{"image": "x"}]}}, "each have a name"),
        ({"spec": {"containers": [{"name": "a"}, {"name": "a"}]}}, "a stands twice"),
        ({"spec": {"containers": [{"name": "job", "image": "x"}]}}, "write image of the job"),
        ({"spec": {"containers": [{"name": "s", "resources": {"limits": {GPU: "1"}}}]}}, "asked for by gpusPerNode"),
        ({"metadata": {"labels": {"cluster.weft/job": "x"}}}, "weft's own"),
        ({"metadata": {"name": "x"}}, "labels and annotations"),
        ({"kind": "Pod"}, "metadata and spec, not kind"),
    ],
)
def test_what_weft_decides_is_refused_with_the_reason(template: dict[str, Any], words: str) -> None:
    with pytest.raises(SpecError, match=words):
        made(template=template)


_TABLES = st.dictionaries(st.sampled_from(["a", "b", "c"]), st.text(max_size=3), max_size=3)


@given(labels=_TABLES, selector=_TABLES, mounts=st.lists(st.sampled_from(["/x", "/y", "/dev/shm"]), unique=True))
def test_a_template_takes_nothing_away(labels: dict[str, str], selector: dict[str, str], mounts: list[str]) -> None:
    template = {
        "metadata": {"labels": labels},
        "spec": {
            "nodeSelector": selector,
            "containers": [{"name": "job", "volumeMounts": [{"name": "v", "mountPath": path} for path in mounts]}],
        },
    }
    plain, item = made(shm="1Gi"), made(shm="1Gi", template=template)
    assert item["metadata"]["labels"].items() >= plain["metadata"]["labels"].items()
    assert {one["mountPath"] for one in job_container(item)["volumeMounts"]} == {"/dev/shm", *mounts}
    for name in ("nodeName", "schedulerName", "restartPolicy", "hostNetwork", "tolerations"):
        assert item["spec"][name] == plain["spec"][name]
