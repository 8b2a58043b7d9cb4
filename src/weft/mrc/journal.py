"""The journal of endpoints: every call into `rules.endpoint` with its numbers and what was decided, a row a call.

Written wherever a world gives its ends a journal with room, simulated or on sockets, until that room is used up (which
is counted). So what one world has decided, the other can be asked to decide again.
"""

import numpy as np

from weft.core.compile.intrinsics import apart
from weft.core.compile.rules import replaceable, rule
from weft.mrc.columns import Words

POST, NEXT_DATA, NEXT_CONTROL, TIMER, ON_SACK, ON_NACK, ON_PROBE, RECEIVE = 1, 2, 3, 4, 5, 6, 7, 8
REFUSE, TAKE_SACK, REPLY_EV, OPERATION, OPERATION_EV, TAKE_IMMEDIATE, PORT_CHANGED, DENY = (
    *(9, 10, 11, 12, 13, 14, 15, 16),
)
CALL_NAMES = (
    *("", "post", "next_data", "next_control", "on_timer", "on_sack", "on_nack", "on_probe", "receive"),
    *("refuse", "take_sack", "reply_ev", "operation", "operation_ev", "take_immediate", "port_changed", "deny"),
)
"""What the numbers in the first column stand for."""
CALL, END, TIME, FIRST = 0, 1, 2, 3
"""Columns: call, end of a queue pair, time, and from here on arguments and what was decided."""
_COLUMNS = 16
_USED, _LOST = 0, 1
"""What stands in the first row, which is no call: how many rows are used, how many calls found no room."""


def make_journal(rows: int) -> np.ndarray:
    """Return a journal with room for so many calls; one without any costs nothing."""
    return np.zeros((rows + 1 if rows else 0, _COLUMNS), np.int64)


def written(journal: np.ndarray) -> np.ndarray:
    """Return the rows that are used."""
    return journal[1 : 1 + int(journal[0, _USED])] if len(journal) else journal


def lost(journal: np.ndarray) -> int:
    """Return how many calls found no room."""
    return int(journal[0, _LOST]) if len(journal) else 0


@replaceable("no_note in the engine, whose threads share no journal")
@rule
def note(journal: Words, call: int, end: int, now_ps: int, values: tuple[int, ...]) -> None:
    """Write one row of up to 13 numbers, where there is a journal."""
    # The test stands with the caller and the row apart: nearly always there is none, and then this is all.
    if journal.shape[0] > 0:
        _write(journal, call, end, now_ps, values)


@rule
def no_note(journal: Words, call: int, end: int, now_ps: int, values: tuple[int, ...]) -> None:
    """Take the place of `note` where nothing is kept."""


@rule
def _write(journal: Words, call: int, end: int, now_ps: int, values: tuple[int, ...]) -> None:
    """Write one row, where there is room."""
    apart()
    at = journal[0, _USED] + 1
    if at >= journal.shape[0]:
        journal[0, _LOST] += 1
        return
    journal[0, _USED] = at
    row = journal[at]
    row[CALL], row[END], row[TIME] = call, end, now_ps
    # A row is written once, so what is not given stays zero. The numbers must be of one type for compiled code.
    for place in range(len(values)):
        row[FIRST + place] = values[place]
