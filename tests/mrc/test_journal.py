"""The journal keeps every call until its room is used up, and nothing where there is none."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weft.mrc import journal
from weft.mrc.journal import CALL_NAMES, FIRST, lost, make_journal, note, written


@given(
    st.lists(st.tuples(st.integers(1, 16), st.lists(st.integers(-(2**62), 2**62), min_size=1, max_size=13)), max_size=6)
)
def test_a_row_is_the_call_the_end_the_time_and_the_numbers(calls):
    kept = make_journal(6)
    for turn, (call, values) in enumerate(calls):
        note(kept, call, turn % 2, 1000 + turn, tuple(values))
    assert len(written(kept)) == len(calls)
    for turn, (call, values) in enumerate(calls):
        row = written(kept)[turn].tolist()
        assert row[:FIRST] == [call, turn % 2, 1000 + turn]
        assert row[FIRST:] == values + [0] * (len(row) - FIRST - len(values))


@pytest.mark.parametrize("rows", [1, 3])
def test_calls_that_do_not_fit_are_counted_and_change_nothing(rows):
    kept = make_journal(rows)
    for turn in range(5):
        note(kept, journal.DENY, 0, turn, (turn,))
    assert (len(written(kept)), lost(kept)) == (rows, 5 - rows)
    assert kept[-1, FIRST] == rows - 1


def test_nothing_is_written_where_there_is_none():
    kept = make_journal(0)
    note(kept, journal.DENY, 0, 1, (1,))
    assert (len(written(kept)), lost(kept)) == (0, 0)


def test_every_number_of_a_call_has_a_name_of_its_own():
    columns = ("CALL", "END", "TIME", "FIRST")
    named = {name: value for name, value in vars(journal).items() if name.isupper() and name not in columns}
    numbers = {value for name, value in named.items() if isinstance(value, int) and not name.startswith("_")}
    assert numbers == set(range(1, len(CALL_NAMES)))
    assert len(set(CALL_NAMES)) == len(CALL_NAMES)
