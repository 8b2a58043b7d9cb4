"""Random streams: a name and a root decide everything, and nothing else does."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from weft.core.seeds import Seed, mix

names = st.lists(st.one_of(st.text(max_size=8), st.integers(0, 99)), max_size=4)


@given(root=st.integers(0, 2**63 - 1), path=names)
def test_the_same_name_draws_the_same(root: int, path: list[str | int]):
    first = Seed(root).stream(*path).integers(0, 2**63, 8)
    assert np.array_equal(first, Seed(root).stream(*path).integers(0, 2**63, 8))


@given(left=names, right=names)
def test_different_names_are_different_streams(left: list[str | int], right: list[str | int]):
    same = [(type(name), name) for name in left] == [(type(name), name) for name in right]
    assert (Seed(7).branch(*left).key() == Seed(7).branch(*right).key()) == same


@given(above=names, branches=st.lists(names, max_size=5))
def test_many_words_at_once_are_those_of_each_branch(above: list[str | int], branches: list[list[str | int]]):
    seed = Seed(9).branch(*above)
    assert seed.words(branches) == [seed.branch(*names).word() for names in branches]


def test_a_new_consumer_shifts_nobody():
    seed = Seed(1)
    before = seed.stream("failures").random(4)
    seed.stream("newcomer").random(1000)
    assert np.array_equal(before, seed.stream("failures").random(4))


def test_a_number_and_its_text_are_not_the_same_name():
    assert Seed(1).branch(3).key() != Seed(1).branch("3").key()
    assert Seed(1).branch(3).key() != Seed(1).branch("#3").key()


def test_a_stream_can_start_in_the_middle():
    whole = Seed(5).stream("x").integers(0, 2**64, 12, dtype=np.uint64)
    later = Seed(5).stream("x", start=2).integers(0, 2**64, 4, dtype=np.uint64)
    assert np.array_equal(whole[8:12], later)


@pytest.mark.parametrize("root", [-1, 2**63])
def test_a_root_out_of_range_is_refused(root: int):
    with pytest.raises(ValueError, match="between 0 and"):
        Seed(root)


def test_mixed_bits_are_evenly_spread():
    ones = np.zeros(64)
    draws = 4096
    for counter in range(draws):
        word = mix(Seed(3).word(), counter)
        ones += [(word >> bit) & 1 for bit in range(64)]
    # Each bit is a fair coin: 6 standard deviations of a binomial around one half.
    assert np.all(np.abs(ones / draws - 0.5) < 6 * 0.5 / draws**0.5)
