"""The endpoint of a process with a queue pair to every rank, shared by all groups of the process.

Ranks find each other through torch's store: each leaves a card for every other. Programs are started here and their
ends handed back; memory that peers write into is registered for as long as a program needs it.
"""

import atexit
import json
import os
import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import cast

import torch.distributed as dist

from weft.core.errors import LimitReachedError, UsageError
from weft.core.plugins import entry_point
from weft.transport.endpoint import Endpoint, EndpointSettings
from weft.transport.memory import layout
from weft.transport.memory.tables import GROUPS, PROGRAMS, SCRATCH_BYTES, WRONG_SIZE
from weft.transport.messages.programs import CollectiveProgram
from weft.transport.queue_pair import QueuePair, error_name
from weft.transport.regions import Region
from weft.transport.torch_backend.work import MrcWork
from weft.transport.underlay import Loopback, Underlay

LAB_VARIABLE = "WEFT_LAB"
"""Environment variable that names the lab over which ranks talk."""
_WAIT_S = 60.0
_PER_GROUP = 49
"""Bits of a tag below its group's number."""


@dataclass(frozen=True)
class Wiring:
    """How ranks are wired; the same for all of them."""

    planes: int = 4
    """Planes on loopback, where no underlay is given."""
    shared: bool = False
    """Whether ranks of one host also share memory, as one plane more, which carries everything while it is whole."""
    underlay: Underlay | None = None
    """Where packets go; the lab that WEFT_LAB names, or loopback, where none is given."""
    endpoint: EndpointSettings = field(default_factory=EndpointSettings)
    """How each rank's endpoint runs."""


def _underlay(wiring: Wiring, rank: int, ranks: int) -> Underlay:
    """Return the lab that the environment names, or loopback."""
    name = os.environ.get(LAB_VARIABLE)
    if not name:
        return Loopback(planes=wiring.planes + int(wiring.shared), shared=wiring.shared)
    make = entry_point("weft.underlays", "lab")
    if make is None:
        raise UsageError(f"{LAB_VARIABLE} names a lab, which is a distribution of its own; pip install 'weft[lab]'")
    return cast("Callable[[str, int, int], Underlay]", make)(name, rank, ranks)


class RankLinks:
    """See the module."""

    def __init__(self, wiring: Wiring, store: dist.Store, rank: int, ranks: int) -> None:
        """Meet the other ranks in `store` and connect to all of them."""
        self.rank, self.ranks, self.wiring, self.store = rank, ranks, wiring, store
        underlay = wiring.underlay or _underlay(wiring, rank, ranks)
        self.endpoint = Endpoint(underlay, wiring.endpoint, peers=max(1, ranks - 1))
        self.endpoint.on_program = self._ended
        self.pairs: dict[int, QueuePair] = {}
        self._free: deque[int] = deque(range(PROGRAMS))
        self._running: dict[int, tuple[MrcWork, tuple[Region | None, ...]]] = {}
        self._room = threading.Condition(self.endpoint.lock)
        self._rows: list[int] = list(range(GROUPS))
        self._scratch_at = layout.address_of(self.endpoint.state.transfers.scratch)
        # A script that ends without destroying its group still owes its peers what was not acknowledged.
        atexit.register(self.close)
        self._connect(store)

    def _connect(self, store: dist.Store) -> None:
        others = [other for other in range(self.ranks) if other != self.rank]
        for other in others:
            self.pairs[other] = self.endpoint.offer(f"rank {other}", rank=other, engine=True)
        cards = {str(other): self.pairs[other].card for other in others}
        store.set(f"mrc/card/{self.rank}", json.dumps(cards))
        for other in others:
            theirs = json.loads(store.get(f"mrc/card/{other}"))
            self.pairs[other].connect(theirs[str(self.rank)])

    def take_group(self, members: Sequence[int], name: str, store: dist.Store) -> tuple[int, int]:
        """Return a row of the engine's table for a group of ranks, and the number that its tags begin with."""
        with self.endpoint.lock:
            if not self._rows:
                raise LimitReachedError(f"all {GROUPS} groups are in use; destroy some")
            row = self._rows.pop()
            self.endpoint.state.transfers.members[row] = 0
            for place, member in enumerate(members):
                if member != self.rank:
                    index = self.pairs[member].index
                    self.endpoint.state.transfers.members[row, index] = 1
                    self.endpoint.state.transfers.seats[row, place] = index
        if self.rank == members[0]:
            store.set(f"mrc/group/{name}", str(self.store.add("mrc/groups", 1)))
        number = int(store.get(f"mrc/group/{name}"))
        return row, (number & 0xFFF) << _PER_GROUP

    def give_group(self, row: int) -> None:
        """Give the row of a group back."""
        with self.endpoint.lock:
            self._rows.append(row)

    def begin(
        self, program: CollectiveProgram, work: MrcWork, *, row: int, tag: int, memory: Sequence[tuple[int, int]]
    ) -> None:
        """Start a program on `memory`: address and bytes of the tensor and of the second one."""
        first, second = memory if len(memory) > 1 else (memory[0], (0, 0))
        regions: tuple[Region | None, ...] = ()
        keys = (0, 0, 0)
        if program.long:
            register = self.endpoint.register_at
            regions = tuple(register(*each) if each[1] else None for each in (first, second))
            regions += (register(*first, adds=program.adds) if program.adds else None,)
            keys = tuple(region.key if region else 0 for region in regions)
        with self._room:
            while not self._free:
                if not self._room.wait(_WAIT_S):
                    raise LimitReachedError(f"{PROGRAMS} collectives are in flight and none ends")
            number = self._free.popleft()
            tables = self.endpoint.state.transfers
            scratch = self._scratch_at + number * SCRATCH_BYTES
            tables.bases[number] = (0, first[0], scratch, second[0], first[0], 0, keys[0], 0, keys[1], keys[2])
            tables.code[number, : len(program.code)] = program.code
            self._running[number] = work, regions
            self.endpoint.command(layout.BEGIN, number, len(program.code), tag, row)

    def _ended(self, number: int, error: int, index: int) -> None:
        """Hand back the end of a program; called by the endpoint's thread, which holds the lock."""
        work, regions = self._running.pop(number)
        for region in regions:
            if region is not None:
                self.endpoint.release(region)
        self._free.append(number)
        self._room.notify_all()
        work.end(None if error == 0 else self._explained(error, index))

    def _explained(self, error: int, index: int) -> Exception:
        """Return what went wrong, in words."""
        name = next((f"rank {rank}" for rank, pair in self.pairs.items() if pair.index == index), "a peer")
        if error == WRONG_SIZE:
            return RuntimeError(f"{name} takes part with another size or dtype than rank {self.rank}")
        return RuntimeError(f"{name} is gone: its connection to rank {self.rank} ended with {error_name(error)}")

    def close(self) -> None:
        """Leave in order, and end what is still in flight."""
        atexit.unregister(self.close)
        self.endpoint.close()
        for work, _ in list(self._running.values()):
            work.end(RuntimeError("the group was destroyed before this was over"))
        self._running.clear()
