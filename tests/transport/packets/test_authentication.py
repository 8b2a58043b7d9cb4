"""Only the peer can speak, and only once with each packet: everything else touches a counter and nothing more."""

import ctypes

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.transport.columns import PEER_NUMBER, state_of
from tests.transport.packets.test_arrivals import NOW, open_region, take

from weft.mrc.rules.sender import post
from weft.mrc.wire import tags
from weft.mrc.wire.packets import NACK, SACK
from weft.transport.memory.layout import MALFORMED, PREFIX, EndpointState, address_of
from weft.transport.packets.arrivals import acknowledge
from weft.transport.packets.authentication import INBOUND, OUTBOUND, WINDOW
from weft.transport.packets.departures import ask, send_data

THERE, BACK = bytes(range(32)), bytes(range(32, 64))
COUNTED = (*MALFORMED, "no_queue_pair", "wrong_ev", "wrong_tag", "stale", "wrong_source")


def tagged(inbound: bytes = BACK, outbound: bytes = THERE) -> EndpointState:
    """Return an endpoint that signs by `outbound` and believes `inbound`."""
    state = state_of()
    state.hub[0]["authenticate"], state.peers["engine"] = 1, 0
    for way, secret in ((INBOUND, inbound), (OUTBOUND, outbound)):
        state.keys[0, way] = np.frombuffer(tags.expanded(secret), np.int64)
    return state


def gathered(state: EndpointState) -> list[bytes]:
    """Take the packets out of the ring, as the kernel would gather them."""
    found = [
        b"".join(ctypes.string_at(*state.tx_iov[slot, piece].tolist()) for piece in range(int(state.tx_msg[slot, 3])))
        for slot in range(int(state.hub[0]["staged"]))
    ]
    state.hub[0]["staged"] = 0
    return found


def packets(data: np.ndarray, far: int, sender: EndpointState | None = None) -> list[bytes]:
    state = tagged() if sender is None else sender
    state.source[0, int(state.sender.qp[0]["msg_end"])] = data.ctypes.data
    post(state.sender, 0, far, 0xABC << 12 | 5, data.nbytes, 9)
    send_data(state, 0, NOW, 60)
    return gathered(state)


def everything(state: EndpointState) -> list[bytes]:
    """Return all that an endpoint knows but its counters and the place where packets come in."""
    kept = [column.tobytes() for side in (state.sender, state.receiver) for column in side]
    kept += [
        getattr(state, name).tobytes() for name in ("peers", "replay", "heard_on", "gaps", "events", "paths", "journal")
    ]
    names = ("staged", "events_head", "capture_at", "programs", "blocked")
    return [*kept, *(str(state.hub[0][name]).encode() for name in names)]


def test_a_packet_is_tagged_as_the_readable_form_says():
    data = np.random.default_rng(1).integers(0, 256, 4000, dtype=np.uint8)
    (packet,) = packets(data, 1 << 40)
    keys = tags.keys_of(THERE)
    end = len(packet) - 4000 - 8 - 16
    covered = bytearray(packet[: end + 8])
    covered[PREFIX + 4] = 0xFF
    header = tags.header_tag(keys, bytes(covered))
    assert packet[end : end + 8] == (1).to_bytes(8, "big")
    assert packet[end + 8 : end + 16] == header.to_bytes(8, "big")
    assert packet[end + 16 : -8] == data.tobytes()
    assert packet[-8:] == tags.payload_tag(keys, data.tobytes(), 1, header).to_bytes(8, "big")


@settings(max_examples=20)
@given(st.integers(1, 12_000), st.randoms(use_true_random=False))
def test_what_the_peer_signed_lands_once_in_any_order_and_what_comes_again_changes_nothing(size, random):
    receiver, memory = tagged(THERE, BACK), np.zeros(12_000, np.uint8)
    open_region(receiver, memory)
    data = np.random.default_rng(size).integers(1, 256, size, dtype=np.uint8)
    sent = packets(data, address_of(memory))
    random.shuffle(sent)
    for packet in sent:
        take(receiver, packet)
    assert np.array_equal(memory[:size], data)
    memory[:] = 0
    before = everything(receiver)
    for packet in sent:
        take(receiver, packet)
    assert not memory.any()
    assert everything(receiver) == before
    assert receiver.hub[0]["stale"] == len(sent)


@settings(max_examples=150)
@given(st.integers(0, 8 * 300))
def test_a_packet_with_a_flipped_bit_changes_nothing(bit):
    receiver, memory = tagged(THERE, BACK), np.zeros(100, np.uint8)
    open_region(receiver, memory)
    (packet,) = packets(np.full(100, 7, np.uint8), address_of(memory))
    bit %= 8 * len(packet)
    damaged = bytearray(packet)
    damaged[bit // 8] ^= 1 << bit % 8
    before = everything(receiver)
    take(receiver, bytes(damaged))
    if bit // 8 == PREFIX + 4:
        assert memory.all(), "switches may change this byte"
        return
    assert everything(receiver) == before
    assert not memory.any()
    assert sum(int(receiver.hub[0][name]) for name in COUNTED) == 1
    take(receiver, packet)
    assert memory.all(), "what was forged does not keep the genuine packet out"


def forged(opcode: int, size: int, random: np.random.Generator) -> bytes:
    """Return a packet with the right numbers for `state_of`, whatever its opcode, and everything else drawn."""
    body = bytearray(random.bytes(size))
    front = bytes(PREFIX) + bytes([opcode, 0, 0xFF, 0xFF, 0]) + PEER_NUMBER.to_bytes(3, "big") + bytes(4)
    body[: len(front)] = front
    # Endpoint operations name the queue pair in their context, at another place each.
    for at in (PREFIX + 12 + 6, PREFIX + 12 + 10):
        if opcode not in (SACK, NACK):
            body[at : at + 2] = (PEER_NUMBER & 0xFFFF).to_bytes(2, "big")
    return bytes(body)


@settings(max_examples=300)
@given(st.integers(0, 255), st.integers(20, 200), st.integers(0, 2**32))
def test_no_opcode_with_the_right_numbers_changes_anything(opcode, size, seed):
    receiver = tagged(THERE, BACK)
    before = everything(receiver)
    take(receiver, forged(opcode, size, np.random.default_rng(seed)))
    assert everything(receiver) == before
    assert sum(int(receiver.hub[0][name]) for name in COUNTED) == 1


def test_a_packet_signed_for_the_other_direction_or_by_another_key_is_refused():
    for inbound in (BACK, bytes(32)):
        receiver, memory = tagged(inbound, BACK), np.zeros(100, np.uint8)
        open_region(receiver, memory)
        (packet,) = packets(np.full(100, 7, np.uint8), address_of(memory))
        take(receiver, packet)
        assert receiver.hub[0]["wrong_tag"] == 1
        assert not memory.any()


def test_control_is_tagged_as_data_is_and_a_replayed_one_is_not_heard():
    asking, answering = tagged(), tagged(THERE, BACK)
    ask(asking, 0, NOW)
    requests = gathered(asking)
    for packet in requests:
        take(answering, packet)
    answers = gathered(answering)
    assert len(answers) == len(requests)
    asking.peers[0]["asks"] = 3
    take(asking, answers[0])
    assert (asking.peers[0]["asks"], asking.peers[0]["heard_ps"]) == (0, NOW)
    before = everything(answering)
    for packet in requests:
        take(answering, packet)
    assert everything(answering) == before


def test_a_retransmission_is_another_packet():
    sender, receiver, memory = tagged(), tagged(THERE, BACK), np.zeros(100, np.uint8)
    open_region(receiver, memory)
    (first,) = packets(np.full(100, 7, np.uint8), address_of(memory), sender)
    (second,) = packets(np.full(100, 7, np.uint8), address_of(memory), sender)
    assert first != second
    take(receiver, first)
    take(receiver, second)
    acknowledge(receiver, 0, NOW)
    assert receiver.hub[0]["stale"] == 0
    assert receiver.peers[0]["newest"] == 2


@settings(max_examples=50)
@given(st.lists(st.integers(1, 3 * WINDOW), max_size=60), st.integers(1, 2**40))
def test_each_number_is_taken_once_unless_it_is_too_old(numbers, base):
    sender, receiver = tagged(), tagged(THERE, BACK)
    taken: set[int] = set()
    for number in numbers:
        sender.peers[0]["signed"] = base + number - 1
        ask(sender, 0, NOW)
        packet = gathered(sender)[0]
        before = int(receiver.hub[0]["stale"])
        take(receiver, packet)
        refused = int(receiver.hub[0]["stale"]) - before
        newest = max(taken, default=0)
        assert bool(refused) == (number in taken or newest - number >= WINDOW)
        taken |= set() if refused else {number}


def test_the_window_is_as_wide_as_the_record_says():
    assert WINDOW == 16_384


@pytest.mark.parametrize("wrong", [0, 1, 2, 4])
def test_a_packet_from_elsewhere_is_dropped_before_its_tag_is_looked_at(wrong):
    receiver, memory = tagged(THERE, BACK), np.zeros(100, np.uint8)
    open_region(receiver, memory)
    name = bytearray(bytes.fromhex("0200 1234 7f000001"))
    receiver.peers[0]["source"] = int.from_bytes(name[:5], "little")
    receiver.peers[0]["source_mask"] = 2**40 - 1
    (packet,) = packets(np.full(100, 7, np.uint8), address_of(memory))
    name[wrong] ^= 1
    receiver.rx_names[0, 0] = int.from_bytes(name, "little")
    before = everything(receiver)
    take(receiver, packet)
    assert (receiver.hub[0]["wrong_source"], receiver.hub[0]["wrong_tag"]) == (1, 0)
    assert everything(receiver) == before
    name[wrong] ^= 1
    name[7] = 9
    receiver.rx_names[0, 0] = int.from_bytes(name, "little")
    take(receiver, packet)
    assert memory.all(), "of IPv4's address the network counts"
