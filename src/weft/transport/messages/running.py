"""Programs: lists of sends, receives, waits, sums and copies that run inside the compiled thread, without Python.

An all-reduce is one. Instructions name ranks of a group and places in memory by what they count from; which queue pairs
and which addresses those are stands in tables that are filled when a program begins, so that its code is the same every
time (`messages.programs` makes it). A program ends when its last instruction is done and everything that it sent has
been acknowledged or copied away.
"""

from typing import Any

from weft.core.compile.rules import rule
from weft.mrc.columns import NEVER
from weft.transport.memory import native
from weft.transport.memory.arithmetic import reduce_at
from weft.transport.memory.layout import EVENTS, PROGRAM_DONE
from weft.transport.messages.tables import (
    BASES,
    COPY,
    FREE,
    N_RECEIVES,
    N_SENDS,
    NOBODY,
    PROGRAMS,
    READY,
    RECEIVE,
    RECEIVES,
    REDUCE,
    SEND,
    SENDS,
    UNDER_WAY,
    WAIT,
)
from weft.transport.messages.transfers import begin_receive, begin_send, fail_program, waited

_apart, _move = native.apart, native.move
_AT_ONCE = 16
"""Instructions of one program before others and the socket have their turn."""


@rule
def _instruction(w: Any, number: int, code: Any, now_ps: int) -> bool:
    """Carry out one instruction; return whether the program may go on."""
    _apart()
    program = w.t.programs[number]
    bases = w.t.bases[number]
    kind = code[0]
    a, b = bases[code[6]] + code[2], bases[code[7]] + code[3]
    if kind <= WAIT:
        i, tag = w.t.seats[program["group"], code[1]], program["tag"] + code[4]
        if kind == SEND:
            return begin_send(w, number, i, tag, a, code[3], now_ps)
        if kind == RECEIVE:
            return begin_receive(w, number, i, tag, a, code[3], code[5] + bases[BASES + code[8]])
        return waited(w, number, i, tag)
    if kind == REDUCE:
        reduce_at(code[1], a, b, code[4])
    elif kind == COPY:
        _move(a, b, code[4])
    return True


@rule
def run_programs(w: Any, now_ps: int) -> int:
    """Let every program go on as far as it can; return how many instructions were done."""
    _apart()
    done = 0
    left = w.hub[0]["programs"]
    for number in range(PROGRAMS):
        if left <= 0:
            break
        program = w.t.programs[number]
        if program["state"] == FREE:
            continue
        left -= 1
        for _ in range(_AT_ONCE):
            if program["error"] != 0 or program["at"] >= program["end"]:
                break
            if not _instruction(w, number, w.t.code[number, program["at"]], now_ps):
                break
            program["at"] += 1
            done += 1
        if program["error"] != 0 or (program["at"] >= program["end"] and program["under_way"] == 0):
            _end_program(w, number)
            done += 1
    return done


@rule
def _end_program(w: Any, number: int) -> None:
    """Forget a program and leave word of its end."""
    _apart()
    program = w.t.programs[number]
    hub = w.hub[0]
    if program["error"] != 0:
        for k in range(SENDS):
            row = w.t.sends[k]
            if row["state"] == UNDER_WAY and row["program"] == number:
                # It is the protocol's now; its end concerns nobody any more.
                row["program"] = NOBODY
            elif row["state"] != FREE and row["program"] == number:
                row["state"] = FREE
                w.t.at[N_SENDS] -= 1
        for k in range(RECEIVES):
            row = w.t.receives[k]
            if row["state"] != FREE and row["program"] == number:
                row["state"] = FREE
                w.t.at[N_RECEIVES] -= 1
    program["state"] = FREE
    hub["programs"] -= 1
    row = w.events[hub["told"] % EVENTS]
    row[0], row[1], row[2], row[3], row[4] = PROGRAM_DONE, program["culprit"], number, program["error"], 0
    hub["told"] += 1


@rule
def begin_program(w: Any, number: int, count: int, tag: int, group: int) -> None:
    """Start the program whose instructions stand in row `number`."""
    _apart()
    program = w.t.programs[number]
    program["state"], program["at"], program["end"], program["tag"] = READY, 0, count, tag
    program["group"], program["under_way"], program["error"], program["culprit"] = group, 0, 0, NOBODY
    w.hub[0]["programs"] += 1
    for i in range(w.hub[0]["queue_pairs"]):
        if w.t.members[group, i] and w.peers[i]["failed"] != 0:
            fail_program(w, number, w.peers[i]["failed"] % NEVER, i)
