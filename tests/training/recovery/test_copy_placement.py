from hypothesis import given
from hypothesis import strategies as st

from weft.training.recovery.copy_placement import COPIES, placement


@st.composite
def worlds(draw: st.DrawFn) -> tuple[dict[str, list[int]], list[int], list[int]]:
    """Draw who holds which piece, which domain each rank is in, and which domains can keep."""
    domains = draw(st.integers(1, 4))
    nodes = [rank % domains for rank in range(draw(st.integers(1, 8)))]
    alive = draw(st.sets(st.integers(0, domains - 1), min_size=1))
    names = [f"piece{number}" for number in range(draw(st.integers(1, 12)))]
    holders = {name: sorted(draw(st.sets(st.integers(0, len(nodes) - 1), min_size=1))) for name in names}
    return holders, nodes, sorted(alive)


def domains_of(puts: dict[int, list[tuple[str, int]]], key: str) -> list[int]:
    return [node for mine in puts.values() for name, node in mine if name == key]


@given(worlds())
def test_every_piece_lies_in_as_many_domains_as_can_be(world: tuple[dict[str, list[int]], list[int], list[int]]):
    holders, nodes, alive = world
    puts = placement(holders, nodes, alive)
    for key in holders:
        where = domains_of(puts, key)
        assert len(where) == len(set(where)) == min(COPIES, len(alive))
        assert set(where) <= set(alive)


@given(worlds())
def test_only_ranks_that_hold_a_piece_put_it(world: tuple[dict[str, list[int]], list[int], list[int]]):
    holders, nodes, alive = world
    puts = placement(holders, nodes, alive)
    assert sorted(puts) == list(range(len(nodes)))
    assert all(rank in holders[key] for rank, mine in puts.items() for key, _ in mine)


@given(worlds())
def test_nothing_travels_where_two_living_domains_hold_a_piece(
    world: tuple[dict[str, list[int]], list[int], list[int]],
):
    holders, nodes, alive = world
    puts = placement(holders, nodes, alive)
    for rank, mine in puts.items():
        for key, node in mine:
            near = {nodes[one] for one in holders[key]} & set(alive)
            if len(near) >= COPIES:
                assert nodes[rank] == node


def test_equal_replicas_share_the_work_of_putting():
    holders = {f"piece{number:02d}": [0, 1, 2, 3] for number in range(40)}
    puts = placement(holders, [0, 0, 1, 1], [0, 1])
    assert {rank: len(mine) for rank, mine in puts.items()} == {0: 20, 1: 20, 2: 20, 3: 20}


def test_a_lonely_domain_keeps_one_copy_of_all():
    puts = placement({"a": [0], "b": [1]}, [0, 0], [0])
    assert puts == {0: [("a", 0)], 1: [("b", 0)]}


def test_what_one_domain_holds_travels_to_the_other():
    puts = placement({"a": [0]}, [0, 1], [0, 1])
    assert sorted(puts[0]) == [("a", 0), ("a", 1)]
    assert puts[1] == []
