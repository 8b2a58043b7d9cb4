from dataclasses import replace
from typing import Any

import pytest
from tests.cluster.worlds import nodes_of

from weft.cluster.records.job import Gang, Job, JobState, Placement
from weft.cluster.scheduling.pool import Pool
from weft.engines.kubernetes.controller.claims import crowded, evicted, full, given_up, let_go
from weft.engines.kubernetes.controller.gangs import PodCounts
from weft.engines.kubernetes.controller.ledger import restore
from weft.engines.kubernetes.controller.observed import ObservedPod, Placed, observe_job, observe_pod

_RUNS = Job("s/a", Gang(3, 4), 0, state=JobState.RUNNING, placement=Placement((0, 1, 2), 4), start_ms=0)


def _count(**more: Any) -> PodCounts:
    return replace(PodCounts(3, 3, 0, 0, (), 3), **more)


@pytest.mark.parametrize(
    ("state", "count", "after"),
    [
        (JobState.RUNNING, _count(succeeded=3, left=0), JobState.DONE),
        (JobState.STARTING, _count(succeeded=2, left=1), None),
        (JobState.RUNNING, _count(left=0), None),
        (JobState.ASKED, _count(left=0), JobState.WAITING),
        (JobState.STOPPING, _count(left=1), None),
    ],
)
def test_only_pods_that_have_ended_show_that_a_job_has_let_go(
    state: JobState, count: PodCounts, after: JobState | None
):
    found = let_go(replace(_RUNS, state=state), count, 10)
    assert (None if found is None else found.state) == after


def test_a_gang_that_shrinks_is_waited_for_and_one_that_moves_is_not():
    meta = {
        "namespace": "s",
        "name": "a",
        "uid": "u",
        "resourceVersion": "1",
        "creationTimestamp": "2026-01-01T00:00:00Z",
    }
    status = {"record": {"state": "running", "start_ms": 0}, "placement": Placed(("x", "y", "z"), 4).as_json()}
    item = {"metadata": meta, "spec": {"nodes": 3, "command": ["true"], "gpusPerNode": 4}, "status": status}
    entry = restore(observe_job(item), {"x": 0, "y": 1, "z": 2})
    assert given_up([entry]) == set()
    entry.placed = Placed(("x", "y"), 4)
    assert given_up([entry]) == {"z"}
    entry.placed = Placed(("x", "w"), 4)
    assert given_up([entry]) == set()


def test_who_finds_others_on_its_nodes_leaves_and_holds_only_the_rest():
    pool = Pool(nodes_of(4, 4, odd=False))
    pool._shift(pool.by_place[:1], 4)
    lost = crowded(pool, (0, 1, 2), 4)
    assert lost == {0}
    after = evicted(_RUNS, lost, 10)
    assert after.placement is not None
    assert (after.state, after.ending, after.placement.nodes) == (JobState.STOPPING, "requeue", (1, 2))
    assert crowded(pool, (1, 2), 4) == set()


def test_a_pod_waits_for_the_gpus_of_one_that_leaves_and_for_no_others():
    def pod(name: str, gpus: int, phase: str = "Running") -> ObservedPod:
        limits = {"resources": {"limits": {"nvidia.com/gpu": str(gpus)}}}
        meta = {"namespace": "s", "name": name, "uid": name, "labels": {}}
        return observe_pod({"metadata": meta, "spec": {"containers": [limits]}, "status": {"phase": phase}})

    there = [pod("old", 4), pod("over", 8, "Succeeded")]
    assert full(there, "new", 5, 8)
    assert not full(there, "new", 4, 8)
    assert not full(there, "old", 8, 8)
