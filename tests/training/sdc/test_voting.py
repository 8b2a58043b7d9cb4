from hypothesis import given
from hypothesis import strategies as st

from weft.training.sdc.voting import vote

ballots = st.dictionaries(st.integers(0, 20), st.integers(0, 3), min_size=1)


@given(ballots)
def test_a_majority_decides_and_only_the_others_are_odd(digests: dict[int, int]) -> None:
    outcome = vote(digests)
    right = [voter for voter, digest in digests.items() if digest == outcome.agreed]
    if outcome.decided:
        assert 2 * len(right) > len(digests)
        assert set(outcome.odd) == set(digests) - set(right)
    else:
        assert set(outcome.odd) == set(digests)
        assert all(2 * list(digests.values()).count(digest) <= len(digests) for digest in digests.values())


@given(st.integers(3, 30), st.data())
def test_one_liar_among_three_or_more_is_always_named(voters: int, data: st.DataObject) -> None:
    liar = data.draw(st.integers(0, voters - 1))
    assert vote({voter: int(voter == liar) for voter in range(voters)}).odd == (liar,)


@given(st.integers(0, 2**64))
def test_two_that_differ_are_not_decided(digest: int) -> None:
    outcome = vote({0: digest, 1: digest + 1})
    assert not outcome.decided
    assert outcome.odd == (0, 1)


def test_nobody_votes_and_nobody_is_odd() -> None:
    assert vote({}).unanimous
