import pytest
import torch.distributed as dist
from hypothesis import given
from hypothesis import strategies as st

from weft.training.checked_collectives.call_store import CallStore, MismatchError, PayloadError
from weft.training.checked_collectives.calls import CollectiveCall


def stores(ranks: int) -> list[CallStore]:
    shared = dist.HashStore()
    made = [CallStore(shared, rank) for rank in range(ranks)]
    for one in made:
        one.announce("world", range(ranks))
    return made


def call(rank: int, number: int = 0, kind: str = "all_reduce", form: str = "float32[4]") -> CollectiveCall:
    return CollectiveCall("world", number, kind, form, "sum", 0, 1, rank)


@given(st.integers(2, 5), st.integers(1, 200))
def test_ranks_that_call_the_same_never_disagree_however_many_calls(ranks: int, calls: int):
    made = stores(ranks)
    for number in range(0, calls, 7):
        for rank, store in enumerate(made):
            store.enter(call(rank, number), compare=True)
            store.leave(call(rank, number))
    assert made[0].verdict("world") is None


@pytest.mark.parametrize(("kind", "form"), [("all_gather", "float32[4]"), ("all_reduce", "float32[5]")])
def test_the_second_rank_that_calls_another_thing_is_refused_and_the_first_hears_of_it(kind: str, form: str):
    first, second = stores(2)
    first.enter(call(0), compare=True)
    with pytest.raises(MismatchError, match="ranks 0 and 1 do not agree") as caught:
        second.enter(call(1, 0, kind, form), compare=True)
    assert first.verdict("world") == str(caught.value)


def test_calls_that_are_not_compared_pass():
    first, second = stores(2)
    first.enter(call(0), compare=False)
    second.enter(call(1, kind="barrier"), compare=False)
    assert first.verdict("world") is None


def test_a_rank_far_behind_does_not_compare_with_a_later_call_in_the_same_place():
    first, second = stores(2)
    first.enter(call(0, 64, kind="barrier"), compare=True)
    second.enter(call(1, 0), compare=True)


def test_equal_results_agree_and_another_names_both_ranks():
    first, second, third = stores(3)
    first.agree(call(0), 7)
    second.agree(call(1), 7)
    with pytest.raises(PayloadError, match="ranks 0 and 2 got different results"):
        third.agree(call(2), 8)
    assert "different results" in (first.verdict("world") or "")


def test_the_standings_tell_who_waits_where():
    first, second, third = stores(3)
    first.enter(call(0, 3), compare=True)
    second.enter(call(1, 2), compare=True)
    second.leave(call(1, 2))
    found, members = third.standings()
    assert members == {"world": [0, 1, 2]}
    assert {one.call.rank: (one.call.number, one.inside) for one in found} == {0: (3, True), 1: (2, True)}


def test_a_call_is_left_unless_another_was_entered_since():
    (store,) = stores(1)
    earlier, later = call(0, 0), call(0, 1)
    store.enter(earlier, compare=True)
    store.enter(later, compare=True)
    store.leave(earlier)
    assert [one.inside for one in store.standings()[0]] == [True]
    store.leave(later)
    assert [one.inside for one in store.standings()[0]] == [False]


def test_an_explanation_names_the_rank_that_did_not_come():
    first, second, third = stores(3)
    first.enter(call(0, 5), compare=True)
    second.enter(call(1, 5), compare=True)
    text = first.explained(call(0, 5), 12.0)
    assert "rank 0 has waited 12.0 s in all_reduce" in text
    assert "everybody waits for rank 2" in text
    assert "rank 2 was never seen" in text
    third.enter(call(2, 5), compare=True)
    assert "everybody waits" not in first.explained(call(0, 5), 13.0)
