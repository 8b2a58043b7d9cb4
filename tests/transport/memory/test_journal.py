"""The journal keeps every call until its room is used up, and nothing while it is off."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.transport.columns import state_of

from weft.transport.memory import journal
from weft.transport.memory.journal import CALL_NAMES, FIRST, note


@given(
    st.lists(st.tuples(st.integers(1, 18), st.lists(st.integers(-(2**62), 2**62), min_size=1, max_size=12)), max_size=6)
)
def test_a_row_is_the_call_the_pair_the_time_and_the_numbers(calls):
    state = state_of(journal_rows=6)
    for turn, (call, values) in enumerate(calls):
        note(state, call, 0, 1000 + turn, tuple(values))
    for turn, (call, values) in enumerate(calls):
        row = state.journal[turn].tolist()
        assert row[:FIRST] == [call, 0, 1000 + turn]
        assert row[FIRST:] == values + [0] * (len(row) - FIRST - len(values))
    assert state.hub[0]["journal_at"] == len(calls)


@pytest.mark.parametrize("rows", [1, 3])
def test_calls_that_do_not_fit_are_counted_and_change_nothing(rows):
    state = state_of(journal_rows=rows)
    for turn in range(5):
        note(state, journal.DENY, 0, turn, (turn,))
    assert state.hub[0]["journal_at"] == rows
    assert state.hub[0]["journal_lost"] == 5 - rows
    assert state.journal[-1, FIRST] == rows - 1


def test_nothing_is_written_while_it_is_off():
    state = state_of(journal_rows=3)
    state.hub[0]["journal_on"] = 0
    note(state, journal.DENY, 0, 1, (1,))
    assert not state.journal.any()
    assert state.hub[0]["journal_lost"] == 0


def test_every_number_of_a_call_has_a_name_of_its_own():
    columns = ("CALL", "PAIR", "TIME", "FIRST")
    named = {name: value for name, value in vars(journal).items() if name.isupper() and name not in columns}
    numbers = {value for value in named.values() if isinstance(value, int)}
    assert numbers == set(range(1, len(CALL_NAMES)))
    assert len(set(CALL_NAMES)) == len(CALL_NAMES)
