"""The integrity check: one value in both forms, blind to what switches may change, and to nothing else."""

import zlib

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from weft.mrc.wire.icrc import CHANGEABLE_BTH_BYTE, ICRC_START, crc_over, icrc, icrc_over

PACKETS = st.binary(min_size=12, max_size=80)


def _array(data: bytes) -> np.ndarray:
    return np.frombuffer(data, np.uint8).copy()


@given(st.binary(max_size=64), st.binary(max_size=64))
def test_the_rule_carries_a_crc_on_as_zlib_does(first: bytes, second: bytes) -> None:
    whole = _array(first + second)
    crc = crc_over(whole, 0, len(first), 0)
    assert crc == zlib.crc32(first)
    assert crc_over(whole, len(first), len(whole), crc) == zlib.crc32(first + second)


@given(PACKETS, st.integers(0, 9))
def test_both_forms_give_the_same_check_wherever_the_packet_lies(packet: bytes, start: int) -> None:
    memory = _array(bytes(start) + packet + b"\xaa" * 3)
    assert icrc_over(memory, start, start + len(packet)) == icrc(packet)


@given(PACKETS, st.integers(0, 255))
def test_what_a_switch_may_change_is_not_covered(packet: bytes, value: int) -> None:
    at = CHANGEABLE_BTH_BYTE
    assert icrc(packet[:at] + bytes([value]) + packet[at + 1 :]) == icrc(packet)


@given(PACKETS, st.data())
def test_every_other_bit_is_covered(packet: bytes, data: st.DataObject) -> None:
    at = data.draw(st.integers(0, len(packet) - 1).filter(lambda place: place != CHANGEABLE_BTH_BYTE))
    bit = data.draw(st.integers(0, 7))
    flipped = packet[:at] + bytes([packet[at] ^ 1 << bit]) + packet[at + 1 :]
    assert icrc(flipped) != icrc(packet)
    assert icrc_over(_array(flipped), 0, len(flipped)) != icrc(packet)


@given(PACKETS, st.binary(min_size=1, max_size=48))
def test_what_stands_in_front_is_covered(packet: bytes, front: bytes) -> None:
    assert icrc(packet, front) != icrc(packet)
    assert zlib.crc32(b"\xff" * 8) == ICRC_START
