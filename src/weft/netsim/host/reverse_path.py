"""Which way the answer to a packet takes: MRC's receivers prove one, others return on the EV of what they answer.

MRC keeps one EV for each plane that is known to work (`weft.mrc.rules.reverse`). UET has no such thing: in uet-htsim an
acknowledgement carries the path of the data packet that caused it. REPS, which is built on it, and random spraying do
the same here.
"""

from weft.core.compile.rules import rule
from weft.mrc.columns import NACK
from weft.mrc.rules.evs import usable
from weft.mrc.rules.reverse import reverse_ev
from weft.netsim.host.host_state import ECHOES, PER_PLANE, HostState, Record
from weft.netsim.host.timers import opposite


@rule
def reverse_route(hosts: HostState, head: Record, half: int, plane: int) -> int:
    """Return the EV bits of a path for an answer: one that is known to work, from `plane` on; or -1."""
    pair = half >> 1
    if half & 1:
        route = _echoed(hosts, head, pair) if hosts.spray[ECHOES] else -1
        if route >= 0:
            return route
        k = opposite(hosts, pair)
        if k >= 0:
            ev = reverse_ev(hosts.s, k, hosts.r, pair)
            return hosts.s.evs[k, ev]["value"] if ev >= 0 else -1
        # A pair that carries data one way only has a sending half of its own for answers.
        ev = reverse_ev(hosts.b, pair, hosts.r, pair)
        return hosts.b.evs[pair, ev]["value"] if ev >= 0 else -1
    for step in range(hosts.s.params[0]["planes"]):
        other = (plane + step) % hosts.s.params[0]["planes"]
        ev = hosts.s.planes[pair, other]["reverse"] if usable(hosts.s, pair, other, -1) else -1
        if ev >= 0:
            return hosts.s.evs[pair, ev]["value"]
    return -1


@rule
def _echoed(hosts: HostState, head: Record, pair: int) -> int:
    """Return the EV bits of the packet that is answered, or -1 where its plane cannot be used to send."""
    value = head["value"] if head["kind"] == NACK else hosts.r.qp[pair]["came_ev"]
    qp = hosts.b.qp[pair]
    up = qp["local_up"] & qp["peer_up"]
    # Where every plane is up, the division that finds the EV's plane is saved.
    whole = up == (1 << hosts.b.params[0]["planes"]) - 1
    return value if value >= 0 and (whole or up >> (value // hosts.spray[PER_PLANE]) & 1) else -1
