"""What a transport wants of switches besides queues that mark, trim and drop.

Three things, all off by default: pausing the port upstream instead of dropping (PFC, IEEE 802.1Qbb), choosing the
uplink of every packet by load, and routing that learns of dead links after a while. docs/simulation.md defines them;
nothing here moves.
"""

from dataclasses import dataclass

MARK_BITS = 16
MARK_ONE = 1 << MARK_BITS
"""Shares of marked packets are whole numbers out of this."""
PAUSE_FRAME = 84
"""Bytes of a pause frame on the wire: 64, and preamble and gap."""


@dataclass(frozen=True)
class Pause:
    """When a switch pauses a port that sends to it, in bytes that came over that port and wait."""

    xoff: int
    """Above so many it asks for a pause."""
    xon: int
    """At so many or fewer it lets the port go on."""
    headroom: int
    """Room above `xoff` for what is still in flight; what comes on top is dropped."""
    reaction_ps: int
    """From a pause frame's arrival to the port stopping."""


@dataclass(frozen=True)
class Marking:
    """Where a transport wants marks, in bytes that stay behind a leaving packet."""

    low: int
    """Marks begin."""
    high: int
    """From here on every packet is marked."""
    most: int
    """Share of packets marked just below `high`, out of `MARK_ONE`."""


@dataclass(frozen=True)
class Switching:
    """How switches treat a transport's packets."""

    pause: Pause | None = None
    """Pauses instead of drops; without it queues trim or drop."""
    marking: Marking | None = None
    """Marks by these limits instead of the scenario's."""
    adaptive: bool = False
    """Whether a switch sends every packet up the uplink with the shortest queue."""
    ordered: bool = False
    """Whether packets of one path must not overtake each other within a slot, because their receivers mind."""
    reconvergence_ps: int | None = None
    """How long routing takes to learn that a link went down or came up; it never does where absent."""


PLAIN = Switching()
"""Static routes, and queues that trim or drop."""
