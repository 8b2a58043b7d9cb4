"""Named messages between two sets of columns: whole, once, in any order, within their bounds."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.transport.columns import World

from weft.transport.memory.arithmetic import kind_of
from weft.transport.memory.tables import (
    ADDS_SHIFT,
    CREDIT_EVERY,
    DATA_MESSAGE,
    DONE,
    EAGER,
    FREE,
    N_GRANTS,
    N_POOLED,
    N_RECEIVES,
    N_SENDS,
    OVERFULL,
    POOL,
    READY,
    RECEIVES,
    REPORTED_GONE,
    RESERVED,
    SENDS,
    SLOTS,
    WAITING,
    WORD_ABORT,
    WORD_BYE,
    WORD_CREDIT,
    WORD_DATA,
    WORD_MASK,
    WORD_SHIFT,
    WRONG_SIZE,
)
from weft.transport.messages.running import begin_program
from weft.transport.messages.transfers import (
    Transfer,
    begin_receive,
    begin_send,
    expects,
    fail_members,
    fail_program,
    give_credit,
    run_transfers,
    say,
    take_word,
    waited,
)

SIZES = st.sampled_from([1, 7, 64, EAGER - 1, EAGER, EAGER + 1, 3 * EAGER])
PROGRAM = 5


def world(ranks: int = 2) -> World:
    made = World(ranks)
    for rank in range(ranks):
        begin_program(made.state(rank), PROGRAM, 1, 0, 0)
    return made


def memory(size: int, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, size, dtype=np.uint8)


def transfer(tag: int, at: np.ndarray) -> Transfer:
    return Transfer(PROGRAM, 0, tag, int(at.ctypes.data), at.nbytes)


def push(made: World) -> None:
    """Let transfers and the network go on until nothing moves."""
    for _ in range(4):
        for rank in range(len(made.ranks)):
            run_transfers(made.state(rank), 0)
        made.settle()


@settings(max_examples=40)
@given(st.lists(SIZES, min_size=1, max_size=6), st.randoms(use_true_random=False))
def test_messages_arrive_whole_whichever_side_begins_and_in_any_order(sizes, random):
    made = world()
    given_ = [memory(size, tag) for tag, size in enumerate(sizes)]
    taken = [np.zeros(size, np.uint8) for size in sizes]
    steps = [(side, tag) for side in ("send", "receive") for tag in range(len(sizes))]
    random.shuffle(steps)
    for side, tag in steps:
        if side == "send":
            assert begin_send(made.state(0), transfer(tag, given_[tag]), 0)
        else:
            assert begin_receive(made.state(1), transfer(tag, taken[tag]), 0)
        if random.random() < 0.5:
            push(made)
    push(made)
    for tag in range(len(sizes)):
        assert waited(made.state(1), PROGRAM, 0, tag), tag
        assert not waited(made.state(1), PROGRAM, 0, tag), "a message is waited for once"
        assert np.array_equal(taken[tag], given_[tag])
    for rank in range(2):
        assert (made.state(rank).transfers.at[[N_SENDS, N_RECEIVES, N_GRANTS, N_POOLED]] == 0).all()
        assert made.state(rank).transfers.programs[PROGRAM]["in_flight"] == 0


@pytest.mark.parametrize("size", [8, 800, EAGER, EAGER + 8])
@pytest.mark.parametrize("early", [False, True])
def test_what_is_to_be_added_is_added_where_it_arrives_if_short(size, early):
    made = world()
    given_, there = np.arange(size // 8), np.full(size // 8, 1000)
    wanted = there + given_
    key = (kind_of("sum", "int64") + 1) << ADDS_SHIFT
    if early:
        assert begin_send(made.state(0), transfer(1, given_), 0)
        push(made)
    assert begin_receive(made.state(1), transfer(1, there), key)
    if not early:
        assert begin_send(made.state(0), transfer(1, given_), 0)
    push(made)
    assert waited(made.state(1), PROGRAM, 0, 1)
    # A long message is added by the region that it is written to, which this network does not have: it is copied.
    assert np.array_equal(there, wanted if size <= EAGER else given_)


@pytest.mark.parametrize("sent_first", [False, True])
@pytest.mark.parametrize(("sends", "receives"), [(8, 9), (9, 8), (EAGER + 1, EAGER + 2)])
def test_a_message_of_another_length_ends_the_program_and_names_the_pair(sent_first, sends, receives):
    made = world()
    out, back = memory(sends, 1), np.zeros(receives, np.uint8)

    def send() -> None:
        begin_send(made.state(0), transfer(3, out), 0)

    def receive() -> None:
        begin_receive(made.state(1), transfer(3, back), 0)

    for step in (send, receive) if sent_first else (receive, send):
        step()
        push(made)
    # Whoever compares finds it: the receiver of a short message, the sender of a long one.
    found = made.state(0 if sends > EAGER else 1).transfers.programs[PROGRAM]
    assert (found["error"], found["culprit"]) == (WRONG_SIZE, 0)
    assert not back.any()


def test_data_leaves_room_for_grants_and_grants_use_it():
    made = world()
    data, long = memory(8, 1), np.zeros(EAGER + 1, np.uint8)
    took = 0
    while begin_send(made.state(0), transfer(took, data), 0):
        took += 1
    assert took == SLOTS - RESERVED
    for tag in range(RESERVED + 3):
        assert begin_receive(made.state(0), transfer(1000 + tag, long), 0)
    assert run_transfers(made.state(0), 0) == RESERVED
    peer = made.state(0).peers[0]
    assert peer["eager_sent"] - peer["eager_back"] == SLOTS
    assert not begin_send(made.state(0), transfer(999, data), 0)


@given(st.integers(1, 300))
@settings(max_examples=15)
def test_credit_comes_back_so_that_any_number_of_messages_fits(count):
    made = world()
    taken = np.zeros(8, np.uint8)
    for tag in range(count):
        assert begin_receive(made.state(1), transfer(tag, taken), 0)
        assert begin_send(made.state(0), transfer(tag, memory(8, tag)), 0), "no credit came back"
        made.settle()
        assert waited(made.state(1), PROGRAM, 0, tag)
        assert np.array_equal(taken, memory(8, tag))
    here, there = made.state(0).peers[0], made.state(1).peers[0]
    assert there["eager_taken"] == count
    assert here["eager_sent"] - here["eager_back"] < CREDIT_EVERY, "credit is given for every sixteenth"


@given(st.integers(0, 3 * WORD_MASK), st.integers(0, 1000))
def test_credit_counts_on_though_only_24_bits_travel(back, more):
    made = world()
    peer = made.state(0).peers[0]
    peer["eager_back"] = back
    peer["eager_sent"] = back + more
    take_word(made.state(0), 0, WORD_CREDIT << WORD_SHIFT | ((back + more) & WORD_MASK), 0)
    assert peer["eager_back"] == back + more


def test_credit_that_a_peer_makes_up_is_not_believed():
    made = world()
    assert begin_send(made.state(1), transfer(1, memory(8, 1)), 0)
    # The head of the message says that the peer has taken more than was ever sent.
    made.state(1).transfers.bounce_words[6] = 10_000
    made.settle()
    assert made.state(0).peers[0]["eager_back"] == made.state(0).peers[0]["eager_sent"] == 0


@pytest.mark.parametrize("word", [0, 6, 7, 200])
def test_words_that_nobody_knows_change_nothing(word):
    made = world()
    before = made.state(0).peers.copy()
    take_word(made.state(0), 0, word << WORD_SHIFT | 12, 0)
    assert np.array_equal(made.state(0).peers, before)


@pytest.mark.parametrize(("kind", "length"), [(DATA_MESSAGE, -1), (DATA_MESSAGE, EAGER + 1), (3, 8), (0, 8), (-1, 8)])
def test_a_head_that_lies_is_dropped(kind, length):
    made = world()
    assert begin_send(made.state(1), transfer(1, memory(8, 1)), 0)
    made.state(1).transfers.bounce_words[0], made.state(1).transfers.bounce_words[2] = kind, length
    made.settle()
    assert made.state(0).transfers.at[N_POOLED] == 0
    assert made.state(0).peers[0]["failed"] == 0


def test_more_short_messages_than_anybody_asked_for_end_the_pair():
    made = world()
    for tag in range(POOL):
        assert begin_send(made.state(0), transfer(tag, memory(8, tag)), 0)
        made.settle()
    assert made.state(1).transfers.at[N_POOLED] == POOL
    assert made.state(1).peers[0]["failed"] == 0
    assert begin_send(made.state(0), transfer(POOL, memory(8, 0)), 0)
    made.settle()
    assert made.state(1).peers[0]["failed"] == OVERFULL


@pytest.mark.parametrize(("rows", "begin"), [(SENDS, "send"), (RECEIVES, "receive")])
def test_a_full_table_says_so_and_has_room_again(rows, begin):
    made = world()
    state, long = made.state(0), np.zeros(EAGER + 1, np.uint8)

    def one(tag: int) -> bool:
        return (
            begin_send(state, transfer(tag, long), 0)
            if begin == "send"
            else begin_receive(state, transfer(tag, long), 0)
        )

    table = state.transfers.sends if begin == "send" else state.transfers.receives
    table["state"][: rows - 1] = WAITING
    assert one(1)
    assert not one(2)
    table["state"][3] = FREE
    assert one(2)


def test_a_grant_names_the_row_and_the_word_of_the_data_ends_that_row():
    made = world()
    given_, taken = memory(EAGER + 5, 1), np.zeros(EAGER + 5, np.uint8)
    made.state(1).transfers.receives["state"][0] = WAITING  # somebody else's row, so that ours is not the first
    made.state(1).transfers.receives["qp"][0] = 0
    made.state(1).transfers.at[N_RECEIVES] = 1
    made.state(1).peers["failed"] = 1
    assert begin_receive(made.state(1), transfer(9, taken), 0)
    made.state(1).peers["failed"] = 0
    made.state(1).transfers.receives["state"][0] = DONE
    assert begin_send(made.state(0), transfer(9, given_), 0)
    push(made)
    assert made.state(1).transfers.receives["state"][1] == DONE
    assert np.array_equal(taken, given_)


@pytest.mark.parametrize("row", [0, 5, RECEIVES, WORD_MASK])
def test_a_data_word_for_a_row_that_waits_for_nothing_changes_nothing(row):
    made = world()
    take_word(made.state(0), 0, WORD_DATA << WORD_SHIFT | row, 0)
    assert (made.state(0).transfers.receives["state"] == FREE).all()


def test_a_goodbye_is_noted_and_a_report_of_a_death_ends_the_pair_to_that_rank_alone():
    made = world(3)
    say(made.state(0), made.pair(0, 1), WORD_BYE << WORD_SHIFT, 0)
    say(made.state(0), made.pair(0, 1), WORD_ABORT << WORD_SHIFT | 2, 0)
    made.settle()
    here = made.state(1)
    assert here.peers[made.pair(1, 0)]["bye"] == 1
    assert here.peers[made.pair(1, 2)]["failed"] == REPORTED_GONE
    assert here.peers[made.pair(1, 0)]["failed"] == 0


def test_the_first_error_of_a_program_is_the_one_that_is_kept():
    state = world().state(0)
    fail_program(state, PROGRAM, WRONG_SIZE, 0)
    fail_program(state, PROGRAM, OVERFULL, 1)
    assert state.transfers.programs[PROGRAM]["error"] == WRONG_SIZE
    assert state.transfers.programs[PROGRAM]["culprit"] == 0


def test_a_dead_pair_ends_the_programs_of_its_groups_and_of_no_other():
    state = world(3).state(0)
    state.transfers.members[1, 1] = 1
    begin_program(state, PROGRAM + 1, 1, 0, 1)
    fail_members(state, 0, 100)
    assert state.transfers.programs[PROGRAM]["error"] == 100
    assert state.transfers.programs[PROGRAM + 1]["error"] == 0
    fail_members(state, 1, 101)
    assert state.transfers.programs[PROGRAM + 1]["error"] == 101
    assert state.transfers.programs[PROGRAM]["error"] == 100


@pytest.mark.parametrize("size", [8, EAGER + 1])
def test_a_peer_is_expected_to_speak_exactly_while_something_is_open(size):
    made = world()
    here, there = made.state(0), made.state(1)
    given_, taken = memory(size, 1), np.zeros(size, np.uint8)
    assert not expects(here, 0)
    assert begin_receive(there, transfer(1, taken), 0)
    assert expects(there, 0)
    assert begin_send(here, transfer(1, given_), 0)
    assert expects(here, 0) == (size > EAGER), "a short message is gone as soon as it is copied"
    push(made)
    assert not expects(there, 0), "what has come is not awaited any more"
    assert not expects(here, 0)


def test_credit_is_not_counted_as_given_while_the_queue_is_full():
    made = world()
    state = made.state(0)
    state.peers[0]["eager_taken"] = 20
    state.sender.qp[0]["msg_end"] = state.sender.params[0]["messages"]
    give_credit(state, 0, 0)
    assert state.peers[0]["eager_reported"] == 0
    state.sender.qp[0]["msg_end"] = 0
    give_credit(state, 0, 0)
    assert state.peers[0]["eager_reported"] == 20


def test_a_grant_that_came_first_waits_for_its_send():
    made = world()
    taken, given_ = np.zeros(EAGER + 1, np.uint8), memory(EAGER + 1, 4)
    assert begin_receive(made.state(1), transfer(4, taken), 0)
    push(made)
    assert made.state(0).transfers.at[N_GRANTS] == 1
    assert begin_send(made.state(0), transfer(4, given_), 0)
    assert made.state(0).transfers.at[N_GRANTS] == 0
    assert made.state(0).transfers.sends["state"][0] == READY
    push(made)
    assert waited(made.state(1), PROGRAM, 0, 4)
    assert np.array_equal(taken, given_)
