"""What a NIC will look at soon, named a little before, so that memory has the time to bring it; changes nothing."""

from typing import Any

from weft.core.compile.intrinsics import prefetch
from weft.core.compile.rules import replaceable, rule
from weft.mrc.columns import LOW32
from weft.mrc.rules.numbers import lowest_bit
from weft.netsim.host.host_state import DRAW, RECYCLE
from weft.netsim.host.timers import next_ready

_LINE = 64
_HALVES = 4
"""Halves of a NIC that are named; those of one with more would be named too long before they are looked at."""
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
def prefetch_reply(h: Any, pair: int, psn: int) -> None:
    """Say that a SACK caused by packet `psn` of a pair is about to be taken in, and of packets before it."""
    mask = h.s.params[0]["slot_mask"]
    prefetch(h.s.packets, pair, psn & mask)
    prefetch(h.s.packets, pair, (psn - _LINE_PACKETS) & mask)
    prefetch(h.s.packets, pair, (psn + 1) & mask)


@replaceable("no_reply in RoCE, which has other columns")
@rule
def prefetch_path(h: Any, pair: int, psn: int) -> None:
    """Say the same a little later, when the packet itself is at hand, of the EV that it took."""
    e = h.s.packets[pair, psn & h.s.params[0]["slot_mask"]]["ev"]
    if e >= 0:
        prefetch(h.s.evs, pair, e)


@replaceable("none_acked in RoCE, which has other columns")
@rule
def prefetch_acked(h: Any, pair: int, base: int, bits: int) -> None:
    """Say which packets of the 64 from `base` on a SACK with these bits will acknowledge."""
    mask = h.s.params[0]["slot_mask"]
    shift = base & _WORD_MASK
    start = base - shift
    low = bits & LOW32
    high = (bits >> _WORD_BITS) & LOW32
    _prefetch_word(h, pair, start & mask, (low << shift) & LOW32)
    middle = ((low >> (_WORD_BITS - shift)) | (high << shift)) & LOW32
    _prefetch_word(h, pair, (start + _WORD_BITS) & mask, middle)


@rule
def _prefetch_word(h: Any, pair: int, start: int, bits: int) -> None:
    """Name the packets of an aligned word of 32 that have not been acknowledged yet."""
    fresh = bits & ~h.s.arrived[pair, start >> _WORD_SHIFT] & LOW32
    while fresh:
        prefetch(h.s.packets, pair, start + lowest_bit(fresh))
        fresh &= fresh - 1


@replaceable("no_nic in RoCE, which has other columns")
@rule
def prefetch_nic(h: Any, nic: int) -> None:
    """Say that a NIC, of which nothing has been looked at for long, is about to act."""
    first = h.first[nic]
    for k in range(first, min(h.first[nic + 1], first + _HALVES)):
        half = h.of_nic[k]
        i = half >> 1
        prefetch(h.each, half, 0)
        if half & 1:
            for byte in range(0, _HEARD_BYTES, _LINE):
                prefetch(h.r.qp, i, byte)
            prefetch(h.b.qp, i, _UP_BYTE)
            prefetch(h.b.planes, i, 0)
        else:
            for byte in range(0, _SENT_BYTES, _LINE):
                prefetch(h.s.qp, i, byte)
            for place in range(0, h.s.params[0]["active"], _LINE_EVS):
                prefetch(h.s.rotation, i, place)
            prefetch(h.s.messages, i, 0)


@replaceable("no_nic in RoCE, which has other columns")
@rule
def prefetch_windows(h: Any, nic: int) -> None:
    """Say the same a little later, when those rows are at hand, of where in its windows it will look."""
    first = h.first[nic]
    for k in range(first, min(h.first[nic + 1], first + _HALVES)):
        half = h.of_nic[k]
        i = half >> 1
        if half & 1:
            prefetch(h.r.arrived, i, (h.r.qp[i]["expected"] & h.r.params[0]["slot_mask"]) >> _WORD_SHIFT)
            prefetch(h.b.evs, i, max(h.b.planes[i, 0]["reverse"], 0))
        else:
            mask = h.s.params[0]["slot_mask"]
            una = h.s.qp[i]["una"]
            prefetch(h.s.arrived, i, (una & mask) >> _WORD_SHIFT)
            for ahead in range(0, _ACKNOWLEDGED, _LINE_PACKETS):
                prefetch(h.s.packets, i, (una + ahead) & mask)
    if h.awake[nic]:
        prefetch_data(h, nic)


@replaceable("no_nic in RoCE, which has other columns")
@rule
def prefetch_data(h: Any, nic: int) -> None:
    """Say that a NIC is about to send: on which EV, if nothing comes between, and from which place of the window."""
    place = next_ready(h, nic, h.turn[nic])
    if place < 0:
        return
    i = h.of_nic[h.first[nic] + place] >> 1
    q = h.s.qp[i]
    prefetch(h.s.packets, i, q["next"] & h.s.params[0]["slot_mask"])
    if h.spray[0] == RECYCLE and h.ring_at[i, 1] > 0:
        prefetch(h.s.evs, i, h.ring[i, h.ring_at[i, 0]])
        return
    first = 0 if h.spray[0] == DRAW or q["cursor"] >= q["active"] else q["cursor"]
    prefetch(h.s.evs, i, h.s.rotation[i, first + ((q["drawn"] * (q["active"] - first)) >> _WORD_BITS)])


@rule
def no_reply(h: Any, pair: int, psn: int) -> None:
    """Do nothing: for transports that keep no packets."""


@rule
def none_acked(h: Any, pair: int, base: int, bits: int) -> None:
    """Do nothing, too."""


@rule
def no_nic(h: Any, nic: int) -> None:
    """Do nothing: for transports whose columns are others."""
