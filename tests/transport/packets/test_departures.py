"""What leaves an endpoint: packets that any decoder reads, on the right path, whatever the ring and the kernel do."""

import ctypes
import socket

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.transport.columns import PEER_NUMBER, state_of

from weft.mrc import journal
from weft.mrc.columns import EV_ANSWER, NEVER
from weft.mrc.rules.endpoint import Passage
from weft.mrc.rules.sender import post
from weft.mrc.wire.headers import Eeth, Erth, Peth
from weft.mrc.wire.inplace import pack_probe
from weft.mrc.wire.packets import ENDPOINT_RESPONSE, PROBE, Packet, decode
from weft.transport.memory import layout
from weft.transport.memory.layout import HEAD_BYTES, PREFIX, TX_SLOTS, EndpointState
from weft.transport.packets.departures import (
    CONTEXT_REQUEST,
    INWARD,
    KEEP_ALIVE,
    OUTWARD,
    Frame,
    OutgoingPacket,
    ask,
    capture,
    flush,
    free_slot,
    launch,
    send_answer,
    send_data,
    send_reply,
    serve_time,
    set_deadline,
    shim_loses,
    stamp_of,
)

NOW = 10**12


def staged(state: EndpointState) -> list[bytes]:
    """Return the packets of the ring, gathered as the kernel would."""
    found = []
    for slot in range(int(state.hub[0]["staged"])):
        count = int(state.tx_msg[slot, 3])
        found.append(b"".join(ctypes.string_at(*state.tx_iov[slot, piece].tolist()) for piece in range(count)))
    return found


def decoded(data: bytes) -> Packet:
    return decode(data[PREFIX:], front=data[:PREFIX])


def posted(state: EndpointState, data: np.ndarray, far: int = 1 << 40) -> None:
    state.source[0, int(state.sender.qp[0]["msg_end"])] = data.ctypes.data
    post(state.sender, 0, far, 77, data.nbytes, 9)


@settings(max_examples=25)
@given(st.integers(1, 20_000), st.integers(0, 2**31))
def test_a_message_leaves_as_packets_that_hold_all_of_its_bytes_in_order(size, seed):
    state = state_of()
    data = np.random.default_rng(seed).integers(0, 256, size, dtype=np.uint8)
    posted(state, data)
    count = -(-size // 4096)
    assert send_data(state, 0, NOW, 100) == count
    packets = [decoded(one) for one in staged(state)]
    assert b"".join(packet.payload for packet in packets) == data.tobytes()
    assert {packet.bth.queue_pair for packet in packets} == {PEER_NUMBER}
    assert state.paths[0]["sent"].sum() == count
    assert state.paths[0]["bytes"].sum() == size
    assert state.hub[0]["bytes_out"] == sum(map(len, staged(state)))


def test_packets_take_turns_on_the_planes_and_say_on_which_they_went():
    state = state_of()
    posted(state, np.zeros(8 * 4096, np.uint8))
    send_data(state, 0, NOW, 8)
    evs = [int.from_bytes(one[:PREFIX], "big") for one in staged(state)]
    assert sorted(evs) == [0, 0, 1, 1, 2, 2, 3, 3]
    for slot, ev in enumerate(evs):
        path = state.sender.evs[0]["value"].tolist().index(ev)
        name = state.tx_at[3] + path * state.names.shape[2]
        assert state.tx_msg[slot, 0] == name, "the address is that of the EV"


@pytest.mark.parametrize("most", [0, 1, 5, 16])
def test_no_more_packets_go_than_may(most):
    state = state_of()
    posted(state, np.zeros(20 * 4096, np.uint8))
    assert send_data(state, 0, NOW, most) == most == state.hub[0]["staged"]
    assert state.peers[0]["dirty"] == int(most > 0)


def test_without_checks_a_packet_carries_zeros_in_their_place():
    state = state_of()
    state.hub[0]["check"] = 0
    posted(state, np.ones(100, np.uint8))
    send_data(state, 0, NOW, 1)
    (packet,) = staged(state)
    assert packet[-4:] == bytes(4)


def test_a_control_packet_is_one_piece_and_a_data_packet_three():
    state = state_of()
    end = pack_probe(state.heads, PREFIX, PEER_NUMBER, 5, 0)
    launch(state, 0, OutgoingPacket(0, 0, end, 0, 0), NOW)
    posted(state, np.ones(100, np.uint8))
    send_data(state, 0, NOW, 1)
    assert state.tx_msg[:2, 3].tolist() == [1, 3]
    probe = decoded(staged(state)[0])
    assert probe.bth.opcode == PROBE
    assert isinstance(probe.headers[0], Peth)


def test_a_cut_plane_takes_its_packets_away_and_no_others():
    state = state_of()
    state.hub[0]["cut"], state.hub[0]["shim_on"] = 1 << 2, 1
    posted(state, np.zeros(8 * 4096, np.uint8))
    assert send_data(state, 0, NOW, 8) == 8, "for the protocol they are sent"
    assert state.hub[0]["shim_out"] == 2
    assert 2 not in {int.from_bytes(one[:PREFIX], "big") for one in staged(state)}
    assert len(staged(state)) == 6


@pytest.mark.parametrize("share", [0, 1_000, 200_000, 1_000_000])
def test_a_share_of_loss_is_met_and_is_the_same_every_time(share):
    def lost() -> list[bool]:
        state = state_of()
        state.shim[1] = share
        state.hub[0]["shim_on"], state.hub[0]["shim_word"] = 1, 12345
        return [bool(shim_loses(state, 1)) for _ in range(2000)]

    found = lost()
    assert found == lost()
    assert abs(sum(found) / 2000 - share / 1e6) < 0.04


def test_faults_that_are_off_draw_no_random_number():
    state = state_of()
    state.shim[0] = 1_000_000
    assert not shim_loses(state, 0)
    assert state.hub[0]["shim_draws"] == 0


@given(st.integers(0, 2**60))
def test_a_timestamp_has_sixteen_bits_and_wraps(now):
    assert 0 <= stamp_of(now) < 1 << 16
    assert stamp_of(now + (1 << 33)) == stamp_of(now)


def test_a_full_ring_is_flushed_and_a_kernel_that_takes_no_more_is_waited_for():
    state = state_of()
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as here:
        state.hub[0]["socket"] = here.fileno()
        state.hub[0]["staged"] = TX_SLOTS
        # Every message has no address yet: the kernel refuses each, and that is a path that loses its packet.
        assert free_slot(state) == 0
        assert state.hub[0]["send_errors"] == TX_SLOTS
        assert state.hub[0]["last_errno"] != 0
        assert (state.hub[0]["first"], state.hub[0]["staged"]) == (0, 0)


def test_what_is_flushed_arrives_at_the_address_of_its_path():
    state = state_of()
    with (
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as there,
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as here,
    ):
        there.bind(("127.0.0.1", 0))
        there.settimeout(5)
        port = there.getsockname()[1]
        name = socket.AF_INET.to_bytes(2, "little") + port.to_bytes(2, "big") + bytes((127, 0, 0, 1)) + bytes(8)
        state.names[0, :, : len(name)] = np.frombuffer(name, np.uint8)
        state.name_bytes[0] = len(name)
        state.hub[0]["socket"] = here.fileno()
        posted(state, np.arange(100, dtype=np.uint8))
        send_data(state, 0, NOW, 1)
        flush(state)
        assert decoded(there.recv(65_536)).payload == bytes(range(100))
    assert (state.hub[0]["staged"], state.hub[0]["batches_out"]) == (0, 1)


def test_a_capture_keeps_the_first_bytes_until_its_room_is_used_up():
    state = state_of(capture_rows=2)
    data = np.arange(200, dtype=np.uint8)
    for way in (OUTWARD, INWARD, OUTWARD):
        capture(state, 0, Frame(way, 3, int(data.ctypes.data), 200, 999), NOW)
    assert state.capture_rows.tolist() == [[NOW, OUTWARD, 0, 3, 128, 999], [NOW, INWARD, 0, 3, 128, 999]]
    assert np.array_equal(state.capture[1], data[:128])
    assert state.hub[0]["capture_lost"] == 1


@pytest.mark.parametrize("number", [KEEP_ALIVE, 17])
def test_an_answer_to_a_keep_alive_goes_on_the_plane_that_it_came_on(number):
    for value in range(4):
        state = state_of()
        state.reply[0]["kind"], state.reply[0]["id"] = EV_ANSWER, number
        send_answer(state, 0, Passage(value, value, 0, 0), NOW)
        (packet,) = staged(state)
        answer = decoded(packet)
        assert answer.bth.opcode == ENDPOINT_RESPONSE
        assert isinstance(answer.headers[0], Eeth)
        if number == KEEP_ALIVE:
            assert int.from_bytes(packet[:PREFIX], "big") == value


def test_replies_prefer_planes_on_which_the_peer_was_heard_lately():
    state = state_of(journal_rows=100)
    state.receiver.heard[0] = NOW - int(state.receiver.params[0]["heard_lately_ps"]) - 1
    state.receiver.heard[0, 3] = NOW
    for _ in range(6):
        send_reply(state, 0, NOW)
    evs = [int.from_bytes(one[:PREFIX], "big") for one in staged(state)]
    assert evs == [3] * 6
    assert set(journal.written(state.journal)[:, journal.CALL].tolist()) == {journal.REPLY_EV}


def test_replies_go_somewhere_even_if_the_peer_was_heard_nowhere_lately():
    state = state_of()
    send_reply(state, 0, NOW)
    assert len(staged(state)) == 1


def test_a_silent_peer_is_asked_on_every_plane_at_once():
    state = state_of()
    ask(state, 0, NOW)
    asked = staged(state)
    assert sorted(int.from_bytes(one[:PREFIX], "big") for one in asked) == [0, 1, 2, 3]
    for one in asked:
        request = decoded(one).headers[0]
        assert isinstance(request, Erth)
        assert int.from_bytes(one[CONTEXT_REQUEST : CONTEXT_REQUEST + 2], "big") == PEER_NUMBER & 0xFFFF
    assert (state.peers[0]["asks"], state.peers[0]["asked_ps"]) == (1, NOW)


def test_a_deadline_that_has_come_is_served_and_lies_ahead_afterwards():
    state = state_of(journal_rows=100)
    posted(state, np.zeros(4096, np.uint8))
    send_data(state, 0, NOW, 1)
    set_deadline(state, 0)
    due = int(state.peers[0]["deadline_ps"])
    assert NOW < due < NEVER
    serve_time(state, 0, due)
    assert state.peers[0]["deadline_ps"] > due, "may be early, never late, and never twice at once"
    rows = journal.written(state.journal)[:, journal.CALL].tolist()
    assert journal.TIMER in rows
    assert journal.NEXT_CONTROL in rows


def test_an_idle_queue_pair_has_nothing_to_wait_for():
    state = state_of()
    set_deadline(state, 0)
    assert state.peers[0]["deadline_ps"] >= NEVER


@pytest.mark.parametrize("pairs", [1, 3])
def test_headers_of_every_place_in_the_ring_lie_where_their_pieces_say(pairs):
    state = state_of(pairs)
    first = layout.address_of(state.heads)
    assert state.tx_iov[:, 0, 0].tolist() == [first + slot * HEAD_BYTES for slot in range(TX_SLOTS)]
    assert (state.tx_iov[:, 2, 1] == 4).all(), "the check has four bytes"
    assert (state.tx_iov[:, 2, 0] - state.tx_iov[:, 0, 0] == layout.TRAILER_AT).all()
    assert (state.tx_msg[:, 2] == layout.address_of(state.tx_iov) + 48 * np.arange(TX_SLOTS)).all()
