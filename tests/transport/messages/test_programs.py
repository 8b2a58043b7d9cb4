"""Programs of all ranks, carried out by a small interpreter, give what their collective promises."""

from collections import deque

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from weft.transport.memory.arithmetic import kind_of
from weft.transport.memory.tables import ADDS_SHIFT, COPY, INSTRUCTIONS, RECEIVE, REDUCE, SEND, WAIT
from weft.transport.messages import programs
from weft.transport.messages.programs import ADDING, BUFFER, OTHER, SCRATCH, CollectiveProgram, VectorShape

_SUM = kind_of("sum", "int64")
_DIVIDE = kind_of("divide", "float64")


class Machine:
    """One rank: its memory by base, and where its program stands."""

    def __init__(self, rank: int, program: CollectiveProgram, buffer: np.ndarray, other: np.ndarray) -> None:
        self.rank, self.program, self.at = rank, program, 0
        self.memory = {BUFFER: buffer, SCRATCH: np.zeros(max(1, program.scratch), np.uint8), OTHER: other}
        self.places: dict[tuple[int, int], tuple[np.ndarray, int]] = {}

    def _piece(self, base: int, offset: int, size: int) -> np.ndarray:
        whole = self.memory[BUFFER if base == ADDING else base]
        assert 0 <= offset <= offset + size <= len(whole), "a program reaches outside its memory"
        return whole[offset : offset + size]

    def step(self, wires: dict[tuple[int, int, int], deque[bytes]]) -> bool:
        """Carry out one instruction; returns whether that was possible."""
        if self.at >= len(self.program.code):
            return False
        kind, peer, a, b, c, key, one, two, _ = self.program.code[self.at].tolist()
        if kind == SEND:
            wires.setdefault((self.rank, peer, c), deque()).append(self._piece(one, a, b).tobytes())
        elif kind == RECEIVE:
            assert (peer, c) not in self.places, "a message is expected twice"
            assert (key > 0) == (one == ADDING), "what is added needs a key that adds"
            self.places[peer, c] = self._piece(one, a, b), key
        elif kind == WAIT:
            waiting = wires.get((peer, self.rank, c))
            if not waiting:
                return False
            place, adds = self.places.pop((peer, c))
            came = np.frombuffer(waiting.popleft(), np.uint8)
            if adds:
                assert adds == (_SUM + 1) << ADDS_SHIFT
                place.view(np.int64)[:] += came.view(np.int64)
            else:
                place[:] = came
        elif kind == COPY:
            self._piece(one, a, c)[:] = self._piece(two, b, c).copy()
        else:
            assert kind == REDUCE
            if peer == _SUM:
                self._piece(one, a, 8 * c).view(np.int64)[:] += self._piece(two, b, 8 * c).view(np.int64)
            else:
                self._piece(one, a, 8 * c).view(np.float64)[:] /= self._piece(two, b, 8).view(np.float64)[0]
        self.at += 1
        return True


def _run(machines: list[Machine], chance: np.random.Generator) -> None:
    """Let the ranks go on in any order until all are done."""
    wires: dict[tuple[int, int, int], deque[bytes]] = {}
    while any(machine.at < len(machine.program.code) for machine in machines):
        moved = [machine.step(wires) for machine in chance.permutation(np.array(machines, object)).tolist()]
        assert any(moved), "the programs wait for each other"
    assert not any(wires.values()), "a message was sent that nobody wants"


def _machines(make, ranks: int, buffers: list[np.ndarray], others: list[np.ndarray] | None = None) -> list[Machine]:
    none = np.zeros(8, np.uint8)
    return [Machine(rank, make(rank), buffers[rank], none if others is None else others[rank]) for rank in range(ranks)]


@given(st.integers(2, 6), st.integers(1, 3000), st.integers(0, 2**32))
def test_an_all_reduce_adds_and_is_equal_everywhere(ranks, count, seed) -> None:
    chance = np.random.default_rng(seed)
    given_ = chance.integers(-1000, 1000, (ranks, count))
    buffers = [row.copy().view(np.uint8) for row in given_]
    shape = VectorShape(count, 8, _SUM, -1)
    _run(_machines(lambda rank: programs.all_reduce(ranks, rank, shape), ranks, buffers), chance)
    for buffer in buffers:
        assert np.array_equal(buffer.view(np.int64), given_.sum(0))


@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_a_long_all_reduce_is_cut_into_slices(ranks) -> None:
    count = (5 << 20) // 8 + 13
    chance = np.random.default_rng(ranks)
    given_ = chance.integers(-1000, 1000, (ranks, count))
    buffers = [row.copy().view(np.uint8) for row in given_]
    shape = VectorShape(count, 8, _SUM, -1)
    _run(_machines(lambda rank: programs.all_reduce(ranks, rank, shape), ranks, buffers), chance)
    assert all(np.array_equal(buffer.view(np.int64), given_.sum(0)) for buffer in buffers)


@given(st.integers(2, 5), st.integers(1, 4000), st.integers(0, 2**32))
def test_an_average_divides_every_element_once(ranks, count, seed) -> None:
    chance = np.random.default_rng(seed)
    buffers = [np.zeros(count).view(np.uint8) for _ in range(ranks)]
    by = [np.array([float(ranks)]).view(np.uint8) for _ in range(ranks)]
    for buffer in buffers:
        buffer.view(np.int64)[:] = 0
    # Sums of zeros stay zero; what is looked at is how often each place was divided.
    shape = VectorShape(count, 8, _SUM, _DIVIDE)
    found = np.zeros(count)
    for rank in range(ranks):
        program = programs.all_reduce(ranks, rank, shape)
        for row in program.code[(program.code[:, 0] == REDUCE) & (program.code[:, 1] == _DIVIDE)].tolist():
            found[row[2] // 8 : row[2] // 8 + row[4]] += 1
    direct = count * 8 <= 8192 and ranks <= programs.DIRECT_RANKS
    assert (found == (ranks if direct else 1)).all()
    _run(_machines(lambda rank: programs.all_reduce(ranks, rank, shape), ranks, buffers, by), chance)


@given(st.integers(2, 6), st.integers(1, 500), st.integers(0, 2**32))
def test_a_reduce_scatter_leaves_part_r_at_rank_r(ranks, part, seed) -> None:
    chance = np.random.default_rng(seed)
    given_ = chance.integers(-1000, 1000, (ranks, ranks * part))
    buffers = [row.copy().view(np.uint8) for row in given_]
    shape = VectorShape(ranks * part, 8, _SUM, -1)
    _run(_machines(lambda rank: programs.ring("reduce-scatter", ranks, rank, shape), ranks, buffers), chance)
    for rank, buffer in enumerate(buffers):
        mine = slice(rank * part, (rank + 1) * part)
        assert np.array_equal(buffer.view(np.int64)[mine], given_.sum(0)[mine])


@given(st.integers(2, 6), st.integers(1, 5000), st.integers(0, 5), st.integers(0, 2**32))
def test_a_broadcast_reaches_everybody(ranks, size, root, seed) -> None:
    root %= ranks
    chance = np.random.default_rng(seed)
    buffers = [chance.integers(0, 256, size, dtype=np.uint8) for _ in range(ranks)]
    wanted = buffers[root].copy()
    _run(_machines(lambda rank: programs.broadcast(ranks, rank, root, size), ranks, buffers), chance)
    assert all(np.array_equal(buffer, wanted) for buffer in buffers)


@pytest.mark.parametrize("ranks", [3, 5])
def test_a_long_broadcast_runs_along_a_chain(ranks) -> None:
    chance = np.random.default_rng(1)
    size = (3 << 20) + 17
    buffers = [chance.integers(0, 256, size, dtype=np.uint8) for _ in range(ranks)]
    wanted = buffers[2].copy()
    _run(_machines(lambda rank: programs.broadcast(ranks, rank, 2, size), ranks, buffers), chance)
    assert all(np.array_equal(buffer, wanted) for buffer in buffers)


@given(st.integers(1, 5), st.data())
def test_an_exchange_gives_everybody_what_is_theirs(ranks, data) -> None:
    sizes = data.draw(
        st.lists(st.lists(st.integers(0, 40), min_size=ranks, max_size=ranks), min_size=ranks, max_size=ranks)
    )
    chance = np.random.default_rng(1)
    out = [np.concatenate([[0], np.cumsum(row)]) for row in sizes]
    back = [np.concatenate([[0], np.cumsum([sizes[s][r] for s in range(ranks)])]) for r in range(ranks)]
    buffers = [chance.integers(0, 256, int(each[-1]), dtype=np.uint8) for each in out]
    others = [np.zeros(int(each[-1]), np.uint8) for each in back]

    def make(rank: int) -> CollectiveProgram:
        sends = [(peer, int(out[rank][peer]), sizes[rank][peer]) for peer in range(ranks)]
        receives = [(peer, int(back[rank][peer]), sizes[peer][rank]) for peer in range(ranks)]
        return programs.exchange(rank, sends, receives)

    _run(_machines(make, ranks, buffers, others), chance)
    for rank in range(ranks):
        for peer in range(ranks):
            got = others[rank][back[rank][peer] : back[rank][peer + 1]]
            assert np.array_equal(got, buffers[peer][out[peer][rank] : out[peer][rank + 1]])


@pytest.mark.parametrize("ranks", [2, 8, 64, 128])
def test_programs_fit_whatever_the_size(ranks) -> None:
    for kind in ("all-reduce", "reduce-scatter", "all-gather"):
        program = programs.ring(kind, ranks, 1, VectorShape(1 << 30, 4, 0, -1))
        assert len(program.code) <= INSTRUCTIONS
