"""The bytes around a payload come from the header tables, and everybody counts the same."""

import pytest

from weft.fabric.theory import frames
from weft.mrc.rules.settings import settings
from weft.mrc.wire import packets
from weft.mrc.wire.headers import Bth, Header, Meth, Reth, Tseth
from weft.mrc.wire.overhead import (
    CONGESTION_OVERHEAD_BYTES,
    ETHERNET_BYTES,
    FRAME_OVERHEAD_BYTES,
    IPV6_BYTES,
    UDP_BYTES,
    frame_overhead,
    payload_share,
    transport_bytes,
)
from weft.mrc.wire.packets import Packet, encode, headers_of
from weft.netsim.transports.sprayed import frames_of
from weft.planning.cost_model.machine import USUAL_PAYLOAD_SHARE
from weft.specs.transport import MrcSpec

OPCODES = (
    *(packets.FIRST, packets.MIDDLE, packets.LAST, packets.LAST_IMMEDIATE, packets.ONLY, packets.ONLY_IMMEDIATE),
    *(packets.ACK, packets.ENDPOINT_REQUEST, packets.ENDPOINT_RESPONSE, packets.SACK, packets.NACK, packets.PROBE),
)


def _plain(header: type[Header]) -> Header:
    """Return a header whose fields are all zero."""
    return header.decode(bytes(header.size()))


@pytest.mark.parametrize("opcode", OPCODES)
def test_what_a_packet_costs_is_what_its_encoding_weighs(opcode: int) -> None:
    bth = Bth(opcode, 1, 2, timestamped=1)
    whole = encode(Packet(bth, tuple(_plain(header) for header in headers_of(bth))))
    assert transport_bytes(opcode) == len(whole)
    assert frame_overhead(opcode, ipv6_headers=1) == ETHERNET_BYTES + IPV6_BYTES + UDP_BYTES + len(whole)
    assert frame_overhead(opcode) - frame_overhead(opcode, ipv6_headers=1) == IPV6_BYTES


def test_the_published_figures_follow_from_the_tables() -> None:
    assert Bth.size() + Meth.size() + Tseth.size() + Reth.size() == 36
    assert FRAME_OVERHEAD_BYTES == 128 + 38 == 166
    assert CONGESTION_OVERHEAD_BYTES == 88
    assert round(payload_share(4096), 5) == 0.96105


@pytest.mark.parametrize("payload", [256, 1024, 4096, 9000])
def test_fabric_planner_simulator_and_window_count_the_same_bytes(payload: int) -> None:
    simulated = frames_of(payload, "srv6")
    assert simulated.header == FRAME_OVERHEAD_BYTES
    assert frames.frame_bytes(payload) == payload + FRAME_OVERHEAD_BYTES
    assert payload_share(payload) == payload / frames.frame_bytes(payload)
    assert payload_share(4096) == USUAL_PAYLOAD_SHARE
    row = settings(MrcSpec(), planes=2, rate_bps=10**11, payload=payload)[0]
    assert row["overhead"] == CONGESTION_OVERHEAD_BYTES
    assert row["mtu"] == payload + CONGESTION_OVERHEAD_BYTES
    # Against the wire, congestion control leaves out Ethernet and the outer IPv6 header.
    assert FRAME_OVERHEAD_BYTES - CONGESTION_OVERHEAD_BYTES == ETHERNET_BYTES + IPV6_BYTES


def test_structured_evs_save_one_ipv6_header_on_every_kind_of_packet() -> None:
    wrapped, single = frames_of(4096, "srv6"), frames_of(4096, "structured")
    assert {kind: wrapped.control[kind] - size for kind, size in single.control.items()} == dict.fromkeys(
        single.control, IPV6_BYTES
    )
