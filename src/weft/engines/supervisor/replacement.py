"""Giving a lost rank's place to a spare on this machine, while the others keep their processes.

Orders are carried out here; whether a rank is replaced, `cluster.recovery.machine` decides.
"""

import signal
from collections.abc import Collection, Sequence
from dataclasses import replace
from pathlib import Path

from weft.cluster.recovery.events import Cause
from weft.engines.supervisor.fork_server_host import ForkServerHost
from weft.engines.supervisor.generation import Generation
from weft.engines.supervisor.rank_host import RankStart


class Replacement:
    """What a supervisor does about one rank alone."""

    def __init__(self, host: ForkServerHost) -> None:
        """Replace ranks of `host`."""
        self._host = host
        self._last: RankStart | None = None

    def prepare(self, folder: Path) -> None:
        """Have a spare get ready for any place of the run in `folder`, where there is none."""
        if self._last is not None:
            orders = replace(self._last.orders, folder=str(folder), faults=())
            self._host.make_ready(replace(self._last, rank=-1, orders=orders))

    def remember(self, start: RankStart) -> None:
        """Take `start` as the setting of a spare, its place aside."""
        self._last = start

    def let_go(self, generation: Generation, cause: Cause) -> None:
        """End the rank that is lost, and have the others give up their groups with it."""
        assert cause.rank is not None, "only a known rank is replaced"
        generation.replaced = cause.rank
        self._host.signal(cause.rank, signal.SIGKILL)
        for rank in set(range(len(generation.slots))) - {cause.rank}:
            self._host.let_go(rank)

    def start(self, starts: Sequence[RankStart], kept: Collection[int]) -> None:
        """Give the place that is not `kept` to the spare, and tell the others where they stand next."""
        (new,) = (one for one in starts if one.rank not in kept)
        self._host.replace(new, [one for one in starts if one.rank in kept])
