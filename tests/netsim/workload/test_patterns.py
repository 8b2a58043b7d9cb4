"""Who sends what to whom."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weft.core.errors import UsageError
from weft.core.seeds import Seed
from weft.core.units import Bytes, Picoseconds
from weft.fabric.graph.shape import Shape
from weft.netsim.workload.patterns import flows_of
from weft.specs.scenario import PartSizeSpec, ScenarioSpec, TrafficSpec

SHAPE = Shape(hosts=16, planes=2, tiers=2, radix=16, down=8, up=8)


def drawn(seed: int = 0, **traffic):
    spec = TrafficSpec.model_construct(**traffic)
    return flows_of(ScenarioSpec.model_construct(name="t", traffic=spec), SHAPE, 200 * 10**9, Seed(seed))


@given(st.integers(0, 2**40), st.booleans())
def test_a_permutation_sends_once_to_everybody_and_never_home(seed: int, across: bool):
    flows = drawn(seed, pattern="permutation", across=across)
    assert sorted(flow.source for flow in flows) == sorted(flow.destination for flow in flows) == list(range(16))
    home = 8 if across else 1
    assert all(flow.source // home != flow.destination // home for flow in flows)


def test_another_seed_is_another_permutation_and_the_same_seed_the_same():
    assert drawn(1, pattern="permutation") == drawn(1, pattern="permutation") != drawn(2, pattern="permutation")


def test_an_incast_has_one_receiver_and_its_victim_sits_beside_it():
    flows = drawn(pattern="incast", senders=5, victim=True, destination=9, across=True)
    *senders, victim = flows
    assert {flow.destination for flow in senders} == {9}
    assert victim.destination // 8 == 1
    assert victim.destination != 9
    assert len({flow.source for flow in flows}) == 6
    assert all(flow.source < 8 for flow in flows)


def test_all_to_all_is_every_ordered_pair():
    flows = drawn(pattern="all-to-all", hosts=6)
    assert len({(flow.source, flow.destination) for flow in flows}) == len(flows) == 30


@given(st.integers(0, 2**40))
def test_poisson_offers_its_load_between_different_nics(seed: int):
    flows = drawn(seed, pattern="poisson", load=0.5, lasts=Picoseconds(2 * 10**9), size=Bytes(100_000))
    offered = sum(flow.size for flow in flows) * 8 / (16 * 200e9 * 2e-3)
    assert 0.4 < offered < 0.6
    assert all(flow.source != flow.destination for flow in flows)
    assert [flow.at_ps for flow in flows] == sorted(flow.at_ps for flow in flows)


def test_sizes_are_drawn_by_their_shares():
    sizes = (
        PartSizeSpec.model_construct(size=Bytes(10), share=0.75),
        PartSizeSpec.model_construct(size=Bytes(99), share=0.25),
    )
    flows = drawn(pattern="all-to-all", sizes=sizes)
    small = sum(flow.size == 10 for flow in flows)
    assert 150 < small < 210
    assert {flow.size for flow in flows} == {10, 99}


@given(st.integers(1, 100_000), st.integers(1, 8))
def test_queue_pairs_share_a_flow_without_losing_a_byte(size: int, lanes: int):
    flows = drawn(pattern="pair", size=Bytes(size), queue_pairs=lanes)
    assert sum(flow.size for flow in flows) == size
    assert len({flow.lane for flow in flows}) == len(flows) <= lanes


def test_a_permutation_across_needs_two_switches():
    with pytest.raises(UsageError, match="one T0"):
        drawn(pattern="permutation", across=True, hosts=8)
