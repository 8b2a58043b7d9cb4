"""The base of all transports: what a simulator asks of one, and nothing else.

A `Transport` says how its packets look and what it wants of switches, and opens `Endpoints`: all NICs of a run. A
simulator gives them what arrived, takes what they send, and moves packets between the two.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from weft.core.seeds import Seed
from weft.netsim.model.network import Frames, Network
from weft.netsim.model.queue_pairs import Carriers, FlowEvent, Pair
from weft.netsim.model.switching import Switching

Sent = Sequence[int]
"""One packet that a NIC puts on the wire: where its header stands (given back on arrival or by `drop`), its queue pair,
0 from source to destination or 1 back, what names its path (`Endpoints.route` tells which), bytes on the wire, kind
(`weft.mrc.columns.DATA` for data), the NIC, and when it is handed to the port."""


Arrival = tuple[int, int, int, int]
"""One packet at its NIC: where its header stands, whether it is marked, whether it is trimmed (1, or 2 where that was
the last hop), and when the NIC acts on it."""


class EndpointOutcome(NamedTuple):
    """What a call to `Endpoints` brought forth."""

    sent: Sequence[Sent]
    """Packets for the wire."""
    events: Sequence[FlowEvent]
    """What was completed."""
    fresh: Sequence[int] = ()
    """For every arrival, 1 where it brought new data."""


class Endpoints(Carriers, Protocol):
    """All NICs of a run."""

    def take_in(self, arrivals: Sequence[Arrival]) -> EndpointOutcome:
        """Take in what arrived in one slot, in order."""
        ...

    def send_out(self, start_ps: int, phase: NDArray[np.int64], room: NDArray[np.int64]) -> EndpointOutcome:
        """Send what may go in the slot that begins at `start_ps`."""
        ...

    def route(self, pair: int, half: int, route: int) -> tuple[int, ...]:
        """Return the ports of the path that a packet's route names."""
        ...

    def drop(self, row: int) -> None:
        """Forget a packet that was lost on the way."""
        ...

    def change_port(self, nic: int, plane: int, *, up: bool, now_ps: int) -> None:
        """Tell a NIC that one of its ports went up or down."""
        ...

    def reconverge(self, dead: frozenset[int]) -> None:
        """Take in that routing now knows these links, and no others, to be dead."""
        ...

    def deadline_ps(self) -> int:
        """Return when any NIC has something to do by itself, or 0 where one may have data to send."""
        ...

    def sequence(self, row: int) -> int:
        """Return the packet number in its pair that a data packet carries."""
        ...

    def has(self, pair: int, sequence: int) -> bool:
        """Return whether packet number `sequence` of a pair has arrived."""
        ...

    @property
    def most_posts(self) -> int:
        """Return how many messages a pair can hold at once."""
        ...

    def received(self) -> NDArray[np.int64]:
        """Return the bytes that each pair has received so far."""
        ...

    def check_one(self) -> None:
        """Check the invariants of one pair, another one each time."""
        ...

    def counters(self) -> Mapping[str, NDArray[np.int64]]:
        """Return every counter as a column over pairs."""
        ...


class Transport(Protocol):
    """A transport by its name."""

    @property
    def name(self) -> str:
        """Return its name."""
        ...

    @property
    def trimming(self) -> bool:
        """Return whether its switches trim."""
        ...

    @property
    def ecn_last_hop(self) -> bool:
        """Return whether the last hop to a NIC marks."""
        ...

    @property
    def queue_pairs(self) -> int:
        """Return over how many queue pairs it cuts every flow."""
        ...

    def switching(self, network: Network) -> Switching:
        """Return what it wants of switches besides queues that mark, trim and drop."""
        ...

    def frames(self, payload: int) -> Frames:
        """Return how large its packets are around `payload` bytes."""
        ...

    def open(self, network: Network, pairs: Sequence[Pair], seed: Seed, *, fast: bool) -> Endpoints:
        """Return the endpoints of `pairs`; `fast` compiles their rules."""
        ...
