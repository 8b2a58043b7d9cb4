import threading
from collections.abc import Iterator

import pytest

from weft.training.data import prefetch


def count_to(limit: int, made: list[int]) -> Iterator[int]:
    for number in range(limit):
        made.append(number)
        yield number


@pytest.mark.parametrize("depth", [1, 3, 100])
def test_items_come_whole_and_in_order(depth: int) -> None:
    assert list(prefetch(count_to(50, []), depth)) == list(range(50))


def test_an_error_is_raised_in_its_place() -> None:
    def failing() -> Iterator[int]:
        yield 1
        raise KeyError("lost")

    items = prefetch(failing(), 4)
    assert next(items) == 1
    with pytest.raises(KeyError, match="lost"):
        next(items)


def test_no_more_is_made_than_asked_for_and_the_thread_ends_with_its_reader() -> None:
    made: list[int] = []
    items = prefetch(count_to(10**9, made), 2)
    assert next(items) == 0
    items.close()
    # One was taken, two wait, one may be in hand.
    assert len(made) <= 4
    assert not any(thread.name == "weft-prefetch" for thread in threading.enumerate())
