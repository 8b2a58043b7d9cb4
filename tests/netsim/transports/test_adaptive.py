"""Adaptive routing: which uplink a switch takes, by hand, and what that is worth."""

from tests.netsim.scenarios import fault, flows, run_adaptive, scenario, simulate, small_site

from weft.netsim.reference.packets import SimPacket
from weft.netsim.reference.uplinks import Uplinks

FRAME = 4262


def switch(key: int = 0, hop: int = 1, **more):
    """Return a world at time 0, its choice of uplinks, and a packet from NIC 0 to NIC 5 that is at its first T0."""
    world = run_adaptive(**more)
    path = world.network.path(0, 5, 0, 0)
    packet = SimPacket(1, 0, 0, path, FRAME, 0, 0)
    packet.hop, packet.key, packet.port = hop, key, path[0]
    return world, Uplinks(world.network), packet


def fill(world, uplink: int, frames: int) -> None:
    port = world.ports[world.network.path(0, 5, 0, uplink)[1]]
    for _ in range(frames):
        port.accept(SimPacket(0, 0, 0, (), FRAME, 0, 0), False)


def test_the_shortest_queue_is_taken():
    world, uplinks, packet = switch()
    for uplink, frames in enumerate((3, 2, 1, 2)):
        fill(world, uplink, frames)
    assert uplinks.path(packet, world.ports) == world.network.path(0, 5, 0, 2)


def test_ties_go_to_the_first_from_the_packets_key_on():
    for key, expected in ((0, 0), (1 << 16, 1), (3 << 16, 3), (6 << 16, 2), (5, 0)):
        world, uplinks, packet = switch(key)
        assert uplinks.path(packet, world.ports) == world.network.path(0, 5, 0, expected)
    world, uplinks, packet = switch(3 << 16)
    fill(world, 3, 1)
    assert uplinks.path(packet, world.ports) == world.network.path(0, 5, 0, 0), "from 3 on: 3 is longer, then comes 0"


def test_links_known_to_be_dead_are_left_out_at_both_ends():
    world, uplinks, packet = switch()
    up, down = (world.network.path(0, 5, 0, n)[place] // 2 for n, place in ((0, 1), (1, 2)))
    uplinks.dead = frozenset((up, down))
    assert uplinks.path(packet, world.ports) == world.network.path(0, 5, 0, 2)
    uplinks.dead = frozenset(world.network.path(0, 5, 0, n)[1] // 2 for n in range(4))
    assert uplinks.path(packet, world.ports) == world.network.path(0, 5, 0, 0), "with none left all count"


def test_nothing_is_chosen_on_the_way_down():
    world, uplinks, packet = switch(hop=2)
    fill(world, 0, 5)
    assert uplinks.path(packet, world.ports) is packet.path


def test_in_three_tiers_both_choices_are_made():
    world = run_adaptive(gpus=16, tiers=3, radix=4)
    network = world.network
    path = network.path(0, 15, 0, 0)
    packet = SimPacket(1, 0, 0, path, FRAME, 0, 0)
    packet.hop, packet.key, packet.port = 1, 1 << 16, path[0]
    packet.path = Uplinks(network).path(packet, world.ports)
    assert packet.path == network.path(0, 15, 0, 2)
    packet.hop = 2
    assert Uplinks(network).path(packet, world.ports) == network.path(0, 15, 0, 3)


def test_a_full_permutation_has_hardly_any_queue_at_the_uplinks():
    ends = flows(*((n, 4 + n, 64 * 4096) for n in range(4)))
    report = simulate(scenario(ends), small_site(planes=1), "adaptive")
    slowest = report.slowest()
    assert slowest is not None
    assert slowest.completion_ps is not None
    assert slowest.completion_ps / report.ideal_ps < 1.02
    # Four packets arrive in a slot and each finds the one empty queue that is left.
    assert report.series.queue_peaks[:, 1].max() <= 2 * FRAME


def test_a_switch_leaves_its_own_dead_link_at_once_and_a_far_one_only_when_routing_knows():
    ends = flows((0, 5, 256 * 4096))
    near = simulate(scenario(ends, faults=(fault("link-down", "link1-p0-i0-u1", 5),)), small_site(planes=1), "adaptive")
    far = simulate(scenario(ends, faults=(fault("link-down", "link1-p0-i1-u1", 5),)), small_site(planes=1), "adaptive")
    assert near.faults[0].data_lost <= 1
    assert far.faults[0].data_lost > 20
