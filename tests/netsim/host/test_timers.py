"""Whose turn it is at a NIC: bits in words against a plain list, and queue pairs that share a sending half."""

from types import SimpleNamespace
from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from weft.netsim.host.ends import opposite
from weft.netsim.host.host_state import AT_NIC, HALF_COLUMNS, SEEN_AS, WORD_BITS
from weft.netsim.host.timers import next_ready, wake


def nics(counts: list[int]) -> Any:
    """Return NICs with so many sending halves each."""
    total = sum(counts)
    each = np.zeros((2 * total, HALF_COLUMNS), np.int64)
    place = np.zeros(2 * total, np.int64)
    half = 0
    for nic, count in enumerate(counts):
        for k in range(count):
            each[half, AT_NIC], place[half] = nic, k
            half += 2
    words = np.concatenate(([0], np.cumsum([-(-count // WORD_BITS) for count in counts]))).astype(np.int64)
    return SimpleNamespace(
        each=each, place=place, first_word=words, ready=np.zeros(int(words[-1]), np.int64),
        awake=np.zeros(len(counts), np.int8),
    )  # fmt: skip


@given(st.integers(1, 100), st.data())
def test_the_next_half_is_the_first_from_its_turn_on_in_a_circle(count, data):
    table = nics([3, count, 40])
    ready = data.draw(st.sets(st.integers(0, count - 1)))
    for place in ready:
        wake(table, 2 * (3 + place))
    at = data.draw(st.integers(0, count - 1))
    expected = min(ready, key=lambda place: (place - at) % count) if ready else -1
    assert next_ready(table, 1, at) == expected
    assert (next_ready(table, 0, 0), next_ready(table, 2, 0)) == (-1, -1), "others are not touched"
    assert table.awake.tolist() == [0, int(bool(ready)), 0]


@given(st.integers(1, 70), st.data())
def test_a_receiving_half_never_asks_to_send(count, data):
    table = nics([count])
    wake(table, 2 * data.draw(st.integers(0, count - 1)) + 1)
    assert not table.awake.any()
    assert not table.ready.any()


@given(st.integers(1, 90), st.data())
def test_going_round_meets_every_ready_half_once(count, data):
    table = nics([count])
    ready = data.draw(st.sets(st.integers(0, count - 1), min_size=1))
    for place in ready:
        wake(table, 2 * place)
    at, found = data.draw(st.integers(0, count - 1)), []
    for _ in ready:
        place = int(next_ready(table, 0, at))
        found.append(place)
        at = (place + 1) % count
    assert sorted(found) == sorted(ready)


@given(st.integers(0, 50), st.booleans())
def test_an_opposite_pair_is_known_by_what_switches_see(other, both):
    each = np.zeros((4, HALF_COLUMNS), np.int64)
    each[3, SEEN_AS] = 2 * other if both else 2 * other + 1
    hosts: Any = SimpleNamespace(nics=SimpleNamespace(each=each))
    assert opposite(hosts, 1) == (other if both else -1)
