import itertools

from hypothesis import given, settings
from hypothesis import strategies as st

from weft.core.seeds import Seed
from weft.training.data import Permutation


@given(st.integers(1, 3000), st.integers(0, 2**63 - 1))
@settings(deadline=None)
def test_everything_stands_somewhere_once(size: int, root: int) -> None:
    order = Permutation(size, Seed(root))
    assert sorted(order[place] for place in range(len(order))) == list(range(size))


@given(st.integers(2**40, 2**62), st.data())
def test_places_of_a_huge_order_stay_inside_and_apart(size: int, data: st.DataObject) -> None:
    order = Permutation(size, Seed(3))
    places = data.draw(st.lists(st.integers(0, size - 1), unique=True, max_size=20))
    found = [order[place] for place in places]
    assert len(set(found)) == len(places)
    assert all(0 <= number < size for number in found)


def test_seeds_shuffle_differently_and_repeatably() -> None:
    orders = [[order[place] for place in range(500)] for order in (Permutation(500, Seed(root)) for root in (1, 1, 2))]
    assert orders[0] == orders[1]
    assert orders[0] != orders[2]


def test_it_looks_shuffled() -> None:
    # Of a random permutation one place in n stays, neighbours stay neighbours about twice; both are Poisson-like.
    size = 4096
    order = [Permutation(size, Seed(5))[place] for place in range(size)]
    assert sum(number == place for place, number in enumerate(order)) < 10
    assert sum(abs(a - b) == 1 for a, b in itertools.pairwise(order)) < 15
    # Every quarter of the order is spread over every quarter of the numbers: 256 in each cell, 13.9 standard deviation.
    for start in range(0, size, size // 4):
        part = order[start : start + size // 4]
        for low in range(0, size, size // 4):
            assert abs(sum(low <= number < low + size // 4 for number in part) - 256) < 70
