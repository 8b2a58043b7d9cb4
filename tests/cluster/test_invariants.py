"""Every invariant notices what breaks it, names it, and is quiet where all is well; the product looks at a sample."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.cluster.worlds import Life, badly_bound, clusters, nodes_of

from weft.cluster.invariants import InvariantError, InvariantSampler, broken
from weft.cluster.records.actions import Bind, Replace, Resize
from weft.cluster.records.job import Gang, Job, JobState, Placement, Team
from weft.cluster.records.node import Node, NodeState
from weft.cluster.records.snapshot import Power, SchedulingPolicy, Snapshot
from weft.cluster.scheduling.state import ClusterState

NODES = nodes_of(4, 2, odd=False)
TEAMS = (Team("red", 4, 6), Team("blue", 4))


def running(name: str, *nodes: int, gpus: int = 2, **more: Any) -> Job:
    known: dict[str, Any] = {
        "state": JobState.RUNNING,
        "placement": Placement(nodes, gpus),
        "start_ms": 0,
        "team": "blue",
        **more,
    }
    return replace(Job(name, Gang(len(nodes), gpus), 0), **known)


def snapshot(*jobs: Job, **more: Any) -> Snapshot:
    return replace(Snapshot(NODES, jobs, TEAMS), **more)


GOOD = running("good", 0, 1)


@pytest.mark.parametrize(
    ("job", "words"),
    [
        (replace(GOOD, placement=None), "without nodes"),
        (replace(GOOD, gang=Gang(3, 2)), "2 nodes of 3"),
        (replace(GOOD, gang=Gang(1, 2)), "2 nodes of 1"),
        (replace(GOOD, gang=Gang(4, 2, min_nodes=3)), "fewest 3"),
        (replace(GOOD, placement=Placement((1, 1), 2)), "a node twice"),
        (replace(GOOD, placement=Placement((0, 1), 1)), "1 GPUs on a node instead of 2"),
        (replace(GOOD, placement=Placement((0, 1), 2, ((0, 0), (0, 1)))), "devices"),
        (replace(GOOD, placement=Placement((0, 1), 2, ((0,), (0, 1)))), "devices"),
    ],
)
def test_a_gang_that_is_not_whole_is_named(job: Job, words: str):
    found = broken(snapshot(job))
    assert any(words in text and job.id in text for text in found), found


def test_a_state_without_faults_is_quiet():
    assert broken(snapshot(GOOD, running("other", 2, 3, team="red"))) == []
    assert broken(snapshot(running("wide", 0, gang=Gang(4, 2, min_nodes=1)))) == []


@pytest.mark.parametrize("gpus", [1, 2])
def test_gpus_that_were_given_twice_are_named(gpus: int):
    twice = (running("a", 1), running("b", 1, gpus=gpus))
    assert broken(snapshot(*twice)) == [f"n1 has 2 GPUs and gave {2 + gpus}"]


def test_a_device_that_was_given_twice_is_named():
    shared = [replace(running(name, 0, gpus=1), placement=Placement((0,), 1, ((1,),))) for name in "ab"]
    assert broken(snapshot(*shared)) == ["n0 gave GPU 1 2 times"]


@pytest.mark.parametrize(("borrow", "limit"), [(True, 6), (False, 4)])
def test_a_team_above_what_it_may_have_is_named(borrow: bool, limit: int):
    policy = SchedulingPolicy(borrow=borrow)
    jobs = [running(f"j{number}", number, team="red") for number in range(4)]
    assert broken(snapshot(*jobs, policy=policy)) == [f"team red has 8 GPUs and may have {limit}"]
    assert broken(snapshot(*jobs[:2], policy=policy)) == []


@pytest.mark.parametrize(
    ("site_w", "rise_w", "wrong"), [(839, None, True), (1000, None, False), (400, 50, True), (440, 50, False)]
)
def test_a_broken_power_budget_is_named(site_w: int, rise_w: int | None, wrong: bool):
    jobs = [running(name, *nodes, watts_per_gpu=rise_w) for name, nodes in (("a", (0, 1)), ("b", (2, 3)))]
    power = Power(site_w=site_w, node_idle_w=10, gpu_rise_w=100)
    assert bool(broken(snapshot(*jobs, power=power))) == wrong
    assert broken(snapshot(*jobs, power=power, policy=SchedulingPolicy(power=False))) == []


def with_node(number: int, **changes: Any) -> Snapshot:
    nodes = [replace(node, **changes) if node.number == number else node for node in NODES]
    return snapshot(running("old", 0), nodes=tuple(nodes))


@pytest.mark.parametrize("state", [NodeState.DRAINING, NodeState.RETIRED, NodeState.REPAIRING])
def test_work_on_a_node_that_takes_none_is_named(state: NodeState):
    before = with_node(2, state=state)
    assert badly_bound(before, [Bind("new", Placement((2,), 2))]) == [f"new got n2, which is {state} "]
    assert badly_bound(before, [Replace("old", (0,), (2,))])
    assert badly_bound(before, [Resize("old", Placement((0, 2), 2), "grow")])
    assert badly_bound(before, [Bind("new", Placement((1, 3), 2))]) == []


def test_a_gang_may_keep_a_draining_node_that_it_has():
    before = with_node(0, state=NodeState.DRAINING)
    assert badly_bound(before, [Resize("old", Placement((0, 1), 2), "grow")]) == []
    assert badly_bound(with_node(3, override="out"), [Bind("new", Placement((3,), 2))])


def cluster_with(*jobs: Job) -> ClusterState:
    return ClusterState(snapshot(*jobs))


@pytest.mark.parametrize("every", [1, 2, 5, 7])
@pytest.mark.parametrize("passes", [1, 4, 20])
def test_one_pass_in_so_many_is_looked_at_beginning_with_the_first(
    every: int, passes: int, monkeypatch: pytest.MonkeyPatch
):
    looked: list[int] = []
    monkeypatch.setattr("weft.cluster.invariants.broken", lambda _: looked.append(1) or [])
    sampler, cluster = InvariantSampler(every), cluster_with(GOOD)
    for _ in range(passes):
        assert sampler.after_pass(cluster) == []
    assert len(looked) == -(-passes // every)


def test_what_is_broken_is_said_once_and_raised_where_that_is_asked():
    cluster = cluster_with(*(running(f"j{number}", number, team="red") for number in range(4)))
    sampler = InvariantSampler(1)
    assert sampler.after_pass(cluster) == ["team red has 8 GPUs and may have 6"]
    assert sampler.after_pass(cluster) == []
    with pytest.raises(InvariantError, match="team red has 8 GPUs"):
        InvariantSampler().demand(cluster)
    InvariantSampler().demand(cluster_with(GOOD))


@settings(max_examples=15, deadline=None)
@given(clusters(), st.data())
def test_no_life_of_a_cluster_breaks_an_invariant(start: Snapshot, data: st.DataObject):
    life, sampler = Life(start), InvariantSampler(2)
    for _ in range(data.draw(st.integers(1, 6))):
        life.act(data.draw)
        life.decide()
        sampler.demand(life.cluster)


@given(st.lists(st.integers(0, 3), min_size=1, max_size=6))
def test_more_jobs_on_a_node_than_it_has_gpus_are_always_found(taken: list[int]):
    jobs = [running(f"j{at}", node, gpus=1) for at, node in enumerate(taken)]
    crowded = {node for node in taken if taken.count(node) > Node(0, "n", 2).gpus}
    found = [text for text in broken(snapshot(*jobs)) if "GPUs and gave" in text]
    assert len(found) == len(crowded)
