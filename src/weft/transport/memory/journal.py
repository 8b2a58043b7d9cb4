"""The journal of an endpoint: every call into the protocol's rules with its numbers and what the rule decided.

Written by the compiled thread where that is asked for, a row a call, until its room is used up (which is counted).
`weft.transport.replay` gives the same calls to the rules as the simulators run them and compares.
"""

from typing import Any

from weft.core.compile.rules import rule
from weft.transport.memory import native

_apart = native.apart

POST, NEXT_DATA, NEXT_CONTROL, REVERSE_PROBE, REVERSE_EV, TIMER = 1, 2, 3, 4, 5, 6
ON_SACK, ON_NACK, ON_PROBE, RECEIVE, TAKE_SACK, TAKE_IMMEDIATE = 7, 8, 9, 10, 11, 12
EV_ANSWER, REVERSE_ANSWER, PORT_ANSWER, PORT_STATUS, PORT_CHANGED, DENY = 13, 14, 15, 16, 17, 18
CALL_NAMES = (
    *("", "post", "next_data", "next_control", "next_reverse_probe", "reverse_ev", "on_timer"),
    *("on_sack", "on_nack", "on_probe", "receive", "take_sack", "take_immediate"),
    *("on_ev_probe_answer", "on_reverse_answer", "on_port_answer", "on_port_status", "port_changed", "deny"),
)
"""What the numbers in the first column stand for."""
CALL, PAIR, TIME, FIRST = 0, 1, 2, 3
"""Columns: call, queue pair, time, and from here on arguments, then what was decided."""


@rule
def note(w: Any, call: int, i: int, now_ps: int, a: int, b: int, c: int, d: int) -> None:
    """Write one row with up to four numbers, where the journal is on."""
    if w.hub[0]["journal_on"]:
        note_all(w, call, i, now_ps, a, b, c, d, 0, 0, 0, 0, 0, 0, 0, 0)


@rule
def note_all(
    w: Any,
    call: int,
    i: int,
    now_ps: int,
    a: int,
    b: int,
    c: int,
    d: int,
    e: int,
    f: int,
    g: int,
    h: int,
    j: int,
    k: int,
    m: int,
    n: int,
) -> None:
    """Write one row, where the journal is on and has room."""
    _apart()
    hub = w.hub[0]
    if hub["journal_on"] == 0:
        return
    if hub["journal_at"] >= w.journal.shape[0]:
        hub["journal_lost"] += 1
        return
    row = w.journal[hub["journal_at"]]
    hub["journal_at"] += 1
    row[0], row[1], row[2] = call, i, now_ps
    row[3], row[4], row[5], row[6] = a, b, c, d
    row[7], row[8], row[9], row[10] = e, f, g, h
    row[11], row[12], row[13], row[14] = j, k, m, n
