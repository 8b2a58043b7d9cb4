"""Collectives as traffic: every send is a flow, dependencies hold, and times stay near the schedule's own bound."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.netsim.scenarios import scenario, simulate, small_site

from weft.collectives import algorithms
from weft.collectives.registry import schedule_named
from weft.core.errors import UsageError
from weft.netsim.workload.schedules import Beginning, Near, flows_of_schedule
from weft.specs.scenario import TrafficSpec

SCHEDULES = st.one_of(
    st.integers(2, 9).map(algorithms.ring_all_reduce),
    st.integers(2, 9).map(algorithms.halving_doubling_all_reduce),
    st.integers(2, 9).map(algorithms.double_tree_all_reduce),
    st.integers(2, 6).map(algorithms.direct_all_to_all),
    st.tuples(st.integers(2, 3), st.integers(2, 4)).map(lambda pair: algorithms.two_level_all_reduce(*pair)),
)


@given(SCHEDULES, st.integers(1, 10**7), st.integers(0, 50))
@settings(max_examples=60)
def test_every_send_is_a_flow_that_waits_for_what_it_carries(schedule, size: int, offset: int):
    flows = flows_of_schedule(schedule, range(schedule.ranks), size, begin=Beginning(offset=offset))
    assert len(flows) == len(schedule)
    for send, flow in enumerate(flows):
        assert (flow.source, flow.destination) == (schedule.source[send], schedule.target[send])
        assert flow.after == tuple(offset + before for before in schedule.before_of(send))
        assert flow.size >= size * schedule.count[send] // schedule.parts


@given(st.integers(2, 4), st.integers(2, 4), st.integers(1, 10**6))
@settings(max_examples=30)
def test_sends_inside_a_domain_become_waiting_time(inner: int, outer: int, size: int):
    schedule = algorithms.two_level_all_reduce(inner, outer)
    near = Near(latency_ps=1000, bytes_per_second=10**11)
    flows = flows_of_schedule(schedule, range(schedule.ranks), size, begin=Beginning(7), near=near)
    assert len(flows) == int(schedule.far.sum())
    first = [flow for flow in flows if not flow.after]
    # A reduce-scatter inside the domain comes before anything leaves it.
    step_ps = near.takes_ps(-(-size // schedule.parts) * outer)
    assert {flow.at_ps for flow in first} == {7 + (inner - 1) * step_ps}


@pytest.mark.parametrize(
    ("kind", "algorithm", "most"),
    [("all-reduce", "ring", 1.1), ("all-reduce", "halving-doubling", 1.1), ("all-gather", "ring", 1.1),
     ("broadcast", "double-tree", 1.5)],
)  # fmt: skip
def test_a_collective_takes_what_its_longest_chain_takes(kind: str, algorithm: str, most: float):
    # The bound lets every send have its NIC alone; the root of a broadcast has two under way.
    traffic = TrafficSpec.model_construct(
        pattern="collective", kind=kind, algorithm=algorithm, ranks=4, stride=2, size=2**19
    )
    report = simulate(scenario(traffic), small_site())
    assert report.chained
    over = report.over_ideal()
    assert over is not None
    assert 1 <= over <= most


def test_a_ring_waits_for_its_neighbour():
    traffic = TrafficSpec.model_construct(pattern="collective", kind="all-gather", algorithm="ring", ranks=3, size=4096)
    report = simulate(scenario(traffic), small_site())
    first, second = report.flows[:3], report.flows[3:]
    for flow in second:
        (before,) = [other for other in first if other.destination == flow.source]
        assert flow.began_ps == before.arrived_ps


def test_what_there_is_not_is_named():
    with pytest.raises(UsageError, match="by direct"):
        schedule_named("all-to-all", "ring", 4)
    with pytest.raises(UsageError, match="power of two"):
        schedule_named("all-gather", "halving-doubling", 6)
    traffic = TrafficSpec.model_construct(pattern="collective", ranks=9, size=4096)
    with pytest.raises(UsageError, match="do not fit 8 NICs"):
        simulate(scenario(traffic), small_site())
