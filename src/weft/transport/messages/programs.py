"""Collectives as programs of one rank: what `weft.collectives` plans, in instructions for the engine.

The schedules are those that the simulators run. Here they become, for one rank, a list of sends, receives, waits and
sums over places whose addresses are known when it begins. Long parts are cut into slices that follow each
other, so that one goes on while the next is on its way; what is to be added is added where it arrives. The order of
sums is the schedule's and depends on nothing
but the number of ranks and the size: equal on every rank and in every run.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from weft.collectives.algorithms import chain_broadcast, ring_all_gather, ring_all_reduce, ring_reduce_scatter
from weft.collectives.schedule import Schedule
from weft.transport.memory import tables

NOWHERE, BUFFER, SCRATCH, OTHER, ADDING = 0, 1, 2, 3, 4
"""What an address in a program counts from: nothing, the tensor, memory for what is on its way, a second tensor,
and the tensor again with the key by which what comes is added to what is there."""
SLICE = 1 << 20
"""Bytes of a slice, about: large enough to be worth a message, small enough that others can go on soon."""
AHEAD = 8
"""Slices that a program is ready to receive: as many for each of `PROGRAMS` as there are rows for."""
DIRECT_RANKS = 8
"""Most ranks that exchange a short tensor directly instead of around a ring."""
_SUB_TAGS = 1 << 20

Table = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class CollectiveProgram:
    """Instructions of one rank, the same whatever memory they work on."""

    code: Table
    """Rows for the engine: peers as ranks of the group, addresses counted from bases."""
    scratch: int
    """Bytes that it needs for what is on its way."""
    adds: int
    """Kind of the reduction by which long messages are added where they arrive, and one; 0 where none are."""
    long: bool
    """Whether any of its messages needs a grant, and so registered memory."""


class Writer:
    """Collects the instructions of one program."""

    def __init__(self) -> None:
        """Begin with none."""
        self._code: list[tuple[int, ...]] = []
        self.scratch = 0

    def send(self, peer: int, base: int, offset: int, size: int, sub: int) -> None:
        """Send `size` bytes to a rank of the group."""
        self._code.append((tables.SEND, peer, offset, size, sub, 0, base, NOWHERE, NOWHERE))

    def receive(self, peer: int, base: int, offset: int, size: int, sub: int, adds: int = 0) -> None:
        """Make ready for `size` bytes from a rank of the group, to be combined where `adds` is a kind and one more."""
        self._code.append((tables.RECEIVE, peer, offset, size, sub, adds << tables.ADDS_SHIFT, base, NOWHERE, base))

    def wait(self, peer: int, sub: int) -> None:
        """Wait for what a rank of the group sends."""
        self._code.append((tables.WAIT, peer, 0, 0, sub, 0, NOWHERE, NOWHERE, NOWHERE))

    def reduce(self, kind: int, to: tuple[int, int], given: tuple[int, int], count: int) -> None:
        """Combine `count` elements at (base, offset) `given` into those at `to`."""
        self._code.append((tables.REDUCE, kind, to[1], given[1], count, 0, to[0], given[0], NOWHERE))

    def copy(self, to: tuple[int, int], given: tuple[int, int], size: int) -> None:
        """Copy `size` bytes from (base, offset) `given` to `to`."""
        self._code.append((tables.COPY, 0, to[1], given[1], size, 0, to[0], given[0], NOWHERE))

    def program(self) -> CollectiveProgram:
        """Return what was collected."""
        code = np.array(self._code, np.int64).reshape(-1, tables.COLUMNS)
        assert len(code) <= tables.INSTRUCTIONS, (
            f"a program of {len(code)} instructions; {tables.INSTRUCTIONS} are the most"
        )
        assert self.scratch <= tables.SCRATCH_BYTES, f"a program with {self.scratch} bytes on their way"
        talks = code[code[:, 0] <= tables.WAIT]
        assert talks[:, 4].max(initial=0) < _SUB_TAGS, "more messages than there are names for"
        long = code[(code[:, 0] == tables.RECEIVE) & (code[:, 3] > tables.EAGER)]
        return CollectiveProgram(
            code, self.scratch, int((long[:, 5] >> tables.ADDS_SHIFT).max(initial=0)), len(long) > 0
        )


@dataclass(frozen=True)
class VectorShape:
    """What a reduction works on."""

    count: int
    """Elements."""
    element: int
    """Bytes of one."""
    kind: int
    """How two are combined (`weft.transport.memory.arithmetic`)."""
    scale: int
    """How sums are divided in the end, by the number at `OTHER`; -1 where they are not."""
    bits: bool = False
    """Whether elements are combined as bytes."""

    def units(self, count: int) -> int:
        """Return `count` elements as the engine counts them for this reduction."""
        return count * self.element if self.bits else count


@dataclass(frozen=True)
class _Piece:
    """One slice of one send of a schedule, seen from the rank that the program is for."""

    number: int
    slice_: int
    peer: int
    offset: int
    size: int
    adds: bool
    before: tuple[int, ...]

    def sub(self, slices: int) -> int:
        return self.number * slices + self.slice_


def _cut(schedule: Schedule, rank: int, shape: VectorShape, slices: int) -> tuple[list[_Piece], list[_Piece]]:
    """Return what a rank sends and receives, slice by slice, empty ones left out."""
    part = -(-shape.count // schedule.parts)
    step = -(-part // slices)
    sends: list[_Piece] = []
    receives: list[_Piece] = []
    for number in range(len(schedule)):
        source, target = int(schedule.source[number]), int(schedule.target[number])
        if rank not in (source, target):
            continue
        begin = int(schedule.first[number]) * part
        end = min(begin + int(schedule.count[number]) * part, shape.count)
        before = tuple(int(each) for each in schedule.before_of(number))
        for slice_ in range(slices):
            first, last = min(begin + slice_ * step, end), min(begin + (slice_ + 1) * step, end)
            if first >= last:
                continue
            piece = _Piece(
                number, slice_, target if rank == source else source, first * shape.element,
                (last - first) * shape.element, bool(schedule.adds[number]), before,
            )  # fmt: skip
            (sends if rank == source else receives).append(piece)
    return sends, receives


def _written(schedule: Schedule, rank: int, shape: VectorShape, slices: int) -> CollectiveProgram:
    """Return the program of a rank: each send goes as soon as what it waits for has come."""
    sends, receives = _cut(schedule, rank, shape, slices)
    adding = [piece.offset for piece in receives if piece.adds]
    assert len(set(adding)) == len(adding), "two sums at one place would depend on which comes first"
    writer = Writer()
    for piece in receives[:AHEAD]:
        _receive(writer, piece, shape, slices)
    home = _kept_first(schedule, rank)
    done: set[tuple[int, int]] = set()
    waiting = list(sends)
    _send_ready(writer, waiting, done, slices)
    for turn, piece in enumerate(receives):
        writer.wait(piece.peer, piece.sub(slices))
        if piece.adds and shape.scale >= 0 and piece.number in home:
            writer.reduce(shape.scale, (BUFFER, piece.offset), (OTHER, 0), piece.size // shape.element)
        for after in receives[turn + AHEAD : turn + AHEAD + 1]:
            _receive(writer, after, shape, slices)
        done.add((piece.number, piece.slice_))
        _send_ready(writer, waiting, done, slices)
    assert not waiting, "a send waits for something that never comes"
    return writer.program()


def _receive(writer: Writer, piece: _Piece, shape: VectorShape, slices: int) -> None:
    """Make ready for a slice at its place in the tensor."""
    if piece.adds:
        writer.receive(piece.peer, ADDING, piece.offset, piece.size, piece.sub(slices), shape.kind + 1)
    else:
        writer.receive(piece.peer, BUFFER, piece.offset, piece.size, piece.sub(slices))


def _kept_first(schedule: Schedule, rank: int) -> set[int]:
    """Return the numbers of the sends that complete a part at its home, which is `rank`."""
    last: dict[int, int] = {}
    for number in range(len(schedule)):
        if schedule.adds[number]:
            last[int(schedule.first[number])] = number
    return {number for number in last.values() if int(schedule.target[number]) == rank}


def _send_ready(writer: Writer, waiting: list[_Piece], done: set[tuple[int, int]], slices: int) -> None:
    """Write the sends whose slices have all come."""
    for piece in list(waiting):
        if all((each, piece.slice_) in done for each in piece.before):
            writer.send(piece.peer, BUFFER, piece.offset, piece.size, piece.sub(slices))
            waiting.remove(piece)


def _slices(schedule: Schedule, shape: VectorShape) -> int:
    """Return into how many slices a part is cut, within what a program holds."""
    part = -(-shape.count // schedule.parts) * shape.element
    steps = max(1, len(schedule) // schedule.ranks)
    most = max(1, (tables.INSTRUCTIONS - 64) // (6 * steps))
    return max(1, min(-(-part // SLICE), most))


@lru_cache(maxsize=1024)
def ring(kind: str, ranks: int, rank: int, shape: VectorShape) -> CollectiveProgram:
    """Return "all-reduce", "reduce-scatter" or "all-gather" of a buffer around the ring of all ranks."""
    make = {"all-reduce": ring_all_reduce, "reduce-scatter": ring_reduce_scatter, "all-gather": ring_all_gather}
    schedule = make[kind](ranks)
    return _written(schedule, rank, shape, _slices(schedule, shape))


@lru_cache(maxsize=1024)
def broadcast(ranks: int, rank: int, root: int, size: int) -> CollectiveProgram:
    """Return a broadcast: along a chain that begins at the root, or straight to everybody where that is short."""
    place = (rank - root) % ranks
    if size <= tables.EAGER or ranks <= 2:  # noqa: PLR2004 - two ranks are a chain already
        writer = Writer()
        if place == 0:
            for other in range(1, ranks):
                writer.send((root + other) % ranks, BUFFER, 0, size, other)
        else:
            writer.receive(root, BUFFER, 0, size, place)
            writer.wait(root, place)
        return writer.program()
    pieces = max(1, min(-(-size // SLICE), 256))
    program = _written(chain_broadcast(ranks, pieces), place, VectorShape(size, 1, 0, -1), 1)
    talks = program.code[:, 0] <= tables.WAIT
    program.code[talks, 1] = (program.code[talks, 1] + root) % ranks
    return program


@lru_cache(maxsize=1024)
def direct_reduce(ranks: int, rank: int, shape: VectorShape) -> CollectiveProgram:
    """Return an all-reduce of a short tensor: everybody tells everybody, and each adds in the order of ranks."""
    writer = Writer()
    size = shape.count * shape.element
    writer.scratch = ranks * size
    others = [(rank + step) % ranks for step in range(1, ranks)]
    for peer in others:
        writer.send(peer, BUFFER, 0, size, rank)
    for peer in others:
        writer.receive(peer, SCRATCH, peer * size, size, peer)
    writer.copy((SCRATCH, rank * size), (BUFFER, 0), size)
    for peer in others:
        writer.wait(peer, peer)
    writer.copy((BUFFER, 0), (SCRATCH, 0), size)
    for other in range(1, ranks):
        writer.reduce(shape.kind, (BUFFER, 0), (SCRATCH, other * size), shape.units(shape.count))
    if shape.scale >= 0:
        writer.reduce(shape.scale, (BUFFER, 0), (OTHER, 0), shape.count)
    return writer.program()


def all_reduce(ranks: int, rank: int, shape: VectorShape) -> CollectiveProgram:
    """Return an all-reduce, straight where it is short and around the ring elsewhere."""
    if ranks <= DIRECT_RANKS and shape.count * shape.element <= tables.EAGER:
        return direct_reduce(ranks, rank, shape)
    return ring("all-reduce", ranks, rank, shape)


def exchange(
    rank: int, sends: Sequence[tuple[int, int, int]], receives: Sequence[tuple[int, int, int]]
) -> CollectiveProgram:
    """Return an exchange of (rank, offset, bytes): sends from `BUFFER`, receives into `OTHER`.

    What a rank has for itself is copied. The sub-tag of a message is the rank that sends it.
    """
    writer = Writer()
    mine = [offset for peer, offset, size in receives if peer == rank and size]
    for peer, offset, size in receives:
        if peer != rank and size:
            writer.receive(peer, OTHER, offset, size, peer)
    for peer, offset, size in sends:
        if peer == rank and size:
            writer.copy((OTHER, mine[0]), (BUFFER, offset), size)
        elif size:
            writer.send(peer, BUFFER, offset, size, rank)
    for peer, _, size in receives:
        if peer != rank and size:
            writer.wait(peer, peer)
    return writer.program()
