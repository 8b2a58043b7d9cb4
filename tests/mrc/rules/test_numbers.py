from hypothesis import given
from hypothesis import strategies as st

from weft.core.compile.rules import compiled
from weft.core.seeds import mix
from weft.mrc.rules.numbers import draw, lowest_bit, mix32, psn_of, seq_near

WORDS = st.integers(-(2**63), 2**63 - 1)
COUNTERS = st.integers(0, 2**62)


@given(WORDS, COUNTERS)
def test_mixed_bits_are_the_seeds_module_s_in_both_forms(word: int, counter: int) -> None:
    expected = mix(word & (2**64 - 1), counter) >> 32
    assert mix32(word, counter) == expected
    assert compiled(mix32)(word, counter) == expected


@given(WORDS, COUNTERS, st.integers(1, 2**31 - 1))
def test_a_draw_stays_below_its_limit_in_both_forms(word: int, counter: int, below: int) -> None:
    assert 0 <= draw(word, counter, below) < below
    assert compiled(draw)(word, counter, below) == draw(word, counter, below)


@given(st.integers(0, 2**60), st.integers(-(2**23) + 1, 2**23 - 1))
def test_a_psn_leads_back_to_its_sequence_number_across_the_wrap(near: int, distance: int) -> None:
    seq = near + distance
    assert seq_near(psn_of(seq), near) == seq


@given(st.integers(1, 2**32 - 1))
def test_the_lowest_bit_is_found(word: int) -> None:
    assert lowest_bit(word) == (word & -word).bit_length() - 1
    assert compiled(lowest_bit)(word) == lowest_bit(word)
