"""The columns over nodes agree with a plain count of the nodes, whatever is taken, given back, broken or returned."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.cluster.worlds import nodes_of

from weft.cluster.records.node import Node, NodeEvidence, NodeState
from weft.cluster.scheduling.pool import LOST, Hold, Pool

GPUS = 4


Holders = dict[str, tuple[list[int], int, bool, int]]
"""Nodes, GPUs on each, whether they are shared, and when they come back."""


@st.composite
def histories(draw: st.DrawFn) -> tuple[Pool, Holders]:
    """A pool after some jobs came and went and some nodes changed, and the jobs that hold something."""
    count = draw(st.integers(1, 8))
    pool = Pool(nodes_of(count, GPUS, odd=False))
    holders: Holders = {}
    for turn in range(draw(st.integers(0, 12))):
        what = draw(st.sampled_from(["take", "take", "give", "node"]))
        if what == "take":
            gpus = draw(st.integers(1, GPUS))
            found = pool.candidates(gpus, degraded=draw(st.booleans()))
            if not len(found):
                continue
            nodes = found[: draw(st.integers(1, len(found)))]
            shared = gpus < GPUS
            devices = pool.devices(nodes.tolist(), gpus) if shared else ()
            back_ms = draw(st.integers(1, 100))
            pool.take(f"j{turn}", nodes, Hold(gpus, back_ms, devices))
            holders[f"j{turn}"] = (nodes.tolist(), gpus, shared, back_ms)
        elif what == "give" and holders:
            name = draw(st.sampled_from(sorted(holders)))
            nodes, gpus, shared, _ = holders.pop(name)
            pool.give(name, np.array(nodes, dtype=np.int64), gpus, shared=shared)
        elif what == "node":
            node = draw(st.sampled_from(pool.nodes))
            state = draw(st.sampled_from([NodeState.READY, NodeState.DRAINING, NodeState.QUARANTINED]))
            bad = draw(st.sampled_from([(), (0,), (1, 3)]))
            down = draw(st.integers(0, 1))
            pool.update(replace(node, state=state, bad_gpus=bad, planes_down=down))
    return pool, holders


def in_service(node: Node) -> bool:
    return node.state is NodeState.READY and node.override != "out"


@settings(max_examples=40, deadline=None)
@given(histories())
def test_what_is_taken_is_what_jobs_hold(history: tuple[Pool, Holders]):
    pool, holders = history
    for number in range(pool.count):
        assert pool.taken[number] == sum(gpus for nodes, gpus, *_ in holders.values() if number in nodes)


@settings(max_examples=40, deadline=None)
@given(histories(), st.integers(1, GPUS + 2), st.booleans())
def test_the_count_of_available_nodes_is_that_of_the_candidates(
    history: tuple[Pool, Holders], gpus: int, degraded: bool
):
    pool, _ = history
    expected = [
        node.number for node in pool.nodes
        if in_service(node) and node.usable_gpus - pool.taken[node.number] >= gpus and (degraded or not node.degraded)
    ]  # fmt: skip
    assert sorted(pool.candidates(gpus, degraded=degraded).tolist()) == expected
    assert int(pool.available(gpus, int(degraded))) == len(expected)


@settings(max_examples=80, deadline=None)
@given(histories(), st.integers(0, 101))
def test_what_is_free_at_a_time_is_what_jobs_have_given_back_by_then(history: tuple[Pool, Holders], at_ms: int):
    pool, holders = history
    expected = []
    for node in pool.nodes:
        kept = sum(gpus for nodes, gpus, _, back_ms in holders.values() if node.number in nodes and back_ms > at_ms)
        expected.append(max(0, node.usable_gpus - kept) if in_service(node) else 0)
    assert pool.free_at(at_ms).tolist() == expected
    assert pool.free_at(0).sum() == pool.free_gpus


@settings(max_examples=40, deadline=None)
@given(histories(), st.integers(1, GPUS), st.booleans(), st.integers(0, 101))
def test_nodes_that_are_back_by_a_time_have_the_gpus_by_then(
    history: tuple[Pool, Holders], gpus: int, degraded: bool, at_ms: int
):
    pool, _ = history
    able = [n.number for n in pool.nodes if in_service(n) and n.usable_gpus >= gpus and (degraded or not n.degraded)]
    assert np.flatnonzero(pool.able(gpus, degraded=degraded)).tolist() == able
    free = pool.free_at(at_ms)
    back = pool.back(gpus, degraded=degraded) <= at_ms
    assert back.tolist() == [bool(free[number] >= gpus) for number in able]


@settings(max_examples=40, deadline=None)
@given(histories(), st.integers(1, GPUS))
def test_free_devices_are_neither_broken_nor_taken(history: tuple[Pool, Holders], gpus: int):
    pool, _ = history
    for number in pool.candidates(gpus, degraded=True).tolist():
        if pool.parts.get(number) or not pool.taken[number]:
            (found,) = pool.devices([number], gpus)
            busy = {each for devices in pool.parts.get(number, {}).values() for each in devices}
            assert not set(found) & (busy | set(pool.nodes[number].bad_gpus))


@pytest.mark.parametrize("state", list(NodeState))
def test_only_ready_nodes_take_work_and_only_some_keep_it(state: NodeState):
    pool = Pool(nodes_of(2, GPUS, odd=False))
    pool.update(replace(pool.nodes[1], state=state))
    assert len(pool.candidates(1, degraded=True)) == (2 if state is NodeState.READY else 1)
    assert bool(pool.lost[1]) == (state in LOST)
    assert (1 in pool.watched) == (state is not NodeState.READY)


@pytest.mark.parametrize(("override", "free"), [("", 1), ("keep", 1), ("out", 0)])
def test_an_operator_may_keep_a_ready_node_out_of_use(override: str, free: int):
    node = replace(nodes_of(1, GPUS, odd=False)[0], override="out" if override == "out" else "")
    assert len(Pool([node]).candidates(1, degraded=True)) == free


def test_a_node_with_reports_is_watched():
    node = replace(nodes_of(1, GPUS, odd=False)[0], evidence=(NodeEvidence("ecc", 1),))
    assert Pool([node]).watched == {0}


@pytest.mark.parametrize("shared", [True, False])
def test_jobs_on_a_broken_gpu_are_found(shared: bool):
    pool = Pool(nodes_of(2, GPUS, odd=False))
    nodes = np.array([0], dtype=np.int64)
    if shared:
        pool.take("left", nodes, Hold(2, 9, ((0, 1),)))
        pool.take("right", nodes, Hold(2, 9, ((2, 3),)))
    else:
        pool.take("all", nodes, Hold(GPUS, 9))
    pool.update(replace(pool.nodes[0], bad_gpus=(3,)))
    pool.update(replace(pool.nodes[1], bad_gpus=(0,)))
    assert pool.hurt() == ({0: {"right"}} if shared else {0: None})


def test_ranks_follow_the_topology():
    pool = Pool(nodes_of(8, GPUS, odd=False))
    shuffled = np.array([7, 0, 5, 2], dtype=np.int64)
    ranked = pool.ranked(shuffled).tolist()
    assert [pool.t0[number] for number in ranked] == sorted(pool.t0[number] for number in ranked)
    assert sorted(ranked) == sorted(shuffled.tolist())
