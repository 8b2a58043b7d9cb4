"""Hangs: the rank that never came is named, through chains of groups; a different call is told from a late one."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weft.diagnosis.collective_calls import EnteredCollective, find_hangs


def calls(group: str, last: dict[int, int], operation: str = "all_reduce") -> list[EnteredCollective]:
    return [
        EnteredCollective(rank, group, number, operation, ((8,),))
        for rank, count in last.items()
        for number in range(1, count + 1)
    ]


@given(st.integers(2, 40), st.integers(1, 30), st.data())
def test_a_rank_that_did_not_enter_is_blamed_and_nobody_else(world: int, number: int, data: st.DataObject) -> None:
    culprit = data.draw(st.integers(0, world - 1))
    last = {rank: number - (rank == culprit) for rank in range(world)}
    found = find_hangs(calls("g", last), {"g": range(world)}, list(range(world))).findings
    assert [(one.verdict, one.ranks) for one in found] == [("stuck", (culprit,))]
    assert f"number {number}" in found[0].sentence


@given(st.integers(1, 40), st.integers(1, 30))
def test_ranks_that_stand_alike_are_not_accused(world: int, number: int) -> None:
    assert find_hangs(calls("g", dict.fromkeys(range(world), number)), {"g": range(world)}, range(world)).healthy


def test_a_rank_of_which_nothing_was_heard_is_blamed() -> None:
    found = find_hangs(calls("g", {0: 3, 1: 3}), {"g": (0, 1, 2)}, [0, 1]).findings
    assert found[0].ranks == (2,)
    assert any("left no record" in line for line in found[0].evidence)


def test_who_waits_itself_is_not_blamed() -> None:
    # Rank 1 keeps group a waiting because rank 2 keeps it waiting in group b.
    said = calls("a", {0: 5, 1: 4}) + calls("b", {1: 9, 2: 8})
    found = find_hangs(said, {"a": (0, 1), "b": (1, 2)}, [0, 1, 2]).findings
    assert [one.ranks for one in found] == [(2,)]
    assert any("group a" in line for line in found[0].evidence)


def test_another_operation_under_the_same_number_is_a_mismatch_and_no_hang() -> None:
    said = [*calls("g", {0: 3, 1: 3, 2: 2}), EnteredCollective(2, "g", 3, "broadcast", ((8,),))]
    found = find_hangs(said, {"g": (0, 1, 2)}, [0, 1, 2]).findings
    assert [(one.cause, one.ranks) for one in found] == [("collective-mismatch", (2,))]


@pytest.mark.parametrize(("operation", "wrong"), [("all_reduce", 1), ("all_to_all", 0)])
def test_other_sizes_are_wrong_where_they_have_to_agree(operation: str, wrong: int) -> None:
    said = [EnteredCollective(rank, "g", 1, operation, ((8 + (rank == 1),),)) for rank in range(3)]
    assert len(find_hangs(said, {"g": (0, 1, 2)}, [0, 1, 2]).findings) == wrong


def test_groups_entered_in_different_orders_are_a_circle() -> None:
    said = calls("a", {0: 2, 1: 1}) + calls("b", {0: 1, 1: 2})
    found = find_hangs(said, {"a": (0, 1), "b": (0, 1)}, [0, 1]).findings
    assert len(found) == 1
    assert any("different orders" in line for line in found[0].evidence)


def test_ranks_that_have_left_a_collective_do_not_wait_for_those_behind() -> None:
    said = [EnteredCollective(0, "g", 1, "broadcast", done=True), EnteredCollective(0, "g", 2, "broadcast", done=True)]
    assert find_hangs([*said, EnteredCollective(1, "g", 1, "broadcast", done=True)], {"g": (0, 1)}, [0, 1]).healthy
