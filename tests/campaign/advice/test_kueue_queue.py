"""Kueue's objects are answered as `cluster.decide` would decide about the same queue: quotas, flavors, pods."""

import contextlib
import copy
import random
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.campaign.advice.queues import BEGIN_S, Scene, Wish, scenes, slurm

from weft.campaign.advice.foreign_queue import UnreadableQueueError, advise, snapshot_for
from weft.campaign.advice.kueue_queue import kueue_queue
from weft.campaign.advice.slurm_queue import slurm_queue
from weft.campaign.advice.what_if import changed
from weft.cluster.invariants import broken
from weft.core.errors import UsageError


def at(seconds: int) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def pod_spec(gpus: int) -> dict[str, Any]:
    quantities = {"cpu": "8", "memory": "64Gi", "nvidia.com/gpu": str(gpus)}
    return {"containers": [{"name": "main", "resources": {"requests": quantities, "limits": quantities}}]}


def cluster_queue(name: str, quota: int, cohort: str = "", limit: int | None = None) -> dict[str, Any]:
    resource: dict[str, Any] = {"name": "nvidia.com/gpu", "nominalQuota": quota}
    if limit is not None:
        resource["borrowingLimit"] = str(limit)
    groups = [{"coveredResources": ["cpu"], "flavors": [{"name": "any", "resources": [
        {"name": "cpu", "nominalQuota": "1k"}]}]},
        {"coveredResources": ["nvidia.com/gpu"], "flavors": [{"name": "h100", "resources": [resource]}]}]  # fmt: skip
    spec = {"queueingStrategy": "BestEffortFIFO", "resourceGroups": groups}
    return {"kind": "ClusterQueue", "metadata": {"name": name}, "spec": spec | ({"cohort": cohort} if cohort else {})}


def workload(wish: Wish, queue: str = "team") -> dict[str, Any]:
    pods = [{"name": "launcher", "count": 1, "template": {"spec": {"containers": [{"name": "l"}]}}},
            {"name": "worker", "count": wish.nodes, "template": {"spec": pod_spec(wish.gpus)}}]  # fmt: skip
    spec = {"queueName": f"{queue}-local", "priority": wish.priority, "active": True, "podSets": pods}
    if wish.limit_min is not None:
        spec["maximumExecutionTimeSeconds"] = wish.limit_min * 60
    status: dict[str, Any] = {
        "conditions": [
            {
                "type": "QuotaReserved",
                "status": "False",
                "reason": "Pending",
                "message": "couldn't assign flavors",
                "lastTransitionTime": at(BEGIN_S),
            }
        ]
    }
    if wish.places:
        sets = [{"name": "worker", "count": wish.nodes, "flavors": {"cpu": "any", "nvidia.com/gpu": "h100"}}]
        status = {"admission": {"clusterQueue": queue, "podSetAssignments": sets}, "conditions": [
            {"type": kind, "status": "True", "lastTransitionTime": at(BEGIN_S + 5000)}
            for kind in ("QuotaReserved", "Admitted")]}  # fmt: skip
    meta = {"name": f"job-{wish.number}", "namespace": "ml", "creationTimestamp": at(wish.submit_s)}
    return {
        "apiVersion": "kueue.x-k8s.io/v1beta1",
        "kind": "Workload",
        "metadata": meta,
        "spec": spec,
        "status": status,
    }


def objects(scene: Scene, quota: int = 10**6) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = [
        cluster_queue("team", quota),
        {"kind": "LocalQueue", "metadata": {"name": "team-local", "namespace": "ml"}, "spec": {"clusterQueue": "team"}},
        {"kind": "ResourceFlavor", "metadata": {"name": "h100"}, "spec": {"nodeLabels": {"gpu": "h100"}}},
    ]
    for number in range(scene.nodes):
        ready = "Unknown" if number in scene.out else "True"
        found.append({"kind": "Node", "metadata": {"name": f"gpu{number:03}", "labels": {"gpu": "h100", "x": "y"}},
                      "spec": {}, "status": {"allocatable": {"cpu": "96", "nvidia.com/gpu": str(scene.gpus)},
                                             "conditions": [{"type": "Ready", "status": ready}]}})  # fmt: skip
    for wish in scene.jobs:
        found.append(workload(wish))
        found += [
            {"kind": "Pod", "metadata": {"name": f"job-{wish.number}-{place}", "namespace": "ml", "annotations": {
                "kueue.x-k8s.io/workload": f"job-{wish.number}"}}, "status": {"phase": "Running"},
             "spec": pod_spec(wish.gpus) | {"nodeName": f"gpu{place:03}"}} for place in wish.places
        ]  # fmt: skip
    return found


@settings(max_examples=50, deadline=None)
@given(scenes(), st.integers(0, 99), st.booleans())
def test_kueue_and_slurm_say_the_same_of_the_same_queue(scene: Scene, seed: int, split: bool):
    # One pod fills a node here, so that pods and nodes are the same question.
    scene = Scene(scene.nodes, scene.gpus, scene.out, tuple(
        Wish(each.number, each.nodes, scene.gpus, each.priority, each.submit_s, each.limit_min, each.places)
        for each in scene.jobs if not each.places or each.gpus == scene.gpus))  # fmt: skip
    if not scene.jobs:
        return
    found = objects(scene)
    random.Random(seed).shuffle(found)
    half = len(found) // 2 if split else 0
    kueue = kueue_queue([{"kind": "List", "items": part} for part in (found[:half], found[half:])])
    same = slurm_queue(slurm(scene))
    for wish in scene.jobs:
        one, other = advise(kueue, f"job-{wish.number}"), advise(same, str(wish.number))
        assert not broken(snapshot_for(kueue, kueue.job(f"job-{wish.number}")))
        assert (one.why.code, one.why.state, one.why.position) == (other.why.code, other.why.state, other.why.position)
        assert (one.nodes, one.gpus, one.free_gpus) == (other.nodes, other.gpus, other.free_gpus)


FULL = Scene(2, 8, frozenset(), (Wish(1, 1, 8, 0, BEGIN_S, None, (0,)), Wish(2, 1, 8, 0, BEGIN_S + 9, None)))


def test_a_quota_is_what_blocks_and_a_larger_one_is_what_helps():
    queue = kueue_queue([{"kind": "List", "items": objects(FULL, quota=8)}])
    found = advise(queue, "ml/job-2")
    assert found.why.code == "quota"
    assert "team has 8 of 8" in found.why.text
    assert advise(changed(queue, "quota=team:16"), "job-2").why.code == ""
    assert advise(changed(queue, "cancel=job-1"), "job-2").why.code == ""
    assert advise(changed(queue, "nodes=+5"), "job-2").why.code == "quota"


@pytest.mark.parametrize(("cohort", "limit", "code"), [("", None, "quota"), ("all", None, ""), ("all", 4, "quota"),
                                                       ("all", 8, "")])  # fmt: skip
@pytest.mark.parametrize("key", ["cohort", "cohortName"])
def test_a_cohort_lends_what_others_do_not_use_up_to_the_borrowing_limit(
    cohort: str, limit: int | None, code: str, key: str
):
    found = [each for each in objects(FULL) if each["kind"] != "ClusterQueue"]
    found += [cluster_queue("team", 8, cohort, limit), cluster_queue("other", 8, cohort)]
    for each in found:
        if "cohort" in each["spec"]:
            each["spec"][key] = each["spec"].pop("cohort")
    assert advise(kueue_queue([{"kind": "List", "items": found}]), "job-2").why.code == code


def test_a_flavor_confines_a_workload_to_its_nodes():
    found = objects(FULL)
    next(each for each in found if each["kind"] == "Node" and each["metadata"]["name"] == "gpu001")["metadata"][
        "labels"] = {"gpu": "a100"}  # fmt: skip
    answer = advise(kueue_queue([{"kind": "List", "items": found}]), "job-2")
    assert (answer.nodes, answer.why.code) == (1, "nodes")


def test_pods_that_belong_to_no_workload_hold_gpus_too():
    other = {"kind": "Pod", "metadata": {"name": "notebook", "namespace": "ml"}, "spec": pod_spec(1) | {
        "nodeName": "gpu001"}, "status": {"phase": "Running"}}  # fmt: skip
    answer = advise(kueue_queue([{"kind": "List", "items": [*objects(FULL), other]}]), "job-2")
    assert answer.free_gpus == 7
    assert answer.why.code == "nodes"


def test_without_nodes_quotas_stand_for_them():
    found = [each for each in objects(FULL, quota=16) if each["kind"] not in ("Node", "Pod")]
    queue = kueue_queue([{"kind": "List", "items": found}])
    assert advise(queue, "job-2").why.code == ""
    assert "nodes: none are named, quotas stand for them" in queue.left_out


@pytest.mark.parametrize(
    ("change", "said"), [({"active": False}, "deactivated"), ({"queueName": "gone"}, "no ClusterQueue")]
)
def test_what_kueue_holds_it_for_is_said(change: dict[str, Any], said: str):
    found = objects(FULL)
    next(each for each in found if each["metadata"]["name"] == "job-2")["spec"] |= change
    answer = advise(kueue_queue([{"kind": "List", "items": found}]), "job-2").why
    assert answer.code == "held"
    assert said in answer.text


@settings(max_examples=80, deadline=None)
@given(st.data())
def test_any_field_may_be_anything_and_the_answer_is_a_sentence(data: st.DataObject):
    found = copy.deepcopy(objects(FULL))
    odd = st.sampled_from([None, -1, 2**62, "x", [], {}, [3], {"name": 3}, True, "8", 8])
    place: Any = data.draw(st.sampled_from(found))
    for _ in range(data.draw(st.integers(0, 5))):
        inner = [value for value in (place.values() if isinstance(place, dict) else place) if value and
                 type(value) in (dict, list)]  # fmt: skip
        if not inner:
            break
        place = data.draw(st.sampled_from(inner))
    key = data.draw(st.sampled_from(sorted(place) if isinstance(place, dict) else list(range(len(place)))))
    place[key] = data.draw(odd)
    with contextlib.suppress(UnreadableQueueError, UsageError):
        queue = kueue_queue([{"kind": "List", "items": found}])
        for job in queue.jobs:
            assert advise(queue, job.name).why.text
