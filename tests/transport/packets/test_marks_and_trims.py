"""What switches do to packets reaches the rules: marks are echoed, cut packets asked for again and never placed."""

import socket

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.transport.columns import state_of
from tests.transport.packets.test_arrivals import open_region, receiver, take
from tests.transport.packets.test_arrivals import packets as plain_packets
from tests.transport.packets.test_authentication import BACK, THERE, everything, gathered, packets, tagged
from tests.transport.pairs import two

from weft.mrc.wire.headers import Bth, Neth, Seth
from weft.mrc.wire.packets import (
    CONTROL_DSCP,
    DATA_DSCP,
    ECN_CAPABLE,
    ECN_MARKED,
    NACK,
    SACK,
    TRIMMED,
    TRIMMED_DSCP,
    TRIMMED_LAST_HOP_DSCP,
    TRIMMED_LASTHOP,
    VERDICT_NONE,
    VERDICT_SKIP_ONCE,
)
from weft.transport.memory.layout import PREFIX, EndpointState, address_of
from weft.transport.packets.arrivals import acknowledge
from weft.transport.replay import replay
from weft.transport.sockets import class_message, control_message
from weft.transport.statistics import statistics

NOW = 10**12
CUT = {TRIMMED_DSCP: TRIMMED, TRIMMED_LAST_HOP_DSCP: TRIMMED_LASTHOP}
HEADERS, TAIL = PREFIX + 36, 16


def arrive(state: EndpointState, packet: bytes, dscp: int, ecn: int = 0) -> None:
    state.hub[0]["traffic_class"] = dscp << 2 | ecn
    take(state, packet)


@settings(max_examples=30)
@given(st.integers(1, 12_000), st.sampled_from([*CUT]), st.booleans(), st.data())
def test_a_cut_packet_lands_nothing_and_is_asked_for_by_its_reason(size, dscp, keyed, drawn):
    state = tagged(THERE, BACK) if keyed else receiver()
    memory, data = np.zeros(12_000, np.uint8), np.random.default_rng(size).integers(1, 256, size, dtype=np.uint8)
    open_region(state, memory)
    sent = (packets if keyed else plain_packets)(data, address_of(memory))
    which = drawn.draw(st.integers(0, len(sent) - 1))
    headers = HEADERS + (4 if which == len(sent) - 1 else 0) + (TAIL if keyed else 0)
    arrive(state, sent[which][: drawn.draw(st.integers(headers, len(sent[which])))], dscp)
    assert not memory.any()
    (answer,) = gathered(state)
    assert Bth.decode(answer[PREFIX:]).opcode == NACK
    asked = Neth.decode(answer[PREFIX:], Bth.size())
    assert (asked.reason, asked.nack_psn) == (CUT[dscp], Bth.decode(sent[which][PREFIX:]).psn)
    assert state.hub[0]["trimmed_in"] == state.receiver.qp[0]["trimmed"] == 1
    # A copy that comes whole (with tags it would have a number of its own) brings the bytes.
    for number, packet in enumerate(sent):
        if not (keyed and number == which):
            arrive(state, packet, DATA_DSCP)
    assert np.count_nonzero(memory) == size - (min(4096, size - 4096 * which) if keyed else 0)


@settings(max_examples=30)
@given(st.integers(0, HEADERS + TAIL + 3), st.integers(1, 255), st.sampled_from([*CUT]), st.booleans())
def test_a_cut_packet_that_is_not_the_peers_changes_nothing(at, flip, dscp, short):
    state, memory = tagged(THERE, BACK), np.zeros(4096, np.uint8)
    open_region(state, memory)
    (packet,) = packets(np.ones(4096, np.uint8), address_of(memory))
    forged = bytearray(packet[: HEADERS + 4 + TAIL])
    if short:
        forged = forged[:at]
    # The byte that switches may change is not covered; neither is what never was in the packet.
    elif at == PREFIX + 4:
        return
    else:
        forged[at] ^= flip
    before = everything(state)
    arrive(state, bytes(forged), dscp)
    assert everything(state) == before


@settings(max_examples=20)
@given(st.integers(1, 12_000), st.data())
def test_a_mark_is_said_at_once_and_names_its_path(size, drawn):
    state, memory = receiver(), np.zeros(12_000, np.uint8)
    open_region(state, memory)
    sent = plain_packets(np.ones(size, np.uint8), address_of(memory))
    marked = drawn.draw(st.integers(0, len(sent) - 1))
    for number, packet in enumerate(sent):
        arrive(state, packet, DATA_DSCP, ECN_MARKED if number == marked else ECN_CAPABLE)
        acknowledge(state, 0, NOW)
        said = [(one[PREFIX], Seth.decode(one[PREFIX:], Bth.size())) for one in gathered(state)]
        verdicts = [one.verdict for opcode, one in said if opcode == SACK]
        if number == marked:
            assert verdicts == [VERDICT_SKIP_ONCE]
            assert said[0][1].entropy.to_bytes(4, "big") == packet[:4]
        else:
            assert set(verdicts) <= {VERDICT_NONE}
    assert state.hub[0]["marked_in"] == state.receiver.qp[0]["marked"] == 1


def test_data_may_be_marked_and_control_goes_in_its_class():
    state = state_of()
    data = np.ones(100, np.uint8)
    state.tx_control[:] = control_message(socket.AF_INET6)
    assert [state.tx_control.tobytes()[at : at + 4] for at in (8, 12, 16)] == [
        one.to_bytes(4, "little") for one in (socket.IPPROTO_IPV6, socket.IPV6_TCLASS, CONTROL_DSCP << 2)
    ]
    assert class_message(socket.AF_INET) == socket.IPPROTO_IP | socket.IP_TOS << 32
    assert len(plain_packets(data, address_of(data))) == 1


@pytest.mark.parametrize(("dscp", "ecn"), [(DATA_DSCP, ECN_MARKED), (TRIMMED_DSCP, 0), (TRIMMED_LAST_HOP_DSCP, 0)])
def test_real_packets_with_marks_and_cuts_slow_their_sender_and_the_plain_rules_decide_the_same(dscp, ecn):
    with two(1 << 20, journal_rows=100_000) as pair:
        own = pair.here._socket
        ordinary = own.getsockopt(socket.IPPROTO_IP, socket.IP_TOS)
        assert ordinary == DATA_DSCP << 2 | ECN_CAPABLE
        own.setsockopt(socket.IPPROTO_IP, socket.IP_TOS, dscp << 2 | ecn)
        number = pair.out.write(pair.source, 0, pair.source.size, pair.target.address, pair.target.key, immediate=1)
        for _ in range(2000):
            if statistics(pair.there)["endpoint"]["marked_in" if ecn else "trimmed_in"] > 0:
                break
            pair.back.wait(0.005)
        own.setsockopt(socket.IPPROTO_IP, socket.IP_TOS, ordinary)
        while (done := pair.out.wait(20)) is not None and done.value != number:
            pass
        assert np.array_equal(pair.given, pair.taken)
        counted = statistics(pair.here)["queue_pairs"][0]["counters"]
        assert counted["marks" if ecn else "trims"] > 0
        assert counted["skips"] > 0 or dscp == TRIMMED_LAST_HOP_DSCP
        for end in (pair.here, pair.there):
            again = replay(end.record())
            assert again.difference is None
            assert again.decisions.get("refuse", 0) == end.state.hub[0]["trimmed_in"] + end.state.hub[0]["refused"]
