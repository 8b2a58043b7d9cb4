"""The hashes of compiled code are the readable ones, wherever in memory their bytes lie."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from weft.mrc.wire import tags
from weft.transport.memory.keyed_hash import TAIL_BYTES, sip_at, sums_at
from weft.transport.memory.layout import address_of

_WHOLE = np.frombuffer(tags.expanded(bytes(range(32))), np.uint8).copy()
_GIVEN = np.random.default_rng(3).integers(0, 256, 70_000, dtype=np.uint8)


@given(st.integers(0, 40), st.integers(0, 15))
def test_siphash_is_the_readable_one(words, at):
    found = sip_at(address_of(_WHOLE), address_of(_GIVEN) + at, words)
    assert found % 2**64 == tags.siphash(_WHOLE[:16].tobytes(), _GIVEN[at : at + 8 * words].tobytes())


@settings(max_examples=60)
@given(st.integers(1, 66_000) | st.sampled_from([63, 64, 65, 4095, 4096, 4097, 8192]), st.integers(0, 70))
def test_block_sums_are_the_readable_ones_and_nothing_else_is_written(size, at):
    out, tail = np.full(40, -7, np.int64), np.zeros(TAIL_BYTES, np.uint8)
    key = address_of(_WHOLE) + tags.BLOCK_KEY_AT
    words = sums_at(key, address_of(_GIVEN) + at, size, address_of(out), address_of(tail))
    wanted = tags.block_sums(_WHOLE[tags.BLOCK_KEY_AT :].tobytes(), _GIVEN[at : at + size].tobytes())
    assert out[:words].tobytes() == wanted
    assert (out[words:] == -7).all()
