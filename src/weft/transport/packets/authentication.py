"""Who may speak: tags on what leaves, and proof of what comes before it changes anything.

The tags are those of `weft.mrc.wire.tags`. A sequence number counts what was sent to a peer, one for each transmission,
so that a packet sent again is another packet; a receiver takes each number once, if it is not `WINDOW` behind the
newest. What fails here has touched nothing but a counter: no column of the protocol, no time at which a peer was heard,
no window.
"""

from weft.core.compile.rules import rule
from weft.mrc.columns import ByteArray
from weft.mrc.wire.inplace import get32, put32
from weft.mrc.wire.tags import (
    BLOCK_KEY_AT,
    HEADER_KEY_AT,
    HEADER_TRAILER_BYTES,
    PAYLOAD_KEY_AT,
    SEQUENCE_BYTES,
    TAG_BYTES,
)
from weft.transport.memory import keyed_hash, layout, native
from weft.transport.memory.layout import EndpointState

_apart, _move = native.apart, native.move
_sip_at, _sums_at = keyed_hash.sip_at, keyed_hash.sums_at

INBOUND, OUTBOUND = 0, 1
"""Rows of a queue pair's keys."""
CHANGEABLE = layout.PREFIX + 4
"""The byte that switches may change on the way; checks are made as if it were all ones."""
_WORD_BITS, _WORD_SHIFT = 32, 5
WINDOW = (layout.REPLAY_WORDS - 1) * _WORD_BITS
"""How far behind the newest a packet may come: the last word of the ring is the one that is being filled."""


@rule
def put_word(data: ByteArray, at: int, word: int) -> None:
    """Write 64 bits, most significant byte first."""
    put32(data, at, word >> 32)
    put32(data, at + 4, word)


@rule
def get_word(data: ByteArray, at: int) -> int:
    """Read 64 bits as a signed number."""
    high = get32(data, at)
    # Signed before it is shifted: what passes 2^63 has no place in a column.
    return ((high ^ 0x80000000) - 0x80000000) * 0x100000000 + get32(data, at + 4)


@rule
def _key_at(state: EndpointState, pair: int, way: int) -> int:
    """Return where the keys of one direction lie."""
    return state.keys.ctypes.data + (pair * 2 + way) * layout.KEY_WORDS * 8


@rule
def _header_tag(state: EndpointState, key: int, address: int, size: int) -> int:
    """Return the tag of `size` bytes at `address`: EV, headers and sequence number."""
    words = (size + 7) >> 3
    # Beside, because one byte counts as ones and the last word is filled up; the packet stays as it came.
    state.tag_words[words - 1] = 0
    _move(state.tag_words.ctypes.data, address, size)
    state.tag_bytes[CHANGEABLE] = 0xFF
    return _sip_at(key + HEADER_KEY_AT, state.tag_words.ctypes.data, words)


@rule
def _payload_tag(state: EndpointState, key: int, payload: int, length: int, proof: tuple[int, int]) -> int:
    """Return the tag of a payload; `proof` is the sequence number and the tag of its headers."""
    at = state.tag_words.ctypes.data
    count = _sums_at(key + BLOCK_KEY_AT, payload, length, at, at + 8 * layout.TAG_TAIL_AT)
    state.tag_words[count], state.tag_words[count + 1], state.tag_words[count + 2] = proof[0], proof[1], length
    return _sip_at(key + PAYLOAD_KEY_AT, at, count + 3)


@rule
def sign(state: EndpointState, pair: int, span: tuple[int, int], payload: int, length: int) -> int:
    """Give the packet whose headers stand in `span` of the ring its number and tags; return where they end now."""
    _apart()
    start, end = span
    heads = state.heads
    key = _key_at(state, pair, OUTBOUND)
    peer = state.peers[pair]
    # Never used twice under one key: the row of a queue pair is filled once, and its keys are new then.
    peer["signed"] += 1
    put_word(heads, end, peer["signed"])
    tag = _header_tag(state, key, state.tx_at[0] + start, end - start + SEQUENCE_BYTES)
    put_word(heads, end + SEQUENCE_BYTES, tag)
    if length > 0:
        put_word(heads, start + layout.TRAILER_AT, _payload_tag(state, key, payload, length, (peer["signed"], tag)))
    return end + HEADER_TRAILER_BYTES


@rule
def is_proved(state: EndpointState, pair: int, base: int, end: int, length: int) -> bool:
    """Return whether the packet at `base`, whose headers end at `end`, comes from the peer and for the first time.

    It is then taken: the same packet is not proved again.
    """
    _apart()
    hub, data = state.hub[0], state.rx
    sequence = get_word(data, end)
    # The cheapest question first: whoever sends a packet again is not worth a hash.
    if not _is_fresh(state, pair, sequence):
        hub["stale"] += 1
        return False
    key = _key_at(state, pair, INBOUND)
    at = state.rx_at[0]
    tag = _header_tag(state, key, at + base, end - base + SEQUENCE_BYTES)
    if tag != get_word(data, end + SEQUENCE_BYTES):
        hub["wrong_tag"] += 1
        return False
    if length > 0:
        payload = end + HEADER_TRAILER_BYTES
        if _payload_tag(state, key, at + payload, length, (sequence, tag)) != get_word(data, payload + length):
            hub["wrong_tag"] += 1
            return False
    _take_number(state, pair, sequence)
    return True


@rule
def trailer_bytes(length: int) -> int:
    """Return the bytes that tags add to a packet with a payload of `length`."""
    return HEADER_TRAILER_BYTES + (TAG_BYTES if length > 0 else 0)


@rule
def _is_fresh(state: EndpointState, pair: int, sequence: int) -> bool:
    """Return whether a sequence number was not taken yet and is not too old to know."""
    newest = state.peers[pair]["newest"]
    if sequence > newest:
        return True
    if sequence <= 0 or newest - sequence >= WINDOW:
        return False
    word = state.replay[pair, (sequence >> _WORD_SHIFT) % layout.REPLAY_WORDS]
    return word >> (sequence % _WORD_BITS) & 1 == 0


@rule
def _take_number(state: EndpointState, pair: int, sequence: int) -> None:
    """Note that a sequence number was taken (the ring of words of RFC 6479)."""
    peer = state.peers[pair]
    word = sequence >> _WORD_SHIFT
    if sequence > peer["newest"]:
        last = peer["newest"] >> _WORD_SHIFT
        # Words between the old newest and this one are of numbers that have not come; a round clears them all.
        for step in range(min(word - last, layout.REPLAY_WORDS)):
            state.replay[pair, (word - step) % layout.REPLAY_WORDS] = 0
        peer["newest"] = sequence
    state.replay[pair, word % layout.REPLAY_WORDS] |= 1 << (sequence % _WORD_BITS)
