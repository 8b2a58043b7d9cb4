import contextlib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weft.mrc.wire import packets
from weft.mrc.wire.headers import HEADERS, Bth, CcState, DecodeError, Reth, Seth
from weft.mrc.wire.packets import Packet, decode, encode, ev_fields, ev_from_fields

OPCODES = (0xC6, 0xC7, 0xC8, 0xC9, 0xCA, 0xCB, 0xD1, 0xD8, 0xD9, 0xDC, 0xDD, 0xDE)


def header_values(kind: Any):
    def span(width: Any):
        return st.integers(-(2 ** (-width - 1)), 2 ** (-width - 1) - 1) if width < 0 else st.integers(0, 2**width - 1)

    return st.fixed_dictionaries({name: span(width) for name, width in kind.layout if name}).map(lambda v: kind(**v))


@st.composite
def whole_packets(draw: Any):
    bth = draw(header_values(Bth))
    bth = Bth(**{**vars(bth), "opcode": draw(st.sampled_from(OPCODES)), "version": 0})
    headers = [draw(header_values(kind)) for kind in packets.headers_of(bth)]
    payload = draw(st.binary(max_size=64)) if bth.opcode <= packets.ONLY_IMMEDIATE else b""
    for place, header in enumerate(headers):
        if isinstance(header, Reth):
            headers[place] = Reth(header.address, header.key, len(payload))
        if bth.opcode == packets.NACK:
            headers[place] = type(header)(**{**vars(header), "reason": draw(st.sampled_from(packets.NACK_REASONS))})
    return Packet(bth, tuple(headers), payload)


def test_headers_have_the_published_sizes() -> None:
    sizes = {kind.__name__: kind.size() for kind in HEADERS}
    assert sizes == {
        "Bth": 12,
        "Meth": 4,
        "Tseth": 4,
        "Reth": 16,
        "ImmDt": 4,
        "Seth": 28,
        "CcState": 8,
        "Neth": 20,
        "Peth": 16,
        "Erth": 16,
        "Eeth": 36,
        "Aeth": 4,
    }


def test_the_flags_of_byte_8_stand_where_dissectors_look() -> None:
    raw = Bth(opcode=0xC6, queue_pair=0x123456, psn=0xABCDEF, retransmission=1).encode()
    assert raw[8] == 1 << 5
    assert Bth(opcode=0xC6, queue_pair=0, psn=0, timestamped=1).encode()[8] == 1 << 4
    assert Bth(opcode=0xC6, queue_pair=0, psn=0, ack_request=1).encode()[8] == 1 << 7
    assert (raw[5:8], raw[9:12]) == (bytes.fromhex("123456"), bytes.fromhex("abcdef"))


def test_a_full_packet_fits_the_published_overhead() -> None:
    # 40 + 40 + 8 of IPv6, IPv6 and UDP make the 128 bytes of facts section 3.
    assert Bth.size() + 4 + 4 + Reth.size() + 4 == 128 - 88


def test_a_sack_is_36_bytes_after_the_base_header() -> None:
    assert Seth.size() + CcState.size() == 36


@pytest.mark.parametrize("kind", HEADERS, ids=lambda kind: kind.__name__)
def test_every_header_survives_its_round_trip(kind: Any) -> None:
    @given(header_values(kind))
    def survives(header: Any) -> None:
        assert kind.decode(header.encode()) == header

    survives()


@given(whole_packets(), st.binary(max_size=48))
def test_every_packet_survives_its_round_trip(packet: Any, front: Any) -> None:
    assert decode(encode(packet, front), front) == packet


@given(st.binary(max_size=200), st.booleans())
def test_any_bytes_decode_or_raise_the_one_error(data: Any, trimmed: bool) -> None:
    with contextlib.suppress(DecodeError):
        assert decode(data, trimmed=trimmed).bth.opcode in OPCODES


@given(whole_packets(), st.data())
def test_a_changed_bit_is_noticed(packet: Any, data: Any) -> None:
    raw = bytearray(encode(packet))
    place = data.draw(st.integers(0, len(raw) - 1).filter(lambda at: at != 4))
    raw[place] ^= 1 << data.draw(st.integers(0, 7))
    with pytest.raises(DecodeError):
        decode(bytes(raw))


@given(whole_packets(), st.integers(0, 200))
def test_a_cut_packet_is_noticed(packet: Any, keep: int) -> None:
    raw = encode(packet)
    if keep < len(raw):
        with pytest.raises(DecodeError):
            decode(raw[:keep])


def test_a_trimmed_packet_keeps_its_headers() -> None:
    bth = Bth(opcode=packets.ONLY, queue_pair=7, psn=9)
    packet = Packet(bth, (packets.Meth(1, 2), Reth(4096, 5, 6)), b"abcdef")
    cut = decode(encode(packet)[: 12 + 4 + 16], trimmed=True)
    assert cut.trimmed
    assert cut.headers == packet.headers


@given(st.integers(0, 2**32 - 1))
def test_an_ev_survives_port_and_flow_label(entropy: int) -> None:
    assert ev_from_fields(*ev_fields(entropy)) == entropy
