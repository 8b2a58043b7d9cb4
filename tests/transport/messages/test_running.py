"""Collective programs on the columns of all ranks: the plain rules of the thread give what the collective promises."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.transport.columns import World

from weft.transport.memory.arithmetic import kind_of
from weft.transport.memory.layout import PROGRAM_DONE, address_of
from weft.transport.memory.tables import FREE, NOBODY, SCRATCH_BYTES
from weft.transport.messages import programs
from weft.transport.messages.programs import CollectiveProgram, VectorShape
from weft.transport.messages.running import begin_program, run_programs
from weft.transport.messages.transfers import fail_program, run_transfers

SUM = kind_of("sum", "int64")
NUMBER = 3


def begin(world: World, rank: int, program: CollectiveProgram, buffer: np.ndarray, other: np.ndarray) -> None:
    """Fill the tables as the torch backend does, and start the program."""
    tables = world.state(rank).transfers
    scratch = address_of(tables.scratch) + NUMBER * SCRATCH_BYTES
    tables.bases[NUMBER] = (0, address_of(buffer), scratch, address_of(other), address_of(buffer), 0, 0, 0, 0, 0)
    tables.code[NUMBER, : len(program.code)] = program.code
    begin_program(world.state(rank), NUMBER, len(program.code), 1 << 20, 0)


def run(world: World, random: np.random.Generator) -> None:
    """Let ranks and links go on in any order until every program has ended."""
    count = len(world.ranks)
    for _ in range(10_000):
        if all(world.state(rank).hub[0]["programs"] == 0 for rank in range(count)):
            return
        rank = int(random.integers(count))
        run_programs(world.state(rank), 0)
        run_transfers(world.state(rank), 0)
        one, other = random.permutation(count)[:2].tolist()
        world.carry_one(one, other)
    raise AssertionError("the programs wait for each other")


def ends(world: World, rank: int) -> list[list[int]]:
    state = world.state(rank)
    return state.events[: int(state.hub[0]["events_head"]), :4].tolist()


@settings(max_examples=20)
@given(st.integers(2, 4), st.integers(1, 1000), st.integers(0, 2**31))
def test_a_short_all_reduce_is_the_sum_on_every_rank(ranks, count, seed):
    random = np.random.default_rng(seed)
    given_ = random.integers(-1000, 1000, (ranks, count))
    buffers, none = [row.copy() for row in given_], np.zeros(1)
    world = World(ranks)
    for rank in range(ranks):
        shape = VectorShape(count, 8, SUM, -1)
        begin(world, rank, programs.direct_reduce(ranks, rank, shape), buffers[rank], none)
    run(world, random)
    for rank in range(ranks):
        assert np.array_equal(buffers[rank], given_.sum(0))
        assert ends(world, rank) == [[PROGRAM_DONE, NOBODY, NUMBER, 0]]
        assert world.state(rank).transfers.programs[NUMBER]["state"] == FREE


@settings(max_examples=15)
@given(st.integers(2, 4), st.integers(1, 30_000), st.integers(0, 3), st.integers(0, 2**31))
def test_a_broadcast_gives_everybody_the_bytes_of_the_root(ranks, size, root, seed):
    random = np.random.default_rng(seed)
    root %= ranks
    buffers, none = [random.integers(0, 256, size, dtype=np.uint8) for _ in range(ranks)], np.zeros(1)
    wanted = buffers[root].copy()
    world = World(ranks)
    for rank in range(ranks):
        begin(world, rank, programs.broadcast(ranks, rank, root, size), buffers[rank], none)
    run(world, random)
    assert all(np.array_equal(buffer, wanted) for buffer in buffers)


@settings(max_examples=15)
@given(st.integers(2, 4), st.integers(0, 2**31), st.data())
def test_an_exchange_brings_every_piece_to_its_place(ranks, seed, data):
    random = np.random.default_rng(seed)
    size = data.draw(st.integers(1, 12_000))
    buffers = [random.integers(0, 256, ranks * size, dtype=np.uint8) for _ in range(ranks)]
    others = [np.zeros(ranks * size, np.uint8) for _ in range(ranks)]
    pieces = [(peer, peer * size, size) for peer in range(ranks)]
    world = World(ranks)
    for rank in range(ranks):
        begin(world, rank, programs.exchange(rank, pieces, pieces), buffers[rank], others[rank])
    run(world, random)
    for rank in range(ranks):
        for peer in range(ranks):
            got = others[rank][peer * size : (peer + 1) * size]
            assert np.array_equal(got, buffers[peer][rank * size : (rank + 1) * size])


@pytest.mark.parametrize("element", ["float32", "float64"])
def test_an_average_is_divided_once(element):
    width = np.dtype(element).itemsize
    shape = VectorShape(10, width, kind_of("sum", element), kind_of("divide", element))
    world = World(2)
    buffers = [np.full(10, 2.0 * rank + 1, element) for rank in range(2)]
    divisor = np.array([2], element)
    for rank in range(2):
        begin(world, rank, programs.direct_reduce(2, rank, shape), buffers[rank], divisor)
    run(world, np.random.default_rng(1))
    assert all((buffer == 2.0).all() for buffer in buffers)


def test_a_program_that_fails_reports_its_culprit_and_leaves_no_row_behind():
    world = World(2)
    buffer = np.zeros(40_000, np.uint8)
    begin(world, 0, programs.broadcast(2, 0, 1, 40_000), buffer, np.zeros(1))
    for _ in range(5):
        run_programs(world.state(0), 0)
    assert world.state(0).transfers.receives["state"].any()
    fail_program(world.state(0), NUMBER, 100, 0)
    run_programs(world.state(0), 0)
    assert ends(world, 0) == [[PROGRAM_DONE, 0, NUMBER, 100]]
    assert not world.state(0).transfers.receives["state"].any()
    assert world.state(0).hub[0]["programs"] == 0


def test_a_program_that_begins_after_a_peer_died_ends_with_its_reason():
    world = World(2)
    world.state(0).peers[0]["failed"] = 2**62 + 100  # reported before: above the time that does not come
    begin(world, 0, programs.broadcast(2, 0, 1, 100), np.zeros(100, np.uint8), np.zeros(1))
    run_programs(world.state(0), 0)
    assert ends(world, 0) == [[PROGRAM_DONE, 0, NUMBER, 100]]


def test_one_program_takes_sixteen_instructions_at_most_before_others_have_their_turn():
    world = World(2)
    writer = programs.Writer()
    for _ in range(40):
        writer.copy((programs.OTHER, 0), (programs.BUFFER, 0), 1)
    begin(world, 0, writer.program(), np.ones(1, np.uint8), np.zeros(1, np.uint8))
    taken = [run_programs(world.state(0), 0) for _ in range(3)]
    assert taken == [16, 16, 9], "the end of the program counts as work as well"
