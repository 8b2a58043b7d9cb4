"""The journal of an endpoint: every call into the protocol's rules with its numbers and what the rule decided.

Written by the compiled thread where that is asked for, a row a call, until its room is used up (which is counted).
`weft.transport.replay` gives the same calls to the rules as the simulators run them and compares.
"""

from weft.core.compile.rules import rule
from weft.transport.memory import native
from weft.transport.memory.layout import EndpointState

_apart = native.apart

POST, NEXT_DATA, NEXT_CONTROL, REVERSE_PROBE, REVERSE_EV, TIMER = 1, 2, 3, 4, 5, 6
ON_SACK, ON_NACK, ON_PROBE, RECEIVE, TAKE_SACK, TAKE_IMMEDIATE = 7, 8, 9, 10, 11, 12
EV_ANSWER, REVERSE_ANSWER, PORT_ANSWER, PORT_STATUS, PORT_CHANGED, DENY, RECEIVE_TRIMMED = (
    *(13, 14, 15, 16, 17, 18, 19),
)
CALL_NAMES = (
    *("", "post", "next_data", "next_control", "next_reverse_probe", "reverse_ev", "on_timer"),
    *("on_sack", "on_nack", "on_probe", "receive", "take_sack", "take_immediate"),
    *("on_ev_probe_answer", "on_reverse_answer", "on_port_answer", "on_port_status", "port_changed", "deny"),
    "receive_trimmed",
)
"""What the numbers in the first column stand for."""
CALL, PAIR, TIME, FIRST = 0, 1, 2, 3
"""Columns: call, queue pair, time, and from here on arguments, then what was decided."""


@rule
def note(state: EndpointState, call: int, pair: int, now_ps: int, values: tuple[int, ...]) -> None:
    """Write one row of up to 12 numbers, where the journal is on."""
    # The test stands with the caller and the row apart: nearly always the journal is off, and then this is all.
    if state.hub[0]["journal_on"]:
        _write(state, call, pair, now_ps, values)


@rule
def _write(state: EndpointState, call: int, pair: int, now_ps: int, values: tuple[int, ...]) -> None:
    """Write one row, where there is room."""
    _apart()
    hub = state.hub[0]
    if hub["journal_at"] >= state.journal.shape[0]:
        hub["journal_lost"] += 1
        return
    row = state.journal[hub["journal_at"]]
    hub["journal_at"] += 1
    row[CALL], row[PAIR], row[TIME] = call, pair, now_ps
    # A row is written once, so what is not given stays zero. The numbers must be of one type for compiled code.
    for place in range(len(values)):
        row[FIRST + place] = values[place]
