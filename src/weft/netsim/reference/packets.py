"""A packet under way."""


class SimPacket:
    """One packet: where it goes, how large it is and when it got where it is."""

    __slots__ = ("control", "hop", "key", "marked", "pair", "path", "port", "row", "size", "time_ps", "trimmed", "uid")

    def __init__(
        self, uid: int, row: int, pair: int, path: tuple[int, ...], size: int, time_ps: int, control: int
    ) -> None:
        self.uid = uid
        """Its number: the NIC that sent it and how many that NIC had sent."""
        self.row = row
        """Where its header stands with the endpoints."""
        self.pair = pair
        """Its queue pair."""
        self.path = path
        """The ports that it crosses."""
        self.hop = 0
        """How many of them it has crossed."""
        self.port = -1
        """The last port that it crossed."""
        self.size = size
        """Bytes on the wire."""
        self.time_ps = time_ps
        """When it arrived where it is: the slot, and within it the remainder of all delays so far."""
        self.control = control
        """1 in the control class, 0 in the data class."""
        self.marked = 0
        """1 once a switch has marked it."""
        self.trimmed = 0
        """1 once a switch has cut its payload off, 2 where that was the last hop."""
        self.key = 0
        """What ordered it among those that arrived in the same slot."""
