"""Which way the answer to a packet takes: MRC's receivers prove one, others return on the EV of what they answer.

MRC keeps one EV for each plane that is known to work (`weft.mrc.rules.reverse`). UET has no such thing: in uet-htsim an
acknowledgement carries the path of the data packet that caused it. REPS, which is built on it, and random spraying do
the same here.
"""

from weft.core.compile.rules import rule
from weft.mrc.columns import NACK
from weft.mrc.rules.endpoint import reply_ev
from weft.netsim.host.ends import destination_end, opposite, shared_end
from weft.netsim.host.host_state import ECHOES, PER_PLANE, HostState, Record


@rule
def reply_route(hosts: HostState, head: Record, pair: int, time_ps: int) -> int:
    """Return the EV bits of a path for a SACK or NACK: one that is known to work; or -1."""
    route = echoed(hosts, head, pair) if hosts.spray[ECHOES] else -1
    if route >= 0:
        return route
    k = opposite(hosts, pair)
    if k >= 0:
        ev = reply_ev(shared_end(hosts, pair, k), time_ps)
        return hosts.s.evs[k, ev]["value"] if ev >= 0 else -1
    # A pair that carries data one way only has a sending half of its own for answers.
    ev = reply_ev(destination_end(hosts, pair), time_ps)
    return hosts.b.evs[pair, ev]["value"] if ev >= 0 else -1


@rule
def echoed(hosts: HostState, head: Record, pair: int) -> int:
    """Return the EV bits of the packet that is answered, or -1 where its plane cannot be used to send."""
    value = head["value"] if head["kind"] == NACK else hosts.r.qp[pair]["came_ev"]
    qp = hosts.b.qp[pair]
    up = qp["local_up"] & qp["peer_up"]
    # Where every plane is up, the division that finds the EV's plane is saved.
    whole = up == (1 << hosts.b.params[0]["planes"]) - 1
    return value if value >= 0 and (whole or up >> (value // hosts.spray[PER_PLANE]) & 1) else -1
