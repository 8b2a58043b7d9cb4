"""The in-place codec writes and reads the bytes of the readable one, plain and compiled."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.mrc.wire.test_packets import whole_packets

from weft.core.compile.rules import compiled
from weft.mrc import columns
from weft.mrc.wire import inplace, packets
from weft.mrc.wire.headers import Bth, CcState, DecodeError, Eeth, Erth, ImmDt, Meth, Neth, Peth, Reth, Seth, Tseth
from weft.mrc.wire.icrc import icrc, icrc_over
from weft.mrc.wire.packets import Packet, decode, encode

U16, U24, U32 = st.integers(0, 2**16 - 1), st.integers(0, 2**24 - 1), st.integers(0, 2**32 - 1)


def row(dtype: Any, **values: int):
    made = np.zeros(1, dtype)[0]
    for name, value in values.items():
        made[name] = value
    return made


def sealed(pack: Any, *arguments: Any, payload: Any = b""):
    data = np.zeros(4096, np.uint8)
    end = pack(data, 3, *arguments)
    data[end : end + len(payload)] = np.frombuffer(payload, np.uint8)
    return bytes(data[3 : inplace.seal(data, 3, end + len(payload))])


@given(st.binary(min_size=12, max_size=200))
def test_both_forms_of_the_check_agree(data: Any) -> None:
    array = np.frombuffer(data, np.uint8)
    assert icrc_over(array, 0, len(data)) == icrc(data)


@given(U24, U24, st.integers(0, 2**63 - 1), U32, st.binary(max_size=40), U16, st.booleans(), st.booleans(), U32)
def test_data_packets_are_written_alike(
    queue_pair: Any, psn: Any, address: Any, key: Any, payload: Any, msn: Any, again: Any, last: Any, immediate: Any
) -> None:
    opcode = packets.LAST_IMMEDIATE if last else packets.MIDDLE
    send = row(
        columns.SEND,
        opcode=opcode,
        psn=psn,
        address=address,
        key=key,
        length=len(payload),
        msn=msn,
        retransmission=int(again),
        ack_request=int(last),
        immediate=immediate if last else -1,
    )
    bth = Bth(opcode, queue_pair, psn, ack_request=int(last), retransmission=int(again), timestamped=1)
    tail = (ImmDt(immediate),) if last else ()
    packet = Packet(bth, (Meth(0, msn), Tseth(77), Reth(address, key, len(payload)), *tail), payload)
    assert sealed(inplace.pack_data, queue_pair, send, 77, payload=payload) == encode(packet)


@given(U24, st.integers(0, 2), st.booleans(), st.integers(-(2**15), 2**15 - 1), U32, U24, st.integers(0, 255), U32, U32)
def test_sacks_are_written_alike(
    queue_pair: Any, verdict: Any, probe: Any, offset: Any, value: int, cack: Any, mpr: Any, low: Any, high: Any
) -> None:
    reply = row(
        columns.REPLY,
        verdict=verdict,
        probe_response=int(probe),
        ack_psn_offset=offset,
        value=value,
        cack_psn=cack,
        mpr=mpr,
        sack_offset=-offset - 1,
        bitmap_low=low,
        bitmap_high=high,
        stamp=5,
        ooo_count=9,
        penalty=101,
        received_units=cack,
    )
    seth = Seth(verdict, offset, value, cack, mpr, -offset - 1, high << 32 | low, probe_response=int(probe))
    state = CcState(tx_timestamp=5, ooo_count=9, rcv_cwnd_pen=101, rcvd_bytes=cack)
    expected = encode(Packet(Bth(packets.SACK, queue_pair, 0), (seth, state)))
    assert sealed(inplace.pack_reply, queue_pair, reply) == expected


@given(U24, st.sampled_from(packets.NACK_REASONS), U32, U24, U16)
def test_nacks_and_probes_are_written_alike(queue_pair: Any, reason: Any, value: int, psn: Any, number: int) -> None:
    reply = row(columns.REPLY, reason=reason, value=value, psn=psn, stamp=number)
    neth = Neth(reason, value, psn, tx_timestamp=number)
    assert sealed(inplace.pack_reply, queue_pair, reply) == encode(Packet(Bth(packets.NACK, queue_pair, 0), (neth,)))
    peth = Peth(number, tx_timestamp=8)
    expected = encode(Packet(Bth(packets.PROBE, queue_pair, 0), (peth,)))
    assert sealed(inplace.pack_probe, queue_pair, number, 8) == expected


@given(st.integers(0, 1), U16, st.integers(0, 2), U32, U32)
def test_endpoint_operations_are_written_alike(
    operation: Any, number: int, verdict: Any, value: int, mask: Any
) -> None:
    request = Packet(Bth(packets.ENDPOINT_REQUEST, 2, number), (Erth(operation, port_status=mask),))
    assert sealed(inplace.pack_request, operation, number, mask) == encode(request)
    answer = inplace.EndpointResponse(operation, number, verdict, value, mask)
    response = Packet(Bth(packets.ENDPOINT_RESPONSE, 2, number), (Eeth(operation, verdict, value, mask),))
    assert sealed(inplace.pack_response, answer) == encode(response)


def accepted(data: Any, trimmed: bool, read: Any = inplace.read_packet):
    view = np.zeros(1, inplace.VIEW)[0]
    return read(np.frombuffer(data, np.uint8).copy(), 0, len(data), trimmed, view), view


@given(whole_packets())
def test_what_the_readable_form_writes_is_read_alike(packet: Any) -> None:
    verdict, view = accepted(encode(packet), trimmed=False)
    assert verdict == inplace.FINE
    names = {"entropy": "value", "nack_psn": "psn", "sack_bitmap": "", "rcvd_bytes": "received_units", "probe_id": "id"}
    names |= {"rcv_cwnd_pen": "penalty", "tx_timestamp": "stamp", "psn": "psn"}
    for header in (packet.bth, *packet.headers):
        for name, value in vars(header).items():
            mine = names.get(name, name)
            if mine in (inplace.VIEW.names or ()) and not (packet.bth.opcode == packets.NACK and header is packet.bth):
                width = 64 if name == "address" else 32
                assert int(view[mine]) % 2**width == value % 2**width, name
        if isinstance(header, Seth):
            assert int(view["bitmap_high"]) << 32 | int(view["bitmap_low"]) == header.sack_bitmap


def _readable(data: Any, trimmed: bool):
    try:
        decode(data, trimmed=trimmed)
    except DecodeError:
        return False
    return True


@given(whole_packets(), st.data(), st.booleans())
def test_both_forms_refuse_the_same_bytes(packet: Any, data: Any, trimmed: bool) -> None:
    raw = bytearray(encode(packet))
    for _ in range(data.draw(st.integers(0, 3))):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    raw = raw[: data.draw(st.integers(0, len(raw)))] if data.draw(st.booleans()) else raw
    if data.draw(st.booleans()) and len(raw) > 16:
        raw[-4:] = icrc(bytes(raw[:-4])).to_bytes(4, "little")
    verdict, _ = accepted(bytes(raw), trimmed)
    assert (verdict == inplace.FINE) == _readable(bytes(raw), trimmed)


@pytest.mark.slow
@pytest.mark.timeout(600)
@given(whole_packets())
def test_compiled_reading_gives_the_same_view(packet: Any) -> None:
    raw = encode(packet)
    plain, fast = accepted(raw, False), accepted(raw, False, compiled(inplace.read_packet))
    assert compiled(icrc_over)(np.frombuffer(raw, np.uint8).copy(), 0, len(raw) - 4) == icrc(raw[:-4])
    assert plain[0] == fast[0]
    assert plain[1].tobytes() == fast[1].tobytes()
