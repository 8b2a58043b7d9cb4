"""Packets through a ring of shared memory: in order, each once, never over one that was not read, only the peer's."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.transport.columns import PEER_NUMBER, state_of
from tests.transport.packets.test_arrivals import KEY, open_region
from tests.transport.packets.test_authentication import everything

from weft.mrc.columns import ASSUMED_BAD
from weft.mrc.rules.sender import post
from weft.transport.memory import layout
from weft.transport.memory.layout import EndpointState, address_of
from weft.transport.memory.native import load_word, store_word
from weft.transport.packets.arrivals import receive_shared
from weft.transport.packets.departures import send_data
from weft.transport.packets.shared import fall_asleep, planes_for_data, put_shared, waiting_in, way_back
from weft.transport.shared_memory import slot_bytes

NOW = 10**12
PAYLOAD = 4096
PLANE = 3


def ring() -> np.ndarray:
    return np.zeros((layout.RING_FRONT + layout.RING_SLOTS * slot_bytes(PAYLOAD)) // 8, np.int64)


def ends(memory: np.ndarray) -> tuple[EndpointState, EndpointState]:
    """Return a sender and a receiver whose ring is `memory`."""
    here, there = state_of(), state_of()
    for state in (here, there):
        state.hub[0]["shared_plane"], state.hub[0]["ring_slot_bytes"] = PLANE, slot_bytes(PAYLOAD)
        state.peers["engine"] = 0
    here.peers[0]["ring_out"] = there.peers[0]["ring_in"] = address_of(memory)
    here.peers[0]["shared_ev"], here.peers[0]["bell"] = PLANE, -1
    there.hub[0]["rings"] = 1
    return here, there


def begin(state: EndpointState, data: np.ndarray, far: int) -> None:
    state.source[0, int(state.sender.qp[0]["msg_end"])] = data.ctypes.data
    assert post(state.sender, 0, far, KEY, data.nbytes, 9) == 0


@settings(max_examples=20)
@given(st.integers(1, 400_000), st.data())
def test_bytes_land_whatever_is_read_when_and_no_place_is_filled_twice(size, drawn):
    memory, target = ring(), np.zeros(size, np.uint8)
    here, there = ends(memory)
    here.sender.qp[0]["cwnd"] = here.sender.params[0]["window_max"] = 1 << 30
    open_region(there, target)
    data = np.random.default_rng(size).integers(1, 256, size, dtype=np.uint8)
    begin(here, data, address_of(target))
    sent = taken = 0
    packets = -(-size // PAYLOAD)
    while taken < packets:
        sent += send_data(here, 0, NOW, drawn.draw(st.integers(1, 40)))
        assert sent - taken <= layout.RING_SLOTS
        if sent - taken == layout.RING_SLOTS:
            assert planes_for_data(here, 0) == 0
            assert not put_shared(here, 0, here.tx_at[0], 16, 0, 0)
        taken += receive_shared(there, NOW)
    assert sent == taken == packets
    assert np.array_equal(data, target)
    assert here.hub[0]["staged"] == 0, "none went to the socket"
    assert there.hub[0]["replayed"] == there.hub[0]["wrong_length"] == 0


@given(st.integers(0, 2**62), st.integers(0, 2**62))
def test_a_ring_whose_counts_or_lengths_are_wrong_changes_nothing(head, word):
    memory = ring()
    _, there = ends(memory)
    before = everything(there)
    store_word(address_of(memory) + layout.RING_FRONT, word)
    store_word(address_of(memory) + layout.RING_HEAD_AT, head)
    receive_shared(there, NOW)
    there.peers[0]["ring_tail"] = 0
    assert everything(there) == before


def test_a_packet_for_another_queue_pair_of_the_endpoint_is_refused():
    memory, target = ring(), np.zeros(100, np.uint8)
    here, _ = ends(memory)
    there = state_of(2)
    there.hub[0]["ring_slot_bytes"], there.hub[0]["rings"] = slot_bytes(PAYLOAD), 1
    there.peers[0]["ring_in"] = address_of(memory)
    open_region(there, target)
    here.peers[0]["remote"] = PEER_NUMBER | 1
    begin(here, np.ones(100, np.uint8), address_of(target))
    assert send_data(here, 0, NOW, 1) == 1
    assert receive_shared(there, NOW) == 1
    assert there.hub[0]["wrong_source"] == 1
    assert not target.any()


@pytest.mark.parametrize("how", ["port", "retired", "lost"])
def test_a_plane_of_shared_memory_that_is_not_whole_leaves_packets_to_the_others(how):
    here, _ = ends(ring())
    sender = here.sender
    assert planes_for_data(here, 0) == 1 << PLANE
    if how == "port":
        sender.qp[0]["peer_up"] &= ~(1 << PLANE)
    elif how == "retired":
        sender.qp[0]["reach"] &= ~(1 << PLANE)
    else:
        sender.qp[0]["waiting"] = 1
    assert planes_for_data(here, 0) == -1


def test_answers_take_it_only_while_the_peer_is_heard_there():
    here, _ = ends(ring())
    assert way_back(here, 0, NOW) == -1
    here.heard_on[0, PLANE] = NOW - 10
    assert way_back(here, 0, NOW) == PLANE
    assert way_back(here, 0, NOW + 10**12) == -1
    here.sender.evs[0, PLANE]["state"] = ASSUMED_BAD
    assert way_back(here, 0, NOW) == -1


def test_who_falls_asleep_sees_what_came_meanwhile_and_is_rung_otherwise():
    memory = ring()
    here, there = ends(memory)
    at = address_of(memory) + layout.RING_ASLEEP_AT
    assert not fall_asleep(there, 1)
    assert load_word(at) == 1
    assert put_shared(here, 0, here.tx_at[0], 16, 0, 0)
    assert load_word(at) == 0
    assert waiting_in(there, 0) == 1
    assert fall_asleep(there, 1)
