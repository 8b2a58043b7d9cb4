"""Threads that take the parts of a fabric through a slot side by side; compiled code does not hold the interpreter.

Parts are claimed one after the other, so that a thread that is held up does less. All wait for each other after every
slot. What a part does depends on nothing that another does in the same slot, so neither does any result.
"""

from concurrent.futures import ThreadPoolExecutor
from itertools import count
from typing import TYPE_CHECKING

from weft.mrc.compiled import compiled
from weft.netsim.engine import kernel, layout, wires

if TYPE_CHECKING:
    from weft.netsim.engine.world import EngineWorld

_LOW_SHARE = 4


class Crew:
    """The threads of one run."""

    def __init__(self, threads: int) -> None:
        self.threads = threads
        self._pool = ThreadPoolExecutor(threads - 1) if threads > 1 else None

    def close(self) -> None:
        """Let the threads go."""
        if self._pool is not None:
            self._pool.shutdown()

    def slot(self, world: "EngineWorld") -> None:
        """Take every part through the world's slot, and go on to the next one in which something can happen."""
        assert self._pool is not None, "one thread needs no crew"
        columns = world._columns()  # noqa: SLF001  the crew is a part of the world
        lacks = compiled(kernel.lacks)
        self._share_chunks(world)
        lacking = 0
        for part, desk in enumerate(world.desks):
            desk.count[layout.NEED] = lacks(columns[0], columns[1], columns[2], desk, part, world.slot)
            lacking |= int(desk.count[layout.NEED])
        if lacking:
            world._grow()  # noqa: SLF001  the crew is a part of the world
            columns = world._columns()  # noqa: SLF001  the crew is a part of the world
        one_slot = compiled(kernel.one_slot, world.swap)
        claims = count()

        def work() -> None:
            while (part := next(claims)) < len(world.desks):
                one_slot(*columns, world.desks[part], part, world.slot)

        others = [self._pool.submit(work) for _ in range(self.threads - 1)]
        work()
        for other in others:
            other.result()
        world.slot += 1
        quiet = (layout.BUSY, layout.LOSSES, layout.SEEN)
        if not any(desk.sheet.count[1] or desk.count[list(quiet)].any() for desk in world.desks):
            world.slot = compiled(kernel.next_slot)(columns[0], columns[1], world.slot, world.stop)

    @staticmethod
    def _share_chunks(world: "EngineWorld") -> None:
        """Let parts that have free chunks give some to those that have few."""
        free = world.wires.free
        left = free[:, 2] - free[:, 1] + free[:, 3]
        poor, rich = int(left.argmin()), int(free[:, 3].argmax())
        if poor != rich and left[poor] * _LOW_SHARE < left[rich]:
            compiled(wires.move_chunks)(world.wires, rich, poor, int(free[rich, 3]) // 2)
