"""Scheduling rules are found by name, and what they say is what happens, in engines and replays alike."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.cluster.worlds import nodes_of

from weft.campaign.policies import ORDER, policy_of
from weft.cluster.log import RecordedState, replayed
from weft.cluster.plan import plan
from weft.cluster.records.actions import Bind
from weft.cluster.records.encoding import as_plain, from_plain
from weft.cluster.records.job import Gang, Job, Team
from weft.cluster.records.snapshot import SchedulingPolicy, Snapshot
from weft.cluster.scheduling import rules
from weft.cluster.scheduling.fair_share import Shares
from weft.cluster.scheduling.placement import Column
from weft.cluster.scheduling.pool import Pool
from weft.cluster.scheduling.queue import Queue
from weft.cluster.scheduling.rules import Placing, SchedulingRules, rule_names, rules_of
from weft.core.errors import UsageError

NODES = nodes_of(8, 2, odd=False)
TEAM = (Team("default", 16),)


def shortest_first(queue: Queue, shares: Shares, now_ms: int) -> tuple[Column, int]:
    """Order jobs by the limit that they declare; nobody ages."""
    del shares, now_ms
    rows = np.array(sorted(queue.rows.values(), key=lambda row: int(queue.table[5, row])), dtype=np.int64)
    return rows, 0


def last_nodes(placing: Placing, pool: Pool) -> Column:
    """Take the nodes with the highest numbers."""
    del pool
    return np.sort(placing.candidates)[-placing.count :]


OURS = SchedulingRules(shortest_first, last_nodes)


@pytest.fixture
def plugin(monkeypatch: pytest.MonkeyPatch) -> str:
    """A distribution that provides rules."""
    monkeypatch.setattr(rules, "entry_point", lambda group, name: {"shortest": OURS, "wrong": 7}.get(name))
    monkeypatch.setattr(rules, "names", lambda group: ("shortest", "wrong"))
    return "shortest"


def waiting(*limits: int, nodes: int = 8) -> tuple[Job, ...]:
    return tuple(Job(f"j{at}", Gang(nodes, 2), at, limit_ms=limit) for at, limit in enumerate(limits))


def bound(snapshot: Snapshot) -> list[Bind]:
    return [action for action in plan(snapshot, 100) if isinstance(action, Bind)]


def test_the_rules_of_a_plugin_order_the_queue(plugin: str):
    jobs = waiting(300, 100, 200)
    ours = Snapshot(NODES, jobs, TEAM, policy=SchedulingPolicy(rules=plugin))
    assert [action.job for action in bound(ours)] == ["j1"]
    assert [action.job for action in bound(replace(ours, policy=SchedulingPolicy()))] == ["j0"]


@pytest.mark.parametrize("count", [1, 2, 3, 5])
def test_the_rules_of_a_plugin_place_gangs(plugin: str, count: int):
    ours = Snapshot(NODES, waiting(10, nodes=count), TEAM, policy=SchedulingPolicy(rules=plugin))
    assert sorted(bound(ours)[0].placement.nodes) == list(range(8 - count, 8))


def test_the_name_of_the_rules_is_what_goes_to_a_log(plugin: str):
    policy = SchedulingPolicy(rules=plugin)
    assert as_plain(policy) == {"rules": "shortest"}
    assert from_plain(SchedulingPolicy, {"rules": "shortest"}) == policy
    assert as_plain(SchedulingPolicy()) == {}


def test_a_log_is_replayed_by_the_rules_that_it_names(plugin: str):
    recorder = RecordedState(Snapshot(NODES, teams=TEAM, policy=SchedulingPolicy(rules=plugin)))
    for job in waiting(300, 100, 200):
        recorder.put(job, job.submit_ms)
    lines = recorder.decided(100)[1].splitlines()
    assert list(replayed(lines)) == []
    other = [lines[0].replace('"shortest"', '"weft"'), *lines[1:]]
    assert list(replayed(other))


@pytest.mark.parametrize("name", ["", "fairest", "Weft"])
def test_rules_that_nobody_provides_are_refused_with_those_that_there_are(name: str, plugin: str):
    with pytest.raises(UsageError, match=f"there are: weft, {plugin}"):
        rules_of(name)


def test_a_plugin_that_is_something_else_is_refused(plugin: str):
    assert rules_of(plugin) is OURS
    with pytest.raises(UsageError, match="no SchedulingRules"):
        rules_of("wrong")


def test_without_plugins_there_is_one_set_of_rules():
    assert rule_names()[0] == rules.BUILT_IN == SchedulingPolicy().rules
    assert isinstance(rules_of("weft"), SchedulingRules)


@pytest.mark.parametrize("name", ORDER)
def test_every_policy_of_a_replay_is_there_by_name(name: str):
    policy, _ = policy_of(name)
    assert policy.rules == "weft"
    assert policy.lane_share == (0 if name in ("fifo", "backfill-only", "no-lane") else 0.01)
    assert policy.preempt == (name in ("weft", "no-lane", "no-power"))
    assert policy.backfill == (name != "fifo")
    assert policy.power == (name in ("weft", "no-preempt", "no-lane"))


def test_the_rules_of_a_plugin_are_a_policy_of_a_replay(plugin: str):
    assert policy_of(plugin)[0] == replace(policy_of("weft")[0], rules=plugin)
    with pytest.raises(UsageError, match="no policy 'slowest'"):
        policy_of("slowest")


@given(st.sets(st.integers(0, 15), min_size=1), st.data(), st.booleans())
def test_the_built_in_placement_takes_as_many_of_the_candidates_as_are_wanted(
    free: set[int], data: st.DataObject, spread: bool
):
    pool = Pool(nodes_of(16, 2, odd=False))
    count = data.draw(st.integers(1, len(free)))
    found = rules_of("weft").place(Placing(np.array(sorted(free), dtype=np.int64), count, spread=spread), pool)
    assert len(set(found.tolist())) == count
    assert set(found.tolist()) <= free


def test_services_are_spread_and_gangs_are_packed():
    pool = Pool(nodes_of(16, 2, odd=False))
    everywhere = np.arange(16, dtype=np.int64)
    place = rules_of("weft").place
    spread = place(Placing(everywhere, 4, spread=True), pool)
    packed = place(Placing(everywhere, 4), pool)
    assert len(set(pool.t0[spread].tolist())) == 4
    assert len(set(pool.t0[packed].tolist())) == 1
