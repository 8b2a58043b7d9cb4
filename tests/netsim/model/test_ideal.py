import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.netsim.scenarios import pair, scenario, small_site

from weft.fabric.graph.topology import build
from weft.netsim.model.flow import Flow
from weft.netsim.model.ideal import ideal_ps
from weft.netsim.model.network import Network
from weft.netsim.setup import set_up, transports_of

_NICS = 16


def _network(tiers: int) -> Network:
    setup = set_up(scenario(pair()), small_site(gpus=_NICS, radix=4 if tiers == 3 else 8, planes=1, tiers=tiers))
    (transport,) = transports_of(setup)
    return Network(build(setup.fabric), setup.fabric, setup.scenario.network, transport.frames(4096), True, False)


_NETWORKS = {tiers: _network(tiers) for tiers in (2, 3)}
_ends = st.tuples(st.integers(0, _NICS - 1), st.integers(0, _NICS - 1)).filter(lambda ends: ends[0] != ends[1])


@pytest.mark.parametrize("tiers", [2, 3])
@given(flows=st.lists(st.tuples(_ends, st.integers(1, 50_000), st.integers(0, 3)), min_size=1, max_size=20))
def test_the_slowest_of_flows_that_begin_apart_is_the_slowest_of_each_alone(tiers, flows):
    network = _NETWORKS[tiers]
    made = [Flow(str(i), source, end, size, at_ps) for i, ((source, end), size, at_ps) in enumerate(flows)]
    made.append(Flow("last", 0, 1, 1, 9))
    assert ideal_ps(network, made) == max(network.ideal_ps(one.source, one.destination, one.size) for one in made)


def test_flows_that_wait_for_each_other_still_share_their_nics():
    network = _NETWORKS[2]
    # A chain of two short flows beside five long ones of the same NIC: what it sends in all takes longest.
    flows = [Flow("a", 0, 8, 1000, 0), Flow("b", 8, 0, 1000, 0, (0,))]
    flows += [Flow(str(n), 0, 9 + n, 400_000, 0) for n in range(5)]
    assert ideal_ps(network, flows) == network.ideal_ps(0, 9, 2_001_000)
    assert ideal_ps(network, flows[:2]) == network.arrival_ps(0, 8, 1000) + network.ideal_ps(8, 0, 1000)
