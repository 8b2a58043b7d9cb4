"""Pausing: thresholds and delays by hand, nothing lost, trees that are seen, a deadlock that is named."""

import pytest
from tests.netsim.exact import Script, Shot
from tests.netsim.scenarios import GBPS, checked, flows, pair, scenario, simulate, small_site

from weft.core.seeds import Seed
from weft.core.units import Bytes
from weft.fabric.graph.topology import build
from weft.netsim.model.flow_board import FlowBoard
from weft.netsim.model.network import Network, pause_lags
from weft.netsim.model.records import Timeline
from weft.netsim.model.switching import Pause, Switching
from weft.netsim.reference.port_pauses import Pauses
from weft.netsim.reference.reference_simulator import ReferenceSimulator
from weft.netsim.setup import set_up, transports_of
from weft.specs.rivals import DcqcnSpec, PfcSpec, RoceSpec, TransportsSpec
from weft.specs.scenario import TrafficSpec

FRAME = 4262
NO_CONTROL = TransportsSpec.model_construct(roce=RoceSpec.model_construct(dcqcn=DcqcnSpec.model_construct(on=False)))


def network_of(pause: Pause, **more):
    setup = set_up(scenario(pair()), small_site(gpus=16, radix=8, planes=1, **more))
    (transport,) = transports_of(setup)
    network = Network(
        build(setup.fabric), setup.fabric, setup.scenario.network, transport.frames(4096), False, False,
        switching=Switching(pause=pause),
    )  # fmt: skip
    return setup, network


def test_a_pause_takes_a_frame_a_cable_and_a_reaction():
    _, network = network_of(Pause(10, 5, 0, 600_000))
    lags = pause_lags(network, Pause(10, 5, 0, 600_000))
    # (4262 + 84) bytes at 100 Gb/s are 347.68 ns; 10 m are 49 ns and 30 m 147 ns; a slot is 340.96 ns.
    assert lags[0] == 1 + (347_680 + 49_000 + 600_000) // 340_960 == 3
    assert lags[-1] == 1 + (347_680 + 147_000 + 600_000) // 340_960 == 4


def test_pauses_are_asked_above_xoff_and_ended_at_xon_and_act_later():
    pause = Pause(xoff=3 * FRAME, xon=FRAME, headroom=2 * FRAME, reaction_ps=600_000)
    _, network = network_of(pause)
    made = ReferenceSimulator(network, Script([], 1), FlowBoard((), 4096), Seed(0), Timeline(10**9))
    pauses = Pauses(network, pause)
    port = made.ports[0]
    for _ in range(3):
        pauses.enter(0, FRAME)
    pauses.decide(0)
    assert not pauses.asked[0], "at xoff nothing is asked"
    pauses.enter(0, 1)
    pauses.decide(1)
    assert pauses.asked[0]
    for slot in (2, 3):
        pauses.begin(slot, made.ports)
        assert not port.paused
    pauses.begin(4, made.ports)
    assert port.paused
    pauses.leave(0, FRAME + 1)
    pauses.decide(5)
    assert pauses.asked[0], "between xon and xoff nothing changes"
    pauses.leave(0, FRAME)
    pauses.decide(6)
    assert not pauses.asked[0]
    pauses.begin(9, made.ports)
    assert not port.paused
    pauses.finish(20)
    assert (pauses.record.pauses, pauses.record.paused_slots[0]) == (1, 5)


def test_headroom_is_measured_by_what_the_slot_before_left():
    pause = Pause(xoff=FRAME, xon=0, headroom=FRAME, reaction_ps=0)
    _, network = network_of(pause)
    pauses = Pauses(network, pause)
    for _ in range(3):
        pauses.enter(4, FRAME)
    assert not pauses.overruns(4)
    pauses.decide(0)
    assert pauses.overruns(4)
    pauses.leave(4, FRAME)
    pauses.decide(1)
    assert not pauses.overruns(4)


@pytest.mark.parametrize("seed", range(3))
def test_with_the_computed_headroom_nothing_is_dropped(seed: int):
    traffic = TrafficSpec.model_construct(pattern="incast", size=Bytes(2**20), senders=11, across=True, victim=True)
    site = small_site(gpus=16, radix=8, planes=1, rate=400 * GBPS)
    report = checked(set_up(scenario(traffic, transport=NO_CONTROL), site, seed), "roce")
    assert report.pausing is not None
    assert report.pausing.pauses > 0
    assert report.dropped == 0
    assert report.total("resent") == 0


def test_a_tree_grows_from_the_receiver_to_senders_that_have_nothing_to_do_with_it():
    # Every NIC of three T0s sends to NIC 0; NIC 4 also sends to NIC 13, whose way is free.
    ends = [(n, 0, 2**20) for n in range(4, 16)] + [(4, 13, 2**20)]
    tight = RoceSpec.model_construct(dcqcn=DcqcnSpec.model_construct(on=False), pfc=PfcSpec(xoff=0.1, xon=0.05))
    site = small_site(gpus=16, radix=8, planes=1)
    report = simulate(scenario(flows(*ends), transport=TransportsSpec.model_construct(roce=tight)), site, "roce", 1)
    found = report.pausing
    assert found is not None
    assert found.tree_root == "t0-p0-i0 to nic-i0"
    assert found.tree_depth == 3, "T1s pause T0s, T0s pause NICs"
    assert sum("nic" in name.partition(" to ")[0] for name in found.tree_ports) == 12
    assert found.tree_innocent == 1
    assert not found.deadlock


def test_without_congestion_nobody_is_paused():
    report = simulate(scenario(pair(size=2**20)), small_site(planes=1), "roce")
    assert report.pausing is not None
    assert (report.pausing.pauses, report.pausing.trees, report.pausing.tree_at_ps) == (0, 0, -1)


def _round(network: Network, start: int) -> tuple[int, ...]:
    """Return a path that goes up, down, up and down again: from T0 `start` over T1 and T0 beside it to the next."""
    grids = network.shape.link_grids
    between, end, nic = (start + 1) % 3, (start + 2) % 3, 4 * ((start + 2) % 3)
    first, second = grids[1].id(0, start, 0), grids[1].id(0, between, 0)
    third, fourth = grids[1].id(0, between, 0), grids[1].id(0, end, 0)
    own = grids[0].id(0, 4 * start)
    return 2 * own, 2 * first, 2 * second + 1, 2 * third, 2 * fourth + 1, 2 * grids[0].id(0, nic) + 1


@pytest.mark.parametrize("paused", [True, False])
def test_ports_that_wait_for_each_other_in_a_circle_are_a_deadlock_with_names(paused: bool):
    # Three T0s, each sending through the next one to the one after it: no Clos route does that, a misrouting can.
    pause = Pause(xoff=4 * FRAME, xon=2 * FRAME, headroom=40 * FRAME, reaction_ps=600_000)
    setup, network = network_of(pause if paused else Pause(10**9, 10**8, 0, 0))
    slot_ps = int(network.slot_ps)
    shots = [
        Shot(n * slot_ps, 4 * start + lane, (2 * network.shape.link_grids[0].id(0, 4 * start + lane),
                                             *_round(network, start)[1:]), FRAME)
        for start in range(3) for lane in range(4) for n in range(60)
    ]  # fmt: skip
    script = Script(shots, slot_ps)
    world = ReferenceSimulator(network, script, FlowBoard(setup.flows, 4096), Seed(0), Timeline(10 * slot_ps))
    world.run()
    assert world.pauses is not None
    found = [network.port_name(port) for port in world.pauses.record.deadlock]
    if not paused:
        assert found == []
        return
    assert {"t0-p0-i0 to t1-p0-i0", "t0-p0-i1 to t1-p0-i0", "t0-p0-i2 to t1-p0-i0"} <= set(found)
    assert world.board.progress[0].failure == "PFC_DEADLOCK"
