"""Threads that take the parts of a fabric through a slot side by side; compiled code does not hold the interpreter.

Parts are claimed one after the other, so that a thread that is held up does less. All wait for each other after every
slot. What a part does depends on nothing that another does in the same slot, so neither does any result.
"""

from concurrent.futures import ThreadPoolExecutor
from itertools import count
from typing import TYPE_CHECKING

from weft.mrc.compiled import Swap
from weft.netsim.compiling import Fixed
from weft.netsim.engine import kernel, layout, wires

if TYPE_CHECKING:
    from weft.netsim.engine.world import EngineWorld

_LOW_SHARE = 4


class Crew:
    """The threads of one run."""

    def __init__(self, threads: int, swap: Swap | None = None) -> None:
        self.threads = threads
        self._pool = ThreadPoolExecutor(threads - 1) if threads > 1 else None
        self._lacks, self._one_slot = Fixed(kernel.lacks), Fixed(kernel.one_slot, swap)
        self._next_slot, self._move = Fixed(kernel.next_slot), Fixed(wires.move_chunks)

    def close(self) -> None:
        """Let the threads go."""
        if self._pool is not None:
            self._pool.shutdown()

    def warm_up(self, world: "EngineWorld") -> None:
        """Compile what the threads will run."""
        columns = world._columns()  # noqa: SLF001  the crew is a part of the world
        idle = world.desks[0]._replace(nodes=world.desks[0].nodes[:0])
        self._lacks(*columns[:3], idle, 0, 0)
        self._one_slot(*columns, idle, 0, 0)
        self._next_slot(*columns[:2], 0, 0)

    def slot(self, world: "EngineWorld") -> None:
        """Take every part through the world's slot, and go on to the next one in which something can happen."""
        assert self._pool is not None, "one thread needs no crew"
        columns = world._columns()  # noqa: SLF001  the crew is a part of the world
        self._share_chunks(world)
        lacking = 0
        for part, desk in enumerate(world.desks):
            desk.count[layout.NEED] = self._lacks(columns[0], columns[1], columns[2], desk, part, world.slot)
            lacking |= int(desk.count[layout.NEED])
        if lacking:
            world._grow()  # noqa: SLF001  the crew is a part of the world
            columns = world._columns()  # noqa: SLF001  the crew is a part of the world
        claims = count()

        def work() -> None:
            while (part := next(claims)) < len(world.desks):
                self._one_slot(*columns, world.desks[part], part, world.slot)

        others = [self._pool.submit(work) for _ in range(self.threads - 1)]
        work()
        for other in others:
            other.result()
        world.slot += 1
        quiet = (layout.BUSY, layout.LOSSES, layout.SEEN)
        if not any(desk.sheet.count[1] or desk.count[list(quiet)].any() for desk in world.desks):
            world.slot = self._next_slot(columns[0], columns[1], world.slot, world.stop)

    def _share_chunks(self, world: "EngineWorld") -> None:
        """Let parts that have free chunks give some to those that have few."""
        free = world.wires.free
        left = free[:, 2] - free[:, 1] + free[:, 3]
        poor, rich = int(left.argmin()), int(free[:, 3].argmax())
        if poor != rich and left[poor] * _LOW_SHARE < left[rich]:
            self._move(world.wires, rich, poor, int(free[rich, 3]) // 2)
