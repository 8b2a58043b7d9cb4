from hypothesis import given
from hypothesis import strategies as st

from weft.training.recovery.agreement import agree, first_difference
from weft.training.recovery.piece import Piece

NAMES = ("model.a", "model.b", "optimizer.a.exp_avg")


def piece(name: str, start: int = 0) -> Piece:
    return Piece(name, (start,), (4,), (16,), "float32")


PIECES = {one.key: one for name in NAMES for one in (piece(name, 0), piece(name, 4))}
KEYS = sorted(PIECES)
digests = st.dictionaries(st.sampled_from(KEYS), st.integers(0, 2**64 - 1), min_size=1)


@given(digests, st.integers(1, 5))
def test_ranks_of_one_mind_agree_on_everything(held: dict[str, int], ranks: int):
    found = agree(dict.fromkeys(range(ranks), held), PIECES)
    assert found.dissent == ()
    assert found.pieces == held


@given(digests, st.integers(3, 6), st.data())
def test_one_that_differs_among_many_is_named(held: dict[str, int], ranks: int, data: st.DataObject):
    odd, key = data.draw(st.integers(0, ranks - 1)), data.draw(st.sampled_from(sorted(held)))
    reports = {rank: dict(held) for rank in range(ranks)}
    reports[odd][key] ^= 1
    found = agree(reports, PIECES)
    assert [(one.key, one.ranks, one.majority) for one in found.dissent] == [(key, (odd,), True)]
    assert found.pieces == held
    assert str(found.dissent[0]) == f"rank {odd} holds another {key.partition('@')[0]} than the majority"


@given(digests, st.data())
def test_two_that_differ_have_no_majority_and_both_are_named(held: dict[str, int], data: st.DataObject):
    key = data.draw(st.sampled_from(sorted(held)))
    found = agree({0: held, 3: {**held, key: held[key] ^ 1}}, PIECES)
    assert [(one.key, one.ranks, one.majority) for one in found.dissent] == [(key, (0, 3), False)]
    assert "no majority" in str(found.dissent[0])


@given(digests)
def test_a_tensor_has_the_sum_of_its_pieces(held: dict[str, int]):
    found = agree({0: held}, PIECES)
    for name, digest in found.tensors.items():
        parts = [value for key, value in held.items() if PIECES[key].name == name]
        assert int(digest, 16) == sum(parts) % 2**64
        assert len(digest) == 16
    assert list(found.tensors) == sorted({PIECES[key].name for key in held})


@given(digests)
def test_it_does_not_matter_which_rank_holds_a_piece(held: dict[str, int]):
    together = agree({0: held}, PIECES)
    apart = agree({number: {key: value} for number, (key, value) in enumerate(sorted(held.items()))}, PIECES)
    assert together.tensors == apart.tensors
    assert together.pieces == apart.pieces


words = st.dictionaries(st.sampled_from(NAMES), st.sampled_from(["0" * 16, "f" * 16]))


@given(words, words)
def test_the_first_difference_is_the_first_name_that_differs(expected: dict[str, str], found: dict[str, str]):
    name = first_difference(expected, found)
    differing = [one for one in sorted({*expected, *found}) if expected.get(one) != found.get(one)]
    assert name == (differing[0] if differing else None)
