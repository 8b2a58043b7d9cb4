"""Workloads in the shapes of their projects' examples run; what is malformed is a sentence, and no more."""

from collections.abc import Iterator
from copy import deepcopy
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tests.engines.kubernetes.fake_cluster import play, until
from tests.engines.kubernetes.stage import running
from tests.engines.kubernetes.workloads import KIND_NAMES, RUNTIME, WorkloadCluster, batch_job, template, workload

from weft.engines.kubernetes.api.workload_kinds import (
    KINDS,
    PlacementMark,
    WorkloadProblemError,
    gang_shape,
    prepared,
)

_SEQUENCE = [
    {"name": "leader", "template": {"spec": batch_job(1, 8)}},
    {"name": "workers", "replicas": 1, "template": {"spec": batch_job(3, 8)}},
]


def _jobset(groups: Any = _SEQUENCE, **more: Any) -> dict[str, Any]:
    return {"replicatedJobs": deepcopy(groups), **more}


def _pytorch(workers: int, gpus: int = 8, *, master: bool = False, **more: Any) -> dict[str, Any]:
    replicas = {"Worker": {"replicas": workers, "restartPolicy": "OnFailure", "template": template(gpus)}}
    if master:
        replicas["Master"] = {"replicas": 1, "restartPolicy": "OnFailure", "template": template(gpus)}
    return {"pytorchReplicaSpecs": replicas, **more}


STOCK: dict[str, tuple[str, dict[str, Any], int, int]] = {
    # training-operator: examples/pytorch, elastic ones without metrics and those with a master.
    "elastic": ("PyTorchJob", _pytorch(3, elasticPolicy={"rdzvBackend": "c10d", "minReplicas": 1, "maxReplicas": 3,
                                                         "maxRestarts": 100}), 3, 8),
    "per-node": ("PyTorchJob", _pytorch(3, 4, master=True, nprocPerNode="4"), 4, 4),
    "master-alone": ("PyTorchJob", {"pytorchReplicaSpecs": {"Master": {"replicas": 1, "template": template(1)}}}, 1, 1),
    # jobset: site/static/examples.
    "gpu-training": ("JobSet", _jobset(
        [{"name": "workers", "template": {"spec": {"parallelism": 2, "completions": 2, "backoffLimit": 0,
                                                   "template": template(2)}}}],
        network={"enableDNSHostnames": True}, failurePolicy={"maxRestarts": 1, "rules": [{"action": "RestartJobSet"}]},
    ), 2, 2),
    "success-policy": ("JobSet", _jobset(successPolicy={"operator": "All", "targetReplicatedJobs": ["workers"]}), 4, 8),
    "in-order": ("JobSet", _jobset(startupPolicy={"startupPolicyOrder": "InOrder"}), 4, 8),
    "depends-on-ready": ("JobSet", _jobset(
        [_SEQUENCE[0], {**_SEQUENCE[1], "dependsOn": [{"name": "leader", "status": "Ready"}]}]), 4, 8),
    "depends-on-complete": ("JobSet", _jobset(
        [{"name": "data", "template": {"spec": batch_job(1, 0)}},
         {**_SEQUENCE[1], "dependsOn": [{"name": "data", "status": "Complete"}]}]), 3, 8),
    "coordinator": ("JobSet", _jobset(coordinator={"replicatedJob": "leader", "jobIndex": 0, "podIndex": 0}), 4, 8),
    "no-replica": ("JobSet", _jobset(
        [*_SEQUENCE, {"name": "none", "replicas": 0, "template": {"spec": batch_job(2)}}]), 4, 8),
    # batch/v1, and what trainer's runtimes say by themselves.
    "one-pod": ("Job", {"template": template(8)}, 1, 8),
    "half-at-once": ("Job", {**batch_job(4), "parallelism": 2}, 2, 8),
    "requests-alone": ("Job", {"template": {"spec": {"containers": [
        {"name": "a", "resources": {"requests": {"nvidia.com/gpu": 8}, "limits": {"nvidia.com/gpu": 8}}}]}}}, 1, 8),
    "runtime-decides": ("TrainJob", {"runtimeRef": {"name": "torch-distributed", "kind": "ClusterTrainingRuntime"},
                                     "trainer": {"resourcesPerNode": {"limits": {"nvidia.com/gpu": 8}}}}, 1, 8),
}  # fmt: skip


@pytest.mark.parametrize("name", STOCK)
def test_an_example_runs_whole_survives_a_lost_node_and_ends(name: str) -> None:
    kind, spec, pods, gpus = STOCK[name]
    shape = gang_shape(KINDS[kind], _item(kind, spec), {"torch-distributed": RUNTIME})
    assert (shape.nodes, shape.gpus) == (pods, gpus)

    async def life() -> None:
        cluster = WorkloadCluster(pods + 1, start_s=0.5, run_s=120.0)
        async with cluster.controllers() as kubelets, running(cluster.witness()), cluster.engine():
            await cluster.hand_in(kind, "one", spec)
            await until(lambda: cluster.stands(kind, "one").get("state") == "running")
            lost = cluster.gang(kind, "one")[0]["spec"]["nodeName"]
            kubelets.silence([lost])
            await until(lambda: cluster.stands(kind, "one").get("attempt") == 2)
            await until(lambda: cluster.stands(kind, "one").get("state") == "running")
            assert lost not in {one["spec"]["nodeName"] for one in cluster.gang(kind, "one")}
            await until(lambda: cluster.ended(kind, "one") == "done")
            await until(lambda: cluster.stands(kind, "one").get("state") == "done")
        assert not cluster.wrong

    play(life)


_JUNK = (None, "x", "", -1, 0, [], {}, 1.5, True, [None], {"a": None}, "8Gi", 10**9, ["x"], [{}], "0.5")


def _item(kind: str, spec: Any) -> dict[str, Any]:
    meta = {"name": "one", "namespace": "default", "uid": "u", "resourceVersion": "1", "labels": {}}
    return {"apiVersion": KINDS[kind].resource.api_version, "kind": kind, "metadata": meta, "spec": spec}


def _paths(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    if path:
        yield path
    inside = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, each in inside:
        yield from _paths(each, (*path, key))


def _spoilt(whole: Any, data: st.DataObject) -> Any:
    """Return a copy in which one or two values are something else, or missing."""
    made = deepcopy(whole)
    for _ in range(data.draw(st.integers(1, 2))):
        if not (paths := list(_paths(made))):
            break
        *way, last = data.draw(st.sampled_from(paths))
        inner = made
        for key in way:
            inner = inner[key]
        if data.draw(st.booleans()) and isinstance(inner, dict):
            del inner[last]
        else:
            inner[last] = deepcopy(data.draw(st.sampled_from(_JUNK)))
    return made


@pytest.mark.parametrize("kind", KIND_NAMES)
@given(data=st.data())
def test_no_malformed_workload_is_more_than_a_sentence(kind: str, data: st.DataObject) -> None:
    spec, runtime = workload(kind, data.draw(st.sampled_from([1, 2, 4]))), deepcopy(RUNTIME)
    if kind == "TrainJob" and data.draw(st.booleans()):
        runtime = _spoilt(runtime, data)
    else:
        spec = _spoilt(spec, data)
    item = _item(kind, spec)
    try:
        shape = gang_shape(KINDS[kind], item, {"torch-distributed": runtime})
    except WorkloadProblemError:
        return
    assert 0 < shape.nodes <= 100_000
    assert 0 < shape.gpus <= 1024
    assert shape.grace_s >= 0
    assert prepared(item, shape, PlacementMark("j", "u", 1))["spec"]


@example(pods=-1)
@example(pods=True)
@example(pods="2")
@example(pods=10**9)
@given(pods=st.one_of(st.integers(max_value=-1), st.integers(min_value=100_001), st.text(), st.floats()))
def test_a_number_of_pods_that_is_none_is_told(pods: Any) -> None:
    item = _item("Job", {**batch_job(1), "parallelism": pods, "completions": pods})
    with pytest.raises(WorkloadProblemError):
        gang_shape(KINDS["Job"], item, {})
