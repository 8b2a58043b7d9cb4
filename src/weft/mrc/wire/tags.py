"""Tags that prove a packet: a keyed hash over its headers and one over its payload, in their readable form.

A tagged packet has no ICRC. Behind its headers stand a sequence number and the header tag, behind the payload a tag of
its own, so that headers can be proved before the payload is looked at, and after a switch has cut the payload off:

    EV 4 | headers | sequence 8 | header tag 8 | payload | payload tag 8

Both tags are SipHash-2-4 (Aumasson and Bernstein 2012) under keys of their own. A payload is first shortened by NH
(Black and others, "UMAC", 1999), 4 KiB to 16 bytes, which takes one multiplication for eight bytes; its two sums are
those of UMAC's Toeplitz construction. Two payloads of one length meet in both sums with probability 2^-64, and the sums
stand under SipHash together with the sequence number, which is never used twice, and the header tag. So a packet that
was not sent is accepted with probability 2^-63, however many were seen. Keys are made new for every opening of a queue
pair and each direction. Nothing is encrypted. `weft.transport.memory.keyed_hash` computes the same in compiled code.
"""

import hashlib
from typing import NamedTuple

import numpy as np

SECRET_BYTES = 32
"""What a receiver gives its peer: all keys of one direction come of it."""
SEQUENCE_BYTES, TAG_BYTES = 8, 8
HEADER_TRAILER_BYTES = SEQUENCE_BYTES + TAG_BYTES
"""What stands between headers and payload."""
BLOCK_BYTES, STEP_BYTES, SUM_BYTES = 4096, 64, 16
"""What NH shortens at once, what the compiled form takes at once, and what is left of a block."""
_SIP_BYTES = 16
_TOEPLITZ_BYTES = 8
"""How far the key of the second sum is shifted: one pair of words."""
HEADER_KEY_AT, PAYLOAD_KEY_AT, BLOCK_KEY_AT = 0, _SIP_BYTES, 2 * _SIP_BYTES
KEY_BYTES = BLOCK_KEY_AT + BLOCK_BYTES + _TOEPLITZ_BYTES
_WORD, _LOW64 = 8, 2**64 - 1


class PacketKeys(NamedTuple):
    """The keys of one direction of a queue pair."""

    header: bytes
    payload: bytes
    block: bytes
    """For NH."""


def expanded(secret: bytes) -> bytes:
    """Return the keys that come of a secret, one behind the other."""
    assert len(secret) == SECRET_BYTES, f"a secret has {SECRET_BYTES} bytes, not {len(secret)}"
    return hashlib.shake_256(b"weft packet tags 1" + secret).digest(KEY_BYTES)


def keys_of(secret: bytes) -> PacketKeys:
    """Return the keys that come of a secret."""
    whole = expanded(secret)
    return PacketKeys(whole[:PAYLOAD_KEY_AT], whole[PAYLOAD_KEY_AT:BLOCK_KEY_AT], whole[BLOCK_KEY_AT:])


def siphash(key: bytes, data: bytes) -> int:
    """Return SipHash-2-4 of whole words of 8 bytes."""
    first, second = (int.from_bytes(key[at : at + _WORD], "little") for at in (0, _WORD))
    v = [
        first ^ 0x736F6D6570736575,
        second ^ 0x646F72616E646F6D,
        first ^ 0x6C7967656E657261,
        second ^ 0x7465646279746573,
    ]
    words = [int.from_bytes(data[at : at + _WORD], "little") for at in range(0, len(data), _WORD)]
    # The last word of the standard holds the length and what is left over, which here is nothing.
    for word in (*words, (len(data) & 0xFF) << 56):
        v[3] ^= word
        _rounds(v, 2)
        v[0] ^= word
    v[2] ^= 0xFF
    _rounds(v, 4)
    return v[0] ^ v[1] ^ v[2] ^ v[3]


def _left(word: int, bits: int) -> int:
    return (word << bits | word >> (64 - bits)) & _LOW64


def _rounds(v: list[int], count: int) -> None:
    """Mix the four words of the state."""
    for _ in range(count):
        v[0] = (v[0] + v[1]) & _LOW64
        v[1] = _left(v[1], 13) ^ v[0]
        v[0] = _left(v[0], 32)
        v[2] = (v[2] + v[3]) & _LOW64
        v[3] = _left(v[3], 16) ^ v[2]
        v[0] = (v[0] + v[3]) & _LOW64
        v[3] = _left(v[3], 21) ^ v[0]
        v[2] = (v[2] + v[1]) & _LOW64
        v[1] = _left(v[1], 17) ^ v[2]
        v[2] = _left(v[2], 32)


def block_sums(key: bytes, payload: bytes) -> bytes:
    """Return both NH sums of every block of a payload; the last step of a short one is filled up with zeros."""
    found = b""
    for at in range(0, len(payload), BLOCK_BYTES):
        block = payload[at : at + BLOCK_BYTES]
        padded = block + bytes(-len(block) % STEP_BYTES)
        words = np.frombuffer(padded, "<u4")
        for shift in (0, _TOEPLITZ_BYTES):
            # Words of 32 bits wrap; their product of 64 bits does not, and the sum of products wraps again.
            mixed = words + np.frombuffer(key, "<u4", len(words), shift)
            products = mixed[0::2].astype(np.uint64) * mixed[1::2].astype(np.uint64)
            found += int(products.sum(dtype=np.uint64)).to_bytes(_WORD, "little")
    return found


def header_tag(keys: PacketKeys, covered: bytes) -> int:
    """Return the tag of `covered`: EV, headers with the byte that switches change as ones, and sequence number."""
    return siphash(keys.header, covered + bytes(-len(covered) % _WORD))


def payload_tag(keys: PacketKeys, payload: bytes, sequence: int, tag: int) -> int:
    """Return the tag of a payload behind headers with `tag`."""
    words = (sequence, tag, len(payload))
    return siphash(
        keys.payload, block_sums(keys.block, payload) + b"".join(each.to_bytes(_WORD, "little") for each in words)
    )
