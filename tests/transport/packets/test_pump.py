"""The loop around packets: commands, liveness and ends, with time as an argument."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.transport.columns import state_of

from weft.mrc.columns import NEVER
from weft.transport.memory import layout, tables
from weft.transport.memory.layout import EndpointState
from weft.transport.packets import pump as loop

NOW = 10**13
LIMIT = 3 * 10**12


def command(state: EndpointState, *numbers: int) -> None:
    posted = int(state.hub[0]["posted"])
    state.commands[posted % layout.COMMANDS, : len(numbers)] = numbers
    state.hub[0]["posted"] = posted + 1


def events(state: EndpointState) -> list[list[int]]:
    return state.events[: int(state.hub[0]["events_head"]), :4].tolist()


def watched(silent_ps: int, asks: int) -> EndpointState:
    state = state_of()
    state.peers[0]["engine"] = 0
    state.peers[0]["watched"], state.peers[0]["heard_ps"], state.peers[0]["asks"] = 2, NOW - silent_ps, asks
    state.peers[0]["asked_ps"] = NOW - silent_ps
    return state


@pytest.mark.parametrize("asks", [0, 4, 5])
@pytest.mark.parametrize("silent", [0, LIMIT // 7, LIMIT // 6, LIMIT - 1, LIMIT, 2 * LIMIT])
def test_a_peer_is_gone_after_its_time_if_it_was_asked_often_enough(silent, asks):
    state = watched(silent, asks)
    loop._watch(state, 0, NOW)
    gone = silent >= LIMIT and asks >= 5
    assert (state.peers[0]["failed"] == layout.GONE) == gone
    asked = not gone and silent >= LIMIT // 6
    assert state.peers[0]["asks"] == asks + asked
    assert state.hub[0]["staged"] == (4 if asked else 0), "it is asked on all four planes"


def test_silence_counts_from_when_something_is_wanted():
    state = watched(10 * LIMIT, 5)
    state.peers[0]["watched"] = 0
    loop._watch(state, 0, NOW)
    assert state.peers[0]["failed"] == 0
    # Nothing is wanted: nothing in flight, no program, nobody expects anything.
    assert state.peers[0]["watched"] == 0
    state.sender.qp[0]["end"] += 1
    loop._watch(state, 0, NOW)
    assert (state.peers[0]["watched"], state.peers[0]["heard_ps"], state.peers[0]["asks"]) == (1, NOW, 0)
    assert state.peers[0]["failed"] == 0


def test_a_peer_that_is_usually_slow_gets_five_times_its_usual_time():
    state = watched(2 * LIMIT, 5)
    usual = LIMIT.bit_length() - 20
    state.gaps[0, usual] = 1000
    loop._watch(state, 0, NOW)
    assert state.peers[0]["failed"] == 0
    state.peers[0]["heard_ps"] = NOW - 5 * (1 << (20 + usual))
    loop._watch(state, 0, NOW)
    assert state.peers[0]["failed"] == layout.GONE


@given(st.lists(st.integers(0, 50), min_size=1, max_size=20), st.integers(0, 40))
def test_the_usual_time_covers_99_of_100_gaps(counts, first):
    state = state_of()
    state.gaps[0, first : first + len(counts)] = counts
    found = loop._slowest_ps(state, 0)
    below = sum(
        count for bucket, count in enumerate(counts) if (1 << (20 + first + bucket)) <= found or first + bucket == 0
    )
    assert below * 100 >= sum(counts) * 99


def test_the_end_of_a_queue_pair_is_reported_once_with_its_reason():
    state = state_of()
    state.peers[0]["failed"] = layout.GONE
    loop._serve(state, NOW)
    loop._serve(state, NOW)
    assert events(state) == [[layout.FAILED, 0, 0, layout.GONE]]
    assert state.peers[0]["failed"] == NEVER + layout.GONE


def test_a_peer_that_went_silent_is_reported_to_the_others_who_may_not_see_it():
    state = state_of(3)
    state.peers[1]["failed"] = layout.GONE
    loop._fail(state, 1, NOW)
    words = [int(state.sender.messages[pair, 0]["immediate"]) for pair in (0, 2)]
    assert words == [tables.WORD_ABORT << tables.WORD_SHIFT | 1] * 2
    assert state.sender.qp[1]["msg_end"] == 0


@pytest.mark.parametrize("error", [tables.OVERFULL, tables.WRONG_SIZE, tables.REPORTED_GONE])
def test_other_ends_concern_the_two_alone(error):
    state = state_of(3)
    state.peers[1]["failed"] = error
    loop._fail(state, 1, NOW)
    assert state.sender.qp["msg_end"].tolist() == [0, 0, 0]


def test_an_error_of_the_protocol_ends_the_queue_pair():
    for side in ("sender", "receiver"):
        state = state_of()
        getattr(state, side).qp[0]["error"] = 2
        loop._settle(state, 0)
        assert state.peers[0]["failed"] == 2


@given(st.integers(0, 5000), st.integers(0, 5))
def test_acknowledged_writes_are_reported_in_order_while_there_is_room(backlog, count):
    state = state_of()
    state.hub[0]["events_head"], state.hub[0]["events_tail"] = backlog, 0
    state.sender.qp[0]["msg_first"] = count
    state.tags[0, :count] = range(100, 100 + count)
    loop._settle(state, 0)
    room = max(0, min(count, layout.EVENTS - 512 - backlog))
    assert state.peers[0]["sent_reported"] == room
    reported = [state.events[(backlog + turn) % layout.EVENTS, 2] for turn in range(room)]
    assert reported == list(range(100, 100 + room))


def test_a_write_that_nobody_asks_after_is_not_reported():
    state = state_of()
    state.sender.qp[0]["msg_first"] = 2
    loop._settle(state, 0)
    assert (state.peers[0]["sent_reported"], state.hub[0]["events_head"]) == (2, 0)


def test_commands_are_taken_in_order_and_once():
    state = state_of(2, journal_rows=10)
    command(state, layout.POST, 1, 4096, 1 << 30, 5, 100, 3, 77)
    command(state, layout.DENY_EV, 0, 2, 1)
    command(state, layout.PORT, 0, 3, 0)
    command(state, 0)
    assert loop._take_commands(state, NOW) == 4
    assert loop._take_commands(state, NOW) == 0
    message = state.sender.messages[1, 0]
    assert [int(message[name]) for name in ("address", "key", "length", "immediate")] == [1 << 30, 5, 100, 3]
    assert (state.source[1, 0], state.tags[1, 0]) == (4096, 77)
    states = dict(zip(state.sender.evs[0]["value"].tolist(), state.sender.evs[0]["state"].tolist(), strict=True))
    assert states[2] == 3, "denied"
    assert state.peers["dirty"].tolist() == [1, 1], "a port concerns every queue pair"


def test_a_goodbye_is_said_once_and_not_to_the_dead():
    state = state_of(3)
    state.peers[1]["failed"] = 7
    state.peers[2]["engine"] = 0
    for pair in (0, 0, 1, 2):
        command(state, layout.CLOSE, pair)
    loop._take_commands(state, NOW)
    assert state.sender.qp["msg_end"].tolist() == [1, 0, 0]
    assert state.sender.messages[0, 0]["immediate"] == tables.WORD_BYE << tables.WORD_SHIFT
    assert state.peers["closing"].tolist() == [1, 0, 1]


@given(st.lists(st.tuples(st.integers(0, NOW), st.booleans(), st.integers(0, NOW)), min_size=1, max_size=4))
def test_the_thread_wakes_for_whoever_is_first(rows):
    state = state_of(len(rows))
    wanted = []
    for pair, (deadline, is_watched, heard) in enumerate(rows):
        peer = state.peers[pair]
        peer["deadline_ps"], peer["watched"], peer["heard_ps"], peer["asked_ps"] = deadline, int(is_watched), heard, 0
        wanted += [deadline, heard + LIMIT // 6] if is_watched else [deadline]
    assert loop._next_ps(state) == min(wanted)
    state.peers["failed"] = 1
    assert loop._next_ps(state) == NEVER, "the dead have no deadlines"
