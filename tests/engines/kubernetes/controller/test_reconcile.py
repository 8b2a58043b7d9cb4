"""One pass of the controller as a pure function: observations in, writes out."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weft.cluster.records.job import Job, JobState
from weft.cluster.records.node import NodeEvidence
from weft.engines.kubernetes.api.crds import JobBody, TeamBody
from weft.engines.kubernetes.api.resources import JOB_LABEL, RANK_LABEL
from weft.engines.kubernetes.controller.controller_state import (
    ClearPod,
    ControllerState,
    MarkNode,
    MovePod,
    Observation,
    RefuseJob,
    TellEvent,
    WriteStatus,
    WriteTeam,
)
from weft.engines.kubernetes.controller.gangs import Make, Remove
from weft.engines.kubernetes.controller.observed import (
    ObservedJob,
    ObservedNode,
    ObservedPod,
    ObservedTeam,
    PodReport,
    moving_part,
    observe_job,
    observe_node,
    observe_pod,
    record_of,
)
from weft.engines.kubernetes.controller.reconcile import load, reconcile
from weft.engines.kubernetes.controller.settings import Now, Settings

_NOW = Now(1_700_000_000_000, 1000.0)


def _node(name: str, *, ready: bool = True, gpus: int = 8) -> ObservedNode:
    return ObservedNode(name, f"uid-{name}", gpus, ready, "", "10.0.0.1", (), (), "1")


def _job(name: str, nodes: int = 1, version: str = "1", **more: Any) -> ObservedJob:
    body = JobBody.model_validate({"nodes": nodes, "command": ["true"], "team": "team", **more})
    return ObservedJob(
        "default", name, f"uid-{name}", version, 1, body, "", _NOW.ms, "", leaving=False, record={}, placed=None,
        status={},
    )  # fmt: skip


def _pod(job: str, name: str, node: str, phase: str = "Running", rank: int = 0) -> ObservedPod:
    return ObservedPod(
        "default", name, f"uid-{name}", f"uid-{job}", job, rank, 1, node, phase, leaving=False, code=None, reason="",
        gpus=8,
    )  # fmt: skip


class _World:
    """Caches that a test changes by hand, and a controller that looks at them."""

    def __init__(self, nodes: int = 3, **settings: Any) -> None:
        self.nodes = {f"n{number}": _node(f"n{number}") for number in range(nodes)}
        self.jobs: dict[str, ObservedJob] = {}
        self.pods: dict[str, ObservedPod] = {}
        self.teams = {"team": ObservedTeam("team", "1", TeamBody(quota=1000), "", {})}
        self.state = ControllerState(Settings(**settings))
        self.now = _NOW

    def look(self, **changed: Any) -> Observation:
        pods_of: dict[str, dict[str, ObservedPod]] = {}
        pods_on: dict[str, dict[str, ObservedPod]] = {}
        owners: dict[str, dict[str, int]] = {}
        for pod in self.pods.values():
            pods_of.setdefault(f"default/{pod.job}", {})[pod.name] = pod
            pods_on.setdefault(pod.node, {})[pod.uid] = pod
            held = owners.setdefault(f"default/{pod.job}", {})
            held[pod.owner] = held.get(pod.owner, 0) + 1
        changed_jobs = frozenset((*self.jobs, *pods_of, "default/gone"))
        return Observation(
            self.jobs, self.nodes, self.teams, {}, {}, pods_of, pods_on, owners, changed_jobs, frozenset(self.nodes),
            frozenset(self.teams), **changed,
        )  # fmt: skip

    def step(self, after_s: float = 1.0, **changed: Any) -> list[Any]:
        """Run one pass, some time later."""
        self.now = Now(self.now.ms + int(after_s * 1000), self.now.s + after_s)
        return reconcile(self.look(**changed), self.state, self.now)

    def accept(self, writes: list[Any]) -> None:
        """Do what a pass wants written, as a server that never fails."""
        for write in writes:
            match write:
                case WriteStatus():
                    entry = write.entry
                    status = {**entry.seen.status, **write.changed}
                    status.pop("record", None)
                    status.pop("placement", None)
                    version = str(int(entry.seen.version) + 1)
                    moving = moving_part(write.record)
                    entry.seen = replace(entry.seen, version=version, status=status, placed=entry.placed, record=moving)
                    entry.saved, entry.writing = write.record, False
                    self.jobs[entry.seen.id] = entry.seen
                case MovePod(entry=entry, step=Make() as step):
                    entry.busy.discard(step.pod)
                    self.pods[step.pod] = _pod(entry.seen.name, step.pod, step.node, rank=step.place)
                case MovePod(entry=entry, step=Remove() as step):
                    entry.busy.discard(step.pod)
                    self.pods.pop(step.pod, None)
                case ClearPod():
                    self.state.clearing.discard(write.pod.uid)
                    self.pods.pop(write.pod.name, None)
                case _:
                    pass

    def settle(self, passes: int = 10) -> list[Any]:
        """Run passes, each time doing what was asked; returns everything that was written."""
        every: list[Any] = []
        for _ in range(passes):
            writes = self.step()
            self.accept(writes)
            every += writes
        return every


def _kinds(writes: list[Any]) -> list[str]:
    return [type(one).__name__ for one in writes]


def test_the_first_pass_places_a_job_and_writes_only_its_status() -> None:
    world = _World()
    world.jobs["default/job"] = _job("job", 2)
    writes = world.step()
    assert [one for one in writes if isinstance(one, MovePod)] == []
    (status,) = [one for one in writes if isinstance(one, WriteStatus)]
    assert status.changed["state"] == "starting"
    assert len(status.changed["placement"]["nodes"]) == 2
    assert [one.reason for one in writes if isinstance(one, TellEvent)] == ["Placed"]


def test_nothing_more_is_written_while_a_status_is_on_its_way() -> None:
    world = _World()
    world.jobs["default/job"] = _job("job", 2)
    world.step()
    for _ in range(5):
        assert [one for one in world.step() if isinstance(one, WriteStatus | MovePod)] == []


def test_pods_are_made_once_the_status_is_written_and_once_only() -> None:
    world = _World()
    world.jobs["default/job"] = _job("job", 2)
    world.accept(world.step())
    first = [one for one in world.step() if isinstance(one, MovePod)]
    assert [one.step.pod for one in first] == ["job-1-0", "job-1-1"]
    assert [one for one in world.step() if isinstance(one, MovePod)] == [], "they are on their way"
    world.accept(first)
    world.settle()
    assert world.state.entries["default/job"].record.state is JobState.RUNNING


def test_a_settled_cluster_writes_nothing() -> None:
    world = _World()
    world.jobs["default/job"] = _job("job", 2)
    world.settle(20)
    for _ in range(20):
        writes = world.step()
        world.accept(writes)
        assert [one for one in _kinds(writes) if one not in ("WriteTeam", "WriteStatus")] == []


@given(st.lists(st.tuples(st.integers(1, 4), st.sampled_from([1, 2, 4, 8])), min_size=1, max_size=8))
def test_no_node_is_ever_given_more_than_it_has(asked: list[tuple[int, int]]) -> None:
    world = _World(4)
    for number, (nodes, gpus) in enumerate(asked):
        world.jobs[f"default/j{number}"] = _job(f"j{number}", nodes, gpusPerNode=gpus)
    world.settle(6)
    held = dict.fromkeys(world.nodes, 0)
    for entry in world.state.entries.values():
        for name in entry.placed.nodes if entry.placed else ():
            held[name] += entry.placed.gpus_per_node if entry.placed else 0
    assert max(held.values()) <= 8


@given(st.integers(0, 12))
def test_a_state_that_is_lost_at_any_pass_is_made_anew_from_what_is_written(passes: int) -> None:
    world = _World(3)
    for name, nodes in (("a", 2), ("b", 1), ("c", 3)):
        world.jobs[f"default/{name}"] = _job(name, nodes)
    world.settle(passes)
    placed = {name: seen.placed for name, seen in world.jobs.items() if seen.placed}
    world.state = ControllerState(Settings())
    writes = world.settle(12)
    made = [one.step.pod for one in writes if isinstance(one, MovePod) and isinstance(one.step, Make)]
    assert len(made) == len(set(made)), "no pod is made twice"
    for name, where in placed.items():
        assert world.state.entries[name].placed == where, "what was written stands"
    states = {name: entry.record.state for name, entry in world.state.entries.items()}
    assert sum(state is JobState.RUNNING for state in states.values()) == 2


def test_loading_decides_nothing() -> None:
    world = _World()
    world.jobs["default/job"] = _job("job")
    world.jobs["default/spoilt"] = replace(_job("spoilt"), body=None, problem="no")
    load(world.look(), world.state, _NOW)
    assert list(world.state.entries) == ["default/job"]
    assert world.state.entries["default/job"].record.state is JobState.WAITING
    assert world.state.decisions == 0


def test_a_job_that_cannot_be_read_is_refused_once_for_each_version() -> None:
    world = _World()
    world.jobs["default/job"] = replace(_job("job"), body=None, problem="spec.nodes: no")
    (write,) = [one for one in world.step() if isinstance(one, RefuseJob)]
    assert write.status["why"] == "spec.nodes: no"
    assert [one for one in world.step() if isinstance(one, RefuseJob)] == []
    world.jobs["default/job"] = replace(world.jobs["default/job"], version="2")
    assert len([one for one in world.step() if isinstance(one, RefuseJob)]) == 1
    world.jobs["default/job"] = replace(
        world.jobs["default/job"], version="3", status={"state": "refused", "why": "spec.nodes: no"}
    )
    assert [one for one in world.step() if isinstance(one, RefuseJob)] == []


def test_orphaned_pods_hold_their_node_until_they_have_left() -> None:
    world = _World(1)
    world.pods["old"] = _pod("gone", "old", "n0")
    world.jobs["default/job"] = _job("job")
    writes = world.step()
    (clear,) = [one for one in writes if isinstance(one, ClearPod)]
    assert (clear.pod.name, clear.at_once) == ("old", False)
    assert world.state.entries["default/job"].placed is None
    assert [one for one in world.step() if isinstance(one, ClearPod)] == [], "it is on its way"
    world.accept(writes)
    world.settle()
    assert world.state.entries["default/job"].placed is not None
    assert not world.state.orphans


@pytest.mark.parametrize("where", ["", "nowhere"])
def test_an_orphan_that_nobody_can_end_gently_is_removed_at_once(where: str) -> None:
    world = _World(1)
    world.pods["old"] = _pod("gone", "old", where, "Pending")
    (clear,) = [one for one in world.step() if isinstance(one, ClearPod)]
    assert clear.at_once


def test_two_places_that_overlap_cost_the_later_one_its_start() -> None:
    world = _World(2)
    world.jobs["default/a"] = _job("a", 2)
    world.settle()
    stolen = world.jobs["default/a"]
    world.jobs["default/b"] = replace(
        _job("b", 2), placed=stolen.placed, record={**stolen.record}, status={"attempt": 1}
    )
    world.state = ControllerState(Settings())
    world.settle(3)
    states = {name: entry.record.state for name, entry in world.state.entries.items()}
    assert states["default/a"] is JobState.RUNNING
    assert states["default/b"] is not JobState.RUNNING


def test_a_large_gang_is_not_compared_in_every_pass() -> None:
    world = _World(1200)
    world.jobs["default/big"] = _job("big", 1200)
    world.accept(world.step())
    world.accept(world.step())
    entry = world.state.entries["default/big"]
    world.step(0.001)
    looked = entry.looked_at
    world.step(0.001)
    assert entry.looked_at == looked
    world.step(1.0)
    assert entry.looked_at > looked


def test_reports_of_pods_are_put_into_records() -> None:
    world = _World()
    world.jobs["default/job"] = _job("job")
    world.settle()
    node = world.state.entries["default/job"].placed.nodes[0]  # type: ignore[union-attr]
    seen = (NodeEvidence("xid", _NOW.ms, "warning", "79"),)
    world.step(reports=(PodReport("default/job", "uid-job", node, _NOW.ms + 5, seen),))
    assert world.state.entries["default/job"].record.checkpoint_ms == _NOW.ms + 5
    held = world.state.cluster.pool.nodes[world.state.node_index.numbers[node]]
    assert [one.check for one in held.evidence] == ["xid"]


def test_a_silent_node_is_taken_out_marked_and_returned_when_it_is_heard() -> None:
    world = _World(4, test_s=5.0)
    world.settle(2)
    world.nodes["n3"] = replace(world.nodes["n3"], ready=False)
    marks = [one for _ in range(120) for one in world.step(10.0) if isinstance(one, MarkNode)]
    assert marks
    assert {one.node.name for one in marks} == {"n3"}
    assert str(marks[-1].node.state) != "ready"
    world.nodes["n3"] = replace(world.nodes["n3"], ready=True)
    marks = [one for _ in range(400) for one in world.step(10.0) if isinstance(one, MarkNode)]
    assert str(marks[-1].node.state) == "ready"


def test_teams_are_shown_what_they_hold_now_and_then() -> None:
    world = _World(2, teams_s=10.0)
    world.jobs["default/a"] = _job("a", 2)
    world.jobs["default/b"] = _job("b", 2)
    first = [one for one in world.step() if isinstance(one, WriteTeam)]
    assert [(one.name, one.status) for one in first] == [("team", {"gpus": 16, "waiting": 1})]
    assert [one for one in world.step(5.0) if isinstance(one, WriteTeam)] == []
    world.teams["team"] = replace(world.teams["team"], status={"gpus": 16, "waiting": 1})
    assert [one for one in world.step(11.0) if isinstance(one, WriteTeam)] == []


@given(
    st.builds(
        lambda **more: Job("default/job", record_of(_job("job")).gang, _NOW.ms, **more),
        state=st.sampled_from(JobState), start_ms=st.none() | st.integers(0, 10**13),
        queued_ms=st.none() | st.integers(0, 9),
        ran_ms=st.integers(0, 10**9), preemptions=st.integers(0, 5), borrowed=st.booleans(),
        asked_for=st.text("ab", max_size=3), array=st.text("ab", max_size=2), takes_degraded=st.booleans(),
        checkpoint_every_ms=st.none() | st.integers(1, 9), last_wait_code=st.text("ab", max_size=2),
    )
)  # fmt: skip
def test_every_field_of_a_record_survives_its_status(record: Job) -> None:
    """A preempted job's `queued_ms` was refused once, because its name stood in one list and not in the other."""
    again = record_of(replace(_job("job"), record=moving_part(record)))
    assert again == replace(record, team="team", grace_ms=again.grace_ms)


def test_what_an_unknown_controller_wrote_into_a_record_is_left_alone() -> None:
    assert record_of(replace(_job("job"), record={"from_the_future": 1, "id": "lie"})).id == "default/job"


def test_objects_are_kept_with_what_decisions_need() -> None:
    taints = [{"key": "other", "effect": "NoExecute"}, {"key": "cluster.weft/pool", "effect": "NoSchedule"}]
    meta = {"name": "n", "uid": "u", "resourceVersion": "5"}
    node = observe_node({"metadata": meta, "spec": {"taints": taints}})
    assert (node.barred, node.gpus, node.ready, node.sick) == ("taint other", 0, False, False)
    assert observe_node({"metadata": meta, "spec": {"unschedulable": True}}).barred == "cordoned"
    labels = {JOB_LABEL: "j", RANK_LABEL: "x"}
    pod = observe_pod({"metadata": {**meta, "namespace": "s", "labels": labels}})
    assert (pod.rank, pod.phase, pod.owner, pod.over) == (0, "Pending", "", False)


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ({"nodes": 0, "command": ["x"]}, "spec.nodes"),
        ({"nodes": 1}, "a command or a training"),
        ({"command": ["x"], "nodes": "many", "team": "T!"}, "and 1 more"),
    ],
)
def test_a_job_that_cannot_be_read_says_why(spec: dict[str, Any], words: str) -> None:
    meta = {
        "name": "j",
        "namespace": "s",
        "uid": "u",
        "resourceVersion": "1",
        "creationTimestamp": "2024-01-01T00:00:00Z",
    }
    seen = observe_job({"metadata": meta, "spec": spec})
    assert seen.body is None
    assert words in seen.problem
    long = observe_job({"metadata": {**meta, "name": "j" * 60}, "spec": {"command": ["x"]}})
    assert "60 letters" in long.problem
