"""Which way the answer to a packet takes: MRC's receivers prove one, others return on the EV of what they answer.

MRC keeps one EV for each plane that is known to work (`weft.mrc.rules.reverse`). UET has no such thing: in uet-htsim an
acknowledgement carries the path of the data packet that caused it. REPS, which is built on it, and random spraying do
the same here.
"""

from typing import Any

from weft.core.compile.rules import rule
from weft.mrc.columns import NACK
from weft.mrc.rules.evs import usable
from weft.mrc.rules.reverse import reverse_ev
from weft.netsim.host.host_state import ECHOES, PER_PLANE
from weft.netsim.host.timers import opposite


@rule
def way_back(h: Any, head: Any, i: int, half: int, plane: int) -> int:
    """Return the EV bits of a path for an answer: one that is known to work, from `plane` on; or -1."""
    if half == 1:
        route = _echoed(h, head, i) if h.spray[ECHOES] else -1
        if route >= 0:
            return route
        k = opposite(h, i)
        if k >= 0:
            e = reverse_ev(h.s, k, h.r, i)
            return h.s.evs[k, e]["value"] if e >= 0 else -1
        e = reverse_ev(h.b, i, h.r, i)
        return h.b.evs[i, e]["value"] if e >= 0 else -1
    for step in range(h.s.params[0]["planes"]):
        other = (plane + step) % h.s.params[0]["planes"]
        e = h.s.planes[i, other]["reverse"] if usable(h.s, i, other, -1) else -1
        if e >= 0:
            return h.s.evs[i, e]["value"]
    return -1


@rule
def _echoed(h: Any, head: Any, i: int) -> int:
    """Return the EV bits of the packet that is answered, or -1 where its plane cannot be used to send."""
    value = head["value"] if head["kind"] == NACK else h.r.qp[i]["came_ev"]
    q = h.b.qp[i]
    up = q["local_up"] & q["peer_up"]
    whole = up == (1 << h.b.params[0]["planes"]) - 1
    return value if value >= 0 and (whole or up >> (value // h.spray[PER_PLANE]) & 1) else -1
