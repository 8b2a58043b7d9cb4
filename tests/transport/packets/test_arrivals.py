"""What comes to an endpoint: whole packets for open queue pairs change it, everything else is counted by its reason."""

import ctypes

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.transport.columns import state_of

from weft.mrc.rules.sender import post
from weft.mrc.wire.icrc import icrc
from weft.transport.memory import layout
from weft.transport.memory.arithmetic import kind_of
from weft.transport.memory.layout import IMMEDIATE, PREFIX, EndpointState, address_of
from weft.transport.packets.arrivals import acknowledge, report, take_packet
from weft.transport.packets.departures import ask, send_data

NOW = 10**12
KEY = 0xABC << 12 | 5


def open_region(state: EndpointState, memory: np.ndarray, adds: int = 0) -> None:
    row = state.regions[KEY & layout.INDEX_MASK]
    row["key"], row["address"], row["size"], row["adds"], row["open"] = KEY, address_of(memory), memory.nbytes, adds, 1


def packets(data: np.ndarray, far: int, *, key: int = KEY, immediate: int = 9) -> list[bytes]:
    """Return the packets of one write as a peer's endpoint sends them."""
    state = state_of()
    # An outsider, not a rank: its words are for Python.
    state.source[0, 0] = data.ctypes.data
    post(state.sender, 0, far, key, data.nbytes, immediate)
    send_data(state, 0, NOW, 60)
    return [
        b"".join(ctypes.string_at(*state.tx_iov[slot, piece].tolist()) for piece in range(int(state.tx_msg[slot, 3])))
        for slot in range(int(state.hub[0]["staged"]))
    ]


def take(state: EndpointState, packet: bytes) -> None:
    state.rx[: len(packet)] = np.frombuffer(packet, np.uint8)
    take_packet(state, 0, len(packet), NOW)


def resealed(packet: bytes) -> bytes:
    """Return a packet with the check that its bytes ask for."""
    return packet[:-4] + icrc(packet[PREFIX:-4], front=packet[:PREFIX]).to_bytes(4, "little")


def receiver() -> EndpointState:
    state = state_of()
    state.peers["engine"] = 0
    return state


@settings(max_examples=20)
@given(st.integers(1, 12_000), st.randoms(use_true_random=False))
def test_packets_in_any_order_and_repeated_land_once_and_the_immediate_comes_last(size, random):
    state, memory = receiver(), np.zeros(12_000, np.uint8)
    open_region(state, memory)
    data = np.random.default_rng(size).integers(1, 256, size, dtype=np.uint8)
    sent = packets(data, address_of(memory))
    arriving = sent + random.sample(sent, random.randint(0, len(sent)))
    random.shuffle(arriving)
    for packet in arriving:
        take(state, packet)
    acknowledge(state, 0, NOW)
    assert np.array_equal(memory[:size], data)
    assert not memory[size:].any()
    assert state.hub[0]["replayed"] == len(arriving) - len(sent)
    assert state.events[0, :3].tolist() == [IMMEDIATE, 0, 9]
    assert state.hub[0]["events_head"] == 1


def test_the_immediate_waits_for_the_packets_before_it():
    state, memory = receiver(), np.zeros(12_000, np.uint8)
    open_region(state, memory)
    *first, last = packets(np.ones(12_000, np.uint8), address_of(memory))
    take(state, last)
    acknowledge(state, 0, NOW)
    assert state.hub[0]["events_head"] == 0
    for packet in first:
        take(state, packet)
    acknowledge(state, 0, NOW)
    assert state.hub[0]["events_head"] == 1


@settings(max_examples=60)
@given(st.integers(0, 8 * 164 - 1))
def test_no_packet_with_a_flipped_bit_changes_memory(bit):
    state, memory = receiver(), np.zeros(100, np.uint8)
    open_region(state, memory)
    (packet,) = packets(np.full(100, 7, np.uint8), address_of(memory))
    bit %= 8 * len(packet)
    damaged = bytearray(packet)
    damaged[bit // 8] ^= 1 << bit % 8
    take(state, bytes(damaged))
    if bit // 8 == PREFIX + 4:
        assert memory.all(), "switches may change this byte"
    else:
        assert not memory.any()
        assert sum(int(state.hub[0][name]) for name in (*layout.MALFORMED, "no_queue_pair", "wrong_ev")) == 1


@settings(max_examples=60)
@given(st.binary(max_size=200))
def test_noise_is_counted_once_and_changes_nothing(noise):
    state, memory = receiver(), np.zeros(100, np.uint8)
    open_region(state, memory)
    take(state, noise)
    assert not memory.any()
    assert sum(int(state.hub[0][name]) for name in (*layout.MALFORMED, "no_queue_pair", "wrong_ev")) == 1
    assert state.hub[0]["packets_in"] == 1


@pytest.mark.parametrize("length", range(0, 40, 3))
def test_a_packet_that_was_cut_off_is_malformed(length):
    state, memory = receiver(), np.zeros(100, np.uint8)
    open_region(state, memory)
    (packet,) = packets(np.full(100, 7, np.uint8), address_of(memory))
    take(state, packet[: len(packet) - 1 - length])
    assert not memory.any()
    assert sum(int(state.hub[0][name]) for name in layout.MALFORMED) == 1


@pytest.mark.parametrize(
    ("change", "counter"),
    [
        ({"key": KEY ^ 1 << 12}, "wrong_key"),
        ({"key": KEY ^ 1}, "wrong_key"),
        ({"far": -1}, "out_of_bounds"),
        ({"far": 1}, "out_of_bounds"),
        ({"far": 1 << 40}, "out_of_bounds"),
    ],
)
def test_a_write_that_is_not_allowed_is_counted_by_its_reason(change, counter):
    state, memory = receiver(), np.zeros(100, np.uint8)
    open_region(state, memory)
    (packet,) = packets(
        np.full(100, 7, np.uint8), address_of(memory) + change.get("far", 0), key=change.get("key", KEY)
    )
    take(state, packet)
    assert state.hub[0][counter] == 1
    assert not memory.any()
    assert state.peers[0]["heard_ps"] == 0, "whoever writes where it may not is not heard"


def test_a_closed_region_is_as_good_as_none():
    state, memory = receiver(), np.zeros(100, np.uint8)
    open_region(state, memory)
    (packet,) = packets(np.full(100, 7, np.uint8), address_of(memory))
    state.regions[KEY & layout.INDEX_MASK]["open"] = 0
    take(state, packet)
    assert state.hub[0]["wrong_key"] == 1
    assert not memory.any()


@pytest.mark.parametrize("element", ["int32", "int64", "float32", "float64", "uint8"])
def test_what_comes_to_a_region_that_adds_is_added_once(element):
    state = receiver()
    held = np.arange(1, 2001).astype(element)
    given_ = np.full(2000, 3, element)
    wanted = held + given_
    open_region(state, held, adds=kind_of("sum", element) + 1)
    for packet in packets(given_, address_of(held)) * 2:
        take(state, packet)
    assert np.array_equal(held, wanted)


@pytest.mark.parametrize(("shift", "size"), [(1, 800), (4, 800), (0, 801), (0, 804)])
def test_a_sum_of_broken_elements_is_refused(shift, size):
    state = receiver()
    held = np.zeros(200, np.int64)
    open_region(state, held, adds=kind_of("sum", "int64") + 1)
    (packet,) = packets(np.full(size, 7, np.uint8), address_of(held) + shift)
    take(state, packet)
    assert state.hub[0]["out_of_bounds"] == 1
    assert not held.any()


@pytest.mark.parametrize("ev", [4, 5, 1000, 2**32 - 1])
def test_a_packet_on_an_ev_that_does_not_exist_is_dropped(ev):
    state, memory = receiver(), np.zeros(100, np.uint8)
    open_region(state, memory)
    (packet,) = packets(np.full(100, 7, np.uint8), address_of(memory))
    take(state, resealed(ev.to_bytes(4, "big") + packet[PREFIX:]))
    assert state.hub[0]["wrong_ev"] == 1
    assert not memory.any()


@pytest.mark.parametrize("field", ["open", "number"])
def test_a_packet_for_a_queue_pair_that_is_not_open_is_dropped(field):
    state, memory = receiver(), np.zeros(100, np.uint8)
    open_region(state, memory)
    (packet,) = packets(np.full(100, 7, np.uint8), address_of(memory))
    state.peers[0][field] = 0
    take(state, packet)
    assert state.hub[0]["no_queue_pair"] == 1
    assert not memory.any()


def test_a_cut_plane_loses_arrivals_and_the_peer_is_not_heard():
    state, memory = receiver(), np.zeros(100, np.uint8)
    open_region(state, memory)
    (packet,) = packets(np.full(100, 7, np.uint8), address_of(memory))
    state.hub[0]["cut"], state.hub[0]["shim_on"] = 0b1111, 1
    take(state, packet)
    assert state.hub[0]["shim_in"] == 1
    assert not memory.any()
    assert state.peers[0]["heard_ps"] == 0


def test_a_keep_alive_is_answered_on_its_plane_and_the_answer_is_heard():
    asking, answering = state_of(), state_of()
    ask(asking, 0, NOW)

    def ring(state: EndpointState) -> list[bytes]:
        return [ctypes.string_at(*state.tx_iov[slot, 0].tolist()) for slot in range(int(state.hub[0]["staged"]))]

    for packet in ring(asking):
        take(answering, packet)
    answers = ring(answering)
    assert sorted(one[:PREFIX] for one in answers) == sorted(one[:PREFIX] for one in ring(asking))
    asking.peers[0]["asks"] = 3
    take(asking, answers[0])
    assert (asking.peers[0]["asks"], asking.peers[0]["heard_ps"]) == (0, NOW)


@given(st.integers(0, 2**55))
def test_the_time_until_a_peer_is_heard_goes_into_the_bucket_of_its_power_of_two(gap):
    state, memory = receiver(), np.zeros(100, np.uint8)
    open_region(state, memory)
    (packet,) = packets(np.full(100, 7, np.uint8), address_of(memory))
    state.peers[0]["watched"], state.peers[0]["heard_ps"] = 1, NOW - gap
    take(state, packet)
    assert state.gaps[0].sum() == 1
    assert state.gaps[0, (gap >> 20).bit_length()] == 1


def test_immediates_wait_while_python_is_behind():
    state, memory = receiver(), np.zeros(100, np.uint8)
    open_region(state, memory)
    (packet,) = packets(np.full(100, 7, np.uint8), address_of(memory))
    take(state, packet)
    state.hub[0]["events_head"] = layout.EVENTS - 256
    acknowledge(state, 0, NOW)
    assert state.hub[0]["events_head"] == layout.EVENTS - 256
    state.hub[0]["events_tail"] = 1
    acknowledge(state, 0, NOW)
    assert state.hub[0]["events_head"] == layout.EVENTS - 255


@given(st.integers(0, 3 * layout.EVENTS))
def test_events_go_round_their_ring(head):
    state = receiver()
    state.hub[0]["events_head"] = head
    report(state, 3, 0, 42, 7)
    assert state.events[head % layout.EVENTS, :4].tolist() == [3, 0, 42, 7]
    assert state.hub[0]["events_head"] == head + 1


@settings(max_examples=30)
@given(st.integers(0, 11))
def test_a_packet_for_another_opening_of_a_queue_pair_changes_nothing(bit: int):
    state, memory = receiver(), np.zeros(12_000, np.uint8)
    open_region(state, memory)
    (packet, *_) = packets(np.full(100, 7, np.uint8), address_of(memory))
    state.peers[0]["number"] ^= 1 << (layout.INDEX_MASK.bit_length() + bit)
    take(state, packet)
    assert not memory.any()
    assert state.peers[0]["waiting"] == 0


def test_a_payload_longer_than_was_agreed_is_refused_though_it_would_fit():
    state, memory = receiver(), np.zeros(12_000, np.uint8)
    open_region(state, memory)
    (packet, *_) = packets(np.full(100, 7, np.uint8), address_of(memory))
    state.receiver.params["payload"] = 99
    take(state, packet)
    assert (int(state.hub[0]["out_of_bounds"]), memory.any()) == (1, False)
    state.receiver.params["payload"] = 100
    take(state, packet)
    assert memory[:100].all()
