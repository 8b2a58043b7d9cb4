"""Queue pairs that carry data both ways, and the frames of MRC's two ways of naming paths."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.netsim.scenarios import US, fault, flows, scenario, simulate, small_site

from weft.netsim.model.queue_pairs import Pair
from weft.netsim.run import prepare
from weft.netsim.setup import set_up, transports_of
from weft.netsim.transports.registry import transport_named
from weft.netsim.transports.routing import HASHED, routing, seen_as, way_of
from weft.netsim.transports.sprayed import SprayedEndpoints, frames_of
from weft.specs.rivals import TransportsSpec

SIZE = 2 * 10**6
pairs = st.lists(
    st.builds(Pair, st.integers(0, 3), st.integers(0, 3), st.integers(0, 1), st.sampled_from([(), (1,)])), unique=True
)


@given(pairs)
def test_pairs_share_a_queue_pair_where_ends_lane_and_paths_are_the_same(pairs: list[Pair]):
    seen = seen_as(pairs).reshape(-1, 2).tolist()
    for i, (pair, (there, back)) in enumerate(zip(pairs, seen, strict=True)):
        wanted = Pair(pair.destination, pair.source, pair.lane, pair.uplinks)
        assert there == 2 * i, "data is seen as what it is"
        assert back == (2 * pairs.index(wanted) if wanted in pairs else 2 * i + 1)


def probes_back(*ends: tuple[int, int, int]) -> list[int]:
    """Return how many probes of the way back each pair's receiver has sent."""
    setup = set_up(scenario(flows(*ends)), small_site(), 3)
    (mrc,) = transports_of(setup, ("mrc",))
    _, world = prepare(setup, mrc)
    world.run()
    assert isinstance(world.endpoints, SprayedEndpoints)
    return world.endpoints.host_state.r.qp["reverse_probe_id"].tolist()


def test_data_that_goes_back_proves_the_way_back_and_no_probe_is_sent():
    (alone,) = probes_back((0, 5, SIZE))
    assert alone > 4, "about one in a round trip"
    # Of two flows that end together a receiver may find the other one over first.
    assert max(probes_back((0, 5, SIZE), (5, 0, SIZE))) <= 1
    first, second = probes_back((0, 5, SIZE), (5, 0, SIZE // 4))
    assert second <= 1 < first < alone, "the longer flow needs probes once the shorter one is over"


def test_switches_hash_what_goes_back_as_they_hash_data_of_the_same_queue_pair():
    there, back, alone = Pair(0, 5), Pair(5, 0), Pair(1, 5)
    ways = routing([there, back, alone], HASHED, 64, 4, word=7)
    seen = seen_as([there, back, alone]).tolist()
    of_half = [[int(way_of(ways, half, seen[half], ev)) for ev in range(64)] for half in range(6)]
    assert of_half[0] == of_half[3] != of_half[1] == of_half[2]
    assert of_half[4] != of_half[5]


@pytest.mark.parametrize("transport", ["mrc", "uet", "reps"])
def test_both_ways_outlive_a_port_that_goes_and_comes_back(transport: str):
    faults = (fault("port-down", "link0-p0-i0", 10, 200), fault("black-hole", "t1-p1-i1", 3, 30))
    report = simulate(scenario(flows((0, 5, SIZE), (5, 0, SIZE)), faults=faults), transport=transport)
    assert all(0 < flow.acknowledged_ps < 20_000 * US for flow in report.flows)


def test_structured_evs_do_without_the_outer_header():
    srv6, plain = (frames_of(4096, forwarding) for forwarding in ("srv6", "structured"))
    assert (srv6.header, plain.header) == (166, 126)
    assert all(srv6.control[kind] - size == 40 for kind, size in plain.control.items())
    assert 800 * 4096 / srv6.full == pytest.approx(768.8, abs=0.05)
    assert 400 * 4096 / plain.full == pytest.approx(388.1, abs=0.05)


@pytest.mark.parametrize("name", ["mrc", "reps", "random", "adaptive"])
def test_everything_with_mrcs_frames_has_those_that_were_asked_for(name: str):
    usual, other = (TransportsSpec(forwarding=forwarding) for forwarding in ("srv6", "structured"))
    assert transport_named(name, usual).frames(4096).header == 166
    assert transport_named(name, other).frames(4096).header == 126
