from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kubeflow_trainer_api import models
from tests.engines.kubernetes.workloads import KIND_NAMES, RUNTIME, template, workload

from weft.engines.kubernetes.api.resources import EACH_LABEL, FIRST_LABEL, GATE
from weft.engines.kubernetes.api.workload_kinds import (
    KINDS,
    PlacementMark,
    WantedPlaces,
    gang_shape,
    is_prepared,
    prepared,
    wanted_places,
)
from weft.testing.api_store import merged

_RUNTIMES = {"torch-distributed": RUNTIME}


def _item(kind: str, spec: dict[str, Any]) -> dict[str, Any]:
    return {"metadata": {"name": "one", "namespace": "default", "resourceVersion": "1"}, "spec": spec}


@pytest.mark.parametrize("kind", KIND_NAMES)
@given(pods=st.integers(1, 40), gpus=st.sampled_from([1, 4, 8]))
def test_the_gang_is_what_the_pods_ask_for(kind: str, pods: int, gpus: int) -> None:
    shape = gang_shape(KINDS[kind], _item(kind, workload(kind, pods, gpus)), _RUNTIMES)
    assert (shape.nodes, shape.gpus) == (pods, gpus)


@pytest.mark.parametrize("kind", KIND_NAMES)
def test_to_prepare_twice_is_to_prepare_once_and_keeps_what_others_wrote(kind: str) -> None:
    spec = workload(kind, 4)
    if kind == "TrainJob":
        spec["podTemplateOverrides"] = [{"targetJobs": [{"name": "node"}], "spec": {"serviceAccountName": "theirs"}}]
        spec["runtimePatches"] = [{"manager": "theirs"}]
    item, kept = _item(kind, spec), KINDS[kind]
    once = merged(item, prepared(item, gang_shape(kept, item, _RUNTIMES), PlacementMark("job-one", "uid", 1)))
    again = merged(once, prepared(once, gang_shape(kept, once, _RUNTIMES), PlacementMark("job-one", "uid", 1)))
    assert again == once
    other = merged(once, prepared(once, gang_shape(kept, once, _RUNTIMES), PlacementMark("job-one", "uid", 2)))
    assert str(other).count(GATE) == str(once).count(GATE)
    assert is_prepared(once)
    assert not is_prepared(item)
    if kind == "TrainJob":
        assert once["spec"]["podTemplateOverrides"][0] == spec["podTemplateOverrides"][0]
        assert once["spec"]["runtimePatches"][0] == {"manager": "theirs"}
        for field in ("podTemplateOverrides", "runtimePatches"):
            # A server that knows one of the two drops the other.
            kept_by_one = {**once, "spec": {name: value for name, value in once["spec"].items() if name != field}}
            assert is_prepared(kept_by_one)


def test_tolerations_of_a_runtime_stay() -> None:
    item = _item("TrainJob", workload("TrainJob", 2))
    shape = gang_shape(KINDS["TrainJob"], item, _RUNTIMES)
    (override,) = prepared(item, shape, PlacementMark("j", "u", 1))["spec"]["podTemplateOverrides"]
    assert override["spec"]["tolerations"][0] == {"key": "theirs", "operator": "Exists"}


@pytest.mark.parametrize(
    ("kind", "labels", "notes", "wanted"),
    [
        ("Job", {}, {"batch.kubernetes.io/job-completion-index": "2"}, WantedPlaces(4, 8, 6)),
        ("a Job of more completions than places", {}, {"batch.kubernetes.io/job-completion-index": "4"},
         WantedPlaces(4, 8, -1)),
        ("a Job without indexes", {}, {}, WantedPlaces(4, 8, -1)),
        ("JobSet", {"jobset.sigs.k8s.io/job-index": "2"}, {"batch.kubernetes.io/job-completion-index": "1"},
         WantedPlaces(12, 16, 13)),
        ("PyTorchJob", {"training.kubeflow.org/replica-index": "3"}, {}, WantedPlaces(4, 8, 7)),
    ],
)  # fmt: skip
def test_a_pod_stands_where_its_index_says(
    kind: str, labels: dict[str, str], notes: dict[str, str], wanted: WantedPlaces
) -> None:
    assert wanted_places({"labels": {FIRST_LABEL: "4", EACH_LABEL: "4", **labels}, "annotations": notes}) == wanted, (
        kind
    )


def test_a_pod_of_ours_is_no_pod_of_a_workload() -> None:
    assert wanted_places({"labels": {"app": "x"}}) is None


def test_a_job_that_asks_for_requests_alone_is_read_by_them() -> None:
    spec = {**workload("Job", 2), "template": template(0)}
    spec["template"]["spec"]["containers"][0]["resources"] = {"requests": {"nvidia.com/gpu": "2"}}
    assert gang_shape(KINDS["Job"], _item("Job", spec), {}).gpus == 2


def test_the_projects_own_schemas_keep_what_is_written() -> None:
    for kind, model in (("TrainJob", models.TrainerV1alpha1TrainJobSpec), ("JobSet", models.JobsetV1alpha2JobSetSpec)):
        item = _item(kind, workload(kind, 4))
        mark = PlacementMark("job-one", "uid", 1)
        written = merged(item, prepared(item, gang_shape(KINDS[kind], item, _RUNTIMES), mark))
        kept = model.from_dict(written["spec"])
        assert kept is not None
        assert is_prepared({"spec": kept.to_dict()}), kind
