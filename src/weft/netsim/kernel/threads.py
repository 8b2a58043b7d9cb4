"""Threads that take the parts of a fabric through a slot side by side; compiled code does not hold the interpreter.

Parts are claimed one after the other, so that a thread that is held up does less. All wait for each other after every
slot. What a part does depends on nothing that another does in the same slot, so neither does any result.
"""

from concurrent.futures import ThreadPoolExecutor
from itertools import count
from typing import TYPE_CHECKING

from weft.core.compile.rules import Specialisation
from weft.netsim.host.compiling import Fixed
from weft.netsim.kernel import layout, scheduler, wires

if TYPE_CHECKING:
    from weft.netsim.kernel.compiled_simulator import CompiledSimulator

_LOW_SHARE = 4


class Crew:
    """The threads of one run."""

    def __init__(self, threads: int, swap: Specialisation | None = None) -> None:
        self.threads = threads
        self._pool = ThreadPoolExecutor(threads - 1) if threads > 1 else None
        self._lacks, self._walk = Fixed(scheduler.lacks), Fixed(scheduler.walk, swap)
        self._next_slot, self._move = Fixed(scheduler.next_slot), Fixed(wires.move_chunks)

    def close(self) -> None:
        """Let the threads go."""
        if self._pool is not None:
            self._pool.shutdown()

    def warm_up(self, world: "CompiledSimulator") -> None:
        """Compile what the threads will run."""
        columns = world.columns
        idle = world.shards[0]._replace(nodes=world.shards[0].nodes[:0])
        self._lacks(columns, idle, True, 0, 0)
        self._walk(columns, idle, True, 0, 0)
        self._next_slot(columns.fabric, columns.wires, 0, 0)
        self._move(columns.wires, 0, 0, 0)

    def go(self, world: "CompiledSimulator") -> None:
        """Take every part through what is left of a round, and go on to the next slot in which something can happen."""
        figures = world.fabric.figures
        round_slots, step = int(figures[layout.ROUND_SLOTS]), int(figures[layout.SWITCH_SLOTS])
        end = min(world.stop, (world.slot // round_slots + 1) * round_slots)
        for shard in world.shards:
            shard.count[layout.BUSY] = 0
        self._together(world, True, world.slot, end)
        while world.slot < end:
            until = min(end, world.slot + step)
            self._together(world, False, world.slot, until)
            world.slot = until
        quiet = (layout.BUSY, layout.LOSSES, layout.SEEN)
        if not any(shard.events_used[1] or shard.count[list(quiet)].any() for shard in world.shards):
            world.slot = self._next_slot(world.fabric, world.wires, world.slot, world.stop)

    def _together(self, world: "CompiledSimulator", nics: bool, slot: int, end: int) -> None:
        """Take the NICs, or the switches, of every part through slots."""
        assert self._pool is not None, "one thread needs no crew"
        self._share_chunks(world)
        columns = world.columns
        lacking = 0
        for shard in world.shards:
            shard.count[layout.NEED] = self._lacks(columns, shard, nics, slot, end)
            lacking |= int(shard.count[layout.NEED])
        if lacking:
            world._grow()  # noqa: SLF001  the crew is a part of the world
            columns = world.columns
        claims = count()

        def work() -> None:
            while (part := next(claims)) < len(world.shards):
                self._walk(columns, world.shards[part], nics, slot, end)

        others = [self._pool.submit(work) for _ in range(self.threads - 1)]
        work()
        for other in others:
            other.result()

    def _share_chunks(self, world: "CompiledSimulator") -> None:
        """Let parts that have free chunks give some to those that have few."""
        free = world.wires.free
        left = free[:, 2] - free[:, 1] + free[:, 3]
        poor, rich = int(left.argmin()), int(free[:, 3].argmax())
        if poor != rich and left[poor] * _LOW_SHARE < left[rich]:
            self._move(world.wires, rich, poor, int(free[rich, 3]) // 2)
