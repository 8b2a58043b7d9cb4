"""When the halves of NICs act by themselves, and which of them may have data to send: rules below those of `hosts`."""

from typing import Any

from weft.core.compile.rules import rule
from weft.mrc.columns import NEVER
from weft.mrc.rules.control import next_deadline
from weft.mrc.rules.numbers import lowest_bit
from weft.mrc.rules.reverse import RECENT_ROUND_TRIPS
from weft.netsim.host.host_state import AT_NIC, DUE, SEEN_AS, WORD_MASK, WORD_SHIFT


@rule
def opposite(h: Any, i: int) -> int:
    """Return the pair that goes the other way over the same queue pair, whose sending half is this one's too, or -1."""
    seen_as = h.each[2 * i + 1, SEEN_AS]
    return -1 if seen_as & 1 else seen_as >> 1


@rule
def set_deadline(h: Any, half: int) -> None:
    """Work out when a half has something to do by itself; what is kept may become too early, never too late."""
    i = half >> 1
    if half & 1 == 0:
        due_ps = next_deadline(h.s, i)
    else:
        # Of a queue pair that carries data both ways, the sending half looks after itself.
        due_ps = next_deadline(h.b, i) if opposite(h, i) < 0 else NEVER
        q = h.r.qp[i]
        recent_ps = q["heard_ps"] + RECENT_ROUND_TRIPS * h.b.params[0]["base_rtt_ps"]
        if q["heard_ps"] >= 0 and q["reverse_probe_ps"] <= recent_ps:
            due_ps = min(due_ps, q["reverse_probe_ps"])
    h.each[half, DUE] = due_ps
    nic = h.each[half, AT_NIC]
    h.due[nic] = min(h.due[nic], due_ps)


@rule
def keep_deadline(h: Any, i: int, now_ps: int) -> None:
    """Leave the deadline of a sending half that was just active, unless it may be too late.

    A deadline may be early: nothing is due then, and the next one is worked out. What a packet sent or acknowledged now
    makes due is at least this far away.
    """
    params = h.s.params[0]
    if h.each[2 * i, DUE] > now_ps + min(params["probe_after_ps"], params["timeout_ps"]):
        set_deadline(h, 2 * i)


@rule
def wake(h: Any, half: int) -> None:
    """Note that a sending half may have data to send."""
    if half & 1:
        return
    nic = h.each[half, AT_NIC]
    place = h.place[half]
    h.ready[h.first_word[nic] + (place >> WORD_SHIFT)] |= 1 << (place & WORD_MASK)
    h.awake[nic] = 1


@rule
def next_ready(h: Any, nic: int, at: int) -> int:
    """Return the place of the first half from `at` on, in a circle, that may have data to send, or -1."""
    first = h.first_word[nic]
    words = h.first_word[nic + 1] - first
    word = at >> WORD_SHIFT
    bits = h.ready[first + word] >> (at & WORD_MASK) << (at & WORD_MASK)
    for _ in range(words + 1):
        if bits:
            return (word << WORD_SHIFT) + lowest_bit(bits)
        word = word + 1 if word + 1 < words else 0
        bits = h.ready[first + word]
    return -1
