"""Queue pairs as flows see them: who sends to whom, what a pair is asked, and what it reports back."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class Pair:
    """One direction of a queue pair: data from one NIC to another. Data of the other direction is a pair of its own."""

    source: int
    """NIC that sends."""
    destination: int
    """NIC that receives."""
    lane: int = 0
    """Number among the queue pairs of the same two NICs."""
    uplinks: tuple[int, ...] = ()
    """Paths that it may take; all where empty."""
    posts: int = 2**16
    """Messages that it will be given in all."""
    packets: int = 2**31
    """Packets that those have in all."""


Numbers = Sequence[int] | NDArray[np.int64]
"""Some pairs, or a number for each."""


class FlowEvent(NamedTuple):
    """Something that a flow waits for."""

    time_ps: int
    """When. Flows take events in the order of these three."""
    pair: int
    """The queue pair."""
    kind: int
    """`ARRIVED`, `ACKNOWLEDGED` or `FAILED` of `weft.netsim.host.mrc_host`."""


class Carriers(Protocol):
    """What flows ask of the endpoints."""

    def post(self, pair: int, length: int) -> bool:
        """Give a pair a message; return whether it had room for it."""
        ...

    def post_many(self, pairs: Numbers, lengths: Numbers) -> Sequence[bool]:
        """Give each of `pairs` a message; return which had room for it."""
        ...

    def set_goals(self, pairs: Numbers, arrived: Numbers, acknowledged: Numbers) -> None:
        """Say after how many packets of each pair an `ARRIVED` and an `ACKNOWLEDGED` are wanted; `NEVER` for none."""
        ...

    def reached(self, pairs: Numbers) -> tuple[Sequence[int], Sequence[int]]:
        """Return how many packets of each pair have arrived without a gap, and of how many the sender knows it."""
        ...

    def failed(self, pairs: Numbers) -> Mapping[int, str]:
        """Return those of `pairs` that have ended in an error, with its name."""
        ...
