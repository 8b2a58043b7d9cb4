"""A packet in flight."""

from dataclasses import dataclass


@dataclass(slots=True, eq=False)
class SimPacket:
    """One packet: where it goes, how large it is and when it got where it is."""

    uid: int
    """Its number: the NIC that sent it and how many that NIC had sent."""
    row: int
    """Where its header stands with the endpoints."""
    pair: int
    """Its queue pair."""
    path: tuple[int, ...]
    """The ports that it crosses."""
    size: int
    """Bytes on the wire."""
    time_ps: int
    """When it arrived where it is: the slot, and within it the remainder of all delays so far."""
    control: int
    """1 in the control class, 0 in the data class."""
    hop: int = 0
    """How many ports of its path it has crossed."""
    port: int = -1
    """The last port that it crossed."""
    marked: int = 0
    """1 once a switch has marked it."""
    trimmed: int = 0
    """1 once a switch has cut its payload off, 2 where that was the last hop."""
    key: int = 0
    """What ordered it among those that arrived in the same slot."""
