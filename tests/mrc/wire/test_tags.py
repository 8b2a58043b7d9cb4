"""Tags: the published hashes, bound to every byte of a packet, and to nothing that a switch may change."""

import hashlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weft.mrc.wire import tags

KEYS = tags.keys_of(bytes(range(32)))


@pytest.mark.parametrize(
    ("size", "wanted"),
    [(0, "310e0edd47db6f72"), (8, "6224939a79f5f593"), (16, "db9bc2577fcc2a3f"), (24, "94af49f6c650adb8")],
)
def test_siphash_gives_the_numbers_of_its_authors(size, wanted):
    assert tags.siphash(bytes(range(16)), bytes(range(size))).to_bytes(8, "little").hex() == wanted


def test_the_keys_of_a_secret_have_nothing_in_common():
    whole = tags.expanded(bytes(32))
    assert len(whole) == tags.KEY_BYTES
    assert whole == hashlib.shake_256(b"weft packet tags 1" + bytes(32)).digest(tags.KEY_BYTES)
    assert b"".join(tags.keys_of(bytes(32))) == whole
    assert len({whole[at : at + 8] for at in range(0, len(whole), 8)}) == len(whole) // 8


def word(data: bytes, at: int) -> int:
    return int.from_bytes(data[at : at + 4], "little")


@given(st.binary(min_size=1, max_size=9000))
def test_block_sums_are_those_of_the_definition(payload):
    found = b""
    for first in range(0, len(payload), 4096):
        block = payload[first : first + 4096]
        block += bytes(-len(block) % 64)
        for shift in (0, 8):
            total = 0
            for at in range(0, len(block), 8):
                m, k = block[at : at + 8], KEYS.block[at + shift : at + shift + 8]
                low, high = (word(m, half) + word(k, half) & 0xFFFFFFFF for half in (0, 4))
                total += low * high
            found += (total % 2**64).to_bytes(8, "little")
    assert tags.block_sums(KEYS.block, payload) == found


@given(st.binary(min_size=1, max_size=300), st.integers(1, 2**40), st.integers(0, 2**64 - 1), st.data())
def test_a_payload_tag_changes_with_every_bit_length_number_and_header(payload, sequence, header, data):
    tag = tags.payload_tag(KEYS, payload, sequence, header)
    bit = data.draw(st.integers(0, 8 * len(payload) - 1))
    flipped = bytearray(payload)
    flipped[bit // 8] ^= 1 << bit % 8
    others = {
        tags.payload_tag(KEYS, bytes(flipped), sequence, header),
        tags.payload_tag(KEYS, payload + b"\0", sequence, header),
        tags.payload_tag(KEYS, payload, sequence + 1, header),
        tags.payload_tag(KEYS, payload, sequence, header ^ 1),
        tags.payload_tag(tags.keys_of(bytes(32)), payload, sequence, header),
    }
    assert tag not in others
    assert len(others) == 5
