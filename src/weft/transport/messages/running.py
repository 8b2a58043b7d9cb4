"""Programs: lists of sends, receives, waits, sums and copies that run inside the compiled thread, without Python.

An all-reduce is one. Instructions name ranks of a group and places in memory by what they count from; which queue pairs
and which addresses those are stands in tables that are filled when a program begins, so that its code is the same every
time (`messages.programs` makes it). A program ends when its last instruction is done and everything that it sent has
been acknowledged or copied away.
"""

import numpy as np

from weft.core.compile.rules import rule
from weft.mrc.columns import NEVER
from weft.transport.memory import layout, native, tables
from weft.transport.memory.arithmetic import reduce_at
from weft.transport.memory.layout import EndpointState
from weft.transport.messages.transfers import Transfer, begin_receive, begin_send, fail_program, waited

_apart, _move = native.apart, native.move
_AT_ONCE = 16
"""Instructions of one program before others and the socket have their turn."""


@rule
def _instruction(state: EndpointState, number: int, code: np.ndarray, now_ps: int) -> bool:
    """Carry out one instruction; return whether the program may go on."""
    _apart()
    program = state.transfers.programs[number]
    bases = state.transfers.bases[number]
    kind = code[0]
    # Both addresses are worked out for every kind: that is cheaper than asking which it is first.
    to, given = bases[code[6]] + code[2], bases[code[7]] + code[3]
    if kind <= tables.WAIT:
        pair, tag = state.transfers.seats[program["group"], code[1]], program["tag"] + code[4]
        if kind == tables.SEND:
            return begin_send(state, Transfer(number, pair, tag, to, code[3]), now_ps)
        if kind == tables.RECEIVE:
            return begin_receive(
                state, Transfer(number, pair, tag, to, code[3]), code[5] + bases[tables.BASES + code[8]]
            )
        return waited(state, number, pair, tag)
    if kind == tables.REDUCE:
        reduce_at(code[1], to, given, code[4])
    elif kind == tables.COPY:
        _move(to, given, code[4])
    return True


@rule
def run_programs(state: EndpointState, now_ps: int) -> int:
    """Let every program go on as far as it can; return how many instructions were done."""
    _apart()
    done = 0
    left = state.hub[0]["programs"]
    for number in range(tables.PROGRAMS):
        if left <= 0:
            break
        program = state.transfers.programs[number]
        if program["state"] == tables.FREE:
            continue
        left -= 1
        # What cannot be done yet is tried again in the next turn: a program never blocks the thread.
        for _ in range(_AT_ONCE):
            if program["error"] != 0 or program["at"] >= program["end"]:
                break
            if not _instruction(state, number, state.transfers.code[number, program["at"]], now_ps):
                break
            program["at"] += 1
            done += 1
        if program["error"] != 0 or (program["at"] >= program["end"] and program["in_flight"] == 0):
            _end_program(state, number)
            done += 1
    return done


@rule
def _end_program(state: EndpointState, number: int) -> None:
    """Forget a program and report its end."""
    _apart()
    program = state.transfers.programs[number]
    hub = state.hub[0]
    if program["error"] != 0:
        for place in range(tables.SENDS):
            row = state.transfers.sends[place]
            if row["state"] == tables.IN_FLIGHT and row["program"] == number:
                # It is the protocol's now; its end concerns nobody any more.
                row["program"] = tables.NOBODY
            elif row["state"] != tables.FREE and row["program"] == number:
                row["state"] = tables.FREE
                state.transfers.at[tables.N_SENDS] -= 1
        for place in range(tables.RECEIVES):
            row = state.transfers.receives[place]
            if row["state"] != tables.FREE and row["program"] == number:
                row["state"] = tables.FREE
                state.transfers.at[tables.N_RECEIVES] -= 1
    # Freed before the event is counted: Python may fill the row again as soon as it reads of the end.
    program["state"] = tables.FREE
    hub["programs"] -= 1
    row = state.events[hub["events_head"] % layout.EVENTS]
    row[0], row[1], row[2], row[3], row[4] = layout.PROGRAM_DONE, program["culprit"], number, program["error"], 0
    hub["events_head"] += 1


@rule
def begin_program(state: EndpointState, number: int, count: int, tag: int, group: int) -> None:
    """Start the program whose instructions stand in row `number`."""
    _apart()
    program = state.transfers.programs[number]
    program["state"], program["at"], program["end"], program["tag"] = tables.READY, 0, count, tag
    program["group"], program["in_flight"], program["error"], program["culprit"] = group, 0, 0, tables.NOBODY
    state.hub[0]["programs"] += 1
    for pair in range(state.hub[0]["queue_pairs"]):
        if state.transfers.members[group, pair] and state.peers[pair]["failed"] != 0:
            # A queue pair that was reported before keeps its reason above `NEVER`.
            fail_program(state, number, state.peers[pair]["failed"] % NEVER, pair)
