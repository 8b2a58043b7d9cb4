"""One port of a NIC or switch: two queues, a budget of bytes in every slot, and whatever is wrong with it."""

from collections import deque
from typing import NamedTuple

from weft.netsim.model.faults import LOSS_ONE, SLOW_ONE, LinkFaultChange
from weft.netsim.model.network import QueueLimits, grants
from weft.netsim.model.switching import MARK_ONE
from weft.netsim.reference.packets import SimPacket

QUEUED, TRIMMED, DROPPED = 0, 1, 2
"""What became of a packet that wanted into a queue."""


class PortHop(NamedTuple):
    """Where on a path a port stands."""

    stage: int
    """Its place on the longest path."""
    last_hop: bool
    """Whether it leads into a NIC."""
    header: int
    """Bytes that a trimmed packet keeps."""
    full: int
    """Bytes of the largest frame."""


class Port:
    """The sending side of a link: control packets first, data packets after them, both first in first out."""

    def __init__(self, number: int, rate_bps: int, delay_ps: int, limits: QueueLimits, hop: PortHop) -> None:
        self.number = number
        self.full_rate_bps = self.rate_bps = rate_bps
        self.delay_ps = delay_ps
        self.full_limits = self.limits = limits
        self.stage, self.last_hop, self.header, self.full = hop
        self.data: deque[SimPacket] = deque()
        self.control: deque[SimPacket] = deque()
        self.data_bytes = self.control_bytes = 0
        self.credit = self.marks = 0
        self.credited = -1
        """The last slot whose grant is in `credit`."""
        self.granted = 0
        """Bytes granted up to the end of that slot."""
        self.faults: dict[int, LinkFaultChange] = {}
        self.loses_all = False
        self.loss = 0
        self.arrives_ps = -1
        """When the last packet that it sent arrives."""
        self.paused = False
        """Whether it may start no data packet; one that is down loses them all the same."""

    def accept(self, packet: SimPacket, trimming: bool) -> int:
        """Queue a packet, or trim it, or refuse it."""
        if not packet.control:
            if self.data_bytes + packet.size <= self.limits.data:
                self.data.append(packet)
                self.data_bytes += packet.size
                return QUEUED
            if not trimming:
                return DROPPED
            packet.control, packet.trimmed, packet.size = 1, 2 if self.last_hop else 1, self.header
            fate = TRIMMED
        else:
            fate = QUEUED
        if self.control_bytes + packet.size > self.limits.control:
            return DROPPED
        self.control.append(packet)
        self.control_bytes += packet.size
        return fate

    def begin(self, slot: int, slot_ps: int) -> None:
        """Add the grant of this slot; a port that had nothing to send keeps its debt and saves nothing."""
        if self.credited < slot - 1:
            before = grants(self.rate_bps, slot_ps, slot - 1)
            self.credit = min(0, self.credit + before - self.granted)
            self.granted = before
        granted = grants(self.rate_bps, slot_ps, slot)
        self.credit += granted - self.granted
        self.granted = granted
        self.credited = slot

    def take(self) -> SimPacket | None:
        """Take out the next packet, or nothing; marks it by what stays behind it.

        A packet may start while the port has credit left, and then all its bytes are owed.
        """
        if self.control:
            packet = self.control.popleft()
            self.control_bytes -= packet.size
        elif self.data and (not self.paused or self.loses_all):
            packet = self.data.popleft()
            self.data_bytes -= packet.size
            if 0 <= self.limits.ecn_low < self.data_bytes and self._marks(packet):
                packet.marked = 1
                self.marks += 1
        else:
            self.credit = min(0, self.credit)
            return None
        self.credit -= packet.size
        return packet

    def _marks(self, packet: SimPacket) -> bool:
        """Decide on a mark: the chance grows evenly between the two limits; the packet's key is the random draw."""
        low, high = self.limits.ecn_low, self.limits.ecn_high
        if self.data_bytes >= high:
            return True
        return (packet.key & (MARK_ONE - 1)) * (high - low) < (self.data_bytes - low) * self.limits.ecn_most

    def change(self, change: LinkFaultChange, slot: int, slot_ps: int) -> None:
        """Let a fault begin or end here before `slot`; several may be in force."""
        key = change.fault
        if change.begins:
            self.faults[key] = change
        else:
            self.faults.pop(key, None)
        effects = self.faults.values()
        self.loses_all = any(each.effect in ("down", "swallow") for each in effects)
        keep = LOSS_ONE
        slow = SLOW_ONE
        for each in effects:
            if each.effect == "loss":
                keep = keep * (LOSS_ONE - each.amount) // LOSS_ONE
            elif each.effect == "slow":
                slow = slow * each.amount // SLOW_ONE
        self.loss = LOSS_ONE - keep
        self.limits = self.full_limits.scaled(slow, SLOW_ONE, self.full)
        self._set_rate(max(1, self.full_rate_bps * slow // SLOW_ONE), slot, slot_ps)

    def _set_rate(self, rate_bps: int, slot: int, slot_ps: int) -> None:
        """Change the rate from `slot` on; what was granted before stays."""
        if rate_bps == self.rate_bps:
            return
        if self.credited < slot - 1:
            self.credit = min(0, self.credit + grants(self.rate_bps, slot_ps, slot - 1) - self.granted)
        self.rate_bps = rate_bps
        self.granted = grants(rate_bps, slot_ps, slot - 1)
        self.credited = slot - 1

    def is_down(self) -> bool:
        """Return whether the link is seen to be down from here: a black hole is not."""
        return any(each.effect == "down" for each in self.faults.values())
