"""What a NIC will look at soon, named a little before, so that memory has the time to bring it; changes nothing."""

from weft.core.compile.intrinsics import prefetch
from weft.core.compile.rules import replaceable, rule
from weft.mrc.columns import LOW32
from weft.mrc.rules.numbers import lowest_bit
from weft.netsim.host.host_state import DRAW, RECYCLE, HostState
from weft.netsim.host.timers import next_ready

_LINE = 64
_HALVES = 4
"""Most halves of a NIC that are named; those of one with more would be named too long before they are looked at."""
_SENT_BYTES, _HEARD_BYTES = 448, 192
"""How much of the rows of senders and receivers every packet looks at."""
_UP_BYTE = 128
"""Where in a sender's row the planes that are up stand, and when it last heard anything."""
_WORD_BITS, _WORD_SHIFT, _WORD_MASK = 32, 5, 31
_ACKNOWLEDGED = 12
"""Packets of a window, from the oldest on, that are named at the beginning of a round."""
_LINE_PACKETS, _LINE_EVS = 2, 32
"""Packets of a window, and places of a rotation, in a line of the cache."""


@replaceable("no_reply in RoCE, which has other columns")
@rule
def prefetch_reply(hosts: HostState, pair: int, psn: int) -> None:
    """Say that a SACK caused by packet `psn` of a pair is about to be taken in, and of packets before it."""
    mask = hosts.s.params[0]["slot_mask"]
    # Two packets share a line of the cache: the one before is on the line that a cumulative SACK goes back to.
    prefetch(hosts.s.packets, pair, psn & mask)
    prefetch(hosts.s.packets, pair, (psn - _LINE_PACKETS) & mask)
    prefetch(hosts.s.packets, pair, (psn + 1) & mask)


@replaceable("no_reply in RoCE, which has other columns")
@rule
def prefetch_path(hosts: HostState, pair: int, psn: int) -> None:
    """Say the same a little later, when the packet itself is at hand, of the EV that it took."""
    ev = hosts.s.packets[pair, psn & hosts.s.params[0]["slot_mask"]]["ev"]
    if ev >= 0:
        prefetch(hosts.s.evs, pair, ev)


@replaceable("none_acked in RoCE, which has other columns")
@rule
def prefetch_acked(hosts: HostState, pair: int, base: int, bits: int) -> None:
    """Say which packets of the 64 from `base` on a SACK with these bits will acknowledge."""
    mask = hosts.s.params[0]["slot_mask"]
    # `arrived` keeps words of 32 bits, the SACK 64 from anywhere: they are cut along the words.
    shift = base & _WORD_MASK
    start = base - shift
    low = bits & LOW32
    high = (bits >> _WORD_BITS) & LOW32
    _prefetch_word(hosts, pair, start & mask, (low << shift) & LOW32)
    middle = ((low >> (_WORD_BITS - shift)) | (high << shift)) & LOW32
    _prefetch_word(hosts, pair, (start + _WORD_BITS) & mask, middle)


@rule
def _prefetch_word(hosts: HostState, pair: int, start: int, bits: int) -> None:
    """Name the packets of an aligned word of 32 that have not been acknowledged yet."""
    fresh = bits & ~hosts.s.arrived[pair, start >> _WORD_SHIFT] & LOW32
    # Bits that are set in `arrived` were acknowledged before; their packets are not looked at again.
    while fresh:
        prefetch(hosts.s.packets, pair, start + lowest_bit(fresh))
        fresh &= fresh - 1


@replaceable("no_nic in RoCE, which has other columns")
@rule
def prefetch_nic(hosts: HostState, nic: int) -> None:
    """Say that a NIC, of which nothing has been looked at for long, is about to act."""
    first = hosts.nics.first[nic]
    for k in range(first, min(hosts.nics.first[nic + 1], first + _HALVES)):
        half = hosts.nics.of_nic[k]
        pair = half >> 1
        prefetch(hosts.nics.each, half, 0)
        if half & 1:
            for byte in range(0, _HEARD_BYTES, _LINE):
                prefetch(hosts.r.qp, pair, byte)
            prefetch(hosts.b.qp, pair, _UP_BYTE)
            prefetch(hosts.b.planes, pair, 0)
        else:
            for byte in range(0, _SENT_BYTES, _LINE):
                prefetch(hosts.s.qp, pair, byte)
            for place in range(0, hosts.s.params[0]["active"], _LINE_EVS):
                prefetch(hosts.s.rotation, pair, place)
            prefetch(hosts.s.messages, pair, 0)


@replaceable("no_nic in RoCE, which has other columns")
@rule
def prefetch_windows(hosts: HostState, nic: int) -> None:
    """Say the same a little later, when those rows are at hand, of where in its windows it will look."""
    first = hosts.nics.first[nic]
    for k in range(first, min(hosts.nics.first[nic + 1], first + _HALVES)):
        half = hosts.nics.of_nic[k]
        pair = half >> 1
        if half & 1:
            prefetch(
                hosts.r.arrived, pair, (hosts.r.qp[pair]["expected"] & hosts.r.params[0]["slot_mask"]) >> _WORD_SHIFT
            )
            prefetch(hosts.b.evs, pair, max(hosts.b.planes[pair, 0]["reverse"], 0))
        else:
            mask = hosts.s.params[0]["slot_mask"]
            una = hosts.s.qp[pair]["una"]
            prefetch(hosts.s.arrived, pair, (una & mask) >> _WORD_SHIFT)
            for ahead in range(0, _ACKNOWLEDGED, _LINE_PACKETS):
                prefetch(hosts.s.packets, pair, (una + ahead) & mask)
    if hosts.nics.awake[nic]:
        prefetch_data(hosts, nic)


@replaceable("no_nic in RoCE, which has other columns")
@rule
def prefetch_data(hosts: HostState, nic: int) -> None:
    """Say that a NIC is about to send: on which EV, if nothing comes between, and from which place of the window."""
    place = next_ready(hosts.nics, nic, hosts.nics.turn[nic])
    if place < 0:
        return
    pair = hosts.nics.of_nic[hosts.nics.first[nic] + place] >> 1
    qp = hosts.s.qp[pair]
    prefetch(hosts.s.packets, pair, qp["next"] & hosts.s.params[0]["slot_mask"])
    if hosts.spray[0] == RECYCLE and hosts.ring_at[pair, 1] > 0:
        prefetch(hosts.s.evs, pair, hosts.ring[pair, hosts.ring_at[pair, 0]])
        return
    # The same arithmetic as the draw itself, without drawing: a wrong guess costs one useless line.
    first = 0 if hosts.spray[0] == DRAW or qp["cursor"] >= qp["active"] else qp["cursor"]
    prefetch(hosts.s.evs, pair, hosts.s.rotation[pair, first + ((qp["drawn"] * (qp["active"] - first)) >> _WORD_BITS)])


@rule
def no_reply(hosts: HostState, pair: int, psn: int) -> None:
    """Do nothing: for transports that keep no packets."""


@rule
def none_acked(hosts: HostState, pair: int, base: int, bits: int) -> None:
    """Do nothing, too."""


@rule
def no_nic(hosts: HostState, nic: int) -> None:
    """Do nothing: for transports whose columns are others."""
