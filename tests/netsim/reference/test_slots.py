"""What slots cost: the same packets in slots and in exact time."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.netsim.exact import Script, Shot, exact_arrivals
from tests.netsim.scenarios import pair, scenario, small_site

from weft.core.seeds import Seed
from weft.fabric.graph.topology import build
from weft.netsim.model.flow_board import FlowBoard
from weft.netsim.model.network import Network
from weft.netsim.model.records import Timeline
from weft.netsim.reference.reference_simulator import ReferenceSimulator
from weft.netsim.setup import set_up, transports_of

FRAME = 4262


def fabric(**more):
    setup = set_up(scenario(pair()), small_site(gpus=16, radix=16, planes=1, **more))
    (transport,) = transports_of(setup)
    network = Network(build(setup.fabric), setup.fabric, setup.scenario.network, transport.frames(4096), True, False)
    return setup, network


def slotted_arrivals(setup, network, shots, seed: int = 0):
    script = Script(shots, int(network.slot_ps))
    world = ReferenceSimulator(network, script, FlowBoard(setup.flows, 4096), Seed(seed), Timeline(10**9))
    world.run()
    return script.arrived


def test_a_packet_alone_is_exact_whenever_it_starts():
    setup, network = fabric()
    for at_ps in (0, 1, 12_345, 340_959, 340_960, 999_999):
        for size in (167, 1000, FRAME):
            shots = [Shot(at_ps, 0, network.path(0, 12, 0, 3), size)]
            assert slotted_arrivals(setup, network, shots) == exact_arrivals(network, shots)


@settings(max_examples=25)
@given(st.lists(st.tuples(st.integers(0, 2_000_000), st.integers(0, 7)), min_size=2, max_size=2))
def test_two_packets_that_meet_are_off_by_less_than_a_slot_for_each_queue(starts):
    setup, network = fabric()
    shots = [Shot(at_ps, nic, network.path(nic, 12, 0, 3), FRAME) for at_ps, nic in starts]
    found, exact = slotted_arrivals(setup, network, shots), exact_arrivals(network, shots)
    # Which of two packets of one slot goes first is drawn: sorted times are compared. Four queues can be shared.
    for one, other in zip(sorted(found), sorted(exact), strict=True):
        assert abs(one - other) < 4 * network.slot_ps


@pytest.mark.parametrize(("load", "mean_slots", "most_slots"), [(0.5, 0.5, 4), (0.9, 1.0, 8)])
def test_under_random_load_the_mean_delay_is_right_to_a_slot(load: float, mean_slots: float, most_slots: float):
    setup, network = fabric()
    draw = np.random.default_rng(5)
    shots = []
    for nic in range(8):
        gaps = draw.exponential(network.slot_ps / load, size=150)
        times = np.maximum.accumulate(np.cumsum(gaps).astype(int))
        for at_ps in times.tolist():
            way, to = int(draw.integers(8)), 8 + int(draw.integers(8))
            shots.append(Shot(at_ps, nic, network.path(nic, to, 0, way), FRAME))
    found = np.array(slotted_arrivals(setup, network, shots))
    exact = np.array(exact_arrivals(network, shots))
    starts = np.array([shot.at_ps for shot in shots])
    error = ((found - starts).mean() - (exact - starts).mean()) / network.slot_ps
    assert abs(error) < mean_slots
    # The slowest packet of all is right to a few slots as well, though it may be another one.
    slowest = ((found - starts).max() - (exact - starts).max()) / network.slot_ps
    assert abs(slowest) < most_slots
