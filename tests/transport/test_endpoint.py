"""Endpoints on loopback: bytes arrive whole whatever the planes do, and nothing else changes."""

import pytest
from tests.transport.pairs import two

from weft.core.errors import UsageError
from weft.transport.endpoint import Endpoint
from weft.transport.queue_pair import PeerGoneError
from weft.transport.underlay import Loopback

_MIB = 1 << 20


def test_a_write_lands_whole_and_both_sides_are_told() -> None:
    with two() as pair:
        pair.send(7)


@pytest.mark.parametrize("share", [0.02, 0.2])
def test_lost_packets_are_sent_again_on_other_paths(share) -> None:
    with two() as pair:
        for plane in range(4):
            pair.here.lose(plane, share)
        for turn in range(3):
            pair.send(turn)
        counted = pair.here.state.sender.qp[pair.out.index]
        assert counted["resent"] > 0


def test_all_planes_but_one_may_be_cut_while_it_runs() -> None:
    with two() as pair:
        pair.send()
        for plane in (0, 1, 3):
            pair.here.cut(plane)
            pair.send(plane)
        states = pair.here.state.sender.evs[pair.out.index]
        assert (states["state"][states["plane"] == 2] <= 1).any(), "the plane that is left is in use"
        assert pair.here.state.sender.qp[pair.out.index]["retired"] > 0
        for plane in (0, 1, 3):
            pair.here.cut(plane, cut=False)
        pair.send()


def test_a_silent_peer_is_named_after_its_time() -> None:
    with two(_MIB, liveness_s=0.2) as pair:
        for plane in range(4):
            pair.there.cut(plane)
        pair.out.write(pair.source, 0, 100, pair.target.address, pair.target.key)
        with pytest.raises(PeerGoneError, match="there is gone: SILENT"):
            pair.out.wait(10)
        with pytest.raises(PeerGoneError, match="there"):
            pair.out.write(pair.source, 0, 100, pair.target.address, pair.target.key)


def test_a_wrong_key_or_place_changes_no_byte() -> None:
    with two(_MIB, liveness_s=0.2) as pair:
        pair.out.write(pair.source, 0, 100, pair.target.address, pair.target.key ^ 0x1000)
        with pytest.raises(PeerGoneError):
            pair.out.wait(10)
        assert not pair.taken.any()
        assert pair.there.state.hub[0]["wrong_key"] > 0


def test_a_write_beyond_the_region_changes_no_byte() -> None:
    with two(_MIB, liveness_s=0.2) as pair:
        pair.out.write(pair.source, 0, 100, pair.target.address + pair.target.size - 99, pair.target.key)
        with pytest.raises(PeerGoneError):
            pair.out.wait(10)
        assert not pair.taken.any()
        assert pair.there.state.hub[0]["out_of_bounds"] > 0


def test_a_port_in_use_is_one_clear_sentence() -> None:
    with Endpoint() as one, pytest.raises(UsageError, match=f"UDP port {one.port} is in use"):
        Endpoint(port=one.port)


def test_a_small_mtu_is_one_clear_sentence() -> None:
    world = Loopback(payload=65_500)
    with Endpoint(world) as here, Endpoint(world) as there:
        pair, other = here.offer("there"), there.offer("here")
        with pytest.raises(UsageError, match=r"takes packets of 6553. bytes, but a payload of 65500 needs"):
            pair.connect(other.card)


def test_deregistered_memory_is_out_of_reach() -> None:
    with two(_MIB, liveness_s=0.2) as pair:
        pair.there.deregister(pair.target)
        pair.out.write(pair.source, 0, 100, pair.target.address, pair.target.key)
        with pytest.raises(PeerGoneError):
            pair.out.wait(10)
        assert not pair.taken.any()
